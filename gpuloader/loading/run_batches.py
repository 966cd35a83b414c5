"""`RunBatches`: the decoded batches of a run, from any cursor on.

plan, shards -> Reader -> ReadAhead -> DecodingLoop -> Assembly -> RunBatches
                (a thread)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from gpuloader.base.dali import is_out_of_memory
from gpuloader.base.read_ahead import ReadAhead
from gpuloader.errors import DeviceError, LoaderError
from gpuloader.loading.assembly import Assembly
from gpuloader.loading.decoding_loop import DecodingLoop
from gpuloader.loading.memory import explain_lack_of_memory
from gpuloader.loading.own_code_loop import OwnCodeLoop, decoding_of
from gpuloader.loading.quarantine import Quarantine
from gpuloader.loading.reader import EncodedBatch, EncodedPart, Reader
from gpuloader.loading.run import Run
from gpuloader.plan import Cursor, Draws
from gpuloader.recipe import AugmentParams

MOST_HINTED_PIXELS = 16_000_000  # nvJPEG may reserve memory of this size for each image of a batch
_DRAWN = 1000  # random windows, to find the largest
_ROUNDED_UP_PIXELS = 256  # a cut JPEG has whole restart intervals


def largest_decoded(run: Run) -> tuple[int, int]:
    """Returns the approximate height and width of the largest image for the decoder; (0, 0) if no size is known."""
    height, width = run.shards.index.largest_image(min(run.recipe.max_pixels, MOST_HINTED_PIXELS))
    if not (run.shards.seekable and height):
        return height, width
    regions = run.largest.draw(Draws(0, 0, np.arange(_DRAWN)), np.tile([height, width], (_DRAWN, 1))).region
    rows, columns = ((regions[:, 2:] - regions[:, :2]).max(0) + _ROUNDED_UP_PIXELS).tolist()
    return min(height, rows), min(width, columns)


class RunBatches:
    """The decoded batches of a run. Reading ahead continues into the next epochs, so epochs start without a wait.

    If an image cannot be decoded, its batch is read again, with a replacement in that row. Any other error ends the
    threads and the pipeline, and the next batch starts new ones.

    Args:
        quarantine: collects the bad images of the batches. The reader tries its suspects one by one; images that fail
            to decode become suspects.
    """

    own_code_seconds = 0.0  # the time that batches have waited for own code

    def __init__(self, run: Run, quarantine: Quarantine) -> None:
        self.run = run
        self._quarantine = quarantine
        self._reading: _ReadSession | None = None
        parts = run.parts
        ahead = 1 if run.takes_mipmaps else parts.ahead(run.plan.batch_size)
        self._decoding: DecodingLoop[EncodedPart] | OwnCodeLoop[EncodedPart] = decoding_of(
            run.recipe,
            replace(run.decoder, prefetch=run.decoder.prefetch * ahead),
            run.device_id,
            parts.most_rows,
            partial(largest_decoded, run),
        )
        self._cursor: Cursor | None = None  # of the next batch; None before the first, and within a step

    @property
    def begun(self) -> bool:
        """Whether threads or a pipeline run."""
        return self._reading is not None

    @property
    def ready(self) -> int:
        """The number of batches that are read but not decoded yet."""
        return 0 if self._reading is None else self._reading.batches.ready

    def decode(self, cursor: Cursor) -> tuple[EncodedBatch, list[Any]]:
        """Returns the batch at the cursor, and the images of each view: a tensor, or a list of tensors.

        Raises:
            DeviceError: the memory is full; the message says what took it.
            TooManyBadImagesError: the run has more bad images than it allows.
        """
        try:
            reading = self._reading
            if reading is None or self._cursor != cursor:
                reading = self._go_to(cursor)
            # None while the step runs: if an interrupt ends it, nobody knows which batches DALI has.
            self._cursor = None
            batch, images = self._step(reading, cursor)
            self.own_code_seconds = self._decoding.own_code_seconds
            self._quarantine.add(batch.bad, len(self.run.shards))
            self._cursor = self.run.plan.at_step(self.run.plan.after(batch.cursor))
        except BaseException as error:
            # All batches in flight are lost, but not the cursor: the next call starts from it again.
            self.close()
            if isinstance(error, RuntimeError) and is_out_of_memory(str(error)):
                raise DeviceError(explain_lack_of_memory(self.run, str(error))) from None
            raise
        return batch, images

    def close(self) -> None:
        """Ends the threads and the pipeline. The next batch starts new ones.

        After an interrupt, it can be called again.
        """
        self._cursor = None
        if self._reading is not None:
            self._reading.close()
            self._decoding.close()
            self._reading = None

    def leave_to_the_parent(self) -> None:
        """Discards the threads in a forked child, where they do not exist."""
        self._reading = self._cursor = None

    def _go_to(self, cursor: Cursor) -> _ReadSession:
        """Starts at a cursor, or continues there with the same pipeline, which first finishes its batches."""
        if self._cursor is None:
            self.close()
        self._cursor = None
        if self._reading is not None:
            self._reading.close()
        self._reading = reading = _ReadSession(self.run, cursor, self._quarantine.suspects)
        self._decoding.start(reading.batches.take, reading.read_without)
        return reading

    def _step(self, reading: _ReadSession, cursor: Cursor) -> tuple[EncodedBatch, list[Any]]:
        first, end = self.run.plan.share(cursor)
        if first == end:  # DALI takes no batch without samples
            batch = reading.reader.open(cursor).batch
            return batch, self._make_no_images(batch.delivered)
        assembly = Assembly(pads=isinstance(self.run.recipe.batch, dict))
        while (decoded := self._decoding.next()) is not None:
            part, views = decoded
            reading.reader.arenas.append(part.arena)
            if (assembled := assembly.add(part, views)) is not None:
                return assembled
        raise LoaderError("the batches ended before the plan's last step")

    def _make_no_images(self, params: AugmentParams) -> list[Any]:
        recipe = self.run.recipe
        make = partial(torch.empty, dtype=getattr(torch, recipe.graph_dtype), device=self.run.device)
        shapes = [view.shape for view in params.views]
        return [
            [] if shape is None else make((0, 3, *shape) if recipe.layout == "nchw" else (0, *shape, 3))
            for shape in shapes
        ]


class _ReadSession:
    """The threads that read the batches of a run ahead from a cursor on, and download shards."""

    def __init__(self, run: Run, start: Cursor, suspects: set[int]) -> None:
        self._suspects = suspects
        self._downloads = run.shards.ahead(run.plan, run.world.node)
        self._again: EncodedPart | None = None  # the part that was last read again
        self.reader = Reader(run, suspects, self._downloads)
        self.batches = ReadAhead(self.reader.calls(start), run.decoder.prefetch + 1, "gpuloader-reader")

    def read_without(self, part: EncodedPart, causes: Mapping[int, str]) -> EncodedPart:
        """Reads a part again, with replacements for the samples that cannot be decoded."""
        refused = set(part.batch.ids[part.rows][list(causes)].tolist())
        tried = self._suspects if part is self._again else set()  # other suspects may be newer than this read
        if refused <= tried:  # the images are not the cause; this also ends the repetition
            raise RuntimeError(f"images fail in their batch, but not alone: {', '.join(causes.values())}")
        self._suspects |= refused
        self.reader.arenas.append(part.arena)
        self._again = self.batches.make(partial(self._read_again, part))
        return self._again

    def _read_again(self, part: EncodedPart, wanted: Callable[[], bool]) -> EncodedPart:
        return self.reader.read(self.reader.open(part.batch.cursor, wanted), part.number, wanted)

    def close(self) -> None:
        self.batches.close()
        if self._downloads is not None:
            self._downloads.close()
