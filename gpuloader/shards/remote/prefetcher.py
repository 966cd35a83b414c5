"""Downloads shards before they are needed.

The plan gives the order of the samples for all ranks, and so the order in which shards are needed from any step on.
The next shards that fit in the cache together are `coming`: they are downloaded in this order, and removed last.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.worker_threads import WorkerThreads
from gpuloader.plan import Cursor, Plan
from gpuloader.shards.remote.cache import ShardCache
from gpuloader.shards.remote.store import Entry

_DOWNLOADS = 4
_LOOKED_AHEAD = 64  # chunks; a chunk is a step, or 1/1024 of an epoch if that is more
_CHUNKS = 1024
_COUNTED = 32  # chunks, at least
_MOST_COUNTED = 1 << 22  # positions; a cache that is not full after these is large enough
_OFTEN = 2.0
_log = logging.getLogger("gpuloader")

ShardsOf: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""A function from sample ids (n,) to their shard numbers (n,)."""


@dataclass(frozen=True)
class ShardSchedule:
    """The shards that a run needs from stores.

    Attributes:
        plan: the plan, which has the order of the samples.
        ranks: the ranks of this machine, which share a cache.
        shards_of: returns the shard numbers of samples.
        entries: the shards on stores, by number.
    """

    plan: Plan
    ranks: Sequence[int]
    shards_of: ShardsOf
    entries: Mapping[int, Entry]

    def shards(self, cursor: Cursor, steps: int) -> list[int]:
        """Returns the shards that the next steps of the cursor's epoch need, in the order of their first use."""
        found, first = np.unique(self.shards_of(self.plan.coming(cursor, steps, self.ranks)), return_index=True)
        return [shard for shard in found[np.argsort(first)].tolist() if shard in self.entries]

    def times_downloaded(self, limit_bytes: int, sizes: NDArray[np.int64]) -> float:
        """Estimates how often a shard is downloaded in an epoch if the cache holds `limit_bytes`.

        The sizes are the bytes of each shard; 0 for those that are not on stores.

        It goes through the epoch until the cache is full, counts from there, and stops after enough positions.
        """
        held: OrderedDict[int, int] = OrderedDict()
        held_bytes = downloaded_bytes = step = full_at = 0
        end = min(self.plan.steps, max(1, _MOST_COUNTED // self.plan.global_batch))
        if (total := self.bytes_of_node(sizes)) <= limit_bytes:
            return 1.0
        while step < end:
            for shard in self.shards(self.plan.at(0, step), self.chunk_steps):
                size = sizes.item(shard)
                if shard not in held:
                    downloaded_bytes += size if 0 < full_at <= step else 0
                    held_bytes += size
                held[shard] = size
                held.move_to_end(shard)
                while held_bytes > limit_bytes:
                    held_bytes -= held.popitem(last=False)[1]
                    full_at = full_at or step + self.chunk_steps
                    end = min(end, full_at + max(full_at, _COUNTED * self.chunk_steps))
            step += self.chunk_steps
        return max(1.0, downloaded_bytes / total * self.plan.steps / max(step - full_at, 1))

    def bytes_of_node(self, sizes: NDArray[np.int64]) -> int:
        """Returns about how many bytes of the shards this machine needs."""
        return round(int(sizes.sum()) * self.plan.share_of(self.ranks))

    @property
    def chunk_steps(self) -> int:
        """The steps that are examined together."""
        return max(1, self.plan.steps // _CHUNKS)


class Prefetcher:
    """Threads that download the next shards. `reach` sets the step from which on shards are needed."""

    def __init__(self, schedule: ShardSchedule, cache: ShardCache) -> None:
        self._schedule = schedule
        self._cache = cache
        self._chunks: deque[tuple[Cursor, list[int]]] = deque()  # the end and the shards of each
        self._requested: set[int] = set()
        download = partial(_download, cache, self._requested)
        self._threads: WorkerThreads[tuple[int, Entry], None] = WorkerThreads(
            download, "gpuloader-download", _DOWNLOADS
        )

    def reach(self, cursor: Cursor) -> None:
        """Requests the shards that are needed next from the step at the cursor on."""
        if self._chunks and cursor < self._chunks[0][0]:
            return
        coming = {shard: self._schedule.entries[shard] for shard in self._coming(cursor)}
        self._cache.coming = frozenset(entry.key for entry in coming.values())
        for shard, entry in coming.items():
            if shard not in self._requested and not self._cache.has(entry):
                self._requested.add(shard)
                self._threads.put((shard, entry))

    def _coming(self, cursor: Cursor) -> list[int]:
        """Returns the shards that are needed next and fit into the cache together, in order."""
        while self._chunks and cursor >= self._chunks[0][0]:
            self._chunks.popleft()
        next_ = self._chunks[-1][0] if self._chunks else cursor
        while len(self._chunks) < _LOOKED_AHEAD:
            first = self._schedule.plan.at_step(next_)
            shards = self._schedule.shards(first, self._schedule.chunk_steps)
            next_ = self._schedule.plan.after(first, self._schedule.chunk_steps)
            self._chunks.append((next_, shards))
        fitting: list[int] = []
        room = self._cache.limit_bytes
        for shard in dict.fromkeys(shard for _, shards in self._chunks for shard in shards):
            room -= self._schedule.entries[shard].version.size_bytes
            if room < 0:
                break
            fitting.append(shard)
        return fitting

    def close(self) -> None:
        """Ends the threads and their downloads. Garbage collection and the process's end do this, too."""
        self._threads.close()


def warn_of_repeats(schedule: ShardSchedule, limit_bytes: int, sizes: NDArray[np.int64]) -> None:
    """Logs a warning if the order uses more shards at a time than the cache holds."""
    if (times := schedule.times_downloaded(limit_bytes, sizes)) > _OFTEN:
        by_shard = (
            "" if schedule.plan.source.shuffle == "shards" else ', or use shuffle="shards", which needs few at a time'
        )
        _log.warning(
            "the order uses more shards at a time than the cache holds: each is downloaded about %.0f times in "
            "an epoch. Give the cache more than its %d bytes, ideally all %d that this machine needs "
            "(Cache(max_bytes=...))%s",
            times,
            limit_bytes,
            schedule.bytes_of_node(sizes),
            by_shard,
        )


def _download(cache: ShardCache, requested: set[int], request: tuple[int, Entry], wanted: Callable[[], bool]) -> None:
    shard, entry = request
    try:
        if entry.key in cache.coming:
            cache.fetch(entry, wanted)
    except BaseException as error:  # noqa: BLE001 - the batch that needs the shard will raise it
        if wanted():
            _log.info("%s was not downloaded ahead: %s", entry.shard, error)
    finally:
        requested.discard(shard)
