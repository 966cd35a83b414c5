"""Which shards are needed next, and downloading them in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from making import write_samples
from numpy.typing import NDArray
from serving import SOON, Server, wait_for

from gpuloader.plan import Cursor, GroupedSampler, Plan, SampleSubset, Shuffle, ShuffledSampler, all_samples
from gpuloader.shards.remote import Entry, Prefetcher, RemoteShard, ShardCache, ShardSchedule
from gpuloader.shards.remote.store import Version

pytestmark = pytest.mark.slow(kept=3, of="ahead")

SHARD_SAMPLES = 100
SHARD_BYTES = 1000


def shards_of(samples: NDArray[np.int64]) -> NDArray[np.int64]:
    return samples // SHARD_SAMPLES


def schedule(
    shards: int, shuffle: Shuffle = "none", on_stores: Sequence[int] | None = None, batch: int = 10
) -> ShardSchedule:
    """Shards of 100 samples and 1000 bytes each."""
    entries = {
        number: Entry(RemoteShard(f"s3://bucket/{number}.tar"), Version(SHARD_BYTES, ""))
        for number in (range(shards) if on_stores is None else on_stores)
    }
    positions = (
        GroupedSampler(SampleSubset(shards * SHARD_SAMPLES), np.full(shards, SHARD_SAMPLES), 1)
        if shuffle == "shards"
        else all_samples(shards * SHARD_SAMPLES, shuffle)
    )
    return ShardSchedule(Plan(positions, batch), [0], shards_of, entries)


def test_shards_come_in_the_order_of_their_first_sample() -> None:
    assert schedule(4).shards(Cursor(0, 150), steps=20) == [1, 2, 3]
    assert schedule(4).shards(Cursor(0, 350), steps=55) == [3]  # not beyond the epoch's end
    assert schedule(4, on_stores=[2, 0]).shards(Cursor(0, 150), steps=20) == [2]
    plan = schedule(4, "full").plan
    expected = dict.fromkeys(sample // SHARD_SAMPLES for sample in plan.ids(3, np.arange(100, 200)).tolist())
    assert schedule(4, "full").shards(plan.at(3, step=10), steps=10) == list(expected)


def test_a_part_of_the_data_needs_its_own_shards() -> None:
    plan = Plan(ShuffledSampler(SampleSubset(3, np.array([301, 5, 302])), "none"), 1)
    assert ShardSchedule(plan, [0], shards_of, schedule(4).entries).shards(Cursor(), steps=3) == [3, 0]


@pytest.mark.parametrize(
    ("shuffle", "shards", "room", "often"),
    [
        ("full", 10, 10, False),  # all fit
        ("none", 10, 9, False),
        ("none", 10, 1, False),
        ("full", 10, 9, True),
        ("full", 100, 50, True),
        ("full", 100, 1, True),
        ("block", 300, 150, False),
        ("block", 300, 10, True),
        ("shards", 300, 16, False),
        ("shards", 300, 8, True),
    ],
)
@pytest.mark.slow(kept=1)
def test_how_often_a_shard_is_downloaded_is_foreseen(shuffle: Shuffle, shards: int, room: int, often: bool) -> None:
    found = schedule(shards, shuffle).times_downloaded(room * SHARD_BYTES, np.full(shards, SHARD_BYTES))
    assert (found > 2) == often
    assert 1 / 2 < found * shards / downloads(schedule(shards, shuffle), room) < 2


def downloads(schedule: ShardSchedule, room: int) -> int:
    """Those of an epoch, counted, where what was used longest ago goes."""
    held: list[int] = []
    count = 0
    for step in range(schedule.plan.steps):
        for shard in schedule.shards(schedule.plan.at(0, step), steps=1):
            count += shard not in held
            held = [*[other for other in held if other != shard], shard][-room:]
    return count


def test_large_epochs_are_looked_at_in_larger_chunks() -> None:
    assert schedule(4).chunk_steps == 1
    assert schedule(10_000).chunk_steps == 1_000_000 // 10 // 1024


# --- downloading


@pytest.fixture
def served(tmp_path: Path) -> list[Path]:
    """Six shards of four samples each."""
    return write_samples(tmp_path / "served", 24, shards=6, sizes=[(60, 80)])


def entries_of(server: Server, served: list[Path]) -> dict[int, Entry]:
    shards = [RemoteShard(f"{server.url}/{shard.name}") for shard in served]
    return {number: Entry(shard, shard.version(lambda: True)) for number, shard in enumerate(shards)}


def prefetcher(entries: dict[int, Entry], cache: ShardCache) -> Prefetcher:
    plan = Plan(all_samples(24, "none"), 2)
    return Prefetcher(ShardSchedule(plan, [0], lambda samples: samples // 4, entries), cache)


def wait_for_shards(shards: set[int], cache: ShardCache, entries: dict[int, Entry]) -> None:
    wait_for(lambda: {number for number, entry in entries.items() if cache.has(entry)} == shards)


def test_as_many_as_fit_are_downloaded_in_the_order_of_need_and_go_when_they_are_done(
    served: list[Path], tmp_path: Path
) -> None:
    with Server(served[0].parent) as server:
        entries = entries_of(server, served)
        size = max(entry.version.size_bytes for entry in entries.values())
        cache = ShardCache(tmp_path / "cache", 3 * size)
        ahead = prefetcher(entries, cache)
        for delivered, there in [(0, {0, 1, 2}), (4, {1, 2, 3}), (10, {2, 3, 4}), (20, {5, 0, 1})]:
            ahead.reach(Cursor(0, delivered))
            assert cache.coming == {entries[number].key for number in there}
            wait_for_shards(there, cache, entries)
            assert cache.held_bytes() <= cache.limit_bytes
        ahead.reach(Cursor(1, 0))
        wait_for_shards({0, 1, 2}, cache, entries)
        ahead.close()
        ahead.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "gpuloader-download"]


def test_closing_ends_what_is_under_way_and_collection_closes(served: list[Path], tmp_path: Path) -> None:
    with Server(served[0].parent) as server:
        entries = entries_of(server, served)
        server.fault(served[0].name, "silent")
        cache = ShardCache(tmp_path / "cache", 10**9)
        ahead = prefetcher(entries, cache)
        ahead.reach(Cursor(0, 0))
        wait_for_shards({1, 2, 3, 4, 5}, cache, entries)  # one that hangs does not hold up the others
        started = time.monotonic()
        del ahead
        assert time.monotonic() - started < SOON
        assert not [thread for thread in threading.enumerate() if thread.name == "gpuloader-download"]
