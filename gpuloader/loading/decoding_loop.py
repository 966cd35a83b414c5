"""`DecodingLoop`: decodes batches ahead, for a GPULoader, a Stage or a Compose.

    take -> Feed -> DALI's pipeline -> PipelineRunner -> DecodingLoop
            (called by the pipeline, in the thread of the loop)

The pipeline holds `Feed` and `take`, so these must not hold `DecodingLoop` or `PipelineRunner`: in a reference cycle,
the pipeline would keep its threads and memory until garbage collection.

A run of the pipeline decodes one batch. Only `Feed.__call__` and `DecodingLoop.next` rely on this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from nvidia.dali.pipeline import Pipeline

from gpuloader.base.read_ahead import EndOfItems
from gpuloader.errors import LoaderError
from gpuloader.loading.options import Decoder
from gpuloader.pipelines import (
    Feed,
    FeedBatch,
    LastStep,
    PipelineRunner,
    UndecodableError,
    batch_error,
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
    params: AugmentParams,
    message: str = "",
) -> dict[int, str]:
    """Finds the rows of encoded images that cannot be decoded with these random parameters: row -> cause.

    Args:
        message: DALI's error for the batch, if it failed.
    """
    threads = decoder.num_threads or 1
    return find_undecodable(recipe, images, params, device_id, threads, **decoder.graph_options, message=message)


class DecodingLoop(Generic[BatchT]):
    """A loop that decodes the batches of one source after another. It keeps its pipeline as long as batches fit it.

    Images that cannot be decoded do not end the loop: the source provides another batch.

    Args:
        decoder: the settings, with values in place of None.
        device_id: a GPU's number, or None for the CPU.
        rows: the most images of a batch, as far as it is known.
        largest_image: returns the approximate height and width of the largest image; called before the first batch.
        between_calls: whether the pipeline works between two calls of `next`, and needs its memory then.
        as_arrays: on the CPU, whether `next` returns arrays in DALI's memory, which are valid until the next call:
            (n, h, w, 3) for a view whose images have one size, otherwise a list of n.
    """

    own_code_seconds = 0.0  # as in `OwnCodeLoop`

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
        """Continues with the batches of another source.

        Args:
            take: returns the next batch, which has images, or the error that ends the batches, usually `EndOfItems`.
                It is called in the thread of the loop, and must not hold this object.
            without: takes a batch, and its rows that cannot be decoded, row -> cause; returns a batch in its place, or
                None to drop it.
        """
        if not self._running.begun:  # as in a forked child
            self._feed.clear()
        self._without = without
        self._feed.restart(take)

    def next(self) -> tuple[BatchT, list[Any]] | None:
        """Returns the next batch and its images, for each view a tensor or a list of tensors; None after the last.

        After an error, all batches that were taken are lost; call `start` next.

        Raises:
            BaseException: the error that `take` returned, after all batches before it.
            DeviceError: the decoder or the machine is the reason that images cannot be decoded.
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
        """Ends the pipeline, and discards all batches that were taken."""
        self._running.drop()
        self._feed.clear()

    def close(self) -> None:
        """Ends the pipeline, and frees DALI's memory pools if no other pipeline uses them."""
        self.drop()
        release_unused_memory()

    def _run(self) -> Any:  # noqa: ANN401 - as `PipelineRunner.next`
        """Returns the images of the first batch in flight; None if there is no wanted batch."""
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
            if not self._feed.drop_unwanted():  # an unwanted batch needs no replacement
                self._leave_out(message)
        elif not self._feed.stopped:
            raise LoaderError("DALI ended before the batches did")
        else:
            self._feed.stopped = False
            if self._feed.waits:  # the next batch needs another pipeline
                self._running.drop()
        return None

    def _leave_out(self, message: str) -> None:
        """Replaces the first batch in flight, which failed; later batches are decoded again."""
        assert self._without is not None
        batch = self._feed.in_flight[0]
        causes = self._find_undecodable(batch.images, batch.params, message)
        if not causes:
            raise batch_error(message)
        self._feed.put_back(self._without(batch, causes))


def _arrays_of(output: Any, count: int) -> Any:  # noqa: ANN401 - of a view, see `DecodingLoop`
    if output.is_dense_tensor():
        return np.asarray(output.as_tensor())[:count]
    return [np.asarray(output[row]) for row in range(count)]
