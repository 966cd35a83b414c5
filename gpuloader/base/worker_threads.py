"""`WorkerThreads`: threads that take requests from one queue and put the outcomes into another."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread, current_thread
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import finalize

Request = TypeVar("Request")
Result = TypeVar("Result")
Work: TypeAlias = Callable[[Request, Callable[[], bool]], Result]

_LOOK_SECONDS = 1.0


class WorkerThreads(Generic[Request, Result]):
    """Threads that do the same work for each request, until they are closed.

    They and their owner share queues that are written in C. An interrupt can leave locks that are written in Python
    locked, such as an executor's, and then a thread hangs.

    Args:
        work: takes a request, and a function that says whether its result is still wanted. Whatever it raises is its
            outcome, also SystemExit; there is none if it returns None. It must not hold the owner, because garbage
            collection and the process's end close the threads, too.
        name: of the threads.
        count: how many there are.
    """

    def __init__(self, work: Work[Request, Result | None], name: str, count: int = 1) -> None:
        self._requests: SimpleQueue[Request | None] = SimpleQueue()
        self._outcomes: SimpleQueue[Result | BaseException] = SimpleQueue()
        stopping: list[bool] = []
        # The threads and the finalizer hold these, never this object: otherwise it would not be collected, and its
        # threads would run until the process ends.
        each = (work, self._requests, self._outcomes, stopping)
        self._threads = [Thread(target=_serve, args=each, name=name, daemon=True) for _ in range(count)]
        self._to_stop = (self._requests, self._threads, stopping)
        self._at_end = finalize(self, _stop, *self._to_stop)
        for thread in self._threads:
            thread.start()

    def put(self, request: Request) -> None:
        self._requests.put(request)

    def get(self) -> Result | BaseException:
        """Waits for the next outcome: a result, or an error, which the caller may raise."""
        while True:
            ended = not any(thread.is_alive() for thread in self._threads)  # before looking: it may put one and end
            with suppress(Empty):
                return self._outcomes.get(timeout=0 if ended else _LOOK_SECONDS)
            if ended:
                return RuntimeError(f"the thread {self._threads[0].name} ended without an answer")

    @property
    def ready(self) -> int:
        """The number of outcomes that `get` returns at once."""
        return self._outcomes.qsize()

    def close(self) -> None:
        """Ends the threads, which drop requests that are no longer wanted. It may be called twice."""
        if self._at_end.alive:  # if it is spent, the process ends, and this module may be empty
            # Not through the finalizer: an interrupt in it would spend it, with the threads running.
            _stop(*self._to_stop)
        self._at_end.detach()


def not_an_end(error: StopIteration) -> RuntimeError:
    """Replaces a StopIteration of a user's code, which would end a loop silently, by an error."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    made = RuntimeError(
        f"StopIteration, raised in {frame.name} ({frame.filename}, line {frame.lineno}), would end the loop silently: "
        f"catch it there, or give `next` a default"
    )
    made.__cause__ = error
    return made


def _serve(
    work: Work[Request, Result | None],
    requests: SimpleQueue[Request | None],
    outcomes: SimpleQueue[Result | BaseException],
    stopping: list[bool],
) -> None:
    outcome: Result | BaseException | None
    while (request := requests.get()) is not None:
        try:
            outcome = work(request, lambda: not stopping)
        except StopIteration as error:
            outcome = not_an_end(error)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it
            outcome = error
        if outcome is not None:
            outcomes.put(outcome)
        del outcome
    del work, outcomes  # otherwise an error that they keep would hold itself, through this frame


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
