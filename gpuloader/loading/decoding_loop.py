"""`DecodingLoop`: the loop that decodes batches ahead, of a GPULoader, a Stage and a Compose.

    take -> Feed -> DALI's pipeline -> PipelineRunner -> DecodingLoop
            (called by the pipeline, in the thread of the loop)

The pipeline holds what it calls, so nothing on that way may hold `DecodingLoop` or `PipelineRunner`: in a reference
cycle, the pipeline would keep its threads and memory until garbage is collected.

A run of the pipeline decodes one batch. Only `Feed.__call__` and `DecodingLoop.next` know this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from nvidia.dali.pipeline import Pipeline

from gpuloader.errors import LoaderError
from gpuloader.helpers.read_ahead import EndOfItems
from gpuloader.loading.options import Decoder
from gpuloader.pipelines import (
    Feed,
    FeedBatch,
    LastStep,
    PipelineRunner,
    UndecodableError,
    find_undecodable,
    recipe_pipeline,
    release_unused_memory,
)
from gpuloader.recipe import AugmentParams, Recipe

BatchT = TypeVar("BatchT", bound=FeedBatch)
Size: TypeAlias = tuple[int, int]


def build_pipeline(
    recipe: Recipe,
    feed: Feed[Any],
    decoder: Decoder,
    device_id: int | None,
    largest_image: Callable[[], Size],
    last_step: LastStep = "all",
) -> Pipeline:
    """Builds a recipe's pipeline for the batches of `feed`, which has begun."""
    return recipe_pipeline(
        preset=recipe,
        source=feed,
        batch_size=feed.rows,
        num_threads=min(decoder.num_threads or 1, feed.rows),
        device_id=device_id,
        prefetch_queue_depth=decoder.prefetch,
        largest_image=largest_image(),
        decoded=not feed.encoded,
        last_step=last_step,
        **decoder.graph_options,
    )


def find_bad_rows(
    recipe: Recipe,
    decoder: Decoder,
    device_id: int | None,
    images: Sequence[Any],
    drawn: AugmentParams,
    message: str = "",
) -> dict[int, str]:
    """Finds the rows that cannot be decoded, with the causes, of encoded images and what is drawn for them.

    Args:
        message: DALI's error, if they failed as a batch.
    """
    threads = decoder.num_threads or 1
    return find_undecodable(recipe, images, drawn, device_id, threads, **decoder.graph_options, message=message)


class DecodingLoop(Generic[BatchT]):
    """Decodes the batches of one source after the other; the pipeline stays, unless a batch does not fit it.

    Images that cannot be decoded do not end it: whoever gives the batches says what takes their place.

    Args:
        decoder: with the values of the device in place of None.
        device_id: a GPU's number, or None for the CPU.
        rows: the most images of a batch, as far as it is known.
        largest_image: returns about the height and width of the largest image; it is called before the first batch.
        between_calls: whether the pipeline works between two calls of `next`, and so needs its memory then.
        as_arrays: whether `next` returns DALI's own memory, in arrays that are valid until its next call, of images on
            the CPU: (n, h, w, 3) of a view whose images have one size, otherwise a list of n.
    """

    def __init__(
        self,
        recipe: Recipe,
        decoder: Decoder,
        device_id: int | None,
        rows: int = 1,
        largest_image: Callable[[], Size] = lambda: (0, 0),
        between_calls: bool = True,
        as_arrays: bool = False,
    ) -> None:
        self._find_undecodable = partial(find_bad_rows, recipe, decoder, device_id)
        self._views = [str(view.number) for view in recipe.each_view]
        self._feed: Feed[BatchT] = Feed(decoder.hw_load, rows)
        build = partial(build_pipeline, recipe, self._feed, decoder, device_id, largest_image)
        self._as_arrays = as_arrays
        self._running = PipelineRunner(build, () if as_arrays else self._views, recipe.batch == "list", between_calls)
        self._without: Callable[[BatchT, Mapping[int, str]], BatchT | None] | None = None

    def start(
        self,
        take: Callable[[], BatchT | BaseException],
        without: Callable[[BatchT, Mapping[int, str]], BatchT | None],
    ) -> None:
        """Goes on with the batches of another source.

        Args:
            take: returns the next batch, which has images, or the error with which the batches end; the usual end is
                `EndOfItems`. It is called in the thread of the loop, and must not hold this object.
            without: takes a batch and those of its rows that cannot be decoded, with the causes; returns a batch in its
                place, or None for none.
        """
        if not self._running.begun:  # as in a forked child
            self._feed.clear()
        self._without = without
        self._feed.restart(take)

    def next(self) -> tuple[BatchT, list[Any]] | None:
        """Returns the next batch and its images, for each view a tensor or a list of tensors; None after the last.

        After an error, all batches that were taken are lost: `start` comes next.

        Raises:
            BaseException: what `take` returned in place of a batch, after all batches before it.
            DeviceError: images cannot be decoded because of the machine.
        """
        try:
            while self._running.begun or self._feed.begin():
                if (outputs := self._run()) is not None:
                    batch = self._feed.pop()
                    if self._as_arrays:
                        return batch, [_arrays_of(output, len(batch.images)) for output in outputs]
                    return batch, [outputs[view][: len(batch.images)] for view in self._views]
                if self._feed.ended:
                    break
            if isinstance(self._feed.failure, EndOfItems):
                return None
            raise self._feed.failure or LoaderError("nothing was started that could be decoded")
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        """Ends the pipeline, and forgets all batches that were taken."""
        self._running.drop()
        self._feed.clear()

    def close(self) -> None:
        """Does the same, and returns the memory in DALI's pools if nobody else uses them."""
        self.drop()
        release_unused_memory()

    def _run(self) -> Any:  # noqa: ANN401 - as `PipelineRunner.next`
        """Returns the images of the first batch in flight; None if nothing came that is wanted."""
        message = ""
        try:
            outputs = self._running.next()
            return None if self._feed.pop_unwanted() else outputs
        except StopIteration:
            pass
        except UndecodableError as error:
            message = str(error)
        # Outside of `except`, because an error's context would hold DALI's frames, which hold the pipeline.
        if message:
            if not self._feed.drop_unwanted():  # of a batch that is no longer wanted, nothing is left out
                self._leave_out(message)
        elif not self._feed.stopped:
            raise LoaderError("DALI ended before the batches did")
        else:
            self._feed.stopped = False
            if self._feed.waits:  # for a pipeline that it fits
                self._running.drop()
        return None

    def _leave_out(self, message: str) -> None:
        """Puts another batch in place of the first in flight, which failed; those after it are only decoded again."""
        assert self._without is not None
        batch = self._feed.in_flight[0]
        causes = self._find_undecodable(batch.images, batch.drawn, message)
        if not causes:  # the images are not the cause
            raise RuntimeError(message)
        self._feed.put_back(self._without(batch, causes))


def _arrays_of(output: Any, count: int) -> Any:  # noqa: ANN401 - of a view, see `DecodingLoop`
    if output.is_dense_tensor():
        return np.asarray(output.as_tensor())[:count]
    return [np.asarray(output[row]) for row in range(count)]
