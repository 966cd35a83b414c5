"""Threads that are fed: each request is worked on once, and closing them ends them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from queue import SimpleQueue

import pytest

from gpuloader.helpers.fed_threads import FedThreads

NAME = "fed-by-a-test"


def running() -> int:
    return sum(thread.name == NAME for thread in threading.enumerate())


def doubling(done: SimpleQueue[int]) -> Callable[[int, Callable[[], bool]], None]:
    return lambda request, _: done.put(2 * request)


@pytest.mark.parametrize("count", [1, 3])
def test_each_request_is_worked_on_once(count: int) -> None:
    done: SimpleQueue[int] = SimpleQueue()
    threads = FedThreads(doubling(done), NAME, count)
    assert running() == count
    for request in range(50):
        threads.put(request)
    doubled = [done.get(timeout=300) for _ in range(50)]
    threads.close()
    assert done.empty()
    assert sorted(doubled) == list(range(0, 100, 2))
    if count == 1:
        assert doubled == sorted(doubled)


def test_closing_gives_up_what_is_not_begun_and_says_so_to_what_is() -> None:
    begun, seen = SimpleQueue[int](), SimpleQueue[int]()

    def work(request: int, is_wanted: Callable[[], bool]) -> None:
        begun.put(request)
        while is_wanted():
            pass
        seen.put(request)

    threads = FedThreads(work, NAME)
    for request in range(9):
        threads.put(request)
    assert begun.get(timeout=300) == 0
    threads.close()
    threads.close()  # again changes nothing
    assert (running(), seen.get(), seen.empty(), begun.empty()) == (0, 0, True, True)


def test_threads_end_with_their_owner() -> None:
    threads = FedThreads(doubling(SimpleQueue()), NAME, 2)
    assert running() == 2
    del threads
    gc.collect()
    assert running() == 0


def test_closing_in_one_of_its_threads_does_not_wait_for_itself() -> None:
    closed = SimpleQueue[None]()

    def close(threads: FedThreads[object], _: Callable[[], bool]) -> None:
        threads.close()
        closed.put(None)

    threads: FedThreads[FedThreads[object]] = FedThreads(close, NAME)  # type: ignore[arg-type]
    threads.put(threads)  # type: ignore[arg-type]
    closed.get(timeout=300)
