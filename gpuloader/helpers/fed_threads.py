"""Threads that take requests from a queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread, current_thread
from typing import Any, Generic, TypeVar
from weakref import finalize

Request = TypeVar("Request")


class FedThreads(Generic[Request]):
    """Threads that do the same work for each request, until they are closed.

    They and their owner share a queue that is written in C. An interrupt can leave locks that are written in Python
    locked, such as an executor's, and then a thread hangs.

    Args:
        work: takes a request, and a function that says whether its result is still wanted. It must raise nothing, and
            must not hold the owner, because garbage collection and the process's end close the threads, too.
        name: of the threads.
        count: how many there are.
    """

    def __init__(self, work: Callable[[Request, Callable[[], bool]], None], name: str, count: int = 1) -> None:
        self._requests: SimpleQueue[Request | None] = SimpleQueue()
        stopping: list[bool] = []
        # The threads and the finalizer hold these, never this object: otherwise it would not be collected, and its
        # threads would run until the process ends.
        each = (work, self._requests, stopping)
        threads = [Thread(target=_serve, args=each, name=name, daemon=True) for _ in range(count)]
        self._to_stop = (self._requests, threads, stopping)
        self._at_end = finalize(self, _stop, *self._to_stop)
        for thread in threads:
            thread.start()

    def put(self, request: Request) -> None:
        self._requests.put(request)

    def close(self) -> None:
        """Ends the threads, which give up requests that are no longer wanted. You may close it twice."""
        _stop(*self._to_stop)  # not through the finalizer: an interrupt in it would spend it, with the threads running
        self._at_end.detach()


def _serve(
    work: Callable[[Request, Callable[[], bool]], None],
    requests: SimpleQueue[Request | None],
    stopping: list[bool],
) -> None:
    while (request := requests.get()) is not None:
        work(request, lambda: not stopping)
    del work  # otherwise an error that it keeps would hold itself, through this frame


def _stop(requests: SimpleQueue[Any], threads: Sequence[Thread], stopping: list[bool]) -> None:
    """Ends the threads. Doing so again, after an interrupt or at the end, changes nothing."""
    # First the flag, so that work in progress gives up; then the requests that wait are dropped, so that each thread
    # comes to the None that ends it. After a second call some of these stay in the queue, which is harmless.
    stopping.append(True)
    with suppress(Empty):  # the threads may be taking the last requests at this moment
        while True:
            requests.get_nowait()
    for _ in threads:
        requests.put(None)
    for thread in threads:
        # The garbage collector may run in one of these threads.
        if thread.ident is not None and thread is not current_thread():
            thread.join()
