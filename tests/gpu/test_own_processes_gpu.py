"""The processes of own code beside a CUDA context: they are forked from a process that uses the GPU already."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
import torch
from making import write_samples
from numpy.typing import NDArray

from gpuloader import Compose, Decoder, GPULoader
from gpuloader.transforms import Apply, RandomResizedCrop

ALLOCATED_BYTES = 1 << 30
PROGRAM = """
import sys, time
from multiprocessing import active_children
import torch
sys.path[:] = {path}
from test_own_processes_gpu import ALLOCATED_BYTES, load
held = torch.ones(ALLOCATED_BYTES, dtype=torch.uint8, device={device!r})
loader = load({folder!r}, {device!r})
next(iter(loader))
print(*(child.pid for child in active_children()), flush=True)
time.sleep(1000)
"""


def grain(image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    return (image + rng.normal(0, 20, image.shape)).clip(0, 255).astype(np.uint8)


def load(shards: str | list[Path], device: str | None) -> GPULoader:
    recipe = Compose([RandomResizedCrop(24), Apply(grain)], dtype="uint8")
    return GPULoader(shards, 8, device, preset=recipe, seed=3, decoder=Decoder(2, processes=2))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_samples(tmp_path_factory.mktemp("shards"), 40, sizes=[(60, 80)])


def test_its_batches_are_those_of_the_cpu_and_the_gpu_works_on(shards: list[Path], gpu: int) -> None:
    others = active_children()
    ones = torch.ones(1000, device=gpu)  # CUDA begins before the processes
    with load(shards, None) as on_cpu, load(shards, f"cuda:{gpu}") as on_gpu:
        for _ in range(2):
            for (ours, labels), (theirs, same) in zip(on_gpu, on_cpu, strict=True):
                assert ours.device == torch.device("cuda", gpu)
                assert torch.equal(ours.cpu(), theirs)  # own code's images are decoded on the CPU
                assert torch.equal(labels.cpu(), same)
                assert ones.sum().item() == 1000
        assert len(active_children()) == len(others) + 4
    assert active_children() == others
    assert ones.sum().item() == 1000


def test_a_killed_program_gives_the_gpus_memory_back(shards: list[Path], gpu: int, alone: None) -> None:
    torch.ones(1, device=gpu)  # this process's own context is there before
    before, _ = torch.cuda.mem_get_info(gpu)
    path = [str(Path(__file__).parent), *sys.path]  # pytest adds no folder of tests
    program = PROGRAM.format(path=path, device=f"cuda:{gpu}", folder=str(shards[0].parent))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        processes = [os.pidfd_open(int(number)) for number in running.stdout.readline().split()]
        assert len(processes) == 2
        assert torch.cuda.mem_get_info(gpu)[0] <= before - ALLOCATED_BYTES
        running.kill()
    for process in processes:
        assert select.select([process], [], [], 60)[0] == [process]  # it has ended, and closed the GPU's files
        os.close(process)
    assert torch.cuda.mem_get_info(gpu)[0] > before - ALLOCATED_BYTES // 2
