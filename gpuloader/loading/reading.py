"""`Read`: reads the images of a batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpuloader.chain.batch import Batch, Pool
from gpuloader.chain.link import Wanted
from gpuloader.images.gate import decoder_file
from gpuloader.loading.run import Run


class Read:
    """A function that reads the images of a batch that are not there yet; those of `rows` alone, if they are given."""

    def __init__(self, run: Run, wanted: Wanted) -> None:
        self._run, self._wanted = run, wanted
        self._pool = Pool()

    def __call__(self, batch: Batch, rows: Sequence[int] | None = None) -> Batch:
        started = time.perf_counter()
        images = list(batch.images[0]) if batch.images else [None] * len(batch)
        unread = [row for row in (range(len(batch)) if rows is None else rows) if images[row] is None]
        memory = batch.memory
        if unread:
            memory, at = self._pool.lease(), np.array(unread)
            sides = batch.sides[at]
            read = self._run.shards.read_images(
                batch.ids[at], memory.arena, self._wanted, sides if sides.any() else None
            )
            for row, image in zip(unread, read):
                images[row] = decoder_file(image)
        seconds = batch.reading_seconds + time.perf_counter() - started
        return replace(batch, images=[images], memory=memory, reading_seconds=seconds)
