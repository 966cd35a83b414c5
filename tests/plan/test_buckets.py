"""Buckets: each global batch is of one bucket, and a run resumes by quanta."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gpuloader.errors import ConfigError
from gpuloader.plan import BucketSampler, Cursor, Plan, WeightedBuckets

Rows = list[tuple[int, bool]]


def bucketed(counts: list[int], quantum: int, drop: bool = False, shuffle: str = "full") -> BucketSampler:
    """Buckets of that many samples; bucket b has the ids b * 1000, b * 1000 + 1, ... and images of (b + 1, 8)."""
    runs = [np.arange(count) + 1000 * bucket for bucket, count in enumerate(counts)]
    return BucketSampler([(bucket + 1, 8) for bucket in range(len(counts))], runs, quantum, drop, shuffle)  # type: ignore[arg-type]


def run(positions: BucketSampler, ranks: int, batch_size: int, start: Cursor, **kwargs: int) -> list[Rows]:
    """What all ranks get in each step of the rest of an epoch; their images must have the same size."""
    last_batch = "drop" if positions.drop else "pad"
    plans = [Plan(positions, batch_size, rank, ranks, last_batch, **kwargs) for rank in range(ranks)]  # type: ignore[arg-type]
    assert len({plan.steps_left(start) for plan in plans}) == 1
    coming, steps, cursor = plans[0].shapes(start, plans[0].steps_left(start)), [], start
    for shape in coming or []:
        batches = [plan.batch(cursor) for plan in plans]
        rows = [row for batch in batches for row in zip(batch.ids.tolist(), batch.valid.tolist())]
        assert {batch.shape for batch in batches} == {shape} == {(sample // 1000 + 1, 8) for sample, _ in rows}
        assert len(rows) == ranks * batch_size
        steps.append(rows)
        cursor = plans[0].after(cursor)
    assert plans[0].steps_left(cursor) == 0
    return steps


counts_of = st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(any)


@settings(max_examples=60, deadline=None)
@given(counts_of, st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**64 - 1), st.integers(0, 9))
def test_every_sample_exactly_once_and_padding_repeats_its_bucket(
    counts: list[int], ranks: int, batch_size: int, steps: int, seed: int, epoch: int
) -> None:
    positions = bucketed(counts, ranks * batch_size * steps)
    rows = [row for step in run(positions, ranks, batch_size, Cursor(epoch), seed=seed) for row in step]
    valid = Counter(sample for sample, good in rows if good)
    assert valid == Counter(1000 * bucket + i for bucket, count in enumerate(counts) for i in range(count))
    quanta = sum(-(-count // positions.quantum) for count in counts)
    assert len(rows) == quanta * positions.quantum == positions.size
    assert positions.samples == sum(counts)


@settings(max_examples=40, deadline=None)
@given(counts_of, st.integers(1, 12), st.integers(0, 2**64 - 1))
def test_drop_leaves_out_less_than_a_quantum_of_each_bucket(counts: list[int], quantum: int, seed: int) -> None:
    positions = bucketed(counts, quantum, drop=True)
    if not any(count >= quantum for count in counts):
        with pytest.raises(ConfigError, match=f"no bucket has {quantum} sample"):
            Plan(positions, quantum, last_batch="drop")
        return
    rows = [row for step in run(positions, 1, quantum, Cursor(), seed=seed) for row in step]
    assert all(good for _, good in rows)
    delivered = [sample for sample, _ in rows]
    assert len(set(delivered)) == len(delivered)
    of_bucket = Counter(sample // 1000 for sample in delivered)
    assert [of_bucket[bucket] for bucket in range(len(counts))] == [count // quantum * quantum for count in counts]


def test_drop_leaves_out_others_in_each_epoch() -> None:
    positions = bucketed([7], 4, drop=True)
    left_out = {
        sample
        for epoch in range(20)
        for sample in set(range(7)) - {sample for [*rows] in run(positions, 1, 4, Cursor(epoch)) for sample, _ in rows}
    }
    assert left_out == set(range(7))


@settings(max_examples=60, deadline=None)
@given(counts_of, st.booleans(), st.sampled_from([(24, 1), (12, 2), (4, 3), (1, 8), (2, 2), (3, 1)]), st.data())
@pytest.mark.slow(kept=0)
def test_a_run_resumes_with_each_number_of_ranks_that_divides_the_quantum(
    counts: list[int], drop: bool, shape: tuple[int, int], data: st.DataObject
) -> None:
    positions = bucketed([*counts, 24], 24, drop)
    one_by_one = [row for step in run(positions, 1, 24, Cursor(3)) for row in step]
    ranks, batch_size = shape
    done = data.draw(st.integers(0, positions.size // (ranks * batch_size))) * ranks * batch_size
    resumed = run(positions, ranks, batch_size, Cursor(3, done))
    assert [row for step in resumed for row in step] == one_by_one[done:]


@pytest.mark.parametrize(
    ("ranks", "batch_size", "said"),
    [
        (
            2,
            5,
            "2 ranks x batch_size 5 = 10 does not divide .*=24: .* with 2 ranks are batch sizes of 1, 2, 3, 4, 6, 12",
        ),
        (5, 1, "5 ranks x batch_size 1 = 5 .* allowed are numbers of ranks 1, 2, 3, 4, 6, 8, 12, 24"),
    ],
)
def test_a_global_batch_that_does_not_divide_the_quantum_is_refused(ranks: int, batch_size: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Plan(bucketed([30], 24), batch_size, 0, ranks, "pad")


def test_within_a_quantum_a_run_resumes_with_steps_that_end_where_it_ends() -> None:
    plan, state = Plan(bucketed([48], 24), 4, 0, 2, "pad"), {"epoch": 0, "begin": 0, "delivered": 36}
    with pytest.raises(ConfigError, match=r"12 samples of a bucket batch of 24 .* ranks are batch sizes of 1, 2, 3, 6"):
        plan.resume(state)
    assert replace(plan, batch_size=6).resume(state)[1] == Cursor(0, 36)
    assert plan.resume({**state, "delivered": 48})[1] == Cursor(0, 48)


def test_a_run_takes_the_quantum_of_a_state_unless_it_is_given() -> None:
    state = {"epoch": 0, "begin": 0, "delivered": 24, "quantum": 24}
    plan, _ = Plan(bucketed([48], 12), 12, last_batch="pad").resume(state)
    assert plan.state(Cursor())["quantum"] == 24
    with pytest.raises(ConfigError, match=r"has quantum=24, this loader has Buckets\(quantum=12\): leave quantum out"):
        Plan(replace(bucketed([48], 12), fixed=True), 12, last_batch="pad").resume(state)


def test_none_takes_bucket_after_bucket_in_the_order_of_the_ids() -> None:
    assert run(bucketed([3, 0, 2], 2, shuffle="none"), 1, 2, Cursor(7)) == [
        [(0, True), (1, True)],
        [(2, True), (0, False)],
        [(2000, True), (2001, True)],
    ]


def test_this_is_the_order_which_states_rely_on() -> None:
    steps = run(bucketed([5, 4], 4), 1, 4, Cursor(1), seed=2)
    assert [[sample for sample, _ in step] for step in steps] == [[2, 3, 4, 1], [0, 2, 3, 4], [1003, 1002, 1001, 1000]]


def test_buckets_and_epochs_are_shuffled_independently() -> None:
    first, second = (run(bucketed([32] * 4, 4), 1, 4, Cursor(epoch)) for epoch in (0, 1))
    assert [step[0][0] // 1000 for step in first] != [step[0][0] // 1000 for step in second]
    places = [
        [sample % 1000 for step in first for sample, _ in step if sample // 1000 == bucket] for bucket in range(4)
    ]
    assert len(set(map(tuple, places))) == 4


def test_a_fingerprint_is_of_samples_and_sizes() -> None:
    same = bucketed([5, 4], 4)
    others = [
        bucketed([4, 5], 4),
        bucketed([5, 4], 4, drop=True),
        bucketed([5, 4], 4, shuffle="none"),
        BucketSampler([(1, 8), (2, 9)], same.runs, 4),
        BucketSampler(same.shapes, [np.arange(9), np.arange(0)], 4),
        BucketSampler([], same.runs, 4),  # in the sizes that the recipe makes
    ]
    assert same.fingerprint == bucketed([5, 4], 8).fingerprint  # states keep the quantum
    assert len({each.fingerprint for each in [same, *others]}) == 7


@pytest.mark.parametrize("drop", [False, True])
def test_replacements_are_of_the_same_bucket_and_do_not_depend_on_the_ranks(drop: bool) -> None:
    positions, uniform = bucketed([30, 9, 50], 8, drop), np.random.default_rng(0).random(50)
    for place in range(0, positions.size, 2):
        found = {
            tuple(Plan(positions, size, last_batch="pad").replacements(Cursor(0, place), 0, uniform).tolist())
            for size in (1, 2)
        }
        [shape] = Plan(positions, 1, last_batch="pad").shapes(Cursor(0, place), 1) or []
        assert len(found) == 1
        assert {sample // 1000 + 1 for sample in next(iter(found))} == {shape[0]}


# --- by weight

WEIGHTS = [np.array([5.0, 0, 1, 2]), np.array([0.0, 0]), np.arange(9.0), np.zeros(0)]
"""Of the samples of four buckets, of which two have no weight."""


def weighted(quantum: int = 4, drop: bool = False, weights: list[np.ndarray] = WEIGHTS) -> WeightedBuckets:
    plain = bucketed(list(map(len, weights)), quantum, drop)
    return WeightedBuckets(plain.shapes, plain.runs, quantum, drop, weights=weights)


def test_a_bucket_batch_draws_its_bucket_by_the_sum_of_its_weights_then_each_sample_by_weight() -> None:
    source, counts, batches = weighted(), Counter(), Counter()  # type: ignore[var-annotated]
    for number in range(2000):
        for batch in source.order(3, number)(np.arange(source.size)).reshape(-1, 4).tolist():
            [bucket] = {sample // 1000 for sample in batch}
            batches[bucket] += 1
            counts.update(batch)
    sums = np.array([each.sum() for each in WEIGHTS])
    found = np.array([batches[bucket] for bucket in range(4)])
    assert found[sums == 0].sum() == 0
    assert stats.chisquare(found[sums > 0], found.sum() * sums[sums > 0] / sums.sum()).pvalue > 1e-4
    for bucket in (0, 2):
        of_each = np.array([counts[1000 * bucket + number] for number in range(len(WEIGHTS[bucket]))])
        has = WEIGHTS[bucket] > 0
        assert of_each[~has].sum() == 0
        expected = of_each.sum() * WEIGHTS[bucket][has] / sums[bucket]
        assert stats.chisquare(of_each[has], expected).pvalue > 1e-4


@pytest.mark.parametrize("drop", [False, True])
def test_with_weights_an_epoch_has_as_many_bucket_batches_as_without_and_no_padding(drop: bool) -> None:
    source = weighted(drop=drop)
    steps = run(source, 2, 2, Cursor(5))
    assert len(steps) == sum(len(each) // 4 if drop else -(-len(each) // 4) for each in WEIGHTS)
    assert all(valid for step in steps for _, valid in step)
    assert Plan(source, 4, last_batch="drop" if drop else "pad").num_samples == source.size


def test_with_weights_a_run_goes_on_with_other_ranks_and_each_copy_has_its_own_random_numbers() -> None:
    source = weighted(12)
    whole = [row for step in run(source, 1, 12, Cursor(2)) for row in step]
    assert [row for step in run(source, 3, 2, Cursor(2, 18)) for row in step] == whole[18:]
    draws = Plan(source, 12, last_batch="pad").batch(Cursor(2)).draws
    assert len(set(draws.ids.tolist())) == 12


def test_with_weights_replacements_are_of_the_bucket_and_the_largest_numbers_have_weight() -> None:
    source = weighted()
    uniform = np.append(np.random.default_rng(0).random(500), [0.0, 1 - 2**-53])
    for place in range(0, source.size, 4):
        plan = Plan(source, 4, last_batch="pad")
        [bucket] = {sample // 1000 for sample in plan.batch(Cursor(0, place)).ids.tolist()}
        found = set(plan.replacements(Cursor(0, place), 0, uniform).tolist())
        assert found == set((1000 * bucket + np.flatnonzero(WEIGHTS[bucket])).tolist())


def test_weighted_buckets_are_golden_and_weights_have_a_fingerprint() -> None:
    assert weighted().order(7, 3)(np.arange(12)).tolist() == [
        2006,
        2003,
        2005,
        2002,
        2008,
        2004,
        2006,
        2005,
        2003,
        2008,
        2006,
        2006,
    ]
    assert weighted().fingerprint == weighted(8).fingerprint
    assert weighted().fingerprint != weighted(weights=[each * 2 for each in WEIGHTS]).fingerprint
    found = weighted().includes(np.array([0, 1, 2, 1000, 2000, 2001, 9999]))
    assert found.tolist() == [True, False, True, False, False, True, False]
    assert weighted().used_shapes == [(1, 8), (3, 8)]
