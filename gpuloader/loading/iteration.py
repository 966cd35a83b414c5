"""The position of a loader in its run (`Progress`), the iterator of a loader (`Iteration`), and `loader.sampler`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from threading import get_ident
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from torch.utils.data import SequentialSampler
from typing_extensions import Self

from gpuloader.base.worker_threads import not_an_end
from gpuloader.errors import LoaderError
from gpuloader.plan import Cursor, Plan, check_epoch

Item_co = TypeVar("Item_co", covariant=True)


class CloseableMixin:
    """A mixin for loaders: a `with` block closes the loader at its end."""

    def close(self) -> None:
        """Releases the resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Resumption: TypeAlias = tuple[int, Callable[[], None]]
"""A validated state: the number of steps in its epoch, and a function that resumes the loader there."""


class Epochs(Protocol[Item_co]):
    """The protocol of a loader in a `MixedLoader`.

    Its length is the number of steps in an epoch. `iter` continues a restored epoch. Its state has `delivered`, which
    is 0 at the beginning of an epoch.
    """

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Item_co]: ...

    def seek(self, epoch: int) -> None:
        """Makes the next iteration start an epoch at its first batch, even if a state in its middle was restored."""

    def state_dict(self) -> dict[str, Any]: ...

    def check_state(self, state: Any) -> Resumption:  # noqa: ANN401
        """Validates a state without loading it; raises StateError."""

    def close(self) -> None: ...


class Progress:
    """The position of a GPULoader or MixedLoader in its run, and the running iteration.

    Attributes:
        cursor: the position of the next batch.
        start: the position at which the next iteration starts.
        running: the token of the running iteration, or None. The iteration itself would hold the loader.
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
        """Ends the running iteration; the next one starts at this cursor."""
        self.running = None
        self.cursor = self.start = cursor

    def begin(self, iteration: Iteration[Any]) -> None:
        """Starts an iteration at its first item; later calls check that it still runs. Repeatable after an interrupt.

        Raises:
            LoaderError: a newer iteration has started, or a state was loaded.
        """
        if not iteration.begun:
            # An interrupt may come between any two of these lines, and then all of them run again. So the first line
            # keeps the start, before the second line moves it to the next epoch, and `begun` comes last.
            iteration.start = iteration.start or self.start
            check_epoch(iteration.start.epoch)
            self.cursor, self.start = iteration.start, Cursor(iteration.start.epoch + 1)
            self.running = iteration.token
            iteration.begun = True
        if iteration.token is not self.running:
            raise LoaderError(
                "this iterator is over: a newer one began, a state was loaded, or seek was called; make a new iterator"
            )

    def enter(self) -> None:
        """Records that this thread is in the loader. To leave, the thread replaces `inside` with an empty dictionary.

        This is not a lock: no thread waits. After an interrupt between entering and leaving, the same thread can enter
        again.

        Raises:
            LoaderError: another thread is in the loader.
        """
        me = get_ident()
        if self.inside.setdefault("thread", me) != me:  # reads and writes in one atomic call
            raise LoaderError("two threads are in this loader at once: give each thread its own loader, or use a lock")


class EpochsMixin(Sized):
    """A mixin for loaders whose epochs a `Progress` counts."""

    _progress: Progress

    @property
    def num_batches(self) -> int:
        """The number of steps in an epoch, `len(loader)`; webdataset and open_clip use this name."""
        return len(self)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next iteration. A running iteration does not change.

        An epoch that `load_state_dict` restored resumes where the state was taken.
        """
        self._progress.set_epoch(epoch)


class Iteration(Generic[Item_co]):
    """An iteration over a loader. It is not a generator, because a generator would end after any error.

    Args:
        progress: the progress of the loader.
        step: returns the next item of this iteration; None at the end.

    Attributes:
        token: identifies this iteration in `Progress.running`.
        start: the cursor of the first item, if it is known.
        begun: whether the first item was requested.
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
    """The sampler of a loader, for scripts that need its length and `set_epoch`; it gives no ids.

    It is a `SequentialSampler` for any order: with `overfit_batches`, Lightning replaces samplers of other classes,
    which works only in torch's DataLoader.
    """

    def __init__(self, plan: Plan, set_epoch: Callable[[int], None]) -> None:
        super().__init__(range(plan.length))
        self._plan = plan
        self.set_epoch = set_epoch

    def __len__(self) -> int:
        """Returns the number of samples of a rank in an epoch, or of the rank with the most samples."""
        return min(self._plan.steps * self._plan.batch_size, -(-self._plan.length // self._plan.world_size))

    def __iter__(self) -> Iterator[int]:
        """Raises LoaderError: the order is inside the loader."""
        raise LoaderError('the sampler of a GPULoader gives no ids: use output="dict" and read batch["index"]')
