"""A loader and its process: it leaves nothing behind, and neither forks nor ends hang."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from lifecycles import left_behind, threads_and_files
from loaders import CUT, evaluation, loader, spoilt
from making import damaged_jpeg
from warm import warm

from gpuloader.errors import BadImageError

pytestmark = pytest.mark.slow(kept=2, of="processes")


@pytest.fixture
def at_start(shards: list[Path]) -> Counter[str]:
    """Threads and files before a test; libraries keep some of their own from their first use on."""
    with loader(shards) as batches:
        next(iter(batches))
    gc.collect()
    return threads_and_files()


def test_a_dropped_loader_ends_without_the_garbage_collector(shards: list[Path], at_start: Counter[str]) -> None:
    gc.disable()
    try:
        for _ in loader(shards):
            break
        assert left_behind(at_start) == {}
    finally:
        gc.enable()


@pytest.mark.parametrize("bad", [CUT, damaged_jpeg()])
def test_a_kept_error_does_not_keep_the_pipeline(tmp_path: Path, bad: bytes, at_start: Counter[str]) -> None:
    tar = spoilt(tmp_path, {3: bad})
    kept = []
    for _ in range(3):
        with evaluation(tar) as batches, pytest.raises(BadImageError) as caught:
            list(batches)
        kept.append(caught.value)
    gc.collect()
    assert left_behind(at_start) == {}


def test_a_forked_child_can_exit_and_is_told_to_make_its_own_loader(shards: list[Path]) -> None:
    script = (
        "import os, sys, warnings\n"
        "from gpuloader import GPULoader\n"
        "from gpuloader.errors import LoaderError\n"
        "loader = GPULoader(sys.argv[1], 8, None, preset={'imagenet_train': {'RandomResizedCrop': {'size': 32}}})\n"
        "epoch = iter(loader); next(epoch)\n"
        "warnings.simplefilter('ignore')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        next(epoch)\n"
        "    except LoaderError as error:\n"
        "        print(error, flush=True)\n"
        "    sys.exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "print(sum(1 for _ in epoch))"
    )
    result = warm().run(script, shards[0].parent)
    assert result.returncode == 0, result.stderr
    message = "this loader belongs to the parent of this forked process: make a new one"
    assert result.stdout == f"{message}\n4\n"


def test_a_loader_that_is_left_open_does_not_hold_up_the_end_of_the_process(shards: list[Path]) -> None:
    script = (
        "from gpuloader import GPULoader; import sys\n"
        "loader = GPULoader(sys.argv[1], 8, None, preset={'imagenet_train': {'RandomResizedCrop': {'size': 32}}})\n"
        "print(next(iter(loader))[0].shape)"
    )
    command = [sys.executable, "-W", "error", "-c", script, str(shards[0].parent)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert result.stdout == "torch.Size([8, 3, 32, 32])\n"
    assert result.stderr == ""


def test_importing_compat_imports_no_more_than_it_needs() -> None:
    without = ["nvidia.dali", "lightning", "transformers", "torchdata"]
    script = f"import gpuloader.compat, sys; print([name for name in {without} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"
