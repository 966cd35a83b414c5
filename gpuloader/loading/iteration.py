"""`Progress`, where a loader is in its run; `Iteration`, which `iter(loader)` returns; and `loader.sampler`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from torch.utils.data import SequentialSampler
from typing_extensions import Self

from gpuloader.errors import LoaderError
from gpuloader.helpers.worker_threads import not_an_end
from gpuloader.plan import Cursor, Plan, check_epoch

Item_co = TypeVar("Item_co", covariant=True)


class CloseableMixin:
    """A loader as a context manager, which closes it at the end."""

    def close(self) -> None:
        """Ends what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Resumption: TypeAlias = tuple[int, Callable[[], None]]
"""Of a state that was checked: the steps of its epoch, and what makes the loader go on there."""


class Epochs(Protocol[Item_co]):
    """What a `MixedLoader` loops over; its length is the steps of an epoch, and `iter` gives a restored epoch's rest.

    Its state has `delivered`, which is 0 at the beginning of an epoch.
    """

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Item_co]: ...

    def begin_epoch(self, epoch: int) -> Iterator[Item_co]:
        """Begins an epoch from its first batch, even if a state was restored in it."""

    def state_dict(self) -> dict[str, Any]: ...

    def check_state(self, state: Any) -> Resumption:  # noqa: ANN401
        """Checks a state without taking it; raises StateError."""

    def close(self) -> None: ...


class Progress:
    """Where a GPULoader or MixedLoader is in its run, and which iteration over it is running.

    Attributes:
        cursor: of the next batch.
        start: where the next iteration begins.
        running: the token of the running iteration, or None. It is not the iteration itself, which holds the loader.
        inside: the thread that is in the loader.
    """

    def __init__(self) -> None:
        self.cursor = self.start = Cursor()
        self.running: object | None = None
        self.inside: dict[str, int] = {}

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration run this epoch; a restored epoch resumes where its state was taken."""
        epoch = check_epoch(epoch)
        if epoch != self.start.epoch:
            self.start = Cursor(epoch)
        if self.running is None:
            self.cursor = self.start

    def restore(self, cursor: Cursor) -> None:
        """Makes the next iteration begin there, and ends the running one."""
        self.running = None
        self.cursor = self.start = cursor

    def begin(self, iteration: Iteration[Any]) -> None:
        """Makes an iteration the running one when its first item is asked for. After an interrupt, it may be repeated.

        Raises:
            LoaderError: the iteration was running before, but is over now.
        """
        if not iteration.begun:
            # An interrupt may come between any two of these lines, and then all of them run again. So the first keeps
            # the start that it found, before the second moves it on to the next epoch, and `begun` comes last.
            iteration.start = iteration.start or self.start
            check_epoch(iteration.start.epoch)
            self.cursor, self.start = iteration.start, Cursor(iteration.start.epoch + 1)
            self.running = iteration.token
            iteration.begun = True
        if iteration.token is not self.running:
            raise LoaderError("this iterator is over: a newer one began, or a state was loaded; make a new iterator")

    def enter(self) -> None:
        """Notes that this thread is in the loader. To leave, the thread replaces `inside` with an empty dictionary.

        This is not a lock: nobody waits. If an interrupt comes between entering and leaving, the same thread can enter
        and leave again.

        Raises:
            LoaderError: another thread is in the loader.
        """
        me = get_ident()
        if self.inside.setdefault("thread", me) != me:  # reads and writes in one atomic call
            raise LoaderError("two threads are in this loader at once: give each thread its own loader, or use a lock")


class Iteration(Generic[Item_co]):
    """One iteration over a loader. It is not a generator, because a generator would end after any error.

    Args:
        progress: the loader's.
        step: returns the next item of this iteration; None at the end.

    Attributes:
        token: identifies this iteration in `Progress.running`.
        start: the cursor of its first item, if it is known.
        begun: whether its first item was asked for.
    """

    def __init__(self, progress: Progress, step: Callable[[Any], Item_co | None]) -> None:
        self._progress = progress
        self._step: Callable[[Any], Item_co | None] | None = step
        self.token = object()
        self.start: Cursor | None = None
        self.begun = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item_co:
        self._progress.enter()
        try:
            item = None if self._step is None else self._step(self)
        except StopIteration as error:
            raise not_an_end(error) from error
        finally:
            self._progress.inside = {}  # not a call, in which an interrupt could come after the epoch's end
        if item is None:
            self._step = None
            raise StopIteration
        return item


class EpochSampler(SequentialSampler):
    """The part of a sampler that scripts use: its length, and `set_epoch`, which calls the loader's.

    With `overfit_batches`, Lightning turns shuffling off by replacing every sampler of another class, which works only
    in torch's DataLoader. So this is a `SequentialSampler`, whatever the order is.
    """

    def __init__(self, plan: Plan, set_epoch: Callable[[int], None]) -> None:
        super().__init__(range(plan.length))
        self._plan = plan
        self.set_epoch = set_epoch

    def __len__(self) -> int:
        """Counts the samples of a rank in an epoch; of the rank with the most, if they cannot be shared evenly."""
        return min(self._plan.steps * self._plan.batch_size, -(-self._plan.length // self._plan.world_size))

    def __iter__(self) -> Iterator[int]:
        """Raises LoaderError: the order is inside the loader."""
        raise LoaderError('the sampler of a GPULoader gives no ids: use output="dict" and read batch["index"]')
