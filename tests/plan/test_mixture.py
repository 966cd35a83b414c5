"""Mixtures that change along the run, against counting position after position."""

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
from gpuloader.plan import Mixture, Segment, Shuffle, merge, parts_of

EPOCHS = 4

sizes_of = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)


def weights_of(sources: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*[st.integers(0, 4)] * sources).filter(any)


def schedules_of(sources: int, positions: int) -> st.SearchStrategy[dict[int, tuple[int, ...]]]:
    """Weights by the position of the run from which they count."""
    later = st.dictionaries(st.integers(1, positions), weights_of(sources), max_size=4)
    return st.tuples(weights_of(sources), later).map(lambda both: {0: both[0], **dict(sorted(both[1].items()))})


mixtures = sizes_of.flatmap(lambda sizes: st.tuples(st.just(sizes), schedules_of(len(sizes), EPOCHS * sum(sizes))))


def segments(schedule: dict[int, tuple[int, ...]]) -> tuple[Segment, ...]:
    return merge(Segment(start, parts_of(weights)) for start, weights in schedule.items())


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
    assert ids_of(Mixture(sizes, segments(schedule), "none")) == expected


@settings(max_examples=40, deadline=None)
@given(mixtures, st.sampled_from(["full", "block"]), st.integers(0, 2**64 - 1))
def test_each_pass_over_a_source_has_each_of_its_samples_once(
    mixed: tuple[tuple[int, ...], Any], shuffle: Shuffle, seed: int
) -> None:
    sizes, schedule = mixed
    starts = [0, *accumulate(sizes)]
    passes: dict[tuple[int, int], list[int]] = {}
    ids = ids_of(Mixture(sizes, segments(schedule), shuffle), seed)
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
    mixture = Mixture(sizes, segments(schedule), "full")
    for epoch in range(EPOCHS):
        whole = mixture.order(3, epoch)(np.arange(mixture.length))
        some = np.array(random.choices(range(mixture.length), k=5))
        assert mixture.order(3, epoch)(some).tolist() == whole[some].tolist()


def test_a_schedule_reaches_places_beyond_64_bits() -> None:
    epochs = 2**32 - 1
    sizes = (3 * 10**9, 10**9)
    mixture = Mixture(sizes, (Segment(0, (1, 1)), Segment(epochs * sum(sizes) + 5, (0, 1))), "full")
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


def test_other_weights_have_other_fingerprints() -> None:
    found = {Mixture(SIZES, segments(schedule), "full").fingerprint for schedule in SCHEDULES}
    assert len(found) == len(SCHEDULES)


@pytest.mark.parametrize(
    ("schedule", "ids"),
    [
        (SCHEDULES[0], [2, 1, 7, 4, 0, 3, 6, 4, 2, 1, 5, 0, 3, 0, 7, 1]),
        (SCHEDULES[2], [2, 1, 7, 4, 0, 3, 6, 4, 2, 5, 1, 7, 0, 5, 3, 6]),
    ],
)
def test_orders_are_golden(schedule: Any, ids: list[int]) -> None:  # noqa: ANN401
    assert ids_of(Mixture(SIZES, segments(schedule), "full"), 7)[:16] == ids


def test_a_ratio_without_a_position_is_no_segment() -> None:
    parts = [(0, (1, 2)), (4, (3, 1)), (4, (1, 2)), (5, (1, 1)), (5, (1, 3))]
    assert merge(Segment(start, each) for start, each in parts) == (
        Segment(0, (1, 2)),
        Segment(5, (1, 3)),
    )


def test_equal_ratios_in_a_row_are_one_segment() -> None:
    assert segments({0: (1, 2), 4: (2, 4), 6: (1, 1), 9: (3, 3)}) == (
        Segment(0, (1, 2)),
        Segment(6, (1, 1)),
    )


@pytest.mark.parametrize(("weights", "parts"), [([0, 2], (0, 1)), ([0.5, 0, 1.5], (1, 0, 3)), ([7, 0], (1, 0))])
def test_a_source_of_weight_0_has_no_part(weights: list[float], parts: tuple[int, ...]) -> None:
    assert parts_of(weights) == parts


def test_a_weight_too_small_to_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match="too far apart for a fixed ratio"):
        parts_of([5e-324, 1, 1])


def test_a_place_in_a_schedule_is_that_of_the_number_that_began_last() -> None:
    assert [at({0: 1, 2.5: 3}, Fraction(place, 2)) for place in range(7)] == [1, 1, 1, 1, 1, 3, 3]
