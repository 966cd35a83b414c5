"""Finds index files, and makes missing ones.

The index of `train-0000.tar` is `train-0000.tar.gpuidx` beside it if that folder is writable, otherwise a file in the
user's cache folder, named by a hash of the shard's path. DALI's index files (`.idx`) are something else.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import platformdirs

from gpuloader.errors import IndexFileError
from gpuloader.helpers.progress import follow
from gpuloader.shards.index import ShardIndex
from gpuloader.shards.scan import scan

INDEX_SUFFIX = ".gpuidx"

_THREADS = 8
_log = logging.getLogger("gpuloader")


def index_file(shard: Path) -> Path:
    """The path to which an index of the shard is written."""
    folder = shard.parent
    # A folder without any write bit is meant to stay unchanged, even if the user is root.
    writable = folder.stat().st_mode & 0o222 and os.access(folder, os.W_OK)
    return _beside(shard) if writable else _in_cache(shard)


def _beside(shard: Path) -> Path:
    return shard.with_name(shard.name + INDEX_SUFFIX)


def _in_cache(shard: Path) -> Path:
    name = hashlib.blake2b(os.fsencode(os.path.realpath(shard)), digest_size=16).hexdigest()
    return platformdirs.user_cache_path("gpuloader") / f"{name}{INDEX_SUFFIX}"


def open_index(shard: Path) -> ShardIndex:
    """The index of a shard: from its file if that is valid, otherwise from a new scan, which is then kept."""
    index = _load(shard)
    return index if index is not None else _make(shard)


def open_indexes(shards: Sequence[Path], progress: bool = False) -> list[ShardIndex]:
    """The indexes of many shards, made in parallel; shows a progress bar on stderr if that takes long."""
    with ThreadPoolExecutor(min(_THREADS, len(shards))) as threads:
        indexes = list(threads.map(_load, shards))
        missing = [number for number, index in enumerate(indexes) if index is None]
        if not missing:
            return [index for index in indexes if index is not None]
        # Processes that start together share the work: each checks for a new file before it scans.
        random.Random().shuffle(missing)
        pending = {threads.submit(open_index, shards[number]): number for number in missing}
        try:
            for future in follow(pending, "indexing shards", progress):
                indexes[pending[future]] = future.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return [index for index in indexes if index is not None]


def _load(shard: Path) -> ShardIndex | None:
    """Reads the index from its file, also beside a shard in a read-only folder; None if no file is valid."""
    for path in (_beside(shard), _in_cache(shard)):
        try:
            return ShardIndex.load(path, shard)
        except FileNotFoundError:
            continue
        except (IndexFileError, OSError) as error:
            _log.info("%s; the file is ignored", error)
    return None


def _make(shard: Path) -> ShardIndex:
    index = scan(shard)
    path = index_file(shard)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        index.save(path)
    except OSError as error:
        _log.warning("the index of %s cannot be saved, so it will be made again next time: %s", shard, error)
    return index
