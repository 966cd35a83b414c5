"""The index of a shard on a store: from a file beside it, from range requests, or from the downloaded shard.

The store may have one beside the shard, `URL.gpuidx`, made where the shard was written. Only its size must match the
shard's, because copying files to a store does not keep their times. So this index, like one made by range requests, is
trusted only until the shard is downloaded: then the shard is scanned, and must match the loader's index.
"""

from __future__ import annotations

import logging
import os
from functools import partial
from pathlib import Path

from gpuloader.errors import IndexFileError
from gpuloader.shards.index import Index
from gpuloader.shards.index_files import INDEX_SUFFIX
from gpuloader.shards.remote.cancellation import WantedCallback
from gpuloader.shards.remote.store import Entry
from gpuloader.shards.scan import scan_bytes

_REQUEST_BYTES = 64 << 10
_FIRST_BYTES = 1 << 20  # after this many, it checks whether reading parts is worthwhile
_SPARED = 16  # it is worthwhile if at most one in this many bytes has to be read
MOST_GIVEN_BYTES = 64 << 20  # of an index on a store: about 600,000 samples
NO_TIME = 0
"""The time of shards in the cache, in ns; their names identify the version."""

_log = logging.getLogger("gpuloader")


def load_index(path: Path, entry: Entry) -> Index | None:
    """Reads an index from a file of the cache; None if it is missing or not valid."""
    try:
        return Index.read(path, entry.version.size_bytes)
    except FileNotFoundError:
        return None
    except (IndexFileError, OSError) as error:
        _log.info("%s; the file is ignored", error)
        return None


def save_index(index: Index, path: Path, entry: Entry) -> None:
    """Writes an index to a file of the cache."""
    try:
        index.save(path)
    except OSError as error:
        _log.warning("the index of %s cannot be saved, so it will be made again next time: %s", entry.shard, error)


def index_beside(entry: Entry, wanted: WantedCallback) -> Index | None:
    """Reads the index beside the shard on the store; None if it is missing or not valid."""
    beside = entry.shard.beside(INDEX_SUFFIX)
    data = beside.read_small(MOST_GIVEN_BYTES, wanted)
    if data is None:
        return None
    try:
        return Index.parse_one(data, str(beside), entry.version.size_bytes)
    except IndexFileError as error:
        _log.info("%s; the file is ignored", error)
        return None


def scan_parts(entry: Entry, wanted: WantedCallback) -> Index | None:
    """Makes an index by range requests; None if they would read too much, or if the store does not support them."""
    if not entry.version.ranges or entry.version.size_bytes <= _FIRST_BYTES:
        return None
    parts = _BufferedReader(entry, wanted)
    try:
        return scan_bytes(parts.read, entry.version.size_bytes, NO_TIME, str(entry.shard))
    except _DoesNotPayError:
        return None


class _DoesNotPayError(Exception):
    """Raised if downloading the whole shard is cheaper than reading parts of it."""


class _BufferedReader:
    """A reader that reads ahead, to make few requests."""

    def __init__(self, entry: Entry, wanted: WantedCallback) -> None:
        self._entry = entry
        self._wanted = wanted
        self._start = 0
        self._data = b""
        self._read_bytes = 0

    def read(self, count: int, offset: int) -> bytes:
        end = min(offset + count, self._entry.version.size_bytes)
        if offset < self._start or end > self._start + len(self._data):
            self._start, self._data = offset, self._request(offset, max(end, offset + _REQUEST_BYTES))
        return self._data[offset - self._start : end - self._start]

    def _request(self, start: int, end: int) -> bytes:
        if self._read_bytes > max(_FIRST_BYTES, start // _SPARED):
            raise _DoesNotPayError
        version = self._entry.version
        data = self._entry.shard.read(version, start, min(end, version.size_bytes), self._wanted)
        if data is None:
            raise _DoesNotPayError
        self._read_bytes += len(data)
        return data


def scan_descriptor(fd: int, entry: Entry) -> Index:
    """Makes the index of a downloaded shard.

    Raises:
        TarError: it is not a plain tar.
    """
    return scan_bytes(partial(os.pread, fd), os.fstat(fd).st_size, NO_TIME, str(entry.shard))
