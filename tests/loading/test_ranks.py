"""Ranks share an epoch: every sample once, empty batches where none is left, one plan for all."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from loaders import SAMPLES, evaluation, loader
from warm import Program

from gpuloader import Decoder, World
from gpuloader.errors import ConfigError
from gpuloader.helpers.cores import available_cores
from gpuloader.loading.loader import run_of


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("last_batch", ["pad", "partial", "equal"])
def test_every_sample_exactly_once_in_an_epoch_over_all_ranks(
    shards: list[Path], world_size: int, last_batch: str
) -> None:
    delivered, steps = [], set()
    for rank in range(world_size):
        with loader(shards, 3, world=World(rank, world_size), last_batch=last_batch, output="dict") as batches:
            epoch = list(batches)
            steps.add((len(epoch), len(batches)))
            for batch in epoch:
                assert batch["image"].shape[0] == len(batch["key"]) == len(batch["valid"])
                delivered += batch["index"][batch["valid"]].tolist()
    assert sorted(delivered) == list(range(SAMPLES))
    assert steps == {(-(-SAMPLES // (3 * world_size)),) * 2}


def test_a_rank_without_a_sample_left_gets_an_empty_batch(shards: list[Path]) -> None:
    with evaluation(shards, 1, world=World(0, 39)) as batches:  # 40 = 39 + 1
        for _ in range(2):
            assert [len(images) for images, _ in batches] == [1, 0]
    with evaluation(shards, 1, world=World(38, 39)) as batches:
        assert [images.shape for images, _ in batches] == [(1, 3, 32, 32), (1, 3, 32, 32)]


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
        "from gpuloader.helpers.cores import available_cores; from gpuloader.loading.loader import run_of\n"
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
    )
    assert [rank.communicate(timeout=300)[0] for rank in ranks] == [said, said]
