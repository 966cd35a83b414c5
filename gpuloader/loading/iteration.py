"""Where a loader stands, and an iteration over it, of the kind that `iter` gives."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any, Generic, TypeVar

from typing_extensions import Self

from gpuloader.errors import LoaderError
from gpuloader.plan import Cursor, check_epoch

Item_co = TypeVar("Item_co", covariant=True)


class Progress:
    """Where a GPULoader or a MixedLoader stands, and which of the iterations over it runs.

    Attributes:
        cursor: the place of the next batch. A MixedLoader counts steps as `delivered`.
        start: where the next iteration begins.
        running: the token of the iteration that is valid, if there is one; not that itself, which holds the loader.
        inside: the thread that is in the loader.
    """

    def __init__(self) -> None:
        self.cursor = self.start = Cursor()
        self.running: object | None = None
        self.inside: dict[str, int] = {}

    def set_epoch(self, epoch: int) -> None:
        """The next iteration runs that epoch; one that was restored goes on where it was left."""
        epoch = check_epoch(epoch)
        if epoch != self.start.epoch:
            self.start = Cursor(epoch)
        if self.running is None:
            self.cursor = self.start

    def restore(self, cursor: Cursor) -> None:
        """The next iteration begins there, and the running one is over."""
        self.running = None
        self.cursor = self.start = cursor

    def begin(self, iteration: Iteration[Any]) -> None:
        """Makes an iteration the running one, at its first item. Doing so again after an interrupt changes nothing.

        Raises:
            LoaderError: it was the running one before, and is not any more.
        """
        if not iteration.begun:
            iteration.start = iteration.start or self.start
            check_epoch(iteration.start.epoch)
            self.cursor, self.start = iteration.start, Cursor(iteration.start.epoch + 1)
            self.running = iteration.token
            iteration.begun = True
        if iteration.token is not self.running:
            raise LoaderError("this iterator is over: a newer one was begun, or a state was loaded; begin a new one")

    def enter(self) -> None:
        """Notes that this thread is in the loader, which it leaves by replacing `inside` with an empty dictionary.

        It is no lock: nobody waits, and an interrupt that comes between entering and leaving lets the same thread enter
        again, and so leave.

        Raises:
            LoaderError: another thread is in it.
        """
        me = get_ident()
        if self.inside.setdefault("thread", me) != me:  # looks and notes in one step
            raise LoaderError(
                "two threads are in this loader at once: give each a loader of its own, or guard it by a lock"
            )


class Iteration(Generic[Item_co]):
    """One iteration over a loader. Not a generator: one ends where it raises, and the loop with it.

    Args:
        progress: the loader's.
        step: the loader's next item, of this iteration; StopIteration at the end.

    Attributes:
        token: says whether it is the one that runs.
        start: the place of its first item, where that is known.
        begun: whether that was asked for.
    """

    def __init__(self, progress: Progress, step: Callable[[Any], Item_co]) -> None:
        self._progress = progress
        self._step: Callable[[Any], Item_co] | None = step
        self.token = object()
        self.start: Cursor | None = None
        self.begun = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item_co:
        if self._step is None:
            raise StopIteration
        self._progress.enter()
        try:
            return self._step(self)
        except StopIteration:
            self._step = None
            raise
        finally:
            self._progress.inside = {}  # no call: an interrupt would come between the epoch's end and the loop's
