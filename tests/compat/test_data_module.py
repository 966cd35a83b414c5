"""Data modules: what is split off, what each loader gives, over data of all kinds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from gpuloader.compat import UniversalDataModule
from gpuloader.errors import ConfigError

NUMBERS = [torch.tensor(number) for number in range(50)]


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(50))


def values(loader: Iterable[Any]) -> list[int]:
    return [number for batch in loader for number in (batch[0] if isinstance(batch, list) else batch).tolist()]


@pytest.mark.parametrize(
    "data", [NUMBERS, TensorDataset(torch.arange(50)), range(50)], ids=["list", "Dataset", "sequence"]
)
@pytest.mark.parametrize(("share", "held_out"), [(0.25, 12), (0, 0)])
def test_a_part_is_held_out(data: object, share: float, held_out: int) -> None:
    module = UniversalDataModule(data, val_split=share, batch_size=4)
    train, val = values(module.train_dataloader()), values(module.val_dataloader())
    assert len(val) == held_out
    assert sorted(train + val) == list(range(50))  # disjoint, and nothing is missing


def test_the_seed_says_which_part_and_which_order() -> None:
    def split(seed: int) -> tuple[list[int], list[int]]:
        module = UniversalDataModule(NUMBERS, seed=seed, val_split=0.2)
        return values(module.train_dataloader()), values(module.val_dataloader())

    assert split(1) == split(1)
    assert set(split(1)[1]) != set(split(2)[1])


def test_with_val_data_nothing_is_split_off() -> None:
    module = UniversalDataModule(NUMBERS, val_data=NUMBERS[:3], val_split=0.5)
    loader = module.train_dataloader()
    first, second = values(loader), values(loader)
    assert sorted(first) == sorted(second) == list(range(50))
    assert len({tuple(first), tuple(second), tuple(range(50))}) == 3  # shuffled in each epoch
    assert values(module.val_dataloader()) == [0, 1, 2]  # in order


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_stream_comes_in_its_own_order(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    monkeypatch.setenv("RANK", "0")
    module = UniversalDataModule(Stream(), val_data=Stream())
    assert values(module.train_dataloader()) == values(module.val_dataloader()) == list(range(50))


def test_ranks_share_data_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        module = UniversalDataModule(NUMBERS, val_split=0.2)
        shares += values(module.train_dataloader()) + values(module.val_dataloader())
    assert sorted(shares) == list(range(50))


@pytest.mark.parametrize(
    ("data", "arguments", "message"),
    [
        (NUMBERS, {"val_split": 1}, "val_split=1: allowed"),
        (NUMBERS[:4], {"val_split": 0.1}, "give val_data"),
        (Stream(), {}, "has no length"),
        ("shards/", {}, "names shards or a folder: use GPULoader"),
    ],
)
def test_what_is_refused(data: object, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        UniversalDataModule(data, **arguments)
