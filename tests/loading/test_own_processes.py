"""The processes of own code begin and end with the loader, however the program goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
from lifecycles import left_behind, threads_and_files
from numpy.typing import NDArray

from gpuloader import Decoder, GPULoader
from gpuloader import transforms as T
from gpuloader.base.shared_memory import SharedMemory
from gpuloader.recipe import Recipe

pytestmark = pytest.mark.slow(kept=2, of="own processes")

LOADER = """
import multiprocessing, os, sys, time
import numpy as np
from gpuloader import Compose, Decoder, GPULoader
from gpuloader.transforms import Apply, RandomResizedCrop

def grain(image, rng):
    return (image + rng.normal(0, 20, image.shape)).clip(0, 255).astype(np.uint8)

def load(function=grain, name=None, processes=2):
    recipe = Compose([RandomResizedCrop(24), Apply(function, name)])
    return GPULoader(sys.argv[1], 8, None, preset=recipe, seed=3, decoder=Decoder(2, processes=processes))

def sums(loader):
    return [round(float(images.double().sum()), 3) for images, _ in loader]
"""


def grain(image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    return (image + rng.normal(0, 20, image.shape)).clip(0, 255).astype(np.uint8)


def load(shards: list[Path]) -> GPULoader:
    recipe = Recipe([T.RandomResizedCrop(24), T.Apply(grain)])
    return GPULoader(shards, 8, None, preset=recipe, decoder=Decoder(2, processes=2))


def run(folder: Path, shards: list[Path], body: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs a program, from a file of its own, as other start methods than fork need it."""
    script = folder / "program.py"
    script.write_text(f"{LOADER}\n{body}")
    command = [sys.executable, str(script), str(shards[0].parent)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=check)


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def wait_for_end(processes: list[int], seconds: float = 30) -> list[int]:
    """Returns those that are still there after so long."""
    ends = time.monotonic() + seconds
    while (left := list(filter(is_there, processes))) and time.monotonic() < ends:
        time.sleep(0.05)
    return left


def test_they_begin_with_the_first_batch_and_end_with_the_loader(shards: list[Path]) -> None:
    before, others = threads_and_files(), active_children()
    with load(shards) as batches:
        assert active_children() == others
        next(iter(batches))
        ours = [child.pid for child in active_children() if child not in others]
        assert len(ours) == 2
        list(batches)  # the next epoch has the same ones
        assert [child.pid for child in active_children() if child not in others] == ours
    assert active_children() == others
    assert left_behind(before) == {}


def test_a_dropped_loader_ends_them(shards: list[Path]) -> None:
    others = active_children()
    batches = load(shards)
    next(iter(batches))
    del batches
    assert active_children() == others


def test_they_end_if_the_program_is_killed(tmp_path: Path, shards: list[Path]) -> None:
    script = tmp_path / "program.py"
    body = """
if __name__ == "__main__":
    loader = load()
    next(iter(loader))
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(1000)
"""
    script.write_text(LOADER + body)
    with subprocess.Popen(
        [sys.executable, str(script), str(shards[0].parent)], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        processes = list(map(int, program.stdout.readline().split()))
        assert len(processes) == 2
        program.send_signal(signal.SIGKILL)
    assert wait_for_end(processes) == []


def test_an_interrupt_reaches_the_loop_and_not_them(tmp_path: Path, shards: list[Path]) -> None:
    script = tmp_path / "program.py"
    body = """
if __name__ == "__main__":
    loader = load()
    try:
        while True:
            for _ in loader:
                print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    except KeyboardInterrupt:
        loader.close()
        print("interrupted", flush=True)
"""
    script.write_text(LOADER + body)
    with subprocess.Popen(
        [sys.executable, str(script), str(shards[0].parent)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        assert program.stdout is not None
        processes = list(map(int, program.stdout.readline().split()))
        os.killpg(program.pid, signal.SIGINT)  # as Ctrl-C does
        said, errors = program.communicate(timeout=60)
    assert said.splitlines()[-1] == "interrupted"
    assert errors == ""
    assert wait_for_end(processes) == []


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.slow(kept=0)
def test_other_start_methods_take_what_a_module_has_at_its_top(tmp_path: Path, shards: list[Path], method: str) -> None:
    body = f"""
if __name__ == "__main__":
    alone = sums(load(processes=0))
    multiprocessing.set_start_method("{method}")
    print(sums(load()) == alone)
    try:
        sums(load(lambda image: image, "own"))
    except Exception as error:
        print(type(error).__name__, error)
"""
    lines = run(tmp_path, shards, body).stdout.splitlines()
    assert lines[0] == "True"
    assert lines[1].startswith("ConfigError own cannot be sent to a process (")
    assert lines[1].endswith("define it at the top of a module, or use Decoder(processes=0), which runs it in threads")


@pytest.mark.slow(kept=0)
def test_a_forked_program_leaves_them_to_its_parent(tmp_path: Path, shards: list[Path]) -> None:
    body = """
import warnings
warnings.simplefilter("ignore")
loader = load()
epoch = iter(loader)
next(epoch)
child = os.fork()
if child == 0:
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print(sum(1 for _ in epoch))
"""
    assert run(tmp_path, shards, body).stdout == "4\n"


def test_a_process_that_may_have_no_children_is_told_what_to_do(tmp_path: Path, shards: list[Path]) -> None:
    body = """
def work(queue):
    try:
        sums(load())
    except Exception as error:
        queue.put(f"{type(error).__name__} {error}")

if __name__ == "__main__":
    queue = multiprocessing.SimpleQueue()
    process = multiprocessing.Process(target=work, args=(queue,), daemon=True)
    process.start()
    print(queue.get())
"""
    said = run(tmp_path, shards, body).stdout
    assert said.startswith(
        "ConfigError own code cannot have processes here, in a worker of a DataLoader or Pool: use Dec"
    )


# Shared memory.


def test_memory_grows_and_keeps_what_is_in_it() -> None:
    memory = SharedMemory()
    first = memory.bytes(3)
    first[:3] = 7
    large = memory.bytes(5_000_000)
    assert len(large) >= 5_000_000
    assert large[:4].tolist() == [7, 7, 7, 0]
    first[1] = 8  # still the same memory
    assert large[1] == 8
    memory.close()
    memory.close()
    assert large[0] == 7  # as long as an array of it lives


def test_a_child_sees_what_its_parent_writes_and_may_make_it_larger() -> None:
    memory = SharedMemory()
    memory.bytes(10)[:2] = 1, 2
    child = os.fork()
    if child == 0:
        memory.bytes(3_000_000)[2_999_999] = memory.bytes(2)[1] + 40
        os._exit(0)
    os.waitpid(child, 0)
    assert memory.bytes(3_000_000)[2_999_999] == 42
    memory.close()
