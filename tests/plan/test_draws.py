"""Draws: Philox, and its addressing by seed, epoch, sample and stream."""

import numpy as np
import pytest
from scipy import stats

from gpuloader.errors import ConfigError
from gpuloader.plan import Draws, Plan, Stream, all_samples
from gpuloader.plan.draws import philox4x32


# The known answers of Random123, the library of the paper's authors: philox4x32 with 10 rounds.
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, 0xFFFFFFFF_FFFFFFFF, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0_A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_answers(counter: tuple[int, ...], key: int, expected: tuple[int, ...]) -> None:
    words = philox4x32([np.array([word], np.uint64) for word in counter], key)
    assert tuple(int(word[0]) for word in words) == expected


def test_a_draw_is_golden() -> None:
    # These numbers are what a seed means. Changing them breaks every saved run.
    drawn = Draws(seed=7, epoch=3, ids=np.array([0, 5_000_000_000])).uniform(Stream.CROP, 3)
    assert drawn.tolist() == [
        [0.9641872157808393, 0.1300056332256645, 0.7176646762527525],
        [0.8869847538881004, 0.36858013388700783, 0.48956754710525274],
    ]


def test_a_sample_draws_the_same_alone_and_among_others() -> None:
    ids = np.arange(100)
    together = Draws(1, 2, ids).uniform(Stream.CROP, 22)
    alone = [Draws(1, 2, ids[place : place + 1]).uniform(Stream.CROP, 22)[0] for place in range(100)]
    np.testing.assert_array_equal(together, alone)


def test_asking_for_more_numbers_does_not_change_the_first() -> None:
    draws = Draws(1, 2, np.arange(10))
    np.testing.assert_array_equal(draws.uniform(Stream.CROP, 22)[:, :3], draws.uniform(Stream.CROP, 3))


@pytest.mark.parametrize(
    "other",
    [
        Draws(2, 0, np.arange(1000)).uniform(Stream.CROP, 4),
        Draws(1 << 32 | 1, 0, np.arange(1000)).uniform(Stream.CROP, 4),  # the seed's high half counts
        Draws(1, 1, np.arange(1000)).uniform(Stream.CROP, 4),
        Draws(1, 0, np.arange(1000) + (1 << 32)).uniform(Stream.CROP, 4),  # the id's high half counts
        Draws(1, 0, np.arange(1000)).uniform(Stream.FLIP, 4),
    ],
    ids=["seed", "seed's high half", "epoch", "id's high half", "stream"],
)
def test_every_part_of_the_address_counts(other: np.ndarray) -> None:
    drawn = Draws(1, 0, np.arange(1000)).uniform(Stream.CROP, 4)
    assert not (drawn == other).any()
    assert abs(np.corrcoef(drawn.ravel(), other.ravel())[0, 1]) < 0.06


def test_draws_are_uniform_in_every_column() -> None:
    drawn = Draws(11, 4, np.arange(20_000)).uniform(Stream.JITTER, 8)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    for column in drawn.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-4


def test_the_columns_are_independent() -> None:
    drawn = Draws(11, 4, np.arange(20_000)).uniform(Stream.CROP, 8)
    correlations = np.corrcoef(drawn.T) - np.eye(8)
    assert np.abs(correlations).max() < 0.03


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, True, None, "0"])
def test_a_seed_that_is_no_64_bit_number_is_refused(seed: object) -> None:
    with pytest.raises(ConfigError, match=r"seed=.*allowed is an integer in \[0, 2\*\*64\)"):
        Plan(all_samples(10), batch_size=1, seed=seed)  # type: ignore[arg-type]


def test_the_parts_of_a_draw_share_no_number_with_each_other() -> None:
    draw = Draws(1, 2, np.arange(500)).of(Stream.CHOICE, 1, 3)
    first, second, third = draw.split(3)
    parts = [part(9) for part in (first, *second.split(2), third)]
    np.testing.assert_array_equal(parts[0], draw(9))
    together = np.concatenate(parts, 1)
    assert len(np.unique(together)) >= together.size - 1  # two of 18,000 numbers of 32 bits may be the same by chance
    assert np.abs(np.corrcoef(together.T) - np.eye(36)).max() < 0.2


def test_a_draw_does_not_reach_beyond_its_part() -> None:
    draw = Draws(1, 2, np.arange(5)).of(Stream.CHOICE)
    inner = draw
    for _ in range(15):
        inner = inner.split(2)[1]
    assert inner(8).shape == (5, 8)
    with pytest.raises(ConfigError, match="9 random numbers for a sample, but 8 are left: nest fewer transforms"):
        inner(9)
