"""Mixtures and shares that change along the run, against counting position after position."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from counting import Counted, at
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloader.errors import ConfigError
from gpuloader.plan import Mixture, Remaining, Segment, Shuffle, Staged, merge, mixture_of, parts_of, with_mixture

EPOCHS = 4

sizes_of = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)


def weights_of(sources: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*[st.integers(0, 4)] * sources).filter(any)


def schedules_of(sources: int, positions: int) -> st.SearchStrategy[dict[int, tuple[int, ...]]]:
    """Weights by the position of the run from which they count."""
    later = st.dictionaries(st.integers(1, positions), weights_of(sources), max_size=4)
    return st.tuples(weights_of(sources), later).map(lambda both: {0: both[0], **dict(sorted(both[1].items()))})


mixtures = sizes_of.flatmap(lambda sizes: st.tuples(st.just(sizes), schedules_of(len(sizes), EPOCHS * sum(sizes))))


def segments(sizes: tuple[int, ...], schedule: dict[int, tuple[int, ...]]) -> tuple[Segment, ...]:
    return merge(Segment(start, parts_of(weights), sizes) for start, weights in schedule.items())


def ids_of(positions: Any, seed: int = 0) -> list[int]:  # noqa: ANN401
    everything = np.arange(positions.length)
    return [sample for epoch in range(EPOCHS) for sample in positions.order(seed, epoch)(everything).tolist()]


def count(sizes: tuple[int, ...], schedule: dict[int, tuple[int, ...]]) -> list[tuple[int, int]]:
    """The source of each position, and how many of its samples came before."""
    counted, places = Counted(len(sizes)), range(EPOCHS * sum(sizes))
    return [counted.take(schedule[max(start for start in schedule if start <= place)]) for place in places]


@settings(max_examples=60, deadline=None)
@given(mixtures)
def test_each_position_has_the_sample_that_counting_says(mixed: tuple[tuple[int, ...], Any]) -> None:
    sizes, schedule = mixed
    starts = [0, *accumulate(sizes)]
    expected = [starts[source] + before % sizes[source] for source, before in count(sizes, schedule)]
    assert ids_of(Mixture(sizes, segments(sizes, schedule), "none")) == expected


@settings(max_examples=40, deadline=None)
@given(mixtures, st.sampled_from(["full", "block"]), st.integers(0, 2**64 - 1))
def test_each_pass_over_a_source_has_each_of_its_samples_once(
    mixed: tuple[tuple[int, ...], Any], shuffle: Shuffle, seed: int
) -> None:
    sizes, schedule = mixed
    starts = [0, *accumulate(sizes)]
    passes: dict[tuple[int, int], list[int]] = {}
    ids = ids_of(Mixture(sizes, segments(sizes, schedule), shuffle), seed)
    for sample, (source, before) in zip(ids, count(sizes, schedule), strict=True):
        passes.setdefault((source, before // sizes[source]), []).append(sample - starts[source])
    for source, size in enumerate(sizes):
        *whole, running = [samples for (each, _), samples in sorted(passes.items()) if each == source] or [[]]
        assert all(sorted(samples) == list(range(size)) for samples in whole)
        assert len(set(running)) == len(running)
        assert set(running) <= set(range(size))


@settings(max_examples=20, deadline=None)
@given(mixtures, st.randoms(use_true_random=False))
def test_any_position_can_be_taken_alone(mixed: tuple[tuple[int, ...], Any], random: Any) -> None:  # noqa: ANN401
    sizes, schedule = mixed
    mixture = Mixture(sizes, segments(sizes, schedule), "full")
    for epoch in range(EPOCHS):
        whole = mixture.order(3, epoch)(np.arange(mixture.length))
        some = np.array(random.choices(range(mixture.length), k=5))
        assert mixture.order(3, epoch)(some).tolist() == whole[some].tolist()


@settings(max_examples=30, deadline=None)
@given(mixtures.flatmap(lambda mixed: st.tuples(st.just(mixed), schedules_of(len(mixed[0]), 40), st.integers(0, 40))))
def test_a_change_begins_at_its_place_and_each_source_goes_on(both: Any) -> None:  # noqa: ANN401
    (sizes, before), after, place = both
    old, new = (Mixture(sizes, segments(sizes, each), "full") for each in (before, after))
    now = after[max(start for start in after if start <= place)]
    joined = {
        **{start: weights for start, weights in before.items() if start < place},
        place: now,
        **{start: weights for start, weights in after.items() if start > place},
    }
    changed = new.change(old.segments, place)
    assert ids_of(changed) == ids_of(Mixture(sizes, segments(sizes, joined), "full"))
    assert ids_of(changed)[:place] == ids_of(old)[:place]
    assert changed.fingerprint == new.fingerprint


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 20).flatmap(
        lambda n: st.tuples(st.just(n), st.dictionaries(st.integers(1, EPOCHS * n), st.integers(1, n), max_size=4))
    ),
    st.integers(1, 20),
    st.sampled_from(["none", "full"]),
)
def test_a_share_is_gone_through_in_passes_and_another_size_begins_one(
    later: tuple[int, dict[int, int]], first: int, shuffle: Shuffle
) -> None:
    samples, changes = later
    schedule = dict(sorted({**changes, 0: min(first, samples)}.items()))
    row = np.arange(samples)[::-1] * 7
    of_sizes = merge(Segment(start, (1,), (size,)) for start, size in schedule.items())
    ids = ids_of(Staged(row, Mixture((samples,), of_sizes, shuffle)))
    running: list[int] = []
    size = 0
    for place, sample in enumerate(ids):
        now = schedule[max(start for start in schedule if start <= place)]
        if now != size or len(running) == size:
            size, running = now, []
        assert sample in row[:size]
        assert sample not in running
        assert shuffle == "full" or sample == row[len(running)]
        running.append(sample)


def test_each_pass_over_a_share_has_another_order() -> None:
    row = np.arange(100)
    staged = Staged(row, Mixture((100,), (Segment(0, (1,), (30,)), Segment(200, (1,), (100,))), "full"))
    ids = ids_of(staged)
    passes = [ids[start : start + 30] for start in range(0, 180, 30)] + [ids[200:300], ids[300:400]]
    assert len({tuple(each) for each in passes}) == len(passes)
    assert staged.includes(row).all()
    assert staged.length == 100


def test_a_pass_that_a_larger_share_ended_does_not_come_again() -> None:
    sizes = ((0, 30), (15, 100), (16, 30))
    passes = Mixture((100,), tuple(Segment(start, (1,), (size,)) for start, size in sizes), "full")
    ids = ids_of(Staged(np.arange(100), passes))
    assert ids[:15] != ids[16:31]


def test_only_samples_that_some_share_has_are_included() -> None:
    staged = Staged(np.array([4, 2, 9, 0]), Mixture((4,), (Segment(0, (1,), (1,)), Segment(8, (1,), (2,))), "full"))
    assert staged.includes(np.arange(10)).nonzero()[0].tolist() == [2, 4]


def test_a_schedule_reaches_places_beyond_64_bits() -> None:
    epochs = 2**32 - 1
    sizes = (3 * 10**9, 10**9)
    mixture = Mixture(sizes, (Segment(0, (1, 1), sizes), Segment(epochs * sum(sizes) + 5, (0, 1), sizes)), "full")
    ids = mixture.order(0, epochs)(np.arange(10**5))
    assert (ids[:5] < sizes[0]).tolist() == [True, False, True, False, True]
    assert (ids[5:] >= sizes[0]).all()
    assert len(np.unique(ids)) == len(ids)


SIZES = (5, 3)
SCHEDULES = [
    {0: (3, 1)},
    {0: (1, 3)},
    {0: (3, 1), 8: (1, 1)},
    {0: (3, 1), 9: (1, 1)},
    {0: (3, 1), 8: (1, 1), 9: (3, 1)},
]


def test_other_weights_and_other_shares_have_other_fingerprints() -> None:
    found = [Mixture(SIZES, segments(SIZES, schedule), "full").fingerprint for schedule in SCHEDULES]
    shares = [((0, 5),), ((0, 3),), ((0, 3), (4, 5)), ((0, 3), (5, 5))]
    for share in shares:
        mixture = Mixture((5,), tuple(Segment(start, (1,), (size,)) for start, size in share), "full")
        found.append(Staged(np.arange(5), mixture).fingerprint)
        found.append(Staged(np.arange(5)[::-1], mixture).fingerprint)
    assert len(set(found)) == len(found)


# States hold these. `SCHEDULES[0]` is what a mixture without a schedule has always had.
@pytest.mark.parametrize(
    ("schedule", "fingerprint", "ids"),
    [
        (SCHEDULES[0], "d7b737bb437f50876487343146a2d300", [2, 1, 7, 4, 0, 3, 6, 4, 2, 1, 5, 0, 3, 0, 7, 1]),
        (SCHEDULES[2], "75b0e05df486a46cdd0b886e0cca2b0c", [2, 1, 7, 4, 0, 3, 6, 4, 2, 5, 1, 7, 0, 5, 3, 6]),
    ],
)
def test_orders_and_fingerprints_are_golden(schedule: Any, fingerprint: str, ids: list[int]) -> None:  # noqa: ANN401
    mixture = Mixture(SIZES, segments(SIZES, schedule), "full")
    assert (mixture.fingerprint, ids_of(mixture, 7)[:16]) == (fingerprint, ids)


def test_a_ratio_without_a_position_is_no_segment() -> None:
    parts = [(0, (1, 2)), (4, (3, 1)), (4, (1, 2)), (5, (1, 1)), (5, (1, 3))]
    assert merge(Segment(start, each, SIZES) for start, each in parts) == (
        Segment(0, (1, 2), SIZES),
        Segment(5, (1, 3), SIZES),
    )


def test_equal_ratios_in_a_row_are_one_segment() -> None:
    assert segments(SIZES, {0: (1, 2), 4: (2, 4), 6: (1, 1), 9: (3, 3)}) == (
        Segment(0, (1, 2), SIZES),
        Segment(6, (1, 1), SIZES),
    )


def test_samples_are_left_out_of_a_mixture_that_changes() -> None:
    mixture = Mixture(SIZES, segments(SIZES, SCHEDULES[2]), "none")
    remaining = Remaining(mixture, np.array([2]))
    assert mixture_of(remaining) is mixture
    assert mixture_of(Remaining(remaining, np.array([1]))) is None
    assert ids_of(remaining) == [sample + (sample >= 2) for sample in ids_of(mixture)]
    other = Mixture(SIZES, segments(SIZES, SCHEDULES[1]), "none")
    assert ids_of(with_mixture(remaining, other)) == [sample + (sample >= 2) for sample in ids_of(other)]


@pytest.mark.parametrize(("weights", "parts"), [([0, 2], (0, 1)), ([0.5, 0, 1.5], (1, 0, 3)), ([7, 0], (1, 0))])
def test_a_source_of_weight_0_has_no_part(weights: list[float], parts: tuple[int, ...]) -> None:
    assert parts_of(weights) == parts


def test_a_weight_too_small_to_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match="too far apart for a fixed ratio"):
        parts_of([5e-324, 1, 1])


def test_a_place_in_a_schedule_is_that_of_the_number_that_began_last() -> None:
    assert [at({0: 1, 2.5: 3}, Fraction(place, 2)) for place in range(7)] == [1, 1, 1, 1, 1, 3, 3]
