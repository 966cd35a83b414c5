"""Ranks share an epoch: every sample once, empty batches where none is left, one plan for all."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path

import pytest
from loaders import evaluation, loader
from making import write_samples
from ranks import outputs_of_ranks
from warm import Program

from gpuloader import Decoder, World
from gpuloader.base.cores import available_cores
from gpuloader.errors import ConfigError
from gpuloader.loading.loader import run_of


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """13 shards of 10 samples each."""
    return write_samples(tmp_path_factory.mktemp("many"), 130, shards=13)


def nodes_of(ranks: int) -> Iterator[list[int]]:
    """All ways to put neighbouring ranks on nodes: for each rank, the number of ranks on its node."""
    yield [ranks] * ranks
    yield from ([first] * first + rest for first in range(1, ranks) for rest in nodes_of(ranks - first))


def steps_of_rank(shards: list[Path], rank: int, ranks: int, ranks_of_node: int) -> list[list[int]]:
    """The samples of a rank in each step of an epoch; no process group, and nothing is decoded."""
    world = World(rank, ranks, 0, ranks_of_node)
    with evaluation(shards, 60 // ranks, world=world, shuffle="shards", last_batch="partial") as batches:
        plan = run_of(batches).plan
        return [plan.batch(plan.at(0, step)).ids.tolist() for step in range(plan.steps)]


def test_the_ranks_of_any_nodes_give_the_epoch_and_the_steps_of_one_rank(many: list[Path]) -> None:
    steps = steps_of_rank(many, 0, 1, 1)
    assert sorted(chain(*steps)) == list(range(130))
    for ranks in range(1, 7):
        own = {
            (rank, of_node): steps_of_rank(many, rank, ranks, of_node)
            for rank, of_node in product(range(ranks), range(1, ranks + 1))
        }
        for nodes in nodes_of(ranks):
            together = [own[rank, of_node] for rank, of_node in enumerate(nodes)]
            assert [sorted(chain(*step)) for step in zip(*together, strict=True)] == [sorted(step) for step in steps]


UNEVEN = """
import json, os, socket; from loaders import evaluation, indices
socket.gethostname = lambda: f'host{rank // 2}'
os.environ |= {'LOCAL_WORLD_SIZE': '2' if rank < 2 else '1'}
with evaluation(arguments, 32, shuffle='shards', last_batch='partial', output='dict') as batches:
    print(json.dumps([batches.world.node, indices(batches)]))
"""


def test_uneven_nodes_of_a_process_group_share_an_epoch(many: list[Path], tmp_path: Path) -> None:
    said = [json.loads(each) for each in outputs_of_ranks(UNEVEN, tmp_path, 3, *many)]
    assert [node for node, _ in said] == [[0, 1], [0, 1], [2]]
    assert sorted(chain(*(batch for _, batches in said for batch in batches))) == list(range(130))


@pytest.mark.parametrize(
    ("batch_size", "world", "groups", "times", "advice"),
    [
        (12, World(0, 5, 0, 1), None, 1.33, "groups=10"),  # 12 groups of a step of 60
        (12, World(0, 5, 0, 2), None, 1.17, "groups=10"),  # two nodes of two ranks, and one of one
        (12, World(0, 5, 0, 1), 7, 1.57, "groups=10"),
        (2, World(0, 16, 0, 1), None, 2.0, "groups=16) with at least 16 shards"),
        (16, World(0, 3, 0, 1), None, None, None),  # 12 groups: nodes share none
        (12, World(0, 5, 0, 5), None, None, None),  # one node
        (12, World(1, 5, 0, 1), None, None, None),  # another rank
    ],
)
def test_rank_0_says_how_much_nodes_read_that_share_groups_and_which_groups_they_would_not(
    many: list[Path],
    caplog: pytest.LogCaptureFixture,
    batch_size: int,
    world: World,
    groups: int | None,
    times: float | None,
    advice: str | None,
) -> None:
    given = {"shuffle": "shards", "last_batch": "drop", "sampling": {"groups": groups}}
    evaluation(many, batch_size, world=world, **given).close()
    said = [record.getMessage() for record in caplog.records]
    assert [float(re.findall(r"([\d.]+) times", text)[0]) for text in said] == ([] if times is None else [times])
    assert all(advice and advice in text for text in said)


SECOND_HINT = ", or batch_size=2 or more"


@pytest.mark.parametrize(
    ("batch_size", "world", "last_batch", "hint"),
    [
        (1, World(0, 39), None, SECOND_HINT),
        (1, World(0, 41), None, ""),  # fewer samples than ranks: a larger batch does not help
        (1, World(1, 39), None, None),  # another rank
        (1, World(0, 40), None, None),
        (1, World(0, 39), "equal", None),
        (2, World(0, 39), None, None),
    ],
)
def test_rank_0_says_so_when_the_loader_is_made(
    shards: list[Path],
    caplog: pytest.LogCaptureFixture,
    batch_size: int,
    world: World,
    last_batch: str | None,
    hint: str | None,
) -> None:
    evaluation(shards, batch_size, world=world, last_batch=last_batch).close()
    expected = (
        f'last_batch="partial" gives some of {world.world_size} ranks an empty batch at the end of each epoch of 40 '
        f'samples, which may end your program: use last_batch="equal"{hint}'
    )
    assert [record.getMessage() for record in caplog.records] == ([] if hint is None else [expected])


@pytest.mark.parametrize("last_batch", ["partial", "equal"])
def test_what_needs_whole_batches_takes_no_other(shards: list[Path], last_batch: str) -> None:
    with pytest.raises(ConfigError, match=f'last_batch="{last_batch}" would separate neighbours'):
        loader(shards, 8, preset="resnet50_v2", last_batch=last_batch)
    with pytest.raises(ConfigError, match=f'last_batch="{last_batch}" and buckets cannot be combined'):
        loader(shards, 8, sampling={"buckets": [(32, 32)]}, last_batch=last_batch)


@pytest.mark.parametrize("processes", [1, 2, 1000])
def test_processes_that_torchrun_starts_on_a_machine_share_its_cores(
    shards: list[Path], monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    with evaluation(shards) as batches:
        assert run_of(batches).num_threads == max(1, available_cores() // processes)
    with evaluation(shards, decoder=Decoder(num_threads=3)) as batches:
        assert run_of(batches).num_threads == 3


def test_ranks_whose_loaders_differ_all_fail_and_say_how(shards: list[Path], tmp_path: Path) -> None:
    script = (
        "import sys; import torch.distributed as dist\n"
        "from gpuloader import GPULoader, MixedLoader, World\n"
        "from gpuloader.errors import ConfigError\n"
        "from gpuloader.base.cores import available_cores; from gpuloader.loading.loader import run_of\n"
        "meeting, rank, *tar = sys.argv[1:]\n"
        "dist.init_process_group('gloo', init_method=f'file://{meeting}', rank=int(rank), world_size=2)\n"
        "loader = GPULoader(tar, 4, None); loader.close()\n"
        "assert loader.world.local_world_size == 2 and run_of(loader).num_threads == max(1, available_cores() // 2)\n"
        "GPULoader(tar, 4, None, world=World(0, 1), seed=int(rank)).close()\n"  # each for itself
        "try: GPULoader(tar, 4 + int(rank), None, seed=int(rank))\n"
        "except ConfigError as error: print(error)\n"
        "loaders = {name: GPULoader(tar, 4, None, sampling={'subset': range(int(name), 40)}) for name in '01'}\n"
        "MixedLoader(loaders)\n"
        "try: MixedLoader(loaders, 'weighted', weights={'0': 1, '1': 2 + int(rank)})\n"
        "except ConfigError as error: print(error)\n"
        "try: GPULoader(tar, 4, None, sampling={'weights': [1] * 39 + [1 + int(rank)]})\n"
        "except ConfigError as error: print(str(error).partition('\"')[0])\n"
        "try: GPULoader(tar, 4, None, sampling={'leave_out': [int(rank)]})\n"
        "except ConfigError as error: print(str(error).partition('\"')[0])"
    )
    meeting = tmp_path / "meeting"
    ranks = [Program(script, meeting, rank, *shards, stdout=subprocess.PIPE, text=True) for rank in range(2)]
    said = (
        "the loaders of the ranks differ: seed=0 on ranks [0]; seed=1 on ranks [1]; "
        "batch_size=4 on ranks [0]; batch_size=5 on ranks [1]\n"
        'the loaders of the ranks differ: weights={"0": 1.0, "1": 2.0} on ranks [0]; '
        'weights={"0": 1.0, "1": 3.0} on ranks [1]\n'
        "the loaders of the ranks differ: sampling=\n"
        "the loaders of the ranks differ: leave_out=\n"
    )
    assert [rank.communicate(timeout=300)[0] for rank in ranks] == [said, said]
