"""Samplers: which samples come, in any order, by weight, or as a function says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from gpuloader.errors import ConfigError
from gpuloader.plan import (
    CustomSampler,
    Draws,
    GroupedSampler,
    Mix,
    Plan,
    Ratio,
    Sampler,
    SampleSubset,
    ShuffledSampler,
    WeightedSampler,
    all_samples,
)

SAMPLES = 60
IDS = np.arange(3, SAMPLES, 2)
WEIGHTS = np.where(IDS % 3 == 0, 0.0, 1.0 + IDS)
LEFT = SAMPLES - len(IDS)


def backwards(number: int) -> np.ndarray:
    """Another third of the samples in each pass, from behind."""
    return np.arange(SAMPLES)[number % 3 :: 3][::-1]


def chosen(ids: Any) -> SampleSubset:  # noqa: ANN401
    return SampleSubset(len(ids), np.asarray(ids))


def but(left_out: Any = IDS) -> SampleSubset:  # noqa: ANN401
    return SampleSubset(SAMPLES - len(left_out), left_out=np.array(left_out, np.int64))


def mix(chosen: SampleSubset, sizes: tuple[int, ...], parts: tuple[int, ...], shuffle: Any = "full") -> Mix:  # noqa: ANN401
    return Mix(chosen, sizes, (Ratio(0, parts),), shuffle)


MAKERS: dict[str, Callable[[], Sampler | Mix]] = {
    "all": lambda: all_samples(SAMPLES),
    "by shard": lambda: GroupedSampler(SampleSubset(SAMPLES), np.array([20, 0, SAMPLES - 20]), 4),
    "subset": lambda: ShuffledSampler(chosen(IDS)),
    "subset in blocks": lambda: ShuffledSampler(chosen(IDS), "block"),
    "all but some": lambda: ShuffledSampler(but()),
    "all but some by shard": lambda: GroupedSampler(but(), np.array([12, LEFT - 12]), 3),
    "a mix of all but some": lambda: mix(but(), (20, LEFT - 20), (3, 1)),
    "weighted": lambda: WeightedSampler(chosen(IDS), WEIGHTS, replacement=True),
    "weighted without replacement": lambda: WeightedSampler(chosen(IDS), WEIGHTS, replacement=False),
    "mix": lambda: mix(SampleSubset(SAMPLES), (40, 13, 7), (3, 1, 2)),
    "custom": lambda: CustomSampler(backwards, SAMPLES),
}
each_source = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def epochs_of(source: Sampler | Mix, epochs: int = 1, seed: int = 0, first: int = 0) -> np.ndarray:
    plan, places = Plan(source, 1, seed=seed), np.arange(source.size)
    return np.concatenate([plan.ids(epoch, places) for epoch in range(first, first + epochs)])


@each_source
def test_a_sample_is_a_function_of_seed_and_place(make: Callable[[], Sampler | Mix]) -> None:
    for seed, epoch in ((0, 0), (5, 0), (2**64 - 1, 7), (0, 2**32 - 1)):
        whole = epochs_of(make(), 1, seed, epoch)
        assert whole.dtype == np.int64
        again = Plan(make(), 1, seed=seed)
        backward = [int(again.ids(epoch, np.array([place]))[0]) for place in range(len(whole))[::-1]]
        assert backward[::-1] == whole.tolist()
    orders = [tuple(epochs_of(make(), 1, 0, epoch).tolist()) for epoch in range(3)]
    assert len(set(orders)) == 3
    assert isinstance(make(), CustomSampler) or tuple(epochs_of(make(), 1, 1).tolist()) not in orders


# What an order is, is part of what a seed means. Changing these breaks saved runs.
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("all", [29, 10, 21, 57, 27, 56, 33, 11, 36, 28, 4, 25]),
        ("subset", [43, 47, 29, 11, 53, 49, 21, 23, 3, 37, 59, 7]),
        ("subset in blocks", [27, 29, 21, 49, 9, 13, 41, 3, 35, 11, 43, 57]),
        ("all but some", [38, 42, 24, 56, 48, 44, 16, 18, 0, 32, 54, 2]),
        ("all but some by shard", [28, 18, 52, 30, 2, 56, 26, 4, 58, 40, 16, 46]),
        ("a mix of all but some", [10, 56, 2, 28, 22, 48, 20, 36, 14, 52, 34, 30]),
        ("weighted", [43, 23, 31, 13, 55, 25, 41, 35, 19, 55, 43, 41]),
        ("weighted without replacement", [59, 25, 29, 31, 17, 53, 55, 19, 13, 41, 37, 43]),
        ("mix", [7, 58, 20, 48, 57, 17, 24, 59, 21, 44, 54, 32]),
        ("custom", [57, 54, 51, 48, 45, 42, 39, 36, 33, 30, 27, 24]),
    ],
)
def test_orders_are_golden(name: str, expected: list[int]) -> None:
    assert epochs_of(MAKERS[name](), 1, seed=7, first=3)[:12].tolist() == expected


def test_what_differs_has_another_fingerprint() -> None:
    sources = [
        *(make() for make in MAKERS.values()),
        all_samples(SAMPLES, "none"),
        all_samples(SAMPLES + 1),
        ShuffledSampler(chosen(IDS[:-1])),
        ShuffledSampler(chosen(IDS[::-1])),
        ShuffledSampler(but(), "none"),
        ShuffledSampler(but(IDS - 1)),
        WeightedSampler(chosen(IDS), WEIGHTS + 1, replacement=True),
        WeightedSampler(chosen(IDS + 1), WEIGHTS, replacement=True),
        mix(SampleSubset(SAMPLES), (40, 7, 13), (3, 1, 2)),
        mix(SampleSubset(SAMPLES), (40, 13, 7), (3, 1, 2), "block"),
        CustomSampler(lambda number: np.arange(SAMPLES)[number % 3 :: 3], SAMPLES),
    ]
    assert len({source.fingerprint for source in sources}) == len(sources)


@each_source
def test_each_includes_what_its_passes_have(make: Callable[[], Sampler | Mix]) -> None:
    source = make()
    seen = np.unique(epochs_of(source, 1 if isinstance(source, CustomSampler) else 200))  # later ones are not known
    assert np.flatnonzero(source.includes(np.arange(SAMPLES))).tolist() == seen.tolist()


# --- chosen samples


@pytest.mark.parametrize("shuffle", ["none", "full", "block"])
def test_a_subset_has_each_of_its_samples_once(shuffle: Any) -> None:  # noqa: ANN401
    for ids in (np.array([4]), IDS, IDS[::-1], np.arange(5000) * 3):
        order = epochs_of(ShuffledSampler(chosen(ids), shuffle), first=2)
        assert order.tolist() == ids.tolist() if shuffle == "none" else sorted(order) == sorted(ids)


@pytest.mark.parametrize("left_out", [[], [0], [59], [7], [0, 1, 2, 58, 59], list(range(1, 60)), IDS.tolist()])
def test_all_but_some_come_in_the_order_of_the_subset_of_the_others(left_out: list[int]) -> None:
    left = np.delete(np.arange(SAMPLES), left_out)
    for shuffle in ("none", "full", "block"):
        ids = [epochs_of(ShuffledSampler(each, shuffle), 1, 3, 1).tolist() for each in (but(left_out), chosen(left))]  # type: ignore[arg-type]
        assert ids[0] == ids[1]


def test_all_but_some_of_billions_need_no_table() -> None:
    some = SampleSubset(3 * 10**9, left_out=np.array([5, 10**9, 2 * 10**9]))
    numbers = np.array([4, 5, 10**9 - 2, 10**9 - 1, 3 * 10**9 - 1])
    assert some.at(numbers).tolist() == [4, 6, 10**9 - 1, 10**9 + 1, 3 * 10**9 + 2]


# --- weights


def test_with_replacement_samples_come_as_often_as_they_weigh() -> None:
    weights = np.array([5.0, 0, 1, 2, 0.5, 0, 1.5, 0])
    drawn = epochs_of(WeightedSampler(chosen(np.arange(20, 28)), weights, replacement=True), 4000) - 20
    counts = np.bincount(drawn, minlength=8)
    assert counts[weights == 0].sum() == 0
    assert stats.chisquare(counts[weights > 0], 32_000 * weights[weights > 0] / 10).pvalue > 1e-4


def test_with_replacement_neighbours_are_drawn_independently() -> None:
    probability = np.array([0.1, 0.2, 0.3, 0.4])
    by_pass = epochs_of(WeightedSampler(SampleSubset(4), probability, replacement=True), 4000, seed=3).reshape(-1, 4)
    for one, other in ((by_pass[:, 0], by_pass[:, 1]), (by_pass[:-1, 0], by_pass[1:, 0])):
        pairs = np.bincount(one * 4 + other, minlength=16)
        assert stats.chisquare(pairs, len(one) * np.outer(probability, probability).ravel()).pvalue > 1e-4


def test_without_replacement_samples_come_as_numpy_chooses_them() -> None:
    weights = np.array([5.0, 1, 0, 2, 0.5, 1.5])
    weighted = WeightedSampler(SampleSubset(6), weights, replacement=False)
    assert weighted.size == 5
    rng, times = np.random.default_rng(0), 5000
    ours = [tuple(each[:2]) for each in epochs_of(weighted, times).reshape(-1, 5).tolist()]
    theirs = [tuple(rng.choice(6, 2, p=weights / weights.sum(), replace=False).tolist()) for _ in range(times)]
    pairs = sorted(set(ours) | set(theirs))
    assert len(pairs) == 20
    table = [[Counter(drawn)[pair] for pair in pairs] for drawn in (ours, theirs)]
    assert stats.chi2_contingency(table).pvalue > 1e-4
    # One after the other, each with its share of what the weights left over add up to.
    expected = [times * weights[one] / 10 * weights[other] / (10 - weights[one]) for one, other in pairs]
    assert stats.chisquare(table[0], expected).pvalue > 1e-4


def test_without_replacement_each_sample_with_weight_comes_once_in_whatever_order_the_subset_is() -> None:
    one = WeightedSampler(chosen(IDS), WEIGHTS, replacement=False)
    other = WeightedSampler(chosen(IDS[::-1]), WEIGHTS[::-1], replacement=False)
    for epoch in range(5):
        assert sorted(epochs_of(one, first=epoch)) == IDS[WEIGHTS > 0].tolist()
        assert epochs_of(one, first=epoch).tolist() == epochs_of(other, first=epoch).tolist()


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("scale", [2.0**-1070, 2.0**1020])
def test_the_scale_of_the_weights_does_not_count(replacement: bool, scale: float) -> None:
    weights = np.array([0, 1.0, 2.0, 4.0, 8.0, 8.0, 0])
    expected = epochs_of(WeightedSampler(SampleSubset(7), weights, replacement), 20)
    assert epochs_of(WeightedSampler(SampleSubset(7), weights * scale, replacement), 20).tolist() == expected.tolist()


@pytest.mark.parametrize("numbers", ["smallest", "largest"])
@pytest.mark.parametrize("replacement", [True, False])
def test_samples_without_weight_never_come_whatever_is_drawn(
    monkeypatch: pytest.MonkeyPatch, numbers: str, replacement: bool
) -> None:
    number = 0.0 if numbers == "smallest" else 1 - 2.0**-32
    monkeypatch.setattr(Draws, "uniform", lambda self, stream, count: np.full((len(self.ids), count), number))
    for some in np.random.default_rng(0).uniform(size=(300, 3)):
        assert set(epochs_of(WeightedSampler(SampleSubset(6), np.array([0, 0, *some, 0]), replacement)).tolist()) <= {
            2,
            3,
            4,
        }


def test_numbers_are_fine_enough_for_billions_of_samples() -> None:
    weighted = WeightedSampler(SampleSubset(2**31), np.broadcast_to(1.0, 2**31), True, ends=np.arange(1, 1001) / 1000)
    drawn = weighted.order(0, 0)(np.arange(20_000))
    assert stats.kstest(drawn / 1000, "uniform").statistic < 0.02


# --- functions


def test_what_a_function_gave_may_change_afterwards() -> None:
    ids = np.arange(10)
    order = CustomSampler(lambda number: ids, 10).order(0, 0)
    ids[:] = 0
    assert order(np.arange(10)).tolist() == list(range(10))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([0.5, 1.0], r"for epoch 0 the function returned float64 of shape \(2,\): allowed are integers \(n,\)"),
        ([True, False], "returned bool of shape"),
        ([[1], [2]], r"returned int64 of shape \(2, 1\)"),
        ([], r"of shape \(0,\): allowed are integers \(n,\), at least one"),
        (None, "returned object of shape"),
        ([0, 10], "ids 0 to 10: allowed is 0 to 9"),
        ([-1, 3], "ids -1 to 3: allowed is 0 to 9"),
        (np.array([2**63], np.uint64), f"ids {2**63} to {2**63}"),
    ],
)
def test_a_function_that_gives_no_sample_ids_is_refused(given: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError, match=message):
        CustomSampler(lambda number: given, 10)


def test_a_function_that_gives_another_number_of_ids_later_is_refused_there() -> None:
    custom = CustomSampler(lambda number: range(5 + (number > 2)), 10)
    assert len(epochs_of(custom, 3)) == 15
    with pytest.raises(ConfigError, match="for epoch 3 the function returned 6 ids, and 5 for epoch 0"):
        epochs_of(custom, first=3)


def test_a_function_of_more_than_the_number_is_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ConfigError, match="called again for epoch 0, the function returned different ids"):
        CustomSampler(lambda number: rng.permutation(100), 100)


def test_a_pass_is_made_once_while_the_next_is_read_ahead() -> None:
    asked: Counter[int] = Counter()

    def function(number: int) -> range:
        asked[number] += 1
        return range(10)

    plan = Plan(CustomSampler(function, 10), 2)
    asked.clear()
    for epoch in (0, 1):
        for _ in range(5):
            plan.ids(epoch, np.arange(2))
            plan.ids(epoch + 1, np.arange(2))
    assert asked == {0: 1, 1: 1, 2: 1}
