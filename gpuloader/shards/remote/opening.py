"""Opens shards on stores: finds the versions and indexes of many shards in parallel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from random import Random
from typing import TypeVar

from gpuloader.base.progress import count_long
from gpuloader.shards.index import Index
from gpuloader.shards.remote.cache import ShardCache, close_shard
from gpuloader.shards.remote.cancellation import WantedCallback
from gpuloader.shards.remote.indexes import index_beside, load_index, save_index, scan_descriptor, scan_parts
from gpuloader.shards.remote.requests import forget_listings
from gpuloader.shards.remote.store import Entry, RemoteShard

Item = TypeVar("Item")
Result = TypeVar("Result")

_QUESTIONS = 16
_SCANS = 4
_SHOWN = 100


def open_remote(shards: Sequence[RemoteShard], cache: ShardCache, progress: bool = False) -> list[tuple[Entry, Index]]:
    """Finds the shards' versions and indexes; shows progress bars on stderr if that takes long.

    Raises:
        ShardNotFoundError: a shard does not exist.
        RemoteError: a store does not answer.
        TarError: a shard is not a plain tar.
        ConfigError: a shard is larger than the cache may be.
    """
    forget_listings(shard.url for shard in shards)
    known = _each(
        shards,
        lambda shard, wanted: _look_up(shard, cache, wanted),
        _QUESTIONS,
        progress and len(shards) > _SHOWN,
        "finding shards",
    )
    for entry, _ in known:
        cache.check_fits(entry)
    missing = [number for number, (_, index) in enumerate(known) if index is None]
    Random().shuffle(missing)  # processes that start together share the work: each checks again before it scans
    entries = [known[number][0] for number in missing]
    scanned = _each(
        entries, lambda entry, wanted: open_again(entry, cache, wanted), _SCANS, progress, "indexing shards"
    )
    indexes = {**{number: index for number, (_, index) in enumerate(known)}, **dict(zip(missing, scanned))}
    opened = [(entry, index) for (entry, _), index in zip(known, indexes.values()) if index is not None]
    # Returns the digest itself, as the index takes memory.
    return [(replace(entry, digest=partial(bytes, index.digest())), index) for entry, index in opened]


def _look_up(shard: RemoteShard, cache: ShardCache, wanted: WantedCallback) -> tuple[Entry, Index | None]:
    """Finds the current version of a shard, and its index if there is one already."""
    entry = Entry(shard, shard.version(wanted))
    index = _load_kept(entry, cache)
    if index is None and (index := index_beside(entry, wanted)) is not None:
        save_index(index, cache.given_index_file(entry), entry)
    return entry, index


def _load_kept(entry: Entry, cache: ShardCache) -> Index | None:
    index = load_index(cache.index_file(entry), entry)
    return index if index is not None else load_index(cache.given_index_file(entry), entry)


def open_again(entry: Entry, cache: ShardCache, wanted: WantedCallback) -> Index:
    """Opens the index of a version of a shard, which may be in the cache; raises the errors of `open_remote`."""
    if (index := _load_kept(entry, cache)) is not None:
        return index
    if not cache.has(entry) and (index := scan_parts(entry, wanted)) is not None:
        entry.shard.check_version(entry.version, wanted)
    else:
        fd = cache.open(entry, wanted)
        try:
            index = load_index(cache.index_file(entry), entry)  # the download makes it
            index = index if index is not None else scan_descriptor(fd, entry)
        finally:
            close_shard(fd)
    save_index(index, cache.index_file(entry), entry)
    return index


def _each(
    items: Sequence[Item], work: Callable[[Item, WantedCallback], Result], threads: int, progress: bool, title: str
) -> list[Result]:
    """Yields the results of `work` for all items, in order. An error or Ctrl-C cancels the other items."""
    if not items:
        return []
    given_up: list[bool] = []
    pool = ThreadPoolExecutor(min(threads, len(items)))
    try:
        futures = [pool.submit(work, item, lambda: not given_up) for item in items]
        for future in count_long(as_completed(futures), len(futures), title, progress):
            future.result()
        return [future.result() for future in futures]
    finally:
        given_up.append(True)
        pool.shutdown(cancel_futures=True)
