"""Classifies the errors of the stores' libraries, which all differ."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from gpuloader.base import fsspec as internals
from gpuloader.base.text import shorten
from gpuloader.shards.remote.urls import without_secrets

_LONGEST_PAUSE_SECONDS = 120.0  # a store may not ask for more
_MOST_CHARACTERS = 1000
_FORBIDDEN = (401, 403)
_MISSING = (404, 410)
_NO_SUCH_RANGE = 416
_WORTH_A_RETRY = (408, 425, 429)
# For these errors, another try does not help.
_FINAL = (PermissionError, IsADirectoryError, NotImplementedError, ValueError, TypeError)
_FINAL_OF_PACKAGES = (("aiohttp", "NonHttpUrlClientError"), ("botocore.exceptions", "NoCredentialsError"))


def without_frames(error: Exception) -> Exception:
    """Returns the error without the frames in which it was raised, so that it does not hold them."""
    return internals.what_happened(error).with_traceback(None)


def is_missing(error: Exception) -> bool:
    """Returns whether the store has no such object."""
    return isinstance(error, FileNotFoundError) or status_of(error) in _MISSING


def is_forbidden(error: Exception) -> bool:
    """Returns whether the store refuses access."""
    return isinstance(error, PermissionError) or status_of(error) in _FORBIDDEN


def is_beyond_the_end(error: Exception) -> bool:
    """Returns whether the object ends before the requested bytes."""
    return status_of(error) == _NO_SUCH_RANGE


def is_final(error: Exception) -> bool:
    """Returns whether another try would not help."""
    status = status_of(error)
    # A package that is not imported raised nothing.
    of_packages = tuple(getattr(sys.modules[name], kind) for name, kind in _FINAL_OF_PACKAGES if name in sys.modules)
    if isinstance(error, (*_FINAL, *of_packages)):
        return True
    return status is not None and 400 <= status < 500 and status not in _WORTH_A_RETRY


def explain(error: Exception, url: str) -> str:
    """Returns the error's message in one line, without secrets, and shortened: a store may send a page."""
    status, message = status_of(error), getattr(error, "message", None)
    text = f"HTTP {status} {message or error}" if status is not None else f"{type(error).__name__}: {error}"
    return shorten(" ".join(without_secrets(text.replace(url, without_secrets(url))).split()), _MOST_CHARACTERS)


def status_of(error: Exception) -> int | None:
    """Returns the HTTP status, from wherever the store's library keeps it; None if there is none."""
    for holder in _holders(error):
        named = (getattr(holder, name, None) for name in ("status", "status_code", "code"))
        if status := next((each for each in named if isinstance(each, int)), 0):
            return status
        if found := _boto(holder).get("HTTPStatusCode"):
            return int(found)
    return None


def requested_pause_seconds(error: Exception) -> float:
    """Returns the seconds that a store asks for with Retry-After, up to a limit."""
    found = (getattr(holder, "headers", None) or _boto(holder).get("HTTPHeaders") for holder in _holders(error))
    headers = {str(name).lower(): value for each in found for name, value in (each or {}).items()}
    text = str(headers.get("retry-after", "0")).strip()
    if text.isascii() and text.isdigit():
        seconds = float(text[:9])
    else:
        try:
            until = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return 0.0
        seconds = (until.replace(tzinfo=until.tzinfo or timezone.utc) - datetime.now(timezone.utc)).total_seconds()
    return max(0.0, min(seconds, _LONGEST_PAUSE_SECONDS))


def _holders(error: Exception) -> list[Any]:
    """Yields the objects that may hold an HTTP response; s3fs raises its own errors, caused by errors of boto."""
    return [error, *(getattr(each, "response", None) for each in (error, error.__cause__))]


def _boto(holder: Any) -> Mapping[str, Any]:  # noqa: ANN401
    return holder.get("ResponseMetadata", {}) if isinstance(holder, dict) else {}
