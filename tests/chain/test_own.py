"""Own: what runs in a process at the moment when it is forked for own code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from gpuloader import Compose, Decoder, GPULoader, Stage
from gpuloader.transforms import Apply, RandomResizedCrop

def darker(image):
    return image // 2

fork = os.fork

def noting():
    print(len(os.listdir("/proc/self/task")), flush=True)
    return fork()

os.fork = noting
recipe, decoder = Compose([RandomResizedCrop(24), Apply(darker)]), Decoder(2, processes=2)
if sys.argv[1] == "GPULoader":
    source = iter(GPULoader(sys.argv[2], 8, None, preset=recipe, decoder=decoder))
else:
    images = open(sys.argv[3], "rb").read()
    source = Stage(recipe, None, decoder=decoder)(([images], [number]) for number in range(5))
next(source), next(source)
"""


@pytest.mark.slow(kept=1)
@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize("kind", ["GPULoader", "Stage"])
def test_its_processes_are_forked_before_the_threads_of_reading_and_decoding(
    tmp_path: Path, shards: list[Path], folder: Path, kind: str
) -> None:
    """A child of a fork has the locks of all threads of its parent, but not the threads that would open them."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    image = min(folder.rglob("*.jpg"))
    command = [sys.executable, str(script), kind, str(shards[0].parent), str(image)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    threads = list(map(int, ended.stdout.split()))
    assert len(threads) == 2
    assert max(threads) <= 2
