"""Which images the gate accepted in this process, in a bit for each sample."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuloader.shards.index import Index


class AcceptedSizes:
    """The images that the gate accepted. Their sizes are the index's: images of other sizes are not noted."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._marks = np.zeros(-(-len(index) // 8), np.uint8)

    def of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns (b, 2) height and width of those of (b,) samples that were accepted, and 0 for the others."""
        sizes = np.stack([self._index.at(side, samples) for side in ("height", "width")], 1).astype(np.int64)
        marks = self._marks[samples >> 3] >> (samples & 7) & 1
        return sizes * marks[:, None]

    def note(self, sample: int, size: tuple[int, int]) -> None:
        """Notes that an image of this (height, width) was accepted, if the index has this size."""
        if tuple(self._index.at(side, np.array([sample])).item() for side in ("height", "width")) == size:
            self._marks[sample >> 3] |= 1 << (sample & 7)

    def forget(self, shard: int) -> None:
        """Forgets all of a shard."""
        samples = self._index.samples_of(shard)
        first, end = samples.start >> 3, -(-samples.stop // 8)
        marks = np.unpackbits(self._marks[first:end], bitorder="little")
        marks[samples.start - 8 * first : samples.stop - 8 * first] = 0
        self._marks[first:end] = np.packbits(marks, bitorder="little")
