"""Checkpoints give back what was saved, and the rest of the data."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from gpuloader import GPULoader, MixedLoader
from gpuloader.compat import CheckpointManager, DataLoaderConfig, DataLoaderFactory
from gpuloader.errors import ConfigError, StateError


def test_states_come_back(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizers = [torch.optim.Adam(each.parameters(), lr=rate) for each, rate in ((model, 0.1), (other, 0.5))]
    schedulers = [torch.optim.lr_scheduler.StepLR(each, 3) for each in optimizers]
    manager = CheckpointManager(tmp_path / "new")
    path = manager.save(
        model=model,
        optimizer=optimizers[0],
        scheduler=schedulers[0],
        epoch=5,
        metrics={"loss": 0.4},
        custom_state={"a": 1},
    )
    state = manager.load(path, model=other, optimizer=optimizers[1], scheduler=schedulers[1])
    assert other.weight.equal(model.weight)
    assert optimizers[1].param_groups[0]["lr"] == 0.1
    assert (state["epoch"], state["metrics"], state["custom_state"]) == (5, {"loss": 0.4}, {"a": 1})


def test_each_checkpoint_is_a_file_of_its_own(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    paths = [manager.save(model=nn.Linear(1, 1), epoch=epoch) for epoch in (1, 1, 0)]
    assert [manager.load(path)["epoch"] for path in paths] == [1, 1, 0]
    assert sorted(tmp_path.iterdir()) == paths


def test_other_files_beside_checkpoints_are_yours(tmp_path: Path) -> None:
    for name in ("checkpoint_best.pt", "checkpoint_000004.pt", "checkpoint_.pt", "checkpoint_last_9.pt"):
        (tmp_path / name).touch()
    assert CheckpointManager(tmp_path).save(model=nn.Linear(1, 1)) == tmp_path / "checkpoint_000005.pt"


def test_the_rest_of_an_epoch_of_shards(shards: list[Path], tmp_path: Path) -> None:
    def make() -> GPULoader:
        return GPULoader(shards, 6, "cpu", preset="cifar10", seed=3, output="dict")

    def ids(batches: object) -> list[int]:
        return [number for batch in batches for number in batch["index"].tolist()]

    whole, left, resumed = make(), make(), make()
    first = ids(islice(left, 2))
    manager = CheckpointManager(tmp_path)
    manager.load(manager.save(model=nn.Linear(1, 1), loader=left), loader=resumed)
    assert first + ids(resumed) == ids(whole)


def numbers(count: int, **settings: object) -> DataLoader:
    config = DataLoaderConfig(batch_size=2, shuffle=True, seed=1, num_workers=0, **settings)
    return DataLoaderFactory().create_dataloader([torch.tensor(number) for number in range(count)], config)


@pytest.mark.parametrize("left_after", [0, 5, 7, 9])  # in the first epoch, at its end, in the second
def test_the_rest_of_data_sets_and_of_several(tmp_path: Path, left_after: int) -> None:
    pytest.importorskip("torchdata", reason="torchdata is not installed; scripts/test_integrations installs it")

    def make() -> MixedLoader:
        return MixedLoader({"a": numbers(8), "b": numbers(6)}, strategy="sequential")

    def turns(mixed: MixedLoader, epochs: int) -> Iterator[tuple[str, list[int]]]:
        return ((name, batch.tolist()) for _ in range(epochs) for name, batch in mixed)

    whole, left, resumed = make(), make(), make()
    done = list(islice(turns(left, 3), left_after))
    manager = CheckpointManager(tmp_path)
    manager.load(manager.save(model=nn.Linear(1, 1), loader=left), loader=resumed)
    assert done + list(turns(resumed, 3 - left.state_dict()["epoch"])) == list(turns(whole, 3))


def test_what_is_refused(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    with pytest.raises(ConfigError, match=r"a DataLoader without state_dict: install torchdata"):
        manager.save(model=nn.Linear(1, 1), loader=DataLoader([1]))
    path = manager.save(model=nn.Linear(1, 1))
    with pytest.raises(StateError, match="no state of optimizer: it has model, epoch"):
        manager.load(path, optimizer=object())
