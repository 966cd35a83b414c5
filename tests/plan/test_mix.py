"""Mixes: sources in a ratio."""

from __future__ import annotations

import numpy as np
import pytest

from gpuloader.errors import ConfigError
from gpuloader.plan import Mix, Plan, Ratio, SampleSubset, parts_of


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
