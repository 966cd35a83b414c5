"""Where index files are kept, and making those that are missing.

The index of `train-0000.tar` is `train-0000.tar.gpuidx` beside it where that folder may be written to, and else a file
in the user's cache folder, named by a hash of the shard's path. Index files of DALI (`.idx`) are another thing.
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
    """Where an index of the shard is written to."""
    folder = shard.parent
    # A folder without any write bit is meant to stay as it is, also where the user is root.
    writable = folder.stat().st_mode & 0o222 and os.access(folder, os.W_OK)
    return _beside(shard) if writable else _in_cache(shard)


def _beside(shard: Path) -> Path:
    return shard.with_name(shard.name + INDEX_SUFFIX)


def _in_cache(shard: Path) -> Path:
    name = hashlib.blake2b(os.fsencode(os.path.realpath(shard)), digest_size=16).hexdigest()
    return platformdirs.user_cache_path("gpuloader") / f"{name}{INDEX_SUFFIX}"


def open_index(shard: Path) -> ShardIndex:
    """The index of a shard: from its file where that is right, else from a new scan, which is then kept."""
    index = _load(shard)
    return index if index is not None else _make(shard)


def open_indexes(shards: Sequence[Path], progress: bool = False) -> list[ShardIndex]:
    """The indexes of many shards, in parallel; with a progress bar on stderr where making them takes long."""
    with ThreadPoolExecutor(min(_THREADS, len(shards))) as threads:
        indexes = list(threads.map(_load, shards))
        missing = [number for number, index in enumerate(indexes) if index is None]
        if not missing:
            return [index for index in indexes if index is not None]
        # Processes that start together share the work: each looks again before it scans.
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
    """The index in its file, also in one that came with a read-only folder; None where there is no right one."""
    for path in (_beside(shard), _in_cache(shard)):
        try:
            return ShardIndex.load(path, shard)
        except FileNotFoundError:
            continue
        except (IndexFileError, OSError) as error:
            _log.info("%s; it is passed over", error)
    return None


def _make(shard: Path) -> ShardIndex:
    index = scan(shard)
    path = index_file(shard)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        index.save(path)
    except OSError as error:
        _log.warning("the index of %s could not be kept, it will be made again next time: %s", shard, error)
    return index
