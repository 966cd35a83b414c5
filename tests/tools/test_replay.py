"""`replay` says what a step had on all ranks, draws it, and writes the keys."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pytest
from loaders import CUT, spoilt
from making import jpeg, write_shard
from PIL import Image

from gpuloader import GPULoader, World
from gpuloader.errors import ConfigError, StateError
from gpuloader.tools.replay import replay

SIDE = 160
RECIPE = {"transforms": [{"RandomResizedCrop": {"size": SIDE}}], "dtype": "uint8"}


@pytest.fixture
def of_a_file(shards: list[Path]) -> dict[str, Any]:
    return {"tar": list(map(str, shards)), "batch_size": 4, "device_id": "cpu", "preset": RECIPE}


def batch_of(arguments: dict[str, Any], rank: int, ranks: int, epoch: int, step: int) -> dict[str, Any]:
    with GPULoader(**arguments, output="dict", world=World(rank, ranks)) as batches:
        batches.set_epoch(epoch)
        return next(itertools.islice(batches, step, None))


def test_all_ranks_have_the_rows_of_their_loops(of_a_file: dict[str, Any], tmp_path: Path) -> None:
    picture, keys = tmp_path / "step.png", tmp_path / "keys.txt"
    result = replay(of_a_file, 3, 2, ranks=2, picture=picture, keys=keys)
    batches = [batch_of(of_a_file, rank, 2, 3, 2) for rank in range(2)]
    expected = list(itertools.chain.from_iterable(batch["key"] for batch in batches))
    assert [sample.key for sample in result.all_samples] == expected
    assert [sample.label for sample in result.samples[1]] == batches[1]["label"].tolist()
    assert keys.read_text().split() == expected
    assert replay(of_a_file, 3, 2, ranks=2, rank=1).samples == {1: result.samples[1]}
    with GPULoader(**of_a_file, sampling={"subset": keys}) as subset:
        assert subset.num_samples == 8
    sheet = np.asarray(Image.open(picture))
    shown = batches[0]["image"][0].permute(1, 2, 0).numpy()
    tops = range(len(sheet) - SIDE)
    assert any(np.array_equal(sheet[top : top + SIDE, 10 : 10 + SIDE], shown) for top in tops)


def test_a_state_is_followed_by_its_step(of_a_file: dict[str, Any], tmp_path: Path) -> None:
    with GPULoader(**of_a_file, output="dict") as batches:
        following = next(itertools.islice(batches, 1, None))
        batches.seek(0, 1)
        (tmp_path / "state.json").write_text(json.dumps(batches.state_dict()))
    result = replay(of_a_file, state=tmp_path / "state.json")
    assert [sample.key for sample in result.all_samples] == following["key"]
    assert (result.epoch, result.delivered) == (0, 4)


def test_a_replacement_says_what_it_replaces_and_why(tmp_path: Path) -> None:
    loader = {"tar": spoilt(tmp_path, {2: CUT}), "batch_size": 4, "device_id": "cpu", "on_error": "replace"}
    loader |= {"preset": "cifar10_eval", "shuffle": "none", "output": "dict", "last_batch": "pad"}
    *_, sample, _ = replay(loader, 0, 0, picture=tmp_path / "a.png", keys=tmp_path / "keys.txt").all_samples
    assert (sample.valid, sample.planned_key) == (False, "000002")
    assert "cut" in str(sample.cause)
    assert sample.key in (tmp_path / "keys.txt").read_text().split()
    padded = replay({**loader, "batch_size": 7}, 0, 5, keys=tmp_path / "keys.txt").all_samples
    assert [each.valid for each in padded] == [True] * 5 + [False] * 2
    assert (tmp_path / "keys.txt").read_text().split() == [f"{number:06d}" for number in range(35, 40)]


def test_a_rank_without_samples_has_no_rows(tmp_path: Path) -> None:
    loader = {"tar": spoilt(tmp_path, {}, count=5), "device_id": "cpu", "preset": RECIPE, "last_batch": "partial"}
    result = replay(loader, 0, 1, ranks=4, rank=0, picture=tmp_path / "a.png", keys=tmp_path / "keys.txt")
    assert result.samples == {0: []}
    assert (tmp_path / "keys.txt").read_text() == ""


@pytest.mark.parametrize("key", ["a\nb", "a\rb", "a "])
def test_a_key_that_no_line_can_hold_is_an_error(tmp_path: Path, key: str) -> None:
    tar = write_shard(tmp_path / "a.tar", [{"__key__": key, "jpg": jpeg(40, 40)}])
    loader = {"tar": tar, "device_id": "cpu", "preset": RECIPE, "label_from": None}
    with pytest.raises(ConfigError, match="ids; this one is 0"):
        replay(loader, 0, 0, keys=tmp_path / "keys.txt")
    assert not (tmp_path / "keys.txt").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"epoch": 0}, "--epoch and --step, or --state"),
        ({}, "--epoch and --step, or --state"),
        ({"epoch": 0, "step": 0, "state": Path("a.json")}, "--epoch and --step, or --state"),
        ({"epoch": 0, "step": 0, "ranks": 2, "rank": 2}, "from 0 to ranks - 1"),
        ({"epoch": 0, "step": 0, "ranks": 0}, "at least 1 rank"),
        ({"epoch": 0, "step": 10}, "from 0 to 9"),
        ({"epoch": 0, "step": 0, "picture": Path("a.pdf")}, ".png"),
        ({"epoch": 0, "step": 0, "keys": Path("a.csv")}, ".txt"),
    ],
)
def test_what_cannot_be_replayed_is_an_error(of_a_file: dict[str, Any], arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        replay(of_a_file, **arguments)


@pytest.mark.parametrize(("content", "says"), [(None, "no state"), ("{", "no state"), ("[]", "not a state")])
def test_a_file_that_is_no_state_is_an_error(
    of_a_file: dict[str, Any], tmp_path: Path, content: str | None, says: str
) -> None:
    file = tmp_path / "state.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(StateError, match=says):
        replay(of_a_file, state=file)


def test_the_command_prints_rows_or_json(shards: list[Path], tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(json.dumps({"tar": list(map(str, shards)), "batch_size": 2, "preset": "cifar10"}))
    place = (file, "--epoch", 1, "--step", 3, "--ranks", 2, "--cpu")
    printed = command_line.run("replay", *place, "-o", tmp_path / "step.png")
    first, *rows = printed.stdout.splitlines()
    assert first == "epoch 1, after 12 samples: 2 ranks x batch size 2 = a global batch of 4"
    listed = json.loads(command_line.run("replay", *place, "--json").stdout)
    assert [each["key"] for each in listed] == [row.split()[2] for row in rows]
    assert listed[0]["views"][0]["shape"] == [32, 32]
