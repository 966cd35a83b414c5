"""Order: a bijection for every size, computed anywhere, that mixes well."""

import itertools
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from gpuloader.errors import ConfigError
from gpuloader.plan import Shuffle, make_order
from gpuloader.plan.order import BLOCK_SAMPLES, WINDOW_BLOCKS

SHUFFLES: tuple[Shuffle, ...] = ("none", "full", "block")
WINDOW = BLOCK_SAMPLES * WINDOW_BLOCKS


@pytest.mark.slow(kept=10)
@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize(
    "samples",
    [
        *range(1, 40),
        255,
        256,
        257,
        1000,
        WINDOW - 1,
        WINDOW,
        WINDOW + 1,
        2 * WINDOW + BLOCK_SAMPLES + 3,
        65_536,
        65_537,
    ],
)
def test_every_sample_comes_exactly_once(shuffle: Shuffle, samples: int) -> None:
    for seed, epoch in ((0, 0), (5, 9)):
        ids = make_order(shuffle, samples, seed, epoch)(np.arange(samples))
        np.testing.assert_array_equal(np.sort(ids), np.arange(samples))


# What an order is, is part of what a seed means. Changing these breaks every saved run.
@pytest.mark.parametrize(
    ("shuffle", "samples", "expected"),
    [
        ("none", 10, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ("full", 10, [9, 2, 1, 5, 6, 0, 7, 4, 8, 3]),
        ("full", 1_281_167, [576100, 628224, 185544, 542166, 1086041, 1101104, 34746, 1082000, 498955, 966091]),
        ("block", 1_281_167, [1191487, 1095284, 690899, 635861, 83043, 83195, 294609, 83237, 1064341, 912887]),
    ],
)
def test_the_order_is_golden(shuffle: Shuffle, samples: int, expected: list[int]) -> None:
    assert make_order(shuffle, samples, seed=0, epoch=1)(np.arange(10)).tolist() == expected


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_a_position_gives_the_same_alone_and_among_others(shuffle: Shuffle) -> None:
    order = make_order(shuffle, 10_000, 3, 1)
    positions = np.array([9_999, 0, 5_000, 4_095, 4_096])
    assert [int(order(positions[place : place + 1])[0]) for place in range(5)] == order(positions).tolist()


@pytest.mark.parametrize("samples", [10**9, 10**12])
def test_a_huge_order_needs_no_table(samples: int) -> None:
    positions = np.random.default_rng(0).integers(0, samples, 1000)
    ids = make_order("full", samples, 0, 0)(positions)
    assert len(np.unique(ids)) == len(np.unique(positions))
    assert ids.min() >= 0
    assert ids.max() < samples
    assert stats.kstest(ids / samples, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("shuffle", ["full", "block"])
def test_seed_and_epoch_change_the_order(shuffle: Shuffle) -> None:
    orders = [make_order(shuffle, 5000, seed, epoch)(np.arange(5000)) for seed in range(3) for epoch in range(3)]
    for one, other in itertools.combinations(orders, 2):
        assert (one == other).mean() < 0.01


@pytest.mark.slow(kept=1)
def test_full_puts_every_sample_everywhere_over_the_epochs() -> None:
    samples, epochs = 12, 3000
    counts = np.zeros((samples, samples))
    for epoch in range(epochs):
        counts[np.arange(samples), make_order("full", samples, 1, epoch)(np.arange(samples))] += 1
    assert stats.chisquare(counts.ravel()).pvalue > 1e-4


def test_full_makes_all_orders_of_a_few_samples() -> None:
    seen = Counter(tuple(make_order("full", 4, 0, epoch)(np.arange(4)).tolist()) for epoch in range(4800))
    assert len(seen) == 24
    assert stats.chisquare(list(seen.values())).pvalue > 1e-4


def test_full_leaves_neighbours_unrelated() -> None:
    ids = make_order("full", 100_000, 2, 0)(np.arange(100_000))
    assert abs(np.corrcoef(ids[:-1], ids[1:])[0, 1]) < 0.02


def test_block_reads_few_short_runs_of_the_data_at_a_time() -> None:
    samples = 50 * WINDOW + 77
    order = make_order("block", samples, 4, 2)
    for window in (0, 7, 49):
        ids = np.sort(order(np.arange(window * WINDOW, (window + 1) * WINDOW)))
        runs = 1 + (np.diff(ids) != 1).sum()
        assert runs <= WINDOW_BLOCKS + 2  # one block may wrap around the end of the data, one be the samples left over


def test_block_mixes_within_a_window_and_moves_its_blocks_between_epochs() -> None:
    samples = 50 * WINDOW
    first, second = (make_order("block", samples, 4, epoch)(np.arange(WINDOW)) for epoch in (0, 1))
    assert len(np.unique(first[:128] // BLOCK_SAMPLES)) > WINDOW_BLOCKS / 2
    assert len(np.intersect1d(first, second)) < WINDOW / 4
    assert len(np.unique([int(ids.min()) % BLOCK_SAMPLES for ids in (first, second)])) == 2


def test_shards_must_be_known() -> None:
    with pytest.raises(ConfigError, match='shuffle="shards" needs all samples of the shards, each once'):
        make_order("shards", 10, 0, 0)


def test_an_unknown_shuffle_names_the_allowed() -> None:
    with pytest.raises(ConfigError, match="shuffle='random': allowed are 'none', 'full', 'block'"):
        make_order("random", 10, 0, 0)  # type: ignore[arg-type]
