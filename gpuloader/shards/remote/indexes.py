"""The index of a shard on a store, from what is on the store and from what was downloaded of it.

The store may have one beside the shard, `URL.gpuidx`, made where the shard was written. It is bound to the shard by
size alone: times are not kept when files are copied to a store. So it is taken on trust until the shard is downloaded,
as is one that was made by range requests: what was downloaded is scanned, and must be what the loader's index says.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from gpuloader.errors import IndexFileError
from gpuloader.shards.index import ShardIndex
from gpuloader.shards.index_files import INDEX_SUFFIX
from gpuloader.shards.remote.store import Entry
from gpuloader.shards.remote.waiting import Wanted
from gpuloader.shards.scan import scan_bytes

_REQUEST_BYTES = 64 << 10
_FIRST_BYTES = 1 << 20  # after so much it is seen whether reading parts pays
_SPARED = 16  # it does where one in so many bytes has to be read
MOST_GIVEN_BYTES = 64 << 20  # of an index on a store: some 600,000 samples
NO_TIME = 0
"""The time of shards in the cache, in ns: their names say which version they are."""

_log = logging.getLogger("gpuloader")


def load_index(path: Path, entry: Entry) -> ShardIndex | None:
    """The index in a file of the cache; None where there is no right one."""
    try:
        return _check_fits(ShardIndex.read(path, entry.version.size_bytes), str(path), entry)
    except FileNotFoundError:
        return None
    except (IndexFileError, OSError) as error:
        _log.info("%s; it is passed over", error)
        return None


def save_index(index: ShardIndex, path: Path, entry: Entry) -> None:
    """Keeps an index in a file of the cache."""
    try:
        index.save(path)
    except OSError as error:
        _log.warning("the index of %s could not be kept, it will be made again next time: %s", entry.shard, error)


def index_beside(entry: Entry, wanted: Wanted) -> ShardIndex | None:
    """The index beside the shard on the store; None where there is no right one."""
    beside = entry.shard.beside(INDEX_SUFFIX)
    data = beside.read_small(MOST_GIVEN_BYTES, wanted)
    if data is None:
        return None
    try:
        return _check_fits(ShardIndex.parse(data, str(beside)), str(beside), entry)
    except IndexFileError as error:
        _log.info("%s; it is passed over", error)
        return None


def _check_fits(index: ShardIndex, name: str, entry: Entry) -> ShardIndex:
    if index.shard_bytes != entry.version.size_bytes:
        raise IndexFileError(
            f"{name} is stale: {entry.shard} has {entry.version.size_bytes} bytes, the index was made for "
            f"{index.shard_bytes}"
        )
    return replace(index, shard_mtime_ns=NO_TIME)


def scan_parts(entry: Entry, wanted: Wanted) -> ShardIndex | None:
    """What a scan by range requests finds; None where too much would have to be read, or the store gives no parts."""
    if not entry.version.ranges or entry.version.size_bytes <= _FIRST_BYTES:
        return None
    parts = _Parts(entry, wanted)
    try:
        return scan_bytes(parts.read, entry.version.size_bytes, NO_TIME, str(entry.shard))
    except _DoesNotPayError:
        return None


class _DoesNotPayError(Exception):
    """Downloading the shard is better than reading parts of it."""


class _Parts:
    """Reads forward, some more than is asked for."""

    def __init__(self, entry: Entry, wanted: Wanted) -> None:
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


def scan_descriptor(fd: int, entry: Entry) -> ShardIndex:
    """What a scan of the downloaded shard finds.

    Raises:
        TarError: it is no plain tar.
    """
    return scan_bytes(partial(os.pread, fd), os.fstat(fd).st_size, NO_TIME, str(entry.shard))
