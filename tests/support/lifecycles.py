"""What the tests of resuming and of the life cycle run, much of it in a process of its own."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from threading import enumerate as enumerate_threads
from typing import Any
from unittest.mock import patch

import torch
from warm import Program

from gpuloader import GPULoader
from gpuloader.base.late_imports import import_late
from gpuloader.errors import BadImageError

TRAINED_EPOCHS = 3
STEP_BYTES = 140
"""What `train` records of a step, about."""


def loader(tar: Any, batch_size: int = 8, **kwargs: Any) -> GPULoader:  # noqa: ANN401
    """A loader of small batches that loses no sample."""
    given = {
        "preset": {"imagenet_train": {"RandomResizedCrop": {"size": 32}}},
        "output": "dict",
        "last_batch": "partial",
        **kwargs,
    }
    return GPULoader(tar, batch_size, None, **given)


def records(batch: dict[str, Any]) -> list[str]:
    """Each sample of a batch, less the padding, as its number and the hash of its pixels."""
    return [
        f"{index} {hashlib.sha256(image.contiguous().numpy()).hexdigest()}"
        for index, valid, image in zip(batch["index"].tolist(), batch["valid"].tolist(), batch["image"], strict=True)
        if valid
    ]


def delivered(batches: Iterable[dict[str, Any]]) -> list[str]:
    """The records of all samples, in order."""
    return [record for batch in batches for record in records(batch)]


def threads_and_files() -> Counter[str]:
    """How many threads and open files of which name this process has, those of libraries included.

    But asyncio's pool, which grows, is left out.
    """
    found: Counter[str] = Counter()
    of_python = {thread.native_id: thread.name for thread in enumerate_threads()}
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it ended
            name = of_python.get(int(task.name)) or (task / "comm").read_text().strip()
            found["thread asyncio" if name.startswith("asyncio_") else f"thread {name}"] += 1
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found[f"file {file.readlink()}".partition(":[")[0]] += 1
    del found["thread asyncio"]
    return found


def left_behind(before: Mapping[str, int], seconds: float = 20) -> dict[str, int]:
    """The threads and files that this process has beyond those before, once what is about to end has ended."""
    end = time.monotonic() + seconds
    while (left := threads_and_files() - Counter(before)) and time.monotonic() < end:
        time.sleep(0.005)
    return dict(left)


def loaded(tar: Any, batch_size: int = 8, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401
    """What a loader delivers in an epoch, and what its cache did."""
    with loader(tar, batch_size, **kwargs) as batches:
        return {"records": delivered(batches), "cache": vars(batches.stats().cache)}


# --- another process


class NewProcess:
    """A process that runs functions of this module, one after the other. Warnings are errors in it."""

    def __init__(self) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = Program("import lifecycles; lifecycles.serve()", text=True, **pipes)

    def begin(self, function: Callable[..., Any], **arguments: Any) -> None:  # noqa: ANN401
        """Has it run a function; arguments and result are what JSON can say."""
        assert self.process.stdin is not None
        print(json.dumps([function.__name__, arguments]), file=self.process.stdin, flush=True)

    def answer(self) -> Any:  # noqa: ANN401
        """What it says next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process ended without an answer"
        return json.loads(line)

    def ask(self, function: Callable[..., Any], **arguments: Any) -> Any:  # noqa: ANN401
        """What a function gives when it runs there."""
        self.begin(function, **arguments)
        return self.answer()

    def __enter__(self) -> NewProcess:
        return self

    def __exit__(self, *error: object) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


def serve() -> None:
    """The other side of `NewProcess`."""
    for line in sys.stdin:
        name, arguments = json.loads(line)
        say(globals()[name](**arguments))


def say(answer: Any) -> None:  # noqa: ANN401
    """Answers `NewProcess`."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


# --- states


def save(state: dict[str, Any], path: Path) -> Path:
    """Writes a state as JSON or, to a name that ends in .pt, as torch does."""
    if path.suffix == ".pt":
        torch.save(state, path)
    else:
        path.write_text(json.dumps(state))
    return path


def saved(path: Path) -> dict[str, Any]:
    """A state that `save` wrote."""
    return torch.load(path, weights_only=True) if path.suffix == ".pt" else json.loads(path.read_text())


def resumed(
    tar: list[str],
    state: str,
    steps: int | None = None,
    save_as: str | None = None,
    **kwargs: Any,  # noqa: ANN401
) -> list[list[str]]:
    """The records of each batch from a state on: those left in its epoch, or as many as asked, and no more."""
    with loader(tar, **kwargs) as batches:
        batches.load_state_dict(saved(Path(state)))
        received = []
        for batch in batches:
            received.append(records(batch))
            if len(received) == steps:
                break
        if save_as is not None:
            save(batches.state_dict(), Path(save_as))
    return received


# --- kills


def train(tar: list[str], folder: Path) -> None:
    """Epochs in which each step is put on record, and then saved; goes on where a process before it was killed."""
    state, part = folder / "state.json", folder / "state.json.part"
    with loader(tar, 2) as batches, (folder / "record").open("ab") as record:
        last = saved(state) if state.exists() else {"record_bytes": 0}
        record.truncate(last["record_bytes"])  # a step that is not in the state is done again
        if "loader" in last:
            batches.load_state_dict(last["loader"])
        for epoch in range(batches.state_dict()["epoch"], TRAINED_EPOCHS):
            batches.set_epoch(epoch)
            for batch in batches:
                record.write("".join(f"{epoch} {line}\n" for line in records(batch)).encode())
                record.flush()
                save({"loader": batches.state_dict(), "record_bytes": os.fstat(record.fileno()).st_size}, part)
                part.replace(state)


def attempt(tar: list[str], folder: Path, kill_after: tuple[int, float] | None) -> int:
    """Trains in a child that is killed after some bytes of the record and then some seconds; how it ended."""
    end_bytes = _record_bytes(folder) + (0 if kill_after is None else kill_after[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's, of forking where libraries have threads
        child = os.fork()
    if child == 0:
        ended = 1
        try:
            train(tar, folder)
            ended = 0
        except BaseException:  # noqa: BLE001 - a child must not go on as its parent
            traceback.print_exc()
        finally:
            os._exit(ended)
    if kill_after is not None:
        while _record_bytes(folder) < end_bytes:
            ended_child, status = os.waitpid(child, os.WNOHANG)
            if ended_child:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.001)
        time.sleep(kill_after[1])
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _record_bytes(folder: Path) -> int:
    record = folder / "record"
    return record.stat().st_size if record.exists() else 0


def trained_under_kills(tar: list[list[str]], folder: str, kills: int, steps: int, seed: int) -> dict[str, list[Any]]:
    """Trains under SIGKILLs at random moments, on one copy of the shards after another, until there were enough.

    Args:
        tar: the copies, not indexed yet; training again takes the next one, so that indexing is killed too.
        steps: the most steps until a kill; 0 for kills at the start, which takes most of the time, or soon after.
    """
    # What takes long at the start is done here, once; no loader may be made here: children do not inherit its threads.
    import_late("gpuloader.loading.loader")
    random_ = random.Random(seed)
    record_of: list[str] = []
    kills_of: list[int] = []
    places: set[int] = set()
    seconds = 0.0
    for run, copy in enumerate(tar):
        here = Path(folder, f"run{run}")
        here.mkdir()
        killed = 0
        while True:
            disturbed = run > 0 and sum(kills_of) + killed < kills
            started = time.perf_counter()
            if steps:
                kill_after = (random_.randrange(steps * STEP_BYTES), random_.uniform(0, 0.02))
            else:
                kill_after = (0, random_.uniform(0, 0.8 * seconds))
            ended = attempt(copy, here, kill_after if disturbed else None)
            if run == 0:
                seconds = time.perf_counter() - started
            if ended != -signal.SIGKILL:
                break
            killed += 1
            places.add(_record_bytes(here))
        if ended != 0:
            raise RuntimeError(f"training ended with {ended}")
        record_of.append((here / "record").read_text())
        kills_of.append(killed)
        if sum(kills_of) >= kills:
            break
    return {"records": record_of, "kills": kills_of, "places": sorted(places)}


# --- long runs


def rss_bytes() -> int:
    """The memory of this process that is not swapped out."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _epochs(batches: GPULoader, times: int) -> None:
    for _ in range(times):
        for _ in batches:
            pass


def _restored(batches: GPULoader, times: int) -> None:
    state = {**batches.state_dict(), "delivered": 2}
    for _ in range(times):
        batches.load_state_dict(state)
        next(iter(batches))


def _broken_off(batches: GPULoader, times: int) -> None:
    for _ in range(times):
        for _ in batches:
            break


def _failing(batches: GPULoader, times: int) -> None:
    failures = 0
    for _ in range(times):
        try:
            for _ in batches:
                pass
        except BadImageError:
            failures += 1
    if failures != times:
        raise RuntimeError(f"{failures} of {times} epochs met the damaged image")


WAYS = {"epochs": _epochs, "states": _restored, "loops broken off": _broken_off, "damaged images": _failing}


def grown(tar: list[str], way: str, times: int) -> dict[str, Any]:
    """What a process has before and after doing something many times."""
    with loader(tar, 2) as batches:  # libraries keep threads and files of their own from their first use on
        WAYS[way](batches, 1)
    at_start = threads_and_files()
    with loader(tar, 2) as batches:
        WAYS[way](batches, times // 3)
        gc.collect()
        before = rss_bytes()
        WAYS[way](batches, times)
        gc.collect()
        after = rss_bytes()
    return {"rss": (before, after), "left_behind": left_behind(at_start)}


# --- interrupts


@contextmanager
def slow_disk(seconds: float) -> Iterator[None]:
    """Every read takes that long, beside what it takes."""
    preadv = os.preadv

    def slowly(*arguments: Any) -> int:  # noqa: ANN401
        time.sleep(seconds)
        return preadv(*arguments)

    os.preadv = slowly
    try:
        with patch("gpuloader.pipelines.kernels.reading._function", lambda: lambda *_: None):  # no page cache
            yield
    finally:
        os.preadv = preadv


def interrupted(
    tar: list[str],
    read_seconds: float,
    delays: Sequence[float],
    **kwargs: Any,  # noqa: ANN401
) -> dict[str, Any]:
    """Loops while SIGINTs come, the given seconds after each other, and then to the end without them."""
    import_late("gpuloader.pipelines.kernels.call")  # the first step would, and take long
    received: list[dict[str, Any]] = []
    seconds: list[float] = []
    sent = 0.0

    def interrupt() -> None:
        nonlocal sent
        sent = time.perf_counter()
        os.kill(os.getpid(), signal.SIGINT)

    with loader(tar, **kwargs) as batches:
        epoch = iter(batches)
        with slow_disk(read_seconds):
            for delay in delays:
                timer = Timer(delay, interrupt)
                try:
                    timer.start()
                    for batch in epoch:
                        received.append(batch)  # Python handles a signal after this, not before
                    raise RuntimeError("the epoch ended before the interrupt came")
                except KeyboardInterrupt:
                    seconds.append(time.perf_counter() - sent)
        before = len(received)
        received += epoch
    return {"seconds": seconds, "records": delivered(received), "batches_before": before}


def loop_without_end(tar: list[str], read_seconds: float, **kwargs: Any) -> None:  # noqa: ANN401
    """Loops until something ends the process; says "begun" after the first batch."""
    with loader(tar, **kwargs) as batches:
        next(iter(batches))
        say("begun")
        with slow_disk(read_seconds):
            while True:
                _epochs(batches, 1)
