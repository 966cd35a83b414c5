"""`ReadAhead`: the results of calls, which a thread computes ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeAlias, TypeVar

from gpuloader.base.worker_threads import WorkerThreads

Item = TypeVar("Item")
Call: TypeAlias = Callable[[Callable[[], bool]], Item]
"""Takes a function that says whether an item is still wanted, and makes the item."""


class EndOfItems(Exception):  # noqa: N818 - an end, not an error
    """Raised when there are no further items."""


class ReadAhead(Generic[Item]):
    """The results of calls, in order, which a thread computes ahead.

    Args:
        calls: gives the next call each time that one is needed, in the thread that asks. Calls and what they hold must
            not hold this object, see `WorkerThreads`. One may raise `EndOfItems`.
        depth: how many items are made ahead.
        name: of the thread that makes them.
    """

    def __init__(self, calls: Iterable[Call[Item]], depth: int, name: str) -> None:
        self._calls = iter(calls)
        self._depth = depth
        self._under_way = 0
        self._made: deque[Item | BaseException] = deque()
        self._thread: WorkerThreads[Call[Item], Item] = WorkerThreads(_run, name)

    def take(self) -> Item | BaseException:
        """Returns the next item, its error, or `EndOfItems`; a returned error keeps no frames alive."""
        while self._under_way <= self._depth and (call := next(self._calls, None)) is not None:
            self._thread.put(call)
            self._under_way += 1
        if self._under_way == 0:
            return EndOfItems()
        outcome = self._made.popleft() if self._made else self._thread.get()
        self._under_way -= 1
        return outcome

    def next(self) -> Item:
        """Returns the next item. Raises the error of making it, or `EndOfItems`."""
        return _raised_or(self.take())

    def make(self, call: Call[Item]) -> Item:
        """Makes one more item in the thread, or raises its error. Items under way are still returned next."""
        self._thread.put(call)
        while len(self._made) < self._under_way:
            self._made.append(self._thread.get())
        return _raised_or(self._thread.get())

    def __iter__(self) -> Iterator[Item]:
        """Iterates over the remaining items; the thread ends with the loop."""
        try:
            while not isinstance(outcome := self.take(), EndOfItems):
                yield _raised_or(outcome)
        finally:
            self.close()

    @property
    def ready(self) -> int:
        """The number of items that are made and not taken yet."""
        return len(self._made) + self._thread.ready

    def close(self) -> None:
        """Ends the thread after the call that it is in. Garbage collection and the process's end do this, too."""
        self._thread.close()


def _run(call: Call[Item], wanted: Callable[[], bool]) -> Item:
    return call(wanted)


def _raised_or(outcome: Item | BaseException) -> Item:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
