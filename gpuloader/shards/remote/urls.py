"""URLs of stores: which are read, and how they are shown."""

from __future__ import annotations

import re

from gpuloader.errors import ConfigError

PROTOCOLS = ("s3", "gs", "gcs", "http", "https", "hf")


def protocol_of(url: str) -> str:
    """As fsspec reads it: that before the first :: or ://; "file" where there is none."""
    first, *rest = re.split("::|://", url, maxsplit=1)
    return first if rest else "file"


def remote_protocol(source: str) -> str | None:
    """The protocol of a URL of a store, None for a local path.

    Raises:
        ConfigError: a URL that is not read.
    """
    protocol = protocol_of(source)
    if protocol == "file":
        return None
    if protocol not in PROTOCOLS or "::" in source:
        allowed = ", ".join(f"{each}://" for each in PROTOCOLS)
        raise ConfigError(
            f"{without_secrets(source)}: {protocol}:// is not read: allowed are local paths and {allowed}"
        )
    return protocol


def without_secrets(text: str) -> str:
    """A text in which URLs have no user, password and query. On stores that can list, a ? may stand for a letter."""
    text = re.sub(r"(?<=://)[^/\s]*@", "", text)
    return re.sub(r"(https?://[^\s'\"?]*)\?[^\s'\"]*|\?[^\s'\"]*=[^\s'\"]*", r"\1", text)
