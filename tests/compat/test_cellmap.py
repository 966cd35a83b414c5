"""Loaders whose batches are on a device, as far as a CPU shows it; tests/gpu has the rest."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch
from torch.utils.data import DataLoader, SequentialSampler, SubsetRandomSampler

from gpuloader.compat import CellMapDataLoader
from gpuloader.errors import ConfigError

Pair = namedtuple("Pair", ["image", "label"])
NUMBERS = [{"raw": torch.tensor(float(number)), "name": str(number)} for number in range(10)]


def test_it_is_torchs_loader_on_a_device() -> None:
    samples = [Pair(torch.ones(2), {"a": [number, "text"]}) for number in range(4)]
    loader = CellMapDataLoader(samples, batch_size=2, is_train=False, device="cpu")
    for batch, expected in zip(loader, DataLoader(samples, 2), strict=True):
        assert type(batch) is Pair
        assert batch.image.equal(expected.image)
        assert batch.label["a"][0].equal(expected.label["a"][0])
        assert batch.label["a"][1] == expected.label["a"][1]


def values(loader: CellMapDataLoader) -> list[int]:
    return [int(number) for batch in loader for number in batch["raw"]]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"is_train": False}, [*range(10)]),
        ({"sampler": SequentialSampler(NUMBERS)}, [*range(10)]),
        ({"sampler": lambda: SubsetRandomSampler([7])}, [7]),
        ({"sampler": [3, 1]}, [3, 1]),
    ],
    ids=["evaluation", "a sampler", "a function", "a list"],
)
def test_which_samples_come(arguments: dict[str, object], expected: list[int]) -> None:
    loader = CellMapDataLoader(NUMBERS, batch_size=3, device="cpu", **arguments)
    assert values(loader) == expected
    assert values(loader.loader) == expected


def test_metadata_is_of_any_kind() -> None:
    samples = [{**sample, "__metadata__": {"path": None, "number": number}} for number, sample in enumerate(NUMBERS)]
    [batch] = CellMapDataLoader(samples, batch_size=10, is_train=False, device="cpu")
    assert batch["raw"].tolist() == [*range(10)]
    assert batch["__metadata__"] == [sample["__metadata__"] for sample in samples]


def test_training_is_shuffled_by_the_generator() -> None:
    first, second = (
        values(CellMapDataLoader(NUMBERS, rng=torch.Generator().manual_seed(1), device="cpu")) for _ in "ab"
    )
    assert first == second != sorted(first) == [*range(10)]


class Weighted(list):
    weights = (0.0,) * 9 + (1.0,)


class CellMaps(list):
    """What cellmap_data's data sets have."""

    classes = ("nucleus",)

    def get_weighted_sampler(self, batch_size: int, rng: torch.Generator | None) -> list[int]:
        return [batch_size] * 2

    def get_subset_random_sampler(self, num_samples: int, weighted: bool, rng: torch.Generator | None) -> list[int]:
        return [int(weighted)] * num_samples


@pytest.mark.parametrize(
    ("dataset", "arguments", "expected"),
    [
        (Weighted(NUMBERS), {}, [9] * 10),
        (Weighted(NUMBERS), {"iterations_per_epoch": 2, "batch_size": 3}, [9] * 6),
        (CellMaps(NUMBERS), {"batch_size": 3}, [3, 3]),
        (CellMaps(NUMBERS), {"batch_size": 3, "iterations_per_epoch": 2}, [1] * 6),
    ],
)
def test_weights_are_the_data_sets(dataset: list, arguments: dict[str, object], expected: list[int]) -> None:
    assert values(CellMapDataLoader(dataset, weighted_sampler=True, device="cpu", **arguments)) == expected


def test_an_epoch_has_as_many_iterations_as_asked_for() -> None:
    loader = CellMapDataLoader(NUMBERS, batch_size=4, iterations_per_epoch=5, device="cpu")
    assert len(loader) == len(list(loader)) == 5


def test_refresh_calls_the_sampler_again() -> None:
    numbers = iter(range(10))
    loader = CellMapDataLoader(CellMaps(NUMBERS), sampler=lambda: [next(numbers)], device="cpu")
    assert loader.classes == ("nucleus",)
    assert (values(loader), values(loader)) == ([0], [0])
    loader.refresh()
    assert values(loader) == [1]


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="get_weighted_sampler"):
        CellMapDataLoader(NUMBERS, weighted_sampler=True, device="cpu")
