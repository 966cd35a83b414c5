"""What a loader counts: batches, samples, bad images and seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from loaders import CUT, Clock, evaluation, loader, spoilt

from gpuloader import Stats
from gpuloader.shards import CacheStats


def test_stats_are_the_sums_of_those_of_each_batch(shards: list[Path]) -> None:
    with loader(shards, 12, last_batch="partial") as batches:
        assert batches.stats() == Stats()
        sums = Stats()
        for _ in range(2):
            for images, _ in batches:
                stats = batches.stats()
                last = stats.last
                assert last is not None
                assert (last.batches, last.samples, last.bad, last.last) == (1, len(images), {}, None)
                assert last.waiting_seconds == pytest.approx(last.decoding_seconds + last.delivering_seconds)
                assert last.waiting_seconds <= last.elapsed_seconds
                assert min(last.decoding_seconds, last.delivering_seconds, last.gating_seconds) > 0
                sums = sums.after(last)
                assert stats == sums
                assert stats.ready_batches == last.ready_batches <= 3  # as many as are read ahead of two decoded ones
    assert (sums.batches, sums.samples) == (8, 80)


@pytest.mark.parametrize(
    ("stats", "some"),
    [
        (Stats(batches=3, samples=24, last=Stats(batches=1)), {"batches": 3, "samples": 24}),  # the last is not in it
        (Stats(bad={7: "empty", 9: "cut"}), {"bad_images": 2}),
        (
            Stats(cache=CacheStats(hits=5, misses=1, downloaded_bytes=70, held_bytes=90)),
            {"cache_hits": 5, "cache_misses": 1, "cache_downloaded_bytes": 70, "cache_held_bytes": 90},
        ),
    ],
    ids=["sums", "bad", "cache"],
)
def test_its_numbers_have_names_for_a_logger(stats: Stats, some: dict[str, float]) -> None:
    scalars = stats.scalars()
    assert {f"gpuloader/{name}": value for name, value in some.items()}.items() <= scalars.items()
    assert {type(value) for value in scalars.values()} == {float}
    assert any("cache" in name for name in scalars) == (stats.cache is not None)
    assert "gpuloader/digest" not in scalars  # a float cannot hold it


@pytest.mark.parametrize(("one", "other", "both"), [(3, 4, 7), (2**63 - 1, 1, -(2**63)), (-(2**63), -1, 2**63 - 1)])
def test_digests_are_added_as_int64(one: int, other: int, both: int) -> None:
    assert Stats(digest=one).after(Stats(digest=other)).digest == both


def test_stats_go_on_over_a_restored_state_and_know_the_bad_images_of_all(tmp_path: Path) -> None:
    with evaluation(spoilt(tmp_path, {2: CUT}), on_error="skip") as batches:
        next(iter(batches))
        batches.load_state_dict(batches.state_dict())
        next(iter(batches))
        stats = batches.stats()
    assert (stats.batches, set(stats.bad)) == (2, {2})


def test_seconds_count_where_they_are_spent(shards: list[Path], clock: Clock) -> None:
    def read_slowly(components: list[Any]) -> list[Any]:
        clock.spend(4)
        return components

    with loader(shards, output="dict", fields={"json": read_slowly}) as batches:
        list(batches)
        stats = batches.stats()
    assert (stats.reading_seconds, stats.gating_seconds) == (0, 5 * 4)
    clock.delivering_seconds = 3
    with loader(shards) as batches:
        for _ in range(2):
            for _ in batches:
                clock.spend(2)
            clock.spend(1000)  # between epochs it counts nowhere
        stats = batches.stats()
    # What follows an epoch's last batch is not known.
    assert (stats.elapsed_seconds, stats.waiting_seconds) == (2 * (5 * 3 + 4 * 2), 2 * 5 * 3)
    assert (stats.decoding_seconds, stats.delivering_seconds) == (0, 2 * 5 * 3)
