"""Loaders whose batches are on a device, as far as a CPU shows it; tests/gpu has the rest."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, SubsetRandomSampler

from gpuloader.compat import CellMapDataLoader, DeviceLoader
from gpuloader.compat.device_loader import map_tensors
from gpuloader.errors import ConfigError

Pair = namedtuple("Pair", ["image", "label"])
NUMBERS = [{"raw": torch.tensor(float(number)), "name": str(number)} for number in range(10)]


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (torch.tensor(1), 2),
        ([torch.tensor(1), "text"], [2, "text"]),
        ((torch.tensor(1), 5), (2, 5)),
        (Pair(torch.tensor(1), torch.tensor(2)), Pair(2, 3)),
        ({"a": torch.tensor(1), "b": {"c": [torch.tensor(2)]}}, {"a": 2, "b": {"c": [3]}}),
    ],
    ids=str,
)
def test_all_tensors_of_a_batch_go(batch: object, expected: object) -> None:
    moved = map_tensors(batch, lambda tensor: tensor + 1)
    assert moved == expected
    assert type(moved) is (torch.Tensor if isinstance(batch, torch.Tensor) else type(expected))


def test_it_is_torchs_loader_on_a_device() -> None:
    loader = DeviceLoader(NUMBERS, "cpu", batch_size=4)
    plain = DataLoader(NUMBERS, batch_size=4)
    assert isinstance(loader, DataLoader)
    for _ in range(2):
        for batch, expected in zip(loader, plain, strict=True):
            assert batch["raw"].equal(expected["raw"])
            assert batch["name"] == expected["name"]


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


@pytest.mark.parametrize(("iterations", "batch_size"), [(2, 3), (5, 4)])  # of fewer and of more samples than there are
def test_iterations_per_epoch(iterations: int, batch_size: int) -> None:
    loader = CellMapDataLoader(NUMBERS, batch_size=batch_size, iterations_per_epoch=iterations, device="cpu")
    assert len(loader) == len(list(loader)) == iterations
    assert isinstance(loader.loader.sampler, RandomSampler)


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


def test_classes_are_the_data_sets_unless_given() -> None:
    assert CellMapDataLoader(CellMaps(NUMBERS), device="cpu").classes == ("nucleus",)
    assert CellMapDataLoader(CellMaps(NUMBERS), ["cell"], device="cpu").classes == ["cell"]
    assert CellMapDataLoader(NUMBERS, device="cpu").classes is None


def test_refresh_calls_the_sampler_again() -> None:
    numbers = iter(range(10))
    loader = CellMapDataLoader(NUMBERS, sampler=lambda: [next(numbers)], device="cpu")
    assert (values(loader), values(loader)) == ([0], [0])
    loader.refresh()
    assert values(loader) == [1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prefetch_factor": 0}, "prefetch_factor=0: allowed is an integer of at least 1"),
        ({"weighted_sampler": True}, "has neither get_weighted_sampler nor weights"),
    ],
)
def test_what_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CellMapDataLoader(NUMBERS, num_workers=1, device="cpu", **arguments)
