"""Mixes: sources in a ratio."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from counting import Counted

from gpuloader.errors import ConfigError
from gpuloader.plan import BucketSampler, Cursor, Mix, MixedBuckets, Plan, Ratio, SampleSubset, parts_of


@pytest.mark.parametrize(
    ("weights", "parts"),
    [
        ([1], (1,)),
        ([2.5], (1,)),
        ([2, 4], (1, 2)),
        ([0.3, 0.7], (3, 7)),
        ([0.1, 0.2, 0.3, 0.4], (1, 2, 3, 4)),
        ([1 / 3, 2 / 3], (1, 2)),
        ([1e-9, 3e-9], (1, 3)),
        ([1e300, 5e299], (2, 1)),
        ([999, 1000], (999, 1000)),
        ([1, 1500], (1, 1500)),
        ([0, 2], (0, 1)),
        ([0.5, 0, 1.5], (1, 0, 3)),
    ],
)
def test_weights_become_the_smallest_whole_numbers_of_their_ratio(weights: list[float], parts: tuple[int, ...]) -> None:
    assert parts_of(weights) == parts


@pytest.mark.parametrize(
    "weights",
    [[1_281_167, 14_197_122, 300_000], [np.pi, np.e, 1, 2**0.5], [1, 1999], [1, 30_000 / 17], [1] * 100 + [2**0.5]],
)
def test_weights_without_a_small_ratio_become_one_within_a_hundredth(weights: list[float]) -> None:
    parts = np.array(parts_of(weights))
    assert parts.sum() <= 100_000 + len(weights)
    np.testing.assert_allclose(parts / parts.sum(), np.array(weights) / sum(weights), rtol=0.01)


@pytest.mark.parametrize("weights", [[1, 1_000_000], [5e-324, 1, 1]])
def test_weights_that_are_too_far_apart_are_refused(weights: list[float]) -> None:
    with pytest.raises(ConfigError, match=r"the weights \[.*\] are too far apart .* at least 0.05% of their sum"):
        parts_of(weights)


def mix(sizes: tuple[int, ...], *schedule: tuple[float, tuple[int, ...]], shuffle: str = "full") -> Mix:
    return Mix(SampleSubset(sum(sizes)), sizes, tuple(Ratio(*each) for each in schedule), shuffle)  # type: ignore[arg-type]


def test_the_parts_are_spread_evenly() -> None:
    ids = Plan(mix((8, 4, 4), (0, (4, 2, 1)), shuffle="none"), 1).ids(0, np.arange(16))
    assert "".join("abc"[source] for source in np.searchsorted([8, 12], ids, side="right")) == "abacaba" * 2 + "ab"


def test_sources_of_one_size_and_passes_over_one_source_have_different_orders() -> None:
    ids = Plan(mix((50, 50), (0, (1, 1))), 1).ids(0, np.arange(400)).reshape(-1, 2)
    assert ((ids[:, 0] - ids[:, 1]) % 50 != 0).mean() > 0.9
    assert len(set(map(tuple, ids[:, 0].reshape(4, 50).tolist()))) == 4


def test_a_mix_of_billions_reaches_places_beyond_64_bits_without_a_table() -> None:
    epoch, sizes = 2**32 - 1, (3 * 10**9, 10**9)
    plan = Plan(mix(sizes, (0, (1, 1)), (epoch + 0.5, (0, 1))), 1)
    ids = plan.ids(epoch, plan.length // 2 - 5 + np.arange(10**5))
    assert sorted((ids[:5] < sizes[0]).tolist()) in ([False] * 2 + [True] * 3, [False] * 3 + [True] * 2)
    assert (ids[5:] >= sizes[0]).all()
    assert len(np.unique(ids)) == len(ids)


@pytest.mark.parametrize(
    ("schedule", "ids"),
    [
        ([(0, (3, 1))], [2, 1, 7, 4, 0, 3, 6, 4, 2, 1, 5, 0, 3, 0, 7, 1]),
        ([(0, (3, 1)), (1, (1, 1))], [2, 1, 7, 4, 0, 3, 6, 4, 2, 5, 1, 7, 0, 5, 3, 6]),
    ],
)
def test_orders_are_golden(schedule: list[tuple[float, tuple[int, ...]]], ids: list[int]) -> None:
    assert Plan(mix((5, 3), *schedule), 1, seed=7).ids(0, np.arange(16)).tolist() == ids


# --- several sources with buckets

COUNTS = ((9, 4), (0, 7), (3, 3))
"""The samples of three sources in two buckets; sample s of bucket b of source k has the id 1000 k + 100 b + s."""


def mixed_buckets(*schedule: tuple[float, tuple[int, ...]], quantum: int = 4, drop: bool = False) -> MixedBuckets:
    shapes = [(1, 8), (2, 8)]
    runs = [
        [1000 * source + 100 * bucket + np.arange(n) for bucket, n in enumerate(of)] for source, of in enumerate(COUNTS)
    ]
    sources = [BucketSampler(shapes, of_source, quantum, drop) for of_source in runs]
    return MixedBuckets(sources, tuple(Ratio(*each) for each in schedule), quantum)


def steps_of(plan: Plan, cursor: Cursor, count: int) -> list[list[tuple[int, bool]]]:
    """The samples of the next steps of all ranks; images of a step have the shape of its bucket."""
    steps = []
    for _ in range(count):
        cursor = plan.at_step(cursor)
        batches = [each.batch(cursor) for each in ranks_of(plan)]
        steps.append([row for each in batches for row in zip(each.ids.tolist(), each.valid.tolist())])
        assert {each.shape for each in batches} == {(number // 100 % 10 + 1, 8) for number, _ in steps[-1]}
        assert plan.shapes(cursor, 1) == [batches[0].shape]
        cursor = plan.after(cursor)
    return steps


def ranks_of(plan: Plan) -> list[Plan]:
    return [replace(plan, rank=rank) for rank in range(plan.world_size)]


def test_bucket_batches_of_sources_come_in_the_ratio_and_each_source_goes_through_its_buckets() -> None:
    plan = Plan(mixed_buckets((0, (2, 1, 0)), (2, (1, 2, 3))), 2, 0, 2, "pad", seed=3)
    assert plan.steps == sum(-(-count // 4) for of in COUNTS for count in of) == 8
    steps, counted = steps_of(plan, Cursor(), 48), Counted(3)
    expected = [counted.take((2, 1, 0) if step < 16 else (1, 2, 3))[0] for step in range(48)]
    assert [{number // 1000 for number, _ in step} for step in steps] == [{source} for source in expected]
    for source, of in enumerate(COUNTS):
        own = [step for step, owner in zip(steps, expected) if owner == source]
        a_pass = sum(-(-count // 4) for count in of)
        assert len(own) >= 2 * a_pass
        passes = [own[begin : begin + a_pass] for begin in range(0, len(own) - a_pass + 1, a_pass)]
        for each in passes:
            valid = Counter(number for step in each for number, good in step if good)
            ids = [1000 * source + 100 * bucket + number for bucket, n in enumerate(of) for number in range(n)]
            assert valid == Counter(ids)
        assert all(one != other for one, other in pairwise(passes))


def test_a_ratio_begins_with_a_bucket_batch_and_later_ones_may_change_at_a_resume() -> None:
    run = Plan(mixed_buckets((0, (1, 0, 0)), (0.3, (0, 1, 0))), 2, last_batch="pad")  # place 10: within a bucket batch
    steps = steps_of(run, Cursor(), 16)
    assert [step[0][0] // 1000 for step in steps] == [0] * 6 + [1] * 10
    for number in range(16):
        state = json.loads(json.dumps(run.state(run.at(0, number))))
        assert state["ratios"] == [[0, [1, 0, 0]], [12, [0, 1, 0]]][: 0 if number == 0 else 1 + (number > 6)]
        assert state["quantum"] == 4
        size = 4 if number % 2 == 0 else 2
        other = replace(run, source=mixed_buckets((0, (1, 0, 0)), (0.3, (0, 1, 0)), quantum=size), batch_size=size)
        plan, cursor = other.resume(state)
        rest = [row for step in steps_of(plan, cursor, (16 - number) * 2 // size) for row in step]
        assert rest == [row for step in steps[number:] for row in step]
    changed = replace(run, source=mixed_buckets((0, (1, 0, 0)), (0.3, (0, 0, 1))))
    changed.resume(run.state(run.at(0, 6)))
    with pytest.raises(ConfigError, match="weights may change"):
        changed.resume(run.state(run.at(0, 7)))


def test_replacements_are_of_the_bucket_of_the_steps_source() -> None:
    plan, uniform = Plan(mixed_buckets((0, (1, 1, 1))), 4, last_batch="pad"), np.random.default_rng(0).random(60)
    for step in range(plan.steps):
        [bucket] = {number // 100 for number in plan.batch(plan.at(0, step)).ids.tolist()}
        found = set(plan.replacements(plan.at(0, step), 0, uniform).tolist())
        assert found == {100 * bucket + number for number in range(COUNTS[bucket // 10][bucket % 10])}


def test_a_source_that_fills_no_bucket_batch_is_refused_with_drop() -> None:
    with pytest.raises(ConfigError, match="no bucket has 4 samples"):
        Plan(mixed_buckets((0, (1, 1, 1)), drop=True), 4, last_batch="drop")
