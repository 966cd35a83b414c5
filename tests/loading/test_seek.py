"""A loader moves to any step, and shows any step without moving. That pixels are the loop's is a law."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaders import indices, loader, spoilt

from gpuloader.errors import ConfigError, LoaderError, StateError


def steps_of(shards: list[Path], epochs: int, **options: Any) -> list[list[list[int]]]:  # noqa: ANN401
    with loader(shards, output="dict", **options) as batches:
        return [indices(batches) for _ in range(epochs)]


def test_the_next_loop_starts_there_and_the_epochs_go_on(shards: list[Path]) -> None:
    epochs = steps_of(shards, 4)
    with loader(shards, output="dict") as batches:
        running = iter(batches)
        next(running)
        batches.seek(2, 3)
        assert batches.state_dict()["delivered"] == 24
        assert indices(batches) == epochs[2][3:]
        assert indices(batches) == epochs[3]
        with pytest.raises(LoaderError, match="seek"):
            next(running)
        batches.seek(1)
        assert indices(itertools.islice(batches, 2)) == epochs[1][:2]


def test_steps_are_counted_from_the_beginning_of_an_epoch_that_other_steps_began(shards: list[Path]) -> None:
    epochs = steps_of(shards, 3)
    with loader(shards, 5, output="dict") as begun:
        begun.seek(1, 1)
        state = begun.state_dict()
    with loader(shards, output="dict") as batches:
        batches.load_state_dict(state)
        places = [(epoch, step) for epoch in range(2) for step in range(len(batches))]
        at = indices(itertools.starmap(batches.at, places))
        assert at == epochs[0] + epochs[1]
        assert indices([batches.at(state)]) == indices(itertools.islice(batches, 1))
        batches.seek(1, 2)
        assert indices(batches) == epochs[1][2:]
        assert indices(batches) == epochs[2]


def test_the_last_steps_follow_the_ranks_that_counted_them(shards: list[Path]) -> None:
    with loader(shards, 39, output="dict", last_batch="partial") as batches:
        batches.seek(0, 1, ranks=3)
        assert batches.state_dict()["delivered"] == 39 - 3 * (13 // 2)  # which the last full step leaves to the last
        batches.seek(0, 1)
        assert batches.state_dict()["delivered"] == 39


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((-1,), r"epoch"),
        ((2**32,), r"epoch"),
        ((0, 5), r"from 0 to 4, as an epoch has 5 steps"),
        ((0, -1), r"from 0 to 4"),
        ((0, 1.0), r"step=1.0"),
        ((0, True), r"step=True"),
        ((0, None), r"step=None"),
    ],
)
def test_a_step_that_does_not_exist_is_an_error_with_the_range(
    shards: list[Path], arguments: tuple[Any, ...], says: str
) -> None:
    with loader(shards, output="dict") as batches:
        batches.seek(1, 2)
        before = batches.state_dict()
        for call in (batches.seek, batches.at, batches.explain):
            if len(arguments) == 2 or call == batches.seek:
                with pytest.raises(ConfigError, match=says):
                    call(*arguments)
        assert batches.state_dict() == before


def test_integers_of_numpy_are_integers(shards: list[Path]) -> None:
    with loader(shards, output="dict") as batches:
        batches.seek(np.int64(1), np.uint8(2), ranks=np.int32(2))
        assert json.loads(json.dumps(batches.state_dict()))["epoch"] == 1
        assert indices([batches.at(np.int64(1), np.int64(2))]) == indices(itertools.islice(batches, 1))


@pytest.mark.parametrize("ranks", [0, 3, 2.0, True])
def test_ranks_that_do_not_divide_the_global_batch_are_an_error(shards: list[Path], ranks: Any) -> None:  # noqa: ANN401
    with loader(shards) as batches, pytest.raises(ConfigError, match="divide the global batch, 8"):
        batches.seek(0, ranks=ranks)


def test_a_state_says_its_step_and_must_belong_to_the_loader(shards: list[Path]) -> None:
    with loader(shards) as batches, loader(shards, seed=1) as other:
        with pytest.raises(ConfigError, match="leave step out"):
            batches.at(batches.state_dict(), 1)
        with pytest.raises(ConfigError, match=r"epoch=1\.0"):
            batches.at(1.0, 1)
        with pytest.raises(StateError, match="seed"):
            batches.at(other.state_dict())
        batches.close()
        with pytest.raises(LoaderError, match="is closed"):
            batches.at(0, 0)


def test_a_step_that_fails_fails_again_and_the_others_are_made(tmp_path: Path) -> None:
    tar = spoilt(tmp_path, {11: b"no image"})
    with loader(tar, output="dict", shuffle="none") as batches:
        for _ in range(2):
            with pytest.raises(Exception, match="000011"):
                batches.at(0, 1)
            assert indices([batches.at(0, 2)]) == [[*range(16, 24)]]
        assert len(batches.explain(0, 0)) == 8


def test_a_step_is_decoded_as_output_says(shards: list[Path]) -> None:
    with loader(shards, output=sorted) as batches:
        assert batches.at(0, 0) == next(iter(batches))
