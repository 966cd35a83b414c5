"""Samplings: which samples an epoch goes through, by weight, from several ranges, or as a function says."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from gpuloader.errors import ConfigError
from gpuloader.plan import (
    AllSamples,
    ByShard,
    Cursor,
    Custom,
    Draws,
    Mixture,
    Plan,
    Positions,
    Remaining,
    Subset,
    Weighted,
)
from gpuloader.plan.mixture import parts_of
from gpuloader.plan.positions import _uniform

SAMPLES = 60
IDS = np.arange(3, SAMPLES, 2)
WEIGHTS = np.where(IDS % 3 == 0, 0.0, 1.0 + IDS)


def backwards(epoch: int) -> np.ndarray:
    """Another third of the samples in each epoch, from behind."""
    return np.arange(SAMPLES)[epoch % 3 :: 3][::-1]


MAKERS: dict[str, Callable[[], Positions]] = {
    "whole": lambda: AllSamples(SAMPLES, "full"),
    "by shard": lambda: ByShard(np.array([20, 0, SAMPLES - 20])),
    "subset": lambda: Subset(IDS, "full"),
    "subset in blocks": lambda: Subset(IDS, "block"),
    "remaining": lambda: Remaining(AllSamples(SAMPLES - len(IDS), "full"), IDS),
    "remaining of shards": lambda: Remaining(ByShard(np.array([12, SAMPLES - len(IDS) - 12])), IDS),
    "remaining of a mixture": lambda: Remaining(Mixture.of([20, SAMPLES - len(IDS) - 20], [3, 1], "full"), IDS),
    "weighted": lambda: Weighted(IDS, WEIGHTS, replacement=True),
    "weighted without replacement": lambda: Weighted(IDS, WEIGHTS, replacement=False),
    "mixture": lambda: Mixture.of([40, 13, 7], [3, 1, 2], "full"),
    "custom": lambda: Custom(backwards, SAMPLES),
}
each_sampling = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def epoch_of(sampling: Positions, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return sampling.order(seed, epoch)(np.arange(sampling.length))


def epochs_of(sampling: Positions, epochs: int, seed: int = 0) -> np.ndarray:
    return np.concatenate([epoch_of(sampling, seed, epoch) for epoch in range(epochs)])


# --- all of them


@each_sampling
def test_the_order_is_a_function_of_seed_epoch_and_position(make: Callable[[], Positions]) -> None:
    sampling = make()
    for seed, epoch in ((0, 0), (5, 0), (2**64 - 1, 7), (0, 2**32 - 1)):
        whole = epoch_of(sampling, seed, epoch)
        assert whole.dtype == np.int64
        again = make().order(seed, epoch)
        backward = [int(again(np.array([position]))[0]) for position in range(sampling.length)[::-1]]
        assert backward[::-1] == whole.tolist()


@each_sampling
def test_another_epoch_or_seed_is_another_order(make: Callable[[], Positions]) -> None:
    orders = {tuple(epoch_of(make(), 0, epoch).tolist()) for epoch in range(3)}
    assert len(orders) == 3
    if not isinstance(make(), Custom):
        assert tuple(epoch_of(make(), 1, 0).tolist()) not in orders


@each_sampling
def test_a_sample_comes_again_in_an_epoch_only_where_repeats_says_so(make: Callable[[], Positions]) -> None:
    sampling = make()
    again = any(len(np.unique(epoch_of(sampling, 0, epoch))) < sampling.length for epoch in range(3))
    assert sampling.repeats or not again


# What an order is, is part of what a seed means, and its fingerprint is in the state. Changing these breaks saved runs.
@pytest.mark.parametrize(
    ("name", "fingerprint", "expected"),
    [
        ("whole", "c00afbd481694539f106497a4298c3f9", [29, 10, 21, 57, 27, 56, 33, 11, 36, 28, 4, 25]),
        ("subset", "f7096cf916af078cbb4aaaff42be5122", [43, 47, 29, 11, 53, 49, 21, 23, 3, 37, 59, 7]),
        ("subset in blocks", "9615d508400a602048c784bc644130d5", [27, 29, 21, 49, 9, 13, 41, 3, 35, 11, 43, 57]),
        ("remaining", "315275da77253b4f0a9f4b0de34c9e56", [38, 42, 24, 56, 48, 44, 16, 18, 0, 32, 54, 2]),
        ("remaining of shards", "f5d3cb1414862ecbf23ea8577db76700", [28, 30, 22, 50, 10, 14, 42, 4, 58, 12, 44, 56]),
        ("remaining of a mixture", "3003980e20c621c2296d75d406d98fcb", [10, 56, 2, 28, 22, 48, 20, 36, 14, 52, 34, 30]),
        ("weighted", "2383838a7f8cdb12490c0780d8a3b2d2", [43, 23, 31, 13, 55, 25, 41, 35, 19, 55, 43, 41]),
        (
            "weighted without replacement",
            "b72ef2cb63c23d875146669ad1856e49",
            [59, 25, 29, 31, 17, 53, 55, 19, 13, 41, 37, 43],
        ),
        ("mixture", "26da54aae7315a73a45b499ea9013e21", [7, 58, 20, 48, 57, 17, 24, 59, 21, 44, 54, 32]),
        ("custom", "e9528464b601b07e449da60adc435390", [57, 54, 51, 48, 45, 42, 39, 36, 33, 30, 27, 24]),
    ],
)
def test_orders_and_fingerprints_are_golden(name: str, fingerprint: str, expected: list[int]) -> None:
    sampling = MAKERS[name]()
    assert sampling.fingerprint == fingerprint
    assert sampling.order(seed=7, epoch=3)(np.arange(12)).tolist() == expected


def test_what_differs_has_another_fingerprint() -> None:
    samplings = [
        *(make() for make in MAKERS.values()),
        AllSamples(SAMPLES, "none"),
        AllSamples(SAMPLES + 1, "full"),
        Subset(IDS[:-1], "full"),
        Subset(IDS[::-1], "full"),
        Remaining(AllSamples(SAMPLES - len(IDS), "none"), IDS),
        Remaining(AllSamples(SAMPLES - len(IDS), "full"), IDS - 1),
        Weighted(IDS, WEIGHTS + 1, replacement=True),
        Weighted(IDS + 1, WEIGHTS, replacement=True),
        Mixture.of([40, 13, 7], [3, 2, 1], "full"),
        Mixture.of([40, 7, 13], [3, 1, 2], "full"),
        Mixture.of([40, 13, 7], [3, 1, 2], "block"),
        Custom(lambda epoch: np.arange(SAMPLES)[epoch % 3 :: 3], SAMPLES),
    ]
    assert len({sampling.fingerprint for sampling in samplings}) == len(samplings)


# --- subsets


@pytest.mark.parametrize("shuffle", ["none", "full", "block"])
def test_a_subset_has_each_of_its_samples_once(shuffle: Any) -> None:  # noqa: ANN401
    for ids in (np.array([4]), IDS, IDS[::-1], np.arange(5000) * 3):
        order = epoch_of(Subset(ids, shuffle), epoch=2)
        assert order.tolist() == ids.tolist() if shuffle == "none" else sorted(order) == sorted(ids)


# --- what remains


@pytest.mark.parametrize("left_out", [[], [0], [59], [7], [0, 1, 2, 58, 59], list(range(1, 60)), IDS.tolist()])
def test_what_remains_is_all_but_what_is_left_out_in_the_order_of_the_others(left_out: list[int]) -> None:
    left = np.delete(np.arange(SAMPLES), left_out)
    for shuffle in ("none", "full", "block"):
        remaining = Remaining(AllSamples(len(left), shuffle), np.array(left_out, np.int64))  # type: ignore[arg-type]
        subset = Subset(left, shuffle)  # type: ignore[arg-type]
        assert remaining.length == len(left)
        assert epoch_of(remaining, 3, 1).tolist() == epoch_of(subset, 3, 1).tolist()


def test_what_remains_of_billions_needs_no_table() -> None:
    left_out = np.array([5, 10**9, 2 * 10**9])
    order = Remaining(AllSamples(3 * 10**9, "none"), left_out).order(0, 0)
    assert order(np.array([4, 5, 10**9 - 2, 10**9 - 1, 3 * 10**9 - 1])).tolist() == [
        4,
        6,
        10**9 - 1,
        10**9 + 1,
        3 * 10**9 + 2,
    ]


@each_sampling
def test_each_includes_what_its_epochs_have(make: Callable[[], Positions]) -> None:
    sampling = make()
    epochs = [0] if isinstance(sampling, Custom) else range(200)  # what a function returns later is not known
    seen = np.unique(np.concatenate([epoch_of(sampling, 0, epoch) for epoch in epochs]))
    assert np.flatnonzero(sampling.includes(np.arange(SAMPLES))).tolist() == seen.tolist()


# --- weights


def test_with_replacement_samples_come_as_often_as_they_weigh() -> None:
    weights = np.array([5.0, 0, 1, 2, 0.5, 0, 1.5, 0])
    ids = np.arange(20, 28)
    drawn = epochs_of(Weighted(ids, weights, replacement=True), 4000) - 20
    counts = np.bincount(drawn, minlength=8)
    assert counts[weights == 0].sum() == 0
    assert stats.chisquare(counts[weights > 0], 32_000 * weights[weights > 0] / 10).pvalue > 1e-4


def test_with_replacement_neighbours_are_drawn_independently() -> None:
    probability = np.array([0.1, 0.2, 0.3, 0.4])
    weighted = Weighted(np.arange(4), probability, replacement=True)
    by_epoch = np.stack([epoch_of(weighted, seed=3, epoch=epoch) for epoch in range(4000)])
    for one, other in ((by_epoch[:, 0], by_epoch[:, 1]), (by_epoch[:-1, 0], by_epoch[1:, 0])):
        pairs = np.bincount(one * 4 + other, minlength=16)
        assert stats.chisquare(pairs, len(one) * np.outer(probability, probability).ravel()).pvalue > 1e-4


def test_without_replacement_samples_come_as_numpy_chooses_them() -> None:
    weights = np.array([5.0, 1, 0, 2, 0.5, 1.5])
    weighted = Weighted(np.arange(6), weights, replacement=False)
    assert weighted.length == 5
    rng, times = np.random.default_rng(0), 5000
    ours = [tuple(epoch_of(weighted, epoch=epoch)[:2].tolist()) for epoch in range(times)]
    theirs = [tuple(rng.choice(6, 2, p=weights / weights.sum(), replace=False).tolist()) for _ in range(times)]
    pairs = sorted(set(ours) | set(theirs))
    assert len(pairs) == 20
    table = [[Counter(drawn)[pair] for pair in pairs] for drawn in (ours, theirs)]
    assert stats.chi2_contingency(table).pvalue > 1e-4
    # One after the other, each with its share of what the weights left over add up to.
    expected = [times * weights[one] / 10 * weights[other] / (10 - weights[one]) for one, other in pairs]
    assert stats.chisquare(table[0], expected).pvalue > 1e-4


def test_without_replacement_each_sample_with_weight_comes_once() -> None:
    weighted = Weighted(IDS, WEIGHTS, replacement=False)
    assert weighted.length == (WEIGHTS > 0).sum()
    for epoch in range(5):
        assert sorted(epoch_of(weighted, epoch=epoch)) == IDS[WEIGHTS > 0].tolist()


def test_without_replacement_the_order_of_a_subset_does_not_count() -> None:
    one = Weighted(IDS, WEIGHTS, replacement=False)
    other = Weighted(IDS[::-1], WEIGHTS[::-1], replacement=False)
    assert epoch_of(one, 4, 2).tolist() == epoch_of(other, 4, 2).tolist()


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("scale", [2.0**-1070, 2.0**1020])
def test_the_scale_of_the_weights_does_not_count(replacement: bool, scale: float) -> None:
    weights = np.array([0, 1.0, 2.0, 4.0, 8.0, 8.0, 0])
    scaled = Weighted(np.arange(7), weights * scale, replacement)
    expected = epochs_of(Weighted(np.arange(7), weights, replacement), 20)
    assert epochs_of(scaled, 20).tolist() == expected.tolist()


@pytest.mark.parametrize("numbers", ["smallest", "largest"])
@pytest.mark.parametrize("replacement", [True, False])
def test_samples_without_weight_never_come_whatever_is_drawn(
    monkeypatch: pytest.MonkeyPatch, numbers: str, replacement: bool
) -> None:
    number = 0.0 if numbers == "smallest" else 1 - 2.0**-32
    monkeypatch.setattr(Draws, "uniform", lambda self, stream, count: np.full((len(self.ids), count), number))
    for some in np.random.default_rng(0).uniform(size=(300, 3)):
        weighted = Weighted(np.arange(6), np.array([0, 0, *some, 0]), replacement)
        assert set(epoch_of(weighted).tolist()) <= {2, 3, 4}


def test_numbers_are_fine_enough_for_billions_of_samples() -> None:
    uniform = _uniform(0, 0, np.arange(20_000))
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert stats.kstest(uniform, "uniform").pvalue > 1e-4
    assert stats.kstest(uniform * 2.0**32 % 1, "uniform").pvalue > 1e-4
    np.testing.assert_array_equal(uniform * 2.0**53 % 1, 0)


# --- mixtures


@pytest.mark.parametrize(
    ("weights", "parts"),
    [
        ([1], (1,)),
        ([2.5], (1,)),
        ([1, 1], (1, 1)),
        ([2, 4], (1, 2)),
        ([0.3, 0.7], (3, 7)),
        ([0.1, 0.2, 0.3, 0.4], (1, 2, 3, 4)),
        ([1 / 3, 2 / 3], (1, 2)),
        ([1e-9, 3e-9], (1, 3)),
        ([1e300, 5e299], (2, 1)),
        ([999, 1000], (999, 1000)),
        ([1, 1500], (1, 1500)),
        ([0.31, 0.27, 0.42], (31, 27, 42)),
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


def test_weights_that_are_too_far_apart_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"weights \[1, 1000000\] are too far apart .* at least 0.05% of their sum"):
        Mixture.of([10, 10], [1, 1_000_000], "full")


MIXTURES = [
    ([40, 13, 7], [3, 1, 2]),
    ([40, 20], [0.3, 0.7]),
    ([5, 1000], [1, 1]),
    ([1, 1, 1], [1, 2, 4]),
    ([3, 4], [7, 50]),  # more parts than samples
    ([100], [1]),
]


@pytest.mark.parametrize(("sizes", "weights"), MIXTURES)
def test_every_run_of_as_many_positions_as_the_parts_has_exactly_the_parts(
    sizes: list[int], weights: list[float]
) -> None:
    mixture, parts = Mixture.of(sizes, weights, "full"), parts_of(weights)
    assert mixture.length == sum(sizes)
    ids = epochs_of(mixture, 5 + sum(parts) // mixture.length)  # over the epochs' ends too
    source = np.searchsorted(np.cumsum(sizes), ids, side="right")
    for number, part in enumerate(parts):
        so_far = np.concatenate([[0], np.cumsum(source == number)])
        assert set(so_far[sum(parts) :] - so_far[: -sum(parts)]) == {part}


@pytest.mark.parametrize(("sizes", "weights"), MIXTURES)
@pytest.mark.parametrize("shuffle", ["none", "full", "block"])
def test_each_range_is_gone_through_pass_by_pass(sizes: list[int], weights: list[float], shuffle: Any) -> None:  # noqa: ANN401
    ids = epochs_of(Mixture.of(sizes, weights, shuffle), 12, seed=1)
    for start, size in zip(np.cumsum([0, *sizes]).tolist(), sizes, strict=False):
        own = ids[(ids >= start) & (ids < start + size)] - start
        passes = own[: len(own) // size * size].reshape(-1, size)
        assert len(passes) >= 2
        assert (np.sort(passes) == np.arange(size)).all()
        different = len({tuple(each) for each in passes.tolist()})
        assert different == (1 if shuffle == "none" else len(passes)) or size < 13


def test_the_parts_are_spread_evenly() -> None:
    ids = epoch_of(Mixture.of([8, 4, 4], [4, 2, 1], "none"))
    assert "".join("abc"[source] for source in np.searchsorted([8, 12], ids, side="right")) == "abacaba" * 2 + "ab"


def test_ranges_of_one_size_have_different_orders() -> None:
    ids = epoch_of(Mixture.of([50, 50], [1, 1], "full"))
    assert (ids[ids < 50] != ids[ids >= 50] - 50).mean() > 0.9


def test_a_mixture_of_billions_needs_no_table() -> None:
    mixture = Mixture.of([3 * 10**9, 10**4], [10, 1], "full")
    ids = mixture.order(0, 1000)(np.arange(10**9, 10**9 + 1100))
    assert (ids < 3 * 10**9).sum() == 1000
    assert len(np.unique(ids)) == 1100


# --- functions


def test_a_function_gives_the_ids_of_each_epoch() -> None:
    custom = Custom(backwards, SAMPLES)
    assert custom.length == SAMPLES // 3
    assert [epoch_of(custom, seed=9, epoch=epoch).tolist() for epoch in range(4)] == [
        list(range(last, -1, -3)) for last in (57, 58, 59, 57)
    ]


def test_what_a_function_gave_may_change_afterwards() -> None:
    ids = np.arange(10)
    order = Custom(lambda epoch: ids, 10).order(0, 0)
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
        Custom(lambda epoch: given, 10)


def test_a_function_that_gives_another_number_of_ids_later_is_refused_there() -> None:
    custom = Custom(lambda epoch: range(5 + (epoch > 2)), 10)
    assert len(epochs_of(custom, 3)) == 15
    with pytest.raises(ConfigError, match="for epoch 3 the function returned 6 ids, and 5 for epoch 0"):
        custom.order(0, 3)


def test_a_function_of_more_than_the_epoch_is_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ConfigError, match="called again for epoch 0, the function returned different ids"):
        Custom(lambda epoch: rng.permutation(100), 100)


# --- in a plan


def plan(sampling: Positions, batch_size: int, **kwargs: Any) -> Plan:  # noqa: ANN401
    return Plan(sampling, batch_size, **kwargs)


def global_batches(sampling: Positions, batch_size: int, world_size: int, **kwargs: Any) -> list[list[Any]]:  # noqa: ANN401
    """The (id, valid, id for random numbers) of each step of two epochs, those of all ranks together."""
    ranks = [plan(sampling, batch_size, rank=rank, world_size=world_size, **kwargs) for rank in range(world_size)]
    steps, cursor = [], Cursor()
    while (cursor := ranks[0].at_step(cursor)).epoch < 2:
        batches = [each.batch(cursor) for each in ranks]
        rows = [list(zip(b.ids.tolist(), b.valid.tolist(), b.draws.ids.tolist(), strict=True)) for b in batches]
        steps.append(list(itertools.chain(*rows)))
        cursor = ranks[0].after(cursor)
    return steps


@each_sampling
@pytest.mark.parametrize("last_batch", ["drop", "pad", "partial"])
def test_the_global_batches_do_not_depend_on_the_world_size(make: Callable[[], Positions], last_batch: Any) -> None:  # noqa: ANN401
    sampling = make()
    alone = global_batches(sampling, 8, 1, last_batch=last_batch)
    assert alone == global_batches(sampling, 4, 2, last_batch=last_batch)
    assert alone == global_batches(sampling, 1, 8, last_batch=last_batch)
    delivered = [sample for step in alone for sample, valid, _ in step if valid]
    first, second = (epoch_of(sampling, 0, epoch).tolist() for epoch in (0, 1))
    if last_batch == "drop":
        whole = sampling.length // 8 * 8
        first, second = first[:whole], second[:whole]
    assert delivered == first + second


@each_sampling
def test_padding_repeats_the_start_of_the_epoch(make: Callable[[], Positions]) -> None:
    sampling = make()
    steps = global_batches(sampling, sampling.length - 2, 1, last_batch="pad")
    for epoch in range(2):
        padding = [row for row in itertools.chain(*steps[2 * epoch : 2 * epoch + 2]) if not row[1]]
        start = epoch_of(sampling, 0, epoch).tolist()
        assert [sample for sample, _, _ in padding] == start[: sampling.length - 4]


@each_sampling
def test_a_sample_that_comes_again_has_other_random_numbers(make: Callable[[], Positions]) -> None:
    sampling = make()
    for step in global_batches(sampling, sampling.length, 1)[:1]:
        assert len({drawn_for for _, _, drawn_for in step}) == len(step)
        if not sampling.repeats:
            assert [drawn_for for _, _, drawn_for in step] == [sample for sample, _, _ in step]


def test_an_epochs_order_is_made_once_however_many_plans_there_are() -> None:
    asked: Counter[int] = Counter()

    def function(epoch: int) -> range:
        asked[epoch] += 1
        return range(10)

    plans = [plan(Custom(function, 10), 2) for _ in range(6)]
    asked.clear()
    for epoch, _ in itertools.product((0, 1), range(5)):
        for each in plans:
            each.ids(epoch, np.arange(2))
            each.ids(epoch + 1, np.arange(2))  # read ahead
    assert asked == {0: 6, 1: 6, 2: 6}
