"""`World`: which of how many processes this one is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ranks import outputs_of_ranks
from warm import Program

from gpuloader.errors import ConfigError
from gpuloader.loading.world import World

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def world(arguments: tuple[Any, ...]) -> World:
    """What is given; nothing given is looked for."""
    return World(*arguments) if arguments else World.detect()


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        ((), {}, World(0, 1, 0, 1)),
        ((), {"RANK": "5", "WORLD_SIZE": "8"}, World(5, 8, 5)),  # one machine, where nothing says otherwise
        ((), {"LOCAL_RANK": "3"}, World(0, 1, 3)),
        ((), {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}, World(5, 8, 1, 4)),
        ((2, 4), {}, World(2, 4, 2)),
        ((2, 4), {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, World(2, 4, 1)),  # what is given comes first
        ((0, 1), {"RANK": "5", "WORLD_SIZE": "8"}, World(0, 1, 0)),  # 0 is given, not missing
    ],
)
def test_what_is_given_comes_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[int, ...], environment: dict[str, str], expected: World
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert world(arguments) == expected


def test_tasks_of_srun_that_each_take_all_of_the_data_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    World(0, 1)  # runs of their own, which say so
    assert caplog.messages == []
    World.detect()
    assert "srun runs 8 tasks" in caplog.text
    caplog.clear()
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    World.detect()
    assert caplog.messages == []


def test_torch_distributed_comes_before_the_environment(tmp_path: Path) -> None:
    work = (
        "import sys; from pathlib import Path; import torch.distributed as dist\n"
        "from gpuloader.loading.world import World\n"
        "before = World.detect()\n"
        "dist.init_process_group('gloo', init_method=f'file://{sys.argv[1]}', rank=int(sys.argv[2]), world_size=2)\n"
        "found, given = World.detect(), World(4, 5)\n"
        "dist.barrier(); dist.destroy_process_group()\n"
        "print([(w.rank, w.world_size, w.local_rank) for w in (before, found, given, World.detect())])"
    )
    environment = {**os.environ, "RANK": "6", "WORLD_SIZE": "9", "LOCAL_RANK": "3"}
    processes = [
        Program(work, tmp_path / "meeting", rank, env=environment, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for rank, process in enumerate(processes):
        output, _ = process.communicate(timeout=300)
        assert output == f"[(6, 9, 3), ({rank}, 2, 3), (4, 5, 3), (6, 9, 3)]\n"


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        ((4, 4), {}, "rank=4, world_size=4, local_rank=4, local_world_size=1: allowed are integers, 0 <= rank"),
        ((), {"RANK": "0"}, "RANK and WORLD_SIZE is set: set both (torchrun does), or pass world="),
        ((), {"RANK": "a", "WORLD_SIZE": "8"}, "the environment variable RANK='a' is not an integer"),
    ],
)
def test_what_cannot_be_meant_is_an_error(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[int | None, ...], environment: dict[str, str], says: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        world(arguments)
    assert says in str(caught.value)


def test_ranks_that_torchrun_did_not_start_are_counted_by_machine(tmp_path: Path) -> None:
    work = (
        "import socket\nif rank == 2: socket.gethostname = lambda: 'another machine'\n"
        "print([agree(World.detect(), {}).local_world_size for _ in range(2)], World.detect().local_world_size)\n"
    )
    assert outputs_of_ranks(work, tmp_path, 3) == ["[2, 2] 1\n", "[2, 2] 1\n", "[1, 1] 1\n"]


def test_a_world_that_is_not_torchs_is_not_compared(tmp_path: Path) -> None:
    work = "agree(World(0, 1), {'seed': rank})\nagree(World(rank, 5), {'seed': rank})\nprint('done')\n"
    assert outputs_of_ranks(work, tmp_path, 2) == ["done\n"] * 2
