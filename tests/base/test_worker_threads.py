"""Threads that are fed: each request is worked on once, what it raises is its outcome, and closing them ends them."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from queue import SimpleQueue
from typing import Any

import pytest

from gpuloader.base.worker_threads import WorkerThreads

NAME = "fed-by-a-test"


def running() -> int:
    return sum(thread.name == NAME for thread in threading.enumerate())


def double(request: int, _: Callable[[], bool]) -> int:
    return 2 * request


@pytest.mark.parametrize("count", [1, 3])
def test_each_request_is_worked_on_once(count: int) -> None:
    threads = WorkerThreads(double, NAME, count)
    assert running() == count
    for request in range(50):
        threads.put(request)
    doubled = [threads.get() for _ in range(50)]
    threads.close()
    assert threads.ready == 0
    assert sorted(doubled) == list(range(0, 100, 2))
    if count == 1:
        assert doubled == sorted(doubled)


@pytest.mark.parametrize(
    "kind", [ValueError, SystemExit, KeyboardInterrupt, CancelledError, GeneratorExit, BaseException]
)
def test_what_the_work_raises_is_its_outcome(kind: type[BaseException]) -> None:
    def work(request: int, _: Callable[[], bool]) -> int:
        if request == 1:
            raise raised
        return request

    raised, threads = kind("mine"), WorkerThreads(work, NAME)
    for request in range(3):
        threads.put(request)
    assert [threads.get() for _ in range(3)] == [0, raised, 2]
    threads.close()


def test_stop_iteration_becomes_an_error_that_names_its_place() -> None:
    def work(empty: list[int], _: Callable[[], bool]) -> int:
        return next(iter(empty))

    threads = WorkerThreads(work, NAME)
    threads.put([])
    error = threads.get()
    threads.close()
    assert isinstance(error, RuntimeError)
    line = work.__code__.co_firstlineno + 1
    assert re.match(rf"StopIteration, raised in work \({re.escape(__file__)}, line {line}\)", str(error))


def test_a_request_without_a_result_has_no_outcome() -> None:
    threads: WorkerThreads[int, int] = WorkerThreads(lambda request, _: request or None, NAME)
    for request in (0, 1, 0, 2):
        threads.put(request)
    assert (threads.get(), threads.get(), threads.ready) == (1, 2, 0)
    threads.close()


def test_nobody_waits_for_threads_that_have_ended() -> None:
    threads = WorkerThreads(double, NAME)
    threads.put(1)
    assert threads.get() == 2
    threads.close()
    assert "ended without an answer" in str(threads.get())


def test_closing_gives_up_what_is_not_begun_and_says_so_to_what_is() -> None:
    begun, seen = SimpleQueue[int](), SimpleQueue[int]()

    def work(request: int, is_wanted: Callable[[], bool]) -> None:
        begun.put(request)
        while is_wanted():
            pass
        seen.put(request)

    threads = WorkerThreads(work, NAME)
    for request in range(9):
        threads.put(request)
    assert begun.get(timeout=300) == 0
    threads.close()
    threads.close()  # again changes nothing
    assert (running(), seen.get(), seen.empty(), begun.empty()) == (0, 0, True, True)


def test_threads_end_with_their_owner() -> None:
    threads = WorkerThreads(double, NAME, 2)
    assert running() == 2
    del threads
    gc.collect()
    assert running() == 0


def test_closing_in_one_of_its_threads_does_not_wait_for_itself() -> None:
    closed = SimpleQueue[None]()

    def close(threads: WorkerThreads[Any, None], _: Callable[[], bool]) -> None:
        threads.close()
        closed.put(None)

    threads: WorkerThreads[Any, None] = WorkerThreads(close, NAME)
    threads.put(threads)
    closed.get(timeout=300)
