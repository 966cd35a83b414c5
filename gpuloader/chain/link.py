"""`Link`: what hands on batches, over another link; `Ahead`: a link that runs the links under it in a thread.

A chain is made from its head to its end, and each link holds the one under it, never the one over it. `seek` and
`close` go from the end to the head, batches from the head to the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias

from gpuloader.base.forking import at_fork
from gpuloader.base.worker_threads import WorkerThreads
from gpuloader.chain.batch import Batch
from gpuloader.errors import LoaderError

Causes: TypeAlias = Mapping[int, str]
"""The rows of a batch that cannot be used, row -> cause."""


_OF_A_THREAD = "_gpuloader_of_a_thread"  # the attribute of an error that a thread has raised, which is no interrupt


class Link(Protocol):
    """What hands on batches."""

    def seek(self, place: Any) -> None:  # noqa: ANN401 - what the head takes
        """Makes `next` go on at this place: a cursor, or what the head of the chain takes.

        Batches that were pulled before are dropped. What runs, such as a pipeline, keeps running.
        """

    def next(self) -> Batch | None:
        """Returns the next batch; None after the last. After an error or an interrupt: `close`, then `seek`."""

    def again(self, batch: Batch, causes: Causes) -> Batch | None:
        """Returns a batch in the place of one that `next` returned; None drops it. Later ones come as before."""

    def close(self) -> None:
        """Ends threads, processes and pipelines. It may be called twice. After `seek` the chain runs again."""


class Over:
    """A link over another one, which passes on what it does not define."""

    def __init__(self, under: Link) -> None:
        self._under = under

    def seek(self, place: Any) -> None:  # noqa: ANN401
        self._under.seek(place)

    def again(self, batch: Batch, causes: Causes) -> Batch | None:
        raise LoaderError(f"{len(batch)} images that were decoded cannot be used: {', '.join(causes.values())}")

    def close(self) -> None:
        self._under.close()


def cut(end: Link, behind: type[Over]) -> Link | None:
    """Returns the first link of a class in a chain: what works without the links over it. None if there is none."""
    found, link = None, end
    while isinstance(link, Over):
        found, link = link if isinstance(link, behind) else found, link._under  # noqa: SLF001 - this module is its class's
    return found


class Wanted:
    """Whether the work of a chain is still wanted. The thread that does it says whom to ask."""

    def __init__(self) -> None:
        self.ask: Callable[[], bool] = lambda: True

    def __call__(self) -> bool:
        return self.ask()


class Pulled:
    """Batches that a link pulled ahead, and the error or end that comes behind them."""

    def __init__(self) -> None:
        self.batches: deque[Batch] = deque()
        self.ended = False
        self._failure: BaseException | None = None

    def add(self, batch: Batch | None) -> None:
        """Adds a batch, or the end."""
        if batch is None:
            self.ended = True
        else:
            self.batches.append(batch)

    def fail(self, error: BaseException) -> None:
        """Adds an error in place of further batches, without its frames; raises an interrupt of this thread at once."""
        if not isinstance(error, Exception) and not hasattr(error, _OF_A_THREAD):
            raise error
        self.ended, self._failure = True, without_frames(error)

    def finish(self) -> None:
        """Raises the error that came behind the last batch, if there is one."""
        if self._failure is not None:
            raise self._failure

    def begin(self) -> None:
        """Forgets the end, for other batches."""
        self.ended, self._failure = False, None


class Ahead(Over):
    """A link that runs the links under it in a thread, ahead of use.

    Args:
        depth: the batches that are made ahead.
        wanted: the question of the work under it, which the thread answers.
        name: the name of the thread.
    """

    def __init__(self, under: Link, depth: int, wanted: Wanted, name: str) -> None:
        super().__init__(under)
        self._depth, self._wanted, self._name = depth, wanted, name
        self._thread: WorkerThreads[Any, tuple[Batch | None]] | None = None
        self._asked, self._ended = 0, False
        self._made: deque[tuple[Batch | None] | BaseException] = deque()
        at_fork(self, Ahead._leave_to_the_parent)

    def seek(self, place: Any) -> None:  # noqa: ANN401
        self.close()
        self._under.seek(place)
        # The thread must not hold this object, see `WorkerThreads`.
        self._thread = WorkerThreads(partial(_work, self._under, self._wanted), self._name)

    def next(self) -> Batch | None:
        assert self._thread is not None
        while self._asked <= self._depth and not self._ended:
            self._thread.put(())
            self._asked += 1
        outcome = self._made.popleft() if self._made else self._thread.get()
        self._asked -= 1
        batch = _raised_or(outcome)
        self._ended = self._ended or batch is None
        return batch

    def again(self, batch: Batch, causes: Causes) -> Batch | None:
        """Runs in the thread, behind what that was asked for, which the next calls return as if nothing were."""
        assert self._thread is not None
        self._thread.put((batch, causes))
        while len(self._made) < self._asked:
            self._made.append(self._thread.get())
        return _raised_or(self._thread.get())

    @property
    def ready(self) -> int:
        """The number of batches that wait to be decoded."""
        return 0 if self._thread is None else len(self._made) + self._thread.ready

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()
            self._thread = None
        self._clear()
        self._under.close()

    def _clear(self) -> None:
        self._asked, self._ended = 0, False
        self._made.clear()

    def _leave_to_the_parent(self) -> None:
        self._thread = None  # it does not exist in the child
        self._clear()


def _work(
    under: Link, wanted: Wanted, request: tuple[Any, ...], still_wanted: Callable[[], bool]
) -> tuple[Batch | None]:
    """Answers () with the next batch, and a batch with its causes with a batch in its place."""
    wanted.ask = still_wanted
    return (under.again(*request) if request else under.next(),)


def _raised_or(outcome: tuple[Batch | None] | BaseException) -> Batch | None:
    if isinstance(outcome, BaseException):
        setattr(outcome, _OF_A_THREAD, True)
        raise outcome
    return outcome[0]


def without_frames(error: BaseException) -> BaseException:
    """Returns an error without its frames, which would keep DALI's frames and so a pipeline alive."""
    error.__context__ = None
    if error.__cause__ is not None:
        without_frames(error.__cause__)
    return error.with_traceback(None)
