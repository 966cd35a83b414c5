"""`DecodedBatches`: the decoded batches of a run, from any cursor on.

An image that cannot be decoded does not end them: its batch is read again, with a replacement in that row. Any other
error ends the threads and the pipeline, and the next batch begins new ones.

    plan, shards -> ReadAhead -> Feed -> FilledSource -> DALI's pipeline -> Running -> DecodedBatches
                    (a thread)   (called by the pipeline, in the thread of the training loop)

The pipeline holds what it calls, so nothing on that way may hold `DecodedBatches` or `Running`: in a reference cycle,
the pipeline would keep its threads and memory until garbage is collected.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from nvidia.dali.pipeline import Pipeline

from gpuloader.errors import DeviceError, LoaderError
from gpuloader.internals.dali import is_out_of_memory
from gpuloader.loading.memory import explain_lack_of_memory
from gpuloader.loading.options import Decoder
from gpuloader.loading.quarantine import Quarantine
from gpuloader.loading.reader import EncodedBatch, ReadAhead, Reader, find_bad_rows
from gpuloader.loading.run import Run
from gpuloader.pipelines import (
    Feed,
    FilledSource,
    LastStep,
    Running,
    Source,
    UndecodableError,
    recipe_pipeline,
    release_unused_memory,
)
from gpuloader.plan import Cursor, Draws
from gpuloader.recipe import Drawn, Recipe
from gpuloader.shards import Arena

MOST_HINTED_PIXELS = 16_000_000  # nvJPEG may reserve memory of this size for each image of a batch
_DRAWN = 1000  # windows, of which the largest counts
_ROUNDED_UP_PIXELS = 256  # a cut has whole restart intervals at both sides


def make_running(run: Run, source: Source, last_step: LastStep = "all", views: Sequence[str] = ()) -> Running:
    """Makes what runs the run's graph, up to `last_step`, over the batches of `source`; `views` as for `Running`."""
    hw_load = None if run.decoded else run.decoder.hw_load
    filled = FilledSource(source, hw_load, min(run.plan.batch_size, run.plan.samples))

    def build() -> Pipeline:
        options = {"largest_image": _largest_decoded(run), "decoded": run.decoded, "last_step": last_step}
        return build_pipeline(run.recipe, filled, run.decoder, run.plan.batch_size, run.device_id, **options)

    return Running(build, views, as_lists=run.recipe.batch == "list")


def build_pipeline(
    recipe: Recipe,
    source: FilledSource,
    decoder: Decoder,
    batch_size: int,
    device_id: int | None,
    **options: Any,  # noqa: ANN401 - `largest_image`, `decoded` and `last_step` of `recipe_pipeline`
) -> Pipeline:
    """Builds a recipe's pipeline with these settings of its decoder; its first batch is filled."""
    return recipe_pipeline(
        preset=recipe,
        source=source,
        batch_size=source.begin(batch_size),
        num_threads=decoder.num_threads or 1,
        device_id=device_id,
        prefetch_queue_depth=decoder.prefetch,
        **decoder.graph_options,
        **options,
    )


def _largest_decoded(run: Run) -> tuple[int, int]:
    """Returns about the height and width of the largest image that the decoder gets; (0, 0) if no size is known."""
    height, width = run.shards.largest_image(min(run.recipe.max_pixels, MOST_HINTED_PIXELS))
    if not (run.shards.seekable and height):
        return height, width
    regions = run.largest.draw(Draws(0, 0, np.arange(_DRAWN)), np.tile([height, width], (_DRAWN, 1))).region
    rows, columns = ((regions[:, 2:] - regions[:, :2]).max(0) + _ROUNDED_UP_PIXELS).tolist()
    return min(height, rows), min(width, columns)


class DecodedBatches:
    """The decoded batches of a run. They continue into the next epochs, so nothing stalls there.

    Args:
        quarantine: the bad images of the batches are added to it. The reader tries its suspects one by one; images on
            which decoding fails become suspects.
    """

    def __init__(self, run: Run, quarantine: Quarantine) -> None:
        self.run = run
        self._quarantine = quarantine
        self._reading: _Reading | None = None
        self._feed: Feed[EncodedBatch] = Feed()
        self._views = [str(view.number) for view in run.recipe.each_view]
        self._running = make_running(run, self._feed, views=self._views)
        self._cursor: Cursor | None = None  # of the next batch; None before the first, and within a step
        self._again: EncodedBatch | None = None  # the batch that was last read again

    @property
    def begun(self) -> bool:
        """Whether threads or a pipeline run."""
        return self._reading is not None

    @property
    def ready(self) -> int:
        """The batches that are read and wait to be decoded."""
        return 0 if self._reading is None else self._reading.batches.ready

    def decode(self, cursor: Cursor) -> tuple[EncodedBatch, list[Any]]:
        """Returns the batch at the cursor, and the images of each view: a tensor, or a list of tensors.

        Raises:
            DeviceError: the memory is full; the message says what took it.
            TooManyBadImagesError: there are more bad images than the run allows.
        """
        try:
            if self._cursor != cursor:
                self._go_to(cursor)
            # None while the step runs: if an interrupt ends it, nobody knows which batches DALI has.
            self._cursor = None
            batch, images = self._step(cursor)
            self._quarantine.add(batch.bad, len(self.run.shards))
            self._cursor = self.run.plan.at_step(self.run.plan.after(batch.cursor))
        except BaseException as error:
            # All batches under way are lost, but not the cursor: the next call starts from it again.
            self.close()
            if isinstance(error, RuntimeError) and is_out_of_memory(str(error)):
                raise DeviceError(explain_lack_of_memory(self.run, str(error))) from None
            raise
        return batch, images

    def close(self) -> None:
        """Ends the threads, drops the pipeline, and returns the memory in DALI's pools if nobody else uses them.

        The next batch begins new ones. An interrupt may end this anywhere; then it is called again.
        """
        self._cursor = self._again = None
        if self._reading is not None:
            self._reading.close()
            self._running.drop()
            self._feed.clear()
            release_unused_memory()
            self._reading = None

    def leave_to_the_parent(self) -> None:
        """Forgets the threads, in a forked child, which has none of them."""
        self._reading = self._cursor = None

    def _go_to(self, cursor: Cursor) -> None:
        """Begins at a cursor, or goes on there with the same pipeline, which first runs the batches that it has."""
        if self._cursor is None or self._feed.failure is not None:  # DALI was told that the source has ended
            self.close()
        self._cursor = None
        if self._reading is not None:
            self._reading.close()
        self._reading = _Reading(self.run, cursor, self._quarantine.suspects)
        self._feed.restart(self._reading.batches.take)

    def _step(self, cursor: Cursor) -> tuple[EncodedBatch, list[Any]]:
        assert self._reading is not None
        first, end = self.run.plan.share(cursor)
        if first == end:  # DALI takes no batch without samples
            batch = self._reading.reader.read(cursor, Arena())
            return batch, self._make_no_images(batch.drawn)
        while (images := self._decode(self._reading.batches)) is None:
            pass
        batch = self._feed.pop()
        self._reading.batches.release(batch)
        return batch, [view[: len(batch.images)] for view in images]

    def _decode(self, batches: ReadAhead) -> list[Any] | None:
        """Returns the images of the first batch in flight; None if it failed, and was read again."""
        failure: BaseException
        try:
            outputs = self._running.next()
            while self._feed.pop_unwanted():
                outputs = self._running.next()
            return [outputs[view] for view in self._views]
        except StopIteration:
            failure = self._feed.failure or LoaderError("DALI ended before the plan's last step")
        except UndecodableError as error:
            failure = error
        # Outside of `except`, because an error's context would hold DALI's frames, which hold the pipeline.
        if not isinstance(failure, UndecodableError):
            failure.__context__ = None
            raise failure
        if not self._feed.drop_unwanted():  # a batch that is no longer wanted is not read again
            self._read_again(batches, str(failure))
        return None

    def _read_again(self, batches: ReadAhead, message: str) -> None:
        """Reads the first batch in flight again after it failed; the reader then tries the images that failed.

        The batches after it are only decoded again.
        """
        batch, suspects = self._feed.in_flight[0], self._quarantine.suspects
        refused = set(batch.ids[list(find_bad_rows(self.run, batch.images, batch.drawn, message))].tolist())
        tried = suspects if batch is self._again else set()  # other suspects may be newer than this read
        if refused <= tried:  # the images are not the cause, or triage would never come to an end
            raise RuntimeError(message)
        suspects |= refused
        self._again = batches.read_again(batch)
        self._feed.put_back(self._again)

    def _make_no_images(self, drawn: Drawn) -> list[Any]:
        recipe = self.run.recipe
        make = partial(torch.empty, dtype=getattr(torch, recipe.graph_dtype), device=self.run.device)
        shapes = [view.shape for view in drawn.views]
        return [
            [] if shape is None else make((0, 3, *shape) if recipe.layout == "nchw" else (0, *shape, 3))
            for shape in shapes
        ]


class _Reading:
    """The threads that download and read ahead from a cursor on."""

    def __init__(self, run: Run, start: Cursor, suspects: set[int]) -> None:
        self._ahead = run.shards.ahead(run.plan)
        self.reader = Reader(run, suspects, self._ahead)
        self.batches = ReadAhead(self.reader, run.plan, start, depth=run.decoder.prefetch + 1)

    def close(self) -> None:
        self.batches.close()
        if self._ahead is not None:
            self._ahead.close()
