"""Parses the URLs of stores, and removes secrets from them."""

from __future__ import annotations

import re

from gpuloader.errors import ConfigError

_WORD = re.compile(r"[^\s'\"]+")
_HTTP = re.compile("https?://")

PROTOCOLS = ("s3", "gs", "gcs", "http", "https", "hf")


def protocol_of(url: str) -> str:
    """Returns the protocol as fsspec reads it: the part before the first :: or ://; "file" if there is none."""
    first, *rest = re.split("::|://", url, maxsplit=1)
    return first if rest else "file"


def remote_protocol(source: str) -> str | None:
    """Returns the protocol of a store's URL; None for a local path.

    Raises:
        ConfigError: the URL is not supported.
    """
    protocol = protocol_of(source)
    if protocol == "file":
        return None
    if protocol not in PROTOCOLS or "::" in source:
        allowed = ", ".join(f"{each}://" for each in PROTOCOLS)
        raise ConfigError(
            f"{without_secrets(source)}: {protocol}:// is not supported: allowed are local paths and {allowed}"
        )
    return protocol


def without_secrets(text: str) -> str:
    """Removes user, password and query from URLs in a text. On stores that can list, ? may be a wildcard."""
    return _WORD.sub(lambda word: _without_query(word[0]), re.sub(r"(?<=://)[^/\s]*@", "", text))


def _without_query(word: str) -> str:
    """Removes the query from a URL, in linear time: the text may come from a store."""
    begin = word.find("?")
    if begin >= 0 and "=" not in word[begin:]:
        url = _HTTP.search(word)
        begin = -1 if url is None else word.find("?", url.end())
    return word if begin < 0 else word[:begin]
