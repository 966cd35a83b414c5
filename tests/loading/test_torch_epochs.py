"""Loaders of torch's in a MixedLoader: which epochs they are told to begin, and how they go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from gpuloader import MixedLoader
from gpuloader.errors import ConfigError, StateError

NUMBERS = [torch.tensor(number) for number in range(8)]


class Stateful:
    """Batches that know where they are, as torchdata's do; each epoch has numbers of its own."""

    def __init__(self, batches: int) -> None:
        self.batches, self.epoch, self.start, self.done = batches, 0, 0, 0

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[int]:
        start, self.start = self.start, 0
        return self._from(start)

    def _from(self, start: int) -> Iterator[int]:
        for number in range(start, self.batches):
            self.done = number + 1
            yield 100 * self.epoch + number

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["done"]


def mixed(**settings: Any) -> MixedLoader:  # noqa: ANN401
    return MixedLoader({"a": Stateful(4), "b": Stateful(2)}, **settings)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"stop": "first"}, [0, 0, 1, 1, 2, 100, 100, 101, 101, 102]),
        ({"strategy": "sequential"}, [0, 1, 2, 3, 0, 1, 100, 101, 102, 103, 100, 101]),
        ({"strategy": "alternate"}, [0, 1, 2, 3, 0, 1]),  # the first epoch of each
        (
            {"stop": "cycle"},
            [0, 0, 1, 1, 2, 100, 3, *(100_000 + n for n in (0, 0, 1, 1, 2, 100, 3))],
        ),  # 1,000 times the epoch, and the pass
    ],
    ids=str,
)
def test_the_mixed_epoch_says_which_epoch_begins(settings: dict[str, str], expected: list[int]) -> None:
    batches = mixed(**settings)
    assert [batch for _ in range(2) for _, batch in batches] == expected


@pytest.mark.parametrize("settings", [{"stop": "first"}, {"strategy": "sequential"}, {"stop": "cycle"}], ids=str)
@pytest.mark.parametrize("left_after", range(14))
def test_a_state_gives_exactly_the_rest(settings: dict[str, str], left_after: int) -> None:
    def turns(batches: MixedLoader, epochs: int) -> Iterator[tuple[str, int]]:
        return (turn for _ in range(epochs) for turn in batches)

    left, resumed = mixed(**settings), mixed(**settings)
    done = list(islice(turns(left, 3), left_after))
    resumed.load_state_dict(json.loads(json.dumps(left.state_dict())))
    assert done + list(turns(resumed, 3 - left.state_dict()["epoch"])) == list(turns(mixed(**settings), 3))


def test_a_generator_is_seeded_by_the_epoch() -> None:
    def epochs(*numbers: int) -> list[list[int]]:
        loader = DataLoader(NUMBERS, shuffle=True, generator=torch.Generator().manual_seed(1))
        batches = MixedLoader({"a": loader})
        found = []
        for epoch in numbers:
            batches.set_epoch(epoch)
            found.append([int(batch) for _, batch in batches])
        return found

    assert epochs(0, 1, 2) == [*epochs(0), *epochs(1), *epochs(2)]
    assert len({tuple(epoch) for epoch in epochs(0, 1, 2)}) == 3


def test_a_sampler_is_told_the_epoch() -> None:
    sampler = DistributedSampler(NUMBERS, 2, 0)
    batches = MixedLoader({"a": DataLoader(NUMBERS, sampler=sampler)})
    list(batches)
    list(batches)
    assert sampler.epoch == 1


def test_what_has_no_state_goes_on_from_an_epochs_end_alone() -> None:
    def make() -> MixedLoader:
        return MixedLoader({"a": DataLoader(NUMBERS, 4)})

    left, resumed = make(), make()
    list(left)
    resumed.load_state_dict(left.state_dict())
    assert [batch.tolist() for _, batch in resumed] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    next(iter(left))
    with pytest.raises(StateError, match="loader 'a': it was left in the middle of an epoch, after batch 1, "):
        make().load_state_dict(left.state_dict())


@pytest.mark.parametrize("loader", [(number for number in range(2)), 5], ids=["generator", "5"])
def test_what_is_refused(loader: object) -> None:
    with pytest.raises(ConfigError, match="allowed are a GPULoader, and a torch loader that has a length"):
        MixedLoader({"a": loader})
