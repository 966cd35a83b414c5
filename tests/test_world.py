"""`World`: which of how many processes this one is."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from gpuloader.errors import ConfigError
from gpuloader.world import World

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        ((), {}, World(0, 1, 0)),
        ((), {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, World(5, 8, 1)),  # as torchrun sets them
        ((), {"RANK": "5", "WORLD_SIZE": "8"}, World(5, 8, 5)),  # one machine, where nothing says otherwise
        ((), {"LOCAL_RANK": "3"}, World(0, 1, 3)),
        ((2, 4), {}, World(2, 4, 2)),
        ((2, 4), {"LOCAL_RANK": "0"}, World(2, 4, 0)),
        ((2, 4), {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, World(2, 4, 1)),  # what is given comes first
        ((2, 4), {"RANK": "no number"}, World(2, 4, 2)),
        ((0, 1), {"RANK": "5", "WORLD_SIZE": "8"}, World(0, 1, 0)),  # 0 is given, not missing
    ],
)
def test_arguments_come_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[int, ...], environment: dict[str, str], expected: World
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert World.detect(*arguments) == expected


def test_torch_distributed_comes_before_the_environment(tmp_path: Path) -> None:
    work = (
        "import sys; from pathlib import Path; import torch.distributed as dist; from gpuloader.world import World\n"
        "before = World.detect()\n"
        "dist.init_process_group('gloo', init_method=f'file://{sys.argv[1]}', rank=int(sys.argv[2]), world_size=2)\n"
        "found, given = World.detect(), World.detect(4, 5)\n"
        "dist.barrier(); dist.destroy_process_group()\n"
        "print([(w.rank, w.world_size, w.local_rank) for w in (before, found, given, World.detect())])"
    )
    environment = {**os.environ, "RANK": "6", "WORLD_SIZE": "9", "LOCAL_RANK": "3"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", work, tmp_path / "meeting", str(rank)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank, process in enumerate(processes):
        output, _ = process.communicate(timeout=60)
        assert output == f"[(6, 9, 3), ({rank}, 2, 3), (4, 5, 3), (6, 9, 3)]\n"


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        ((1, None), {}, "rank=1, world_size=None: give both or neither"),
        ((None, 4), {}, "rank=None, world_size=4: give both or neither"),
        ((4, 4), {}, "rank=4, world_size=4, local_rank=4: allowed are 0 <= rank < world_size"),
        ((-1, 4), {}, "rank=-1, world_size=4"),
        ((0, 0), {}, "rank=0, world_size=0"),
        ((0, -1), {}, "rank=0, world_size=-1"),
        ((), {"RANK": "8", "WORLD_SIZE": "8"}, "rank=8, world_size=8"),
        ((), {"RANK": "0"}, "RANK and WORLD_SIZE only one is set: set both (torchrun does), or pass rank="),
        ((), {"WORLD_SIZE": "1"}, "RANK and WORLD_SIZE only one is set"),
        ((), {"RANK": "a", "WORLD_SIZE": "8"}, "the environment variable RANK='a' is not an integer"),
        ((), {"RANK": "0", "WORLD_SIZE": ""}, "the environment variable WORLD_SIZE='' is not an integer"),
        ((), {"LOCAL_RANK": "0.5"}, "the environment variable LOCAL_RANK='0.5' is not an integer"),
        ((), {"LOCAL_RANK": "-1"}, "local_rank=-1: allowed are 0 <= rank < world_size and local_rank >= 0"),
    ],
)
def test_what_cannot_be_meant_is_an_error(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[int | None, ...], environment: dict[str, str], says: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        World.detect(*arguments)
    assert says in str(caught.value)


def test_a_world_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        World(0, 1).rank = 1  # type: ignore[misc]
