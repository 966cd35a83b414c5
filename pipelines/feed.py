"""`Feed`: the source of a pipeline that runs ahead, with the batches that it has and has not returned yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from gpuloader.recipe import Drawn


class FeedBatch(Protocol):
    """A batch as a pipeline takes it."""

    @property
    def images(self) -> Sequence[Any]: ...

    @property
    def drawn(self) -> Drawn: ...


BatchT = TypeVar("BatchT", bound=FeedBatch)


class Feed(Generic[BatchT]):
    """The source that the pipeline calls for its next batch.

        in_flight:   unwanted | given to the pipeline | left of a pipeline that failed
                              ^ _unwanted             ^ _with_pipeline

    Attributes:
        in_flight: the batches that were read and not delivered yet, in order; those no longer wanted come first.
        failure: the error that ended the feed.
    """

    def __init__(self) -> None:
        self._take: Callable[[], BatchT | BaseException] | None = None
        self.in_flight: deque[BatchT] = deque()
        self.failure: BaseException | None = None
        self._with_pipeline = 0  # how many of those in flight the pipeline has
        self._unwanted = 0  # how many of these are no longer wanted

    def __call__(self) -> tuple[Sequence[Any], Drawn]:
        """Returns the encoded images of the next batch, and what is drawn for them.

        The only exception that DALI accepts here is StopIteration, after which it still returns the earlier batches.
        So an error is kept in `failure` until the caller has had these.
        """
        if self._with_pipeline == len(self.in_flight):
            self.in_flight.append(self._next())
        self._with_pipeline += 1
        batch = self.in_flight[self._with_pipeline - 1]
        return batch.images, batch.drawn

    def pop(self) -> BatchT:
        """Removes and returns the first batch in flight, which the pipeline has returned."""
        self._with_pipeline -= 1
        return self.in_flight.popleft()

    def restart(self, take: Callable[[], BatchT | BaseException]) -> None:
        """Takes the next batches from elsewhere; a running pipeline first returns those it has, unwanted.

        Args:
            take: returns the next batch, or the error with which the batches end.
        """
        while len(self.in_flight) > self._with_pipeline:
            self.in_flight.pop()
        self._take, self.failure, self._unwanted = take, None, self._with_pipeline

    def clear(self) -> None:
        """Forgets all batches, when there is no pipeline any more."""
        self._take = self.failure = None
        self._with_pipeline = self._unwanted = 0
        self.in_flight.clear()

    def pop_unwanted(self) -> bool:
        """Removes the first batch in flight if it is no longer wanted; returns whether it did."""
        if not self._unwanted:
            return False
        self._unwanted -= 1
        self.pop()
        return True

    def drop_unwanted(self) -> bool:
        """Removes all batches that are no longer wanted, with their pipeline; returns whether there were any."""
        unwanted, self._unwanted = self._unwanted, 0
        for _ in range(unwanted):
            self.in_flight.popleft()
        self._with_pipeline = 0
        return unwanted > 0

    def put_back(self, batch: BatchT) -> None:
        """Gives all batches in flight again, to another pipeline, with `batch` in place of the first."""
        self.in_flight[0] = batch
        self._with_pipeline = 0

    def _next(self) -> BatchT:
        if self.failure is not None or self._take is None:
            raise StopIteration
        outcome = self._take()
        if isinstance(outcome, BaseException):
            # Do not raise it here: its traceback would hold DALI's frames, and these the pipeline.
            self.failure = outcome
            raise StopIteration
        return outcome
