"""`Feed`: the source of a pipeline that runs ahead, and its batches in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from gpuloader.recipe import AugmentParams


class FeedBatch(Protocol):
    """A batch as a pipeline takes it, of at least one image."""

    @property
    def images(self) -> Sequence[Any]: ...

    @property
    def params(self) -> AugmentParams: ...


BatchT = TypeVar("BatchT", bound=FeedBatch)


class Feed(Generic[BatchT]):
    """The source that the pipeline calls for its next batch.

        in_flight:   unwanted | given to the pipeline | left of a pipeline that failed, or for the next one
                              ^ _unwanted             ^ _with_pipeline

    It repeats the images of small batches, if a GPU's JPEG engines decode. The first batch of a pipeline sets how many
    JPEGs of any later batch the engines can get. If the first batch were a short one, an image's decoder would depend
    on where the run was resumed. And if there are several engines, nvImageCodec 0.9 decodes a batch of one JPEG in
    another way, which may round differently.

    Args:
        hw_load: the decoder's share for the engines.
        rows: the most images of a batch, as far as it is known.

    Attributes:
        rows: the most images that the pipeline takes.
        encoded: whether it takes files; otherwise it takes arrays.
        in_flight: the batches that were taken and not delivered yet, in order; those no longer wanted come first.
        failure: the error that came in place of a further batch.
        stopped: whether the pipeline was told that no batch comes, and has not reported it yet.
    """

    def __init__(self, hw_load: float | None, rows: int) -> None:
        self._by_engines = bool(hw_load)
        self._take: Callable[[], BatchT | BaseException] | None = None
        self._begins = True
        self._with_pipeline = 0  # how many of those in flight the pipeline has
        self._unwanted = 0  # how many of these are no longer wanted
        self.rows = rows
        self.encoded = True
        self.in_flight: deque[BatchT] = deque()
        self.failure: BaseException | None = None
        self.stopped = False

    def begin(self) -> bool:
        """Makes `rows` and `encoded` fit the coming batch, for a new pipeline; returns whether there is one."""
        if not self._has_next():
            return False
        images = self.in_flight[self._with_pipeline].images
        self._begins, self.stopped, self.encoded = True, False, _is_file(images[0])
        least = max(len(images), 2 if self._filled else 1)
        if least > self.rows:
            self.rows = 1 << (least - 1).bit_length()
        return True

    @property
    def waits(self) -> bool:
        """Whether a batch waits to be given to the pipeline."""
        return self._with_pipeline < len(self.in_flight)

    @property
    def ended(self) -> bool:
        """Whether all batches before `failure` were delivered."""
        return self.failure is not None and not self.in_flight

    def __call__(self) -> tuple[Sequence[Any], AugmentParams]:
        """Returns the images of the next batch with their random parameters; small batches are repeated.

        The only exception that DALI accepts here is StopIteration, after which it still returns the earlier batches. So
        an error is kept in `failure` until the caller has had these. A batch that does not fit also ends the source.
        """
        if not self._has_next() or not self._fits(batch := self.in_flight[self._with_pipeline]):
            self.stopped = True
            raise StopIteration
        images, params = batch.images, batch.params
        self._with_pipeline += 1
        least = (self.rows if self._begins else 2) if self._filled else 1
        self._begins = False
        if len(images) >= least:
            return images, params
        again = np.resize(np.arange(len(images)), least)
        return [images[row] for row in again.tolist()], params.take(again)

    def pop(self) -> BatchT:
        """Removes and returns the first batch in flight, which the pipeline has returned."""
        self._with_pipeline -= 1
        return self.in_flight.popleft()

    def restart(self, take: Callable[[], BatchT | BaseException]) -> None:
        """Takes the next batches from elsewhere; a running pipeline first returns those it has, unwanted.

        Args:
            take: returns the next batch, or the error with which the batches end.
        """
        while self.waits:
            self.in_flight.pop()
        self._take, self.failure, self._unwanted = take, None, self._with_pipeline

    def clear(self) -> None:
        """Forgets all batches, when there is no pipeline any more."""
        self._take, self.failure, self.stopped = None, None, False
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

    def put_back(self, batch: BatchT | None) -> None:
        """Gives all batches in flight to another pipeline; `batch` replaces the first, None drops the first."""
        self.in_flight.popleft()
        if batch is not None:
            self.in_flight.appendleft(batch)
        self._with_pipeline = 0

    @property
    def _filled(self) -> bool:
        return self._by_engines and self.encoded

    def _fits(self, batch: BatchT) -> bool:
        return len(batch.images) <= self.rows and _is_file(batch.images[0]) == self.encoded

    def _has_next(self) -> bool:
        """Takes a batch unless one waits; returns whether one waits now."""
        if not self.waits and self.failure is None and self._take is not None:
            outcome = self._take()
            if isinstance(outcome, BaseException):
                # Do not raise it here: its traceback would hold DALI's frames, and these the pipeline.
                self.failure = outcome
            else:
                self.in_flight.append(outcome)
        return self.waits


def _is_file(image: Any) -> bool:  # noqa: ANN401
    return bool(image.ndim == 1)
