"""The digest of what a loader delivered: its formula, and that each of its five numbers changes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loaders import loader
from numpy.typing import NDArray

from gpuloader import Decoder
from gpuloader import transforms as T
from gpuloader.loading.digest import digest, splitmix64

Sample = tuple[int, int, int, int]
"""Place, id, height and width."""
ROWS = st.lists(st.tuples(*[st.integers(0, 2**63 - 1)] * 2, *[st.integers(1, 8192)] * 2), max_size=9)


def digest_of_rows(epoch: int, *rows: Sample) -> int:
    places, ids, heights, widths = np.array(rows, np.int64).reshape(-1, 4).T
    return digest(epoch, places, ids, np.stack([heights, widths], 1))


def by_hand(epoch: int, *rows: Sample) -> int:
    """The documented formula in integers of any size."""
    total = 0
    for row in rows:
        mixed = 0
        for word in (epoch, *row):
            mixed = (mixed + word + 0x9E3779B97F4A7C15) % 2**64
            mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
            mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
            mixed ^= mixed >> 31
        total += mixed
    return (total + 2**63) % 2**64 - 2**63


def test_splitmix64_gives_the_published_numbers() -> None:
    """The first three of the generator with seed 1234567, as Rosetta Code lists them; its seed grows at each."""
    seeds = np.array([1234567], np.uint64) + np.arange(3, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert splitmix64(seeds).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_the_documented_digest_stays() -> None:
    assert digest_of_rows(3, (1207, 42, 224, 160)) == -1688581158522039437


@given(st.integers(0, 2**32 - 1), ROWS)
def test_it_is_the_sum_of_the_hashes_as_int64(epoch: int, rows: list[Sample]) -> None:
    assert digest_of_rows(epoch, *rows) == by_hand(epoch, *rows)


def test_each_number_changes_it_and_so_does_another_order() -> None:
    first, second = (5, 42, 24, 20), (6, 43, 24, 20)
    others = [(4, 42, 24, 20), (5, 41, 24, 20), (5, 42, 23, 20), (5, 42, 24, 19), (5, 42, 20, 24), (42, 5, 24, 20)]
    swapped = (5, 43, 24, 20), (6, 42, 24, 20)
    found = [
        *(digest_of_rows(epoch, first, second) for epoch in (0, 1, 2**32 - 1)),
        *(digest_of_rows(1, each, second) for each in others),
        digest_of_rows(1, *swapped),
        digest_of_rows(1, first),
        digest_of_rows(1),
    ]
    assert len(set(found)) == len(found)


def larger(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Own code that repeats rows and columns, of a lying picture more often."""
    return image.repeat(2, 0).repeat(3 if image.shape[0] < image.shape[1] else 2, 1)


@pytest.mark.parametrize(
    "transforms",
    [
        [T.Resize(20, max_size=60), T.Apply(larger, same_size=False)],
        [T.Apply(larger, same_size=False), T.Resize(20, max_size=60)],
    ],
    ids=["own code last", "own code first"],
)
def test_the_size_is_that_of_the_delivered_image_if_own_code_changes_it(
    shards: list[Path], transforms: list[T.Apply]
) -> None:
    recipe = {"views": [{"transforms": transforms}, {"transforms": [T.Resize((8, 8))]}], "batch": "list"}
    with loader(shards, 8, preset=recipe, output="dict", decoder=Decoder(2, processes=0)) as batches:
        for step, batch in enumerate(batches):
            images: list[torch.Tensor] = batch["image"][0]
            rows = [
                (8 * step + row, sample, *images[row].shape[1:]) for row, sample in enumerate(batch["index"].tolist())
            ]
            assert len({row[2:] for row in rows}) > 1
            assert batches.stats().last.digest == by_hand(0, *rows)  # type: ignore[union-attr]
