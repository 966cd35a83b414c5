"""Runs own code in processes with shared memory for pixels, in threads, or in the calling thread."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from itertools import accumulate
from multiprocessing.connection import Connection, wait
from threading import local
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.forking import at_fork
from gpuloader.base.multiprocessing import forget_child
from gpuloader.base.progress import ProgressLog, say_if_long
from gpuloader.base.shared_memory import SharedMemory
from gpuloader.base.signals import deferred_signals, leave_signals_to_the_parent
from gpuloader.chain.own_function import (
    Failure,
    Images,
    Item,
    OwnFunction,
    OwnOutput,
    Targets,
    kept_generators,
    one_thread_each,
)
from gpuloader.errors import ConfigError
from gpuloader.recipe.apply import Apply, is_transform

Outcomes: TypeAlias = list["OwnOutput | Failure"]


class Results(NamedTuple):
    """The results of own code for a batch of images.

    Attributes:
        images: an array (n, height, width, 3), or a list.
        targets: the targets of each image.
        failure: the number of the first image that failed, and its failure; then there are no results.
    """

    images: Images
    targets: Sequence[Targets]
    failure: tuple[int, Failure] | None = None


def results_of(outcomes: Outcomes) -> Results:
    """Returns the results of all images of a batch, in their order."""
    for number, outcome in enumerate(outcomes):
        if isinstance(outcome, Failure):
            return Results((), (), (number, outcome))
    made: list[OwnOutput] = outcomes  # type: ignore[assignment] # none of them is a failure
    return Results([image for image, _ in made], [targets for _, targets in made])


_HEADER_BYTES = 64
LOOKS_SECONDS = 1.0
HANGS_SECONDS = 300
_ENDS_SECONDS = 5


class Workers(ABC):
    """The protocol of workers, which run own code on batches of images in order."""

    @abstractmethod
    def put(self, items: Sequence[Item]) -> None:
        """Starts a batch. The caller may change its images when this returns."""

    @abstractmethod
    def get(self) -> Results:
        """Returns the results of the oldest batch.

        Raises:
            WorkerLostError: a process ended or hangs.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends the workers, and discards their batches. Closing twice is allowed."""


class WorkerLostError(Exception):
    """Raised if a process ended or hangs at an image of a batch."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


class InlineWorkers(Workers):
    """Workers that run own code in the calling thread, and restore the global random generators."""

    def __init__(self, functions: Sequence[Apply]) -> None:
        self._functions = [OwnFunction(each, seeds=True) for each in functions]
        self._made: deque[Outcomes] = deque()

    def put(self, items: Sequence[Item]) -> None:
        with kept_generators():
            self._made.append([self._functions[item.function].run(copied(item)) for item in items])

    def get(self) -> Results:
        return results_of(self._made.popleft())

    def close(self) -> None:
        self._made.clear()


class ThreadWorkers(Workers):
    """Workers that run own code in threads. They do not seed the global random generators, which they share."""

    def __init__(self, functions: Sequence[Apply], count: int) -> None:
        self._functions, self._count, self._own = functions, count, local()
        self._threads = ThreadPoolExecutor(count, "gpuloader-own-code")
        self._made: deque[tuple[int, list[Future[Outcomes]]]] = deque()

    def put(self, items: Sequence[Item]) -> None:
        items = list(map(copied, items))
        parts = [self._threads.submit(self._run, items[number :: self._count]) for number in range(self._count)]
        self._made.append((len(items), parts))

    def get(self) -> Results:
        count, parts = self._made.popleft()
        with say_if_long("own code works on a batch of %s images", count):
            return results_of(dealt([part.result() for part in parts], count))

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._made.clear()

    def _run(self, items: Sequence[Item]) -> Outcomes:
        if not hasattr(self._own, "functions"):  # a copy for each thread, because transforms have generators
            self._own.functions = [
                OwnFunction(
                    replace(each, function=deepcopy(each.function)) if is_transform(each.function) else each,
                    seeds=False,
                )
                for each in self._functions
            ]
        return [self._own.functions[item.function].run(item) for item in items]


def copied(item: Item) -> Item:
    """Returns an item with a copy of the image."""
    return item._replace(image=item.image.copy())


def dealt(parts: Sequence[list[Any]], count: int) -> list[Any]:
    """Returns items that were dealt in turns, in their original order."""
    outcomes = [None] * count
    for number, part in enumerate(parts):
        outcomes[number :: len(parts)] = part
    return outcomes


class _Place(NamedTuple):
    """The location of an image in shared memory."""

    first: int
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.first + math.prod(self.shape)


class _Worker:
    """A process, its pipe, and the shared memory for each of its concurrent batches."""

    def __init__(self, functions: Sequence[Apply], batches: int) -> None:
        # `get_context()` without a method would fix the method of the whole program.
        method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
        context: Any = multiprocessing.get_context(method)
        self.pipe, theirs = context.Pipe()
        self.memories = [SharedMemory() for _ in range(batches)]
        self.process = context.Process(
            target=_serve, args=(theirs, self.memories, functions), name="gpuloader-own-code", daemon=True
        )
        try:
            self.process.start()
        except AssertionError as error:  # multiprocessing raises it if this process may have no children
            raise ConfigError(
                "own code cannot have processes here, in a worker of a DataLoader or Pool: use Decoder(processes=0)"
            ) from error
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            names = ", ".join(each.called for each in functions)
            raise ConfigError(
                f"{names} cannot be sent to a process ({error}): define it at the top of a module, or use "
                f"Decoder(processes=0), which runs it in threads"
            ) from error
        finally:
            theirs.close()

    def explain_end(self) -> str:
        self.process.join(_ENDS_SECONDS)
        names: dict[int | None, str] = {-each: each.name for each in signal.Signals}  # not all signals have one
        how = names.get(code := self.process.exitcode, f"exit status {code}")
        return f"its process ended with {how}; what it wrote to stderr may say more"

    def close(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join(_ENDS_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()
        for memory in self.memories:
            memory.close()


class ProcessWorkers(Workers):
    """Workers that run own code in processes.

    The images of a batch are dealt to them in turns. Pipes carry only locations, so they never fill up.
    """

    def __init__(self, functions: Sequence[Apply], count: int, batches: int) -> None:
        self._count, self._batches = count, batches
        self._workers: list[_Worker] = []
        self._items: deque[Sequence[Item]] = deque()
        self._put = self._got = 0
        at_fork(self, ProcessWorkers._leave_to_the_parent)
        for _ in range(count):
            with deferred_signals():
                self._workers.append(_Worker(functions, batches))

    def put(self, items: Sequence[Item]) -> None:
        slot = self._put % self._batches
        for number, worker in enumerate(self._workers):
            write(worker.memories[slot], items[number :: self._count])
            with suppress(BrokenPipeError):  # the process ended; `get` raises the error
                worker.pipe.send(slot)
        self._put += 1
        self._items.append(items)

    def get(self) -> Results:
        items, slot = self._items[0], self._got % self._batches
        self._wait(slot, items)
        self._items.popleft()
        self._got += 1
        memories = [worker.memories[slot] for worker in self._workers]
        made = results_of(dealt(list(map(read, memories)), len(items)))
        if made.failure is not None or len({image.shape for image in made.images}) != 1:
            return made._replace(images=[image.copy() for image in made.images])
        stacked: Any = np.stack(made.images)
        return made._replace(images=stacked)

    def close(self) -> None:
        workers, self._workers = self._workers, []
        self._items.clear()
        for worker in workers:
            worker.close()

    def __del__(self, _at_end: Callable[[], bool] = sys.is_finalizing) -> None:  # at the end, modules are empty
        if not _at_end():
            self.close()

    def _wait(self, slot: int, items: Sequence[Item]) -> None:
        """Waits until all processes have finished their part of a batch."""
        waiting = dict(enumerate(self._workers))
        work, done, since = ProgressLog("own code works on a batch: %s of %s images"), -1, time.monotonic()
        while waiting:
            ready = wait([worker.pipe for worker in waiting.values()], LOOKS_SECONDS)
            for number, worker in list(waiting.items()):
                if worker.pipe in ready:
                    try:
                        worker.pipe.recv()
                    except (EOFError, OSError):
                        raise WorkerLostError(self._at(number, slot), worker.explain_end()) from None
                    del waiting[number]
            now = sum(_done(worker.memories[slot]) for worker in self._workers)
            if now > done:
                done, since = now, time.monotonic()
            elif time.monotonic() - since > HANGS_SECONDS and waiting:
                number = next(iter(waiting))
                raise WorkerLostError(self._at(number, slot), f"it has not come back for {HANGS_SECONDS} seconds")
            work.reached(done, len(items))

    def _at(self, number: int, slot: int) -> int:
        """Returns the number of the image that a process works on, or worked on last; 0 if it has none."""
        its = range(number, len(self._items[0]), self._count) or range(1)
        return its[min(_done(self._workers[number].memories[slot]), len(its) - 1)]

    def _leave_to_the_parent(self) -> None:
        workers, self._workers = self._workers, []
        self._items.clear()
        for worker in workers:
            forget_child(worker.process)


def _header(memory: SharedMemory) -> NDArray[np.int64]:
    """Returns the number of finished images, and the offset and length of the pickled rest."""
    return memory.bytes(_HEADER_BYTES)[:24].view(np.int64)


def _done(memory: SharedMemory) -> int:
    return int(_header(memory)[0])


def write(memory: SharedMemory, items: Sequence[Item]) -> None:
    """Writes a process's part of a batch: the images, then the pickled rest."""
    ends = list(accumulate((item.image.nbytes for item in items), initial=_HEADER_BYTES))
    places = [_Place(first, item.image.shape) for first, item in zip(ends, items)]
    pixels = memory.bytes(ends[-1])
    for item, place in zip(items, places):
        pixels[place.first : place.end] = item.image.reshape(-1)
    _write_rest(memory, ends[-1], 0, [(place, *item[1:]) for place, item in zip(places, items)])


def read(memory: SharedMemory) -> Outcomes:
    """Reads the results of a process; the images stay in shared memory."""
    rest: list[tuple[_Place, bytes | Failure]] = _read_rest(memory)
    pixels = memory.bytes(0)
    made = [(place, sent if isinstance(sent, Failure) else _sent(sent)) for place, sent in rest]
    return [
        targets if isinstance(targets, Failure) else (pixels[place.first : place.end].reshape(place.shape), targets)
        for place, targets in made
    ]


def _sent(given: Targets | Failure | bytes) -> Any:  # noqa: ANN401
    """Pickles the targets of a sample, or unpickles bytes; returns a `Failure` after an error."""
    try:
        return pickle.loads(given) if isinstance(given, bytes) else pickle.dumps(given, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001 - the program's own, of any kind
        advice = "it returned targets that its process cannot send: use arrays and numbers, or Decoder(processes=0)"
        return Failure((advice, *"".join(traceback.format_exception_only(error)).splitlines()))


def _write_rest(memory: SharedMemory, first: int, done: int, rest: object) -> None:
    pickled = np.frombuffer(pickle.dumps(rest, pickle.HIGHEST_PROTOCOL), np.uint8)
    memory.bytes(first + len(pickled))[first : first + len(pickled)] = pickled
    _header(memory)[:] = done, first, len(pickled)


def _read_rest(memory: SharedMemory) -> Any:  # noqa: ANN401
    _, first, size = _header(memory).tolist()
    return pickle.loads(memory.bytes(first + size)[first : first + size])


def _serve(pipe: Connection, memories: Sequence[SharedMemory], functions: Sequence[Apply]) -> None:
    """Runs the worker process until the parent ends."""
    leave_signals_to_the_parent()  # first, because a forked process still defers them
    made = [OwnFunction(each, seeds=True) for each in functions]
    parent, starter = multiprocessing.parent_process(), os.getppid()
    while True:
        while not pipe.poll(LOOKS_SECONDS):
            if os.getppid() != starter or parent is None or not parent.is_alive():
                return
        try:
            slot = pipe.recv()
        except EOFError:
            return
        one_thread_each()
        _work(memories[slot], made)
        pipe.send(slot)


def _work(memory: SharedMemory, functions: Sequence[OwnFunction]) -> None:
    """Processes a part of a batch; an image that became larger is written after all others."""
    rest: list[tuple[_Place, int, tuple[int, int], Any, bool]] = _read_rest(memory)
    outcomes: list[tuple[_Place, bytes | Failure]] = []
    _, first, size = _header(memory).tolist()
    end = first + size
    for done, (given, *others) in enumerate(rest, start=1):
        image = memory.bytes(end)[given.first : given.end].reshape(given.shape)
        outcome = functions[others[0]].run(Item(image, *others))
        made, targets = (image, Failure(outcome.lines)) if isinstance(outcome, Failure) else outcome
        place = _Place(given.first if made.nbytes <= image.nbytes else end, made.shape)
        if made is not image:
            end = max(end, place.end)
            memory.bytes(end)[place.first : place.end] = made.reshape(-1)
        outcomes.append((place, _sent(targets)))
        _header(memory)[0] = done
    _write_rest(memory, end, len(rest), outcomes)
