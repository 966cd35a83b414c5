"""`DecodedBatches`: a running DALI pipeline and its reader, batch after batch; it ends with the first error.

An image that cannot be decoded does not end it: its batch is read again, with a replacement in that row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from nvidia.dali.backend import ReleaseUnusedMemory  # type: ignore[attr-defined]
from nvidia.dali.pipeline import Pipeline
from nvidia.dali.plugin.pytorch import DALIGenericIterator
from nvidia.dali.tensors import TensorCPU

from gpuloader.errors import LoaderError
from gpuloader.internals.dali import is_decode_failure, leak_after_fork
from gpuloader.loading.reader import EncodedBatch, ReadAhead, Reader
from gpuloader.loading.run import Run
from gpuloader.pipelines import LastStep, Source, recipe_pipeline
from gpuloader.plan import Cursor
from gpuloader.shards import Arena

MOST_HINTED_PIXELS = 16_000_000  # nvJPEG may reserve memory of this size for each image of a batch


def filled_rows(hw_load: float | None, batch_size: int) -> tuple[int, int]:
    """The number of rows up to which `fill` fills the first batch of a pipeline, and each later one.

    The first batch of a pipeline sets how many JPEGs of any later batch the GPU's engines can get. If the first batch
    were a short one, an image's decoder would depend on where the run was resumed. And if there are several engines,
    nvImageCodec 0.9 decodes a batch of one JPEG in another way, which may round differently.
    """
    return (max(batch_size, 2), 2) if hw_load else (1, 1)


def build_pipeline(run: Run, source: Source, last_step: LastStep = "all") -> Pipeline:
    """Builds the run's `recipe_pipeline`, which takes its batches from `source`."""
    return recipe_pipeline(
        preset=run.recipe,
        source=source,
        batch_size=max(run.plan.batch_size, *filled_rows(run.decoder.hw_load, 1)),
        num_threads=run.num_threads,
        device_id=run.device_id,
        prefetch_queue_depth=run.decoder.prefetch,
        largest_image=run.shards.largest_image(min(run.recipe.max_pixels, MOST_HINTED_PIXELS)),
        decoded=run.decoded,
        last_step=last_step,
        **run.decoder.graph_options,
    )


def fill(
    images: Sequence[NDArray[np.uint8]], arrays: Mapping[str, NDArray[Any]], rows: int
) -> tuple[Sequence[NDArray[np.uint8]], Mapping[str, NDArray[Any]]]:
    """Repeats a batch's samples until it has the given number of rows; a batch that has them stays as it is."""
    if len(images) >= rows:
        return images, arrays
    again = np.resize(np.arange(len(images)), rows)
    return [images[row] for row in again.tolist()], {name: array[again] for name, array in arrays.items()}


class DecodedBatches:
    """A running pipeline: the batches from a cursor on. It continues into the next epochs, so nothing stalls there.

    Args:
        suspects: the reader's suspects; images on which decoding fails are added to them.

    Attributes:
        cursor: the place of the batch that `next` returns next; None if a step was begun but not finished.
    """

    def __init__(self, run: Run, start: Cursor, suspects: set[int]) -> None:
        self._run = run
        self._plan = run.plan
        self._suspects = suspects
        self._read_from(start)
        full = min(run.plan.batch_size, run.plan.samples)
        self._feed = _Feed(self._batches, *filled_rows(run.decoder.hw_load, full))
        self.cursor: Cursor | None = self._batches.cursor
        self._pipeline: Pipeline | None = None
        self._views = [str(view.number) for view in run.recipe.each_view]
        self._iterator: DALIGenericIterator | None = None
        self._again: EncodedBatch | None = None  # the batch that was last read again

    def next(self) -> tuple[EncodedBatch, list[torch.Tensor]]:
        """Returns the next batch and its images; raises an error of the reader, or one of DALI that no image caused."""
        cursor, self.cursor = self.cursor, None  # after an error, DALI continues with images of other batches
        assert cursor is not None
        first, end = self._plan.share(cursor)
        if first == end:  # DALI takes no batch without samples
            batch, images = self._reader.read(cursor, Arena()), self._make_no_images(cursor.epoch)
        else:
            while isinstance(outcome := self._decode(), str):
                self._read_again(outcome)
            batch, images = self._feed.pop(), outcome
            self._batches.release(batch)
        self.cursor = self._plan.at_step(self._plan.after(batch.cursor))
        return batch, images

    @property
    def ready_batches(self) -> int:
        """The batches that are read and wait to be decoded."""
        return self._batches.ready

    def move(self, cursor: Cursor) -> None:
        """Continues at another place with the same pipeline, which first decodes the batches it already has."""
        self.cursor = None
        self._end_reading()
        self._read_from(cursor)
        if self._feed.failure is not None:  # DALI was told that the source has ended
            self._iterator = self._pipeline = None
        self._feed.move(self._batches, running=self._pipeline is not None)
        self.cursor = self._batches.cursor

    def close(self) -> None:
        """Ends the threads, drops the pipeline, and returns the memory in DALI's pools to the machine."""
        self._end_reading()
        self._iterator = self._pipeline = None
        ReleaseUnusedMemory()

    def _read_from(self, start: Cursor) -> None:
        run = self._run
        self._ahead = run.shards.ahead(run.plan)
        self._reader = Reader(run, self._suspects, self._ahead)
        self._batches = ReadAhead(self._reader, run.plan, start, depth=run.decoder.prefetch + 1)

    def _end_reading(self) -> None:
        self._batches.close()
        if self._ahead is not None:
            self._ahead.close()

    def leave_to_the_parent(self) -> None:
        """Releases the pipeline in a forked child, which has none of the threads."""
        if self._pipeline is not None:
            leak_after_fork(self._pipeline)

    def _read_again(self, message: str) -> None:
        """Reads the first batch in flight again after it failed; the reader then tries the images that failed.

        The batches after it are only decoded again. A batch that is no longer wanted is not read again.
        """
        self._iterator = self._pipeline = None  # a failed pipeline is useless, and it holds the batch's bytes
        if self._feed.drop_unwanted():
            return
        batch = self._feed.in_flight[0]
        refused = set(batch.ids[list(self._run.find_undecodable(batch.images, batch.arrays, message))].tolist())
        asked = self._suspects if batch is self._again else set()  # other suspects may be newer than this read
        if refused <= asked:  # the images are not the cause, or triage would never come to an end
            raise RuntimeError(message)
        self._suspects |= refused
        self._again = self._batches.read_again(batch)
        self._feed.put_back(self._again)

    def _decode(self) -> list[torch.Tensor] | str:
        """A batch's images, or the reason why they cannot be decoded."""
        if self._iterator is None:
            self._feed.begin()
            self._pipeline = build_pipeline(self._run, self._feed)
            self._iterator = DALIGenericIterator(self._pipeline, self._views, prepare_first_batch=False)
        # The error must not hold DALI's frames, which hold the pipeline. So it is raised outside of `except`.
        failure: Exception
        try:
            outputs = next(self._iterator)[0]
            while self._feed.pop_unwanted():
                outputs = next(self._iterator)[0]
        except StopIteration:
            failure = self._feed.failure or LoaderError("DALI ended before the plan's last step")
        except RuntimeError as error:
            if is_decode_failure(str(error)) and self._feed.in_flight:
                return str(error)
            failure = error.with_traceback(None)
        else:
            rows = len(self._feed.in_flight[0].images)
            return [outputs[view][:rows] for view in self._views]
        failure.__context__ = None
        raise failure

    def _make_no_images(self, epoch: int) -> list[torch.Tensor]:
        """The images of a batch without samples."""
        recipe = self._run.recipe
        shapes = ((0, 3, *shape) if recipe.layout == "nchw" else (0, *shape, 3) for shape in recipe.shapes(epoch))
        return [
            torch.empty(shape, dtype=getattr(torch, recipe.graph_dtype), device=self._run.device) for shape in shapes
        ]


class _Feed:
    """The source that the pipeline calls for its next batch. It is separate, so that no cycle holds the pipeline.

    Args:
        first_rows, rows: `fill` fills the first batch of a pipeline, and each later one, up to this number of rows.

    Attributes:
        in_flight: the batches that were read and not delivered yet, in order; those no longer wanted come first.
        failure: the error that ended the feed.
    """

    def __init__(self, batches: ReadAhead, first_rows: int, rows: int) -> None:
        self._batches = batches
        self._first_rows, self._rows = first_rows, rows
        self._begins = False
        self.in_flight: deque[EncodedBatch] = deque()
        self.failure: Exception | None = None
        self._given = 0  # how many of those in flight the pipeline has
        self._unwanted = 0  # how many of these are no longer wanted

    def __call__(self) -> tuple[Any, ...]:
        """The encoded images and the arrays of the next batch.

        The only exception that DALI accepts here is StopIteration, after which it still returns the earlier batches.
        So an error is kept in `failure` until the caller has had these.
        """
        if self._given == len(self.in_flight):
            self.in_flight.append(self._next())
        self._given += 1
        batch = self.in_flight[self._given - 1]
        images, arrays = fill(batch.images, batch.arrays, self._first_rows if self._begins else self._rows)
        self._begins = False
        return ([TensorCPU(image) for image in images], *arrays.values())  # DALI takes twice as long to do so itself

    def begin(self) -> None:
        """Notes that a new pipeline begins."""
        self._begins = True

    def pop(self) -> EncodedBatch:
        """Removes and returns the first batch in flight, which the pipeline has returned."""
        self._given -= 1
        return self.in_flight.popleft()

    def move(self, batches: ReadAhead, running: bool) -> None:
        """Takes the next batches from another reader; a running pipeline first returns those it has, unwanted."""
        while len(self.in_flight) > self._given:
            self.in_flight.pop()
        self._batches, self.failure, self._unwanted = batches, None, self._given
        if not running:
            self.drop_unwanted()

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
        self._given = 0
        return unwanted > 0

    def put_back(self, batch: EncodedBatch) -> None:
        """Gives all batches in flight again, to another pipeline, with `batch` in place of the first."""
        self.in_flight[0] = batch
        self._given = 0

    def _next(self) -> EncodedBatch:
        if self.failure is not None:
            raise StopIteration
        outcome = self._batches.take()
        if isinstance(outcome, Exception):
            # Do not raise it here: its traceback would hold DALI's frames, and these the pipeline.
            self.failure = outcome
            raise StopIteration
        return outcome
