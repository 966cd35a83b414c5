"""Finds index files, makes missing ones, and joins the indexes of many shards.

The index of `train-0000.tar` is `train-0000.tar.gpuidx` beside it if the folder is writable, otherwise a file in the
user's cache folder, named by a hash of the shard's path. The index of a folder of files is in the user's cache folder,
or beside the folder if `gpuloader index` wrote it there. DALI's index files (`.idx`) have another format.

The index of many shards is in memory if it is small. A larger one is a file in the user's cache folder, named by the
digests of the shards' indexes, so it is never out of date; all processes of a machine map it. It is removed after 90
days without use.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TypeAlias

from gpuloader.base.progress import count_long
from gpuloader.base.regular_file import open_regular
from gpuloader.errors import ConfigError, IndexFileError
from gpuloader.shards.folder import Folder
from gpuloader.shards.index import Index, most_bytes, write_index
from gpuloader.shards.scan import scan, scan_folder
from gpuloader.shards.shared_arrays import cache_folder, open_kept

INDEX_SUFFIX = ".gpuidx"

MOST_COPIED_BYTES = 4 << 20
"""The maximum bytes of an index of many shards in the memory of each process; a larger one is mapped."""

_THREADS = 8
_log = logging.getLogger("gpuloader")

LocalShard: TypeAlias = Path | Folder


def index_file(shard: LocalShard) -> Path:
    """Returns the path to which an index of the shard is written."""
    is_elsewhere = isinstance(shard, Folder) and not _beside(shard).is_file()
    return _in_cache(shard) if is_elsewhere else _beside_if_writable(shard)


def _beside_if_writable(shard: LocalShard) -> Path:
    beside = _beside(shard)
    # Does not write into a folder without any write bit, even as root.
    writable = beside.parent.stat().st_mode & 0o222 and os.access(beside.parent, os.W_OK)
    return beside if writable else _in_cache(shard)


def keep_beside(folder: Folder) -> None:
    """Writes the index of a folder beside it, as FOLDER.gpuidx; if the place is not writable, into the cache folder.

    An index that is there and valid stays.

    Raises:
        DataError: the folder cannot be listed.
        ConfigError: the index cannot be written there.
    """
    path = _beside_if_writable(folder)
    with suppress(IndexFileError, OSError):
        _open_file(path, folder)
        return
    index = open_index(folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        index.save(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: the index of {folder} cannot be written there ({error.strerror}): remove what is at this path, "
            f"or make room"
        ) from None


def has_index(shard: LocalShard) -> bool:
    """Returns whether the index of a shard is in a valid file, beside it or in the cache folder."""
    return _find(shard) is not None


def _beside(shard: LocalShard) -> Path:
    path = shard.path.resolve() if isinstance(shard, Folder) else shard  # ".." and "." have no name
    return path.parent / f"{path.name}{INDEX_SUFFIX}"


def _in_cache(shard: LocalShard) -> Path:
    name = hashlib.blake2b(os.fsencode(os.path.realpath(str(shard))), digest_size=16).hexdigest()
    return cache_folder() / f"{name}{INDEX_SUFFIX}"


def open_index(shard: LocalShard) -> Index:
    """Opens the index of a shard from its file; if there is no valid file, scans the shard and saves the index."""
    return _open(shard).loaded()


def open_indexes(shards: Sequence[LocalShard], progress: bool = False) -> list[Index]:
    """Opens the index files of many shards, and makes missing ones in parallel; shows a progress bar if it takes long.

    It reads only the head of a file. Indexes that cannot be saved are in memory.
    """
    with ThreadPoolExecutor(min(_THREADS, len(shards))) as threads:
        found = threads.map(_find, shards)
        opened: list[Index | None] = list(count_long(found, len(shards), "opening indexes", progress))
        for number, shard in enumerate(shards):
            if isinstance(shard, Folder) and opened[number] is None:
                opened[number] = _open(shard, progress)  # in threads of its own
        missing = [number for number, index in enumerate(opened) if index is None]
        # Processes that start together share the work, because each checks for a new file before it scans.
        random.Random().shuffle(missing)
        pending = {threads.submit(_open, shards[number]): number for number in missing}
        try:
            for future in count_long(as_completed(pending), len(pending), "indexing shards", progress):
                opened[pending[future]] = future.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return [index for index in opened if index is not None]


def open_set(opened: Sequence[Index]) -> Index:
    """Joins the indexes of many shards, in order: in memory if the result is small, otherwise in a mapped file."""
    loaded = (index.loaded() for index in opened)
    if sum(index.file_bytes for index in opened) <= MOST_COPIED_BYTES:
        return Index.joined(list(loaded))
    digest = hashlib.blake2b(b"".join(index.seal for index in opened), digest_size=16).hexdigest()
    try:
        return map_set(digest, lambda file: write_index(file, opened, loaded))
    except OSError as error:
        _log.warning("each process has the index of all shards in its own memory, because it cannot be kept: %s", error)
        return Index.joined([index.loaded() for index in opened])


def map_set(digest: str, write: Callable[[IO[bytes]], None]) -> Index:
    """Maps an index of many shards in the cache folder, named by a digest, after writing it if needed."""
    return open_kept(cache_folder() / f"set-{digest}{INDEX_SUFFIX}", Index.map, write)


def _open(shard: LocalShard, progress: bool = False) -> Index:
    index = _find(shard)
    if index is None:
        made = _make(shard, progress)
        index = _find(shard) or made
    return index


def _find(shard: LocalShard) -> Index | None:
    """Opens the index file of a shard, beside it or in the cache folder; None if there is no valid file."""
    for path in (_beside(shard), _in_cache(shard)):
        try:
            return _open_file(path, shard)
        except FileNotFoundError:
            continue
        except (IndexFileError, OSError) as error:
            _log.info("%s; the file is ignored", error)
    return None


def _open_file(path: Path, shard: LocalShard) -> Index:
    identity = size_and_time(shard)
    fd = open_regular(path)
    try:
        file_bytes = os.fstat(fd).st_size
        if file_bytes > most_bytes(identity[0]):
            raise IndexFileError(f"{path} has {file_bytes} bytes, more than an index of {shard} can have")
        index = Index(partial(os.pread, fd), file_bytes, str(path))
    finally:
        os.close(fd)
    index.check_shard(*identity)
    index.source = partial(_load, path, shard)
    return index


def size_and_time(shard: LocalShard) -> tuple[int, int]:
    """Returns the identity of a shard: its size in bytes and its modification time in ns; see `Listing.identity`."""
    if isinstance(shard, Folder):
        return shard.listing.identity()
    stat = shard.stat()
    return stat.st_size, stat.st_mtime_ns


def _load(path: Path, shard: LocalShard) -> Index:
    """Reads an index file; if it is damaged, scans the shard again."""
    try:
        return Index.read(path, *size_and_time(shard))
    except (IndexFileError, OSError) as error:
        _log.info("%s; the file is ignored", error)
        return _make(shard)


def _make(shard: LocalShard, progress: bool = False) -> Index:
    path = index_file(shard)
    if isinstance(shard, Folder):
        index = scan_folder(shard, progress)
        if path.exists():
            _log.warning("%s changed since it was indexed: it is indexed again", shard)
        if shard.listing.unread:  # a later permission change would not make a saved index invalid
            _log.warning("the index of %s is made again next time, because files of it cannot be read", shard)
            return index
    else:
        index = scan(shard)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        index.save(path)
    except OSError as error:
        _log.warning("the index of %s cannot be saved, so it will be made again next time: %s", shard, error)
    return index
