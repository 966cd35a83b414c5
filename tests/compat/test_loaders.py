"""torch's DataLoader, set up: the rules of its arguments, the order, the ranks."""

from __future__ import annotations

import os
import random
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gpuloader import World
from gpuloader.compat import DataLoaderConfig, DataLoaderFactory, TaskSpec

NUMBERS = TensorDataset(torch.arange(20))


@pytest.fixture(params=[False, True], ids=["CPU", "GPU"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether torch says that there is a GPU: arguments are asked for, nothing runs there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: request.param)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(request.param))
    return request.param


def make(config: DataLoaderConfig) -> DataLoader:
    return DataLoaderFactory().create_dataloader(NUMBERS, config)


def epoch(loader: DataLoader) -> list[int]:
    return [number for [batch] in loader for number in batch.tolist()]


@pytest.mark.parametrize(
    ("given", "prefetch_factor", "persistent_workers"),
    [
        ({"num_workers": 2}, 2, True),
        ({"num_workers": 2, "prefetch_factor": 4}, 4, True),
        ({"num_workers": 0, "persistent_workers": True, "pin_memory": True}, None, False),  # torch: an error
    ],
    ids=str,
)
def test_arguments_follow_the_machine(
    gpu: bool, given: dict[str, object], prefetch_factor: int | None, persistent_workers: bool
) -> None:
    loader = make(DataLoaderConfig(**given))
    assert (loader.prefetch_factor, loader.persistent_workers) == (prefetch_factor, persistent_workers)
    assert loader.pin_memory == gpu


def test_workers_are_for_machines_with_a_gpu(gpu: bool) -> None:
    workers = make(DataLoaderConfig()).num_workers
    assert workers == (min(4, len(os.sched_getaffinity(0))) if gpu else 0)


def test_processes_share_the_cores_among_their_workers(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "10000")
    assert make(DataLoaderConfig()).num_workers == int(gpu)


def test_a_seed_gives_the_same_epochs() -> None:
    first, second = make(DataLoaderConfig(4, shuffle=True, seed=42)), make(DataLoaderConfig(4, shuffle=True, seed=42))
    epochs = [epoch(first), epoch(first)]
    assert epochs == [epoch(second), epoch(second)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(20))


def test_a_collator_of_ones_own_goes_before_the_tasks() -> None:
    config = DataLoaderConfig(20, collate_fn=len)
    assert list(DataLoaderFactory().create_dataloader(NUMBERS, config, task_spec=TaskSpec.vision_tiny())) == [20]


def test_ranks_share_what_there_is() -> None:
    shares = [epoch(make(DataLoaderConfig(4, shuffle=True, seed=1, world=World(rank, 2)))) for rank in range(2)]
    assert sorted(shares[0] + shares[1]) == list(range(20))


class Drawn(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, _: int) -> tuple[float, float]:
        return random.random(), float(np.random.random())


def test_workers_draw_what_the_seed_says_and_not_the_same() -> None:
    def run() -> list[float]:
        config = DataLoaderConfig(1, num_workers=2, seed=3, persistent_workers=False)
        return [float(value) for batch in DataLoaderFactory().create_dataloader(Drawn(), config) for value in batch]

    values = run()
    assert values == run()
    assert len(set(values)) == len(values)


def test_the_rest_of_an_epoch_comes_exactly() -> None:
    pytest.importorskip("torchdata", reason="torchdata is not installed; scripts/test_integrations installs it")
    config = DataLoaderConfig(4, shuffle=True, seed=42)
    whole, left, resumed = make(config), make(config), make(config)
    batches = [batch.tolist() for _ in range(2) for [batch] in whole]
    first = [batch.tolist() for [batch] in left]
    first += [batch.tolist() for [batch] in islice(left, 2)]
    resumed.load_state_dict(left.state_dict())
    assert first + [batch.tolist() for [batch] in resumed] == batches
