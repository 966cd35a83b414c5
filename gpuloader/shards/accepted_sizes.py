"""Which images the gate accepted in this process, in a bit for each sample."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuloader.shards.index import Index


class AcceptedSizes:
    """The images that the gate accepted, and their sizes.

    The size is almost always the index's. Of a shard in which another one was accepted, such as a TIFF, whose size the
    index does not know, the sizes are kept: 8 bytes a sample.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._marks = np.zeros(-(-len(index) // 8), np.uint8)
        self._others: dict[int, NDArray[np.int32]] = {}  # by shard, (n, 2): sizes that are not the index's, else 0

    def of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns (b, 2) height and width of those of (b,) samples that were accepted, and 0 for the others."""
        sizes = np.stack([self._index.at(side, samples) for side in ("height", "width")], 1).astype(np.int64)
        shards = self._shards_of(samples)
        for shard in np.unique(shards[np.isin(shards, list(self._others))]).tolist():
            rows = np.flatnonzero(shards == shard)
            others = self._others[shard][samples[rows] - self._start(shard)]
            sizes[rows] = np.where(others > 0, others, sizes[rows])
        marks = self._marks[samples >> 3] >> (samples & 7) & 1
        return sizes * marks[:, None]

    def note(self, sample: int, size: tuple[int, int]) -> None:
        """Notes that an image of this (height, width) was accepted."""
        shard = int(self._shards_of(np.array([sample]))[0])
        if tuple(self._index.at(side, np.array([sample])).item() for side in ("height", "width")) != size:
            start, stop = self._start(shard), self._start(shard + 1)
            self._others.setdefault(shard, np.zeros((stop - start, 2), np.int32))[sample - start] = size
        self._marks[sample >> 3] |= 1 << (sample & 7)

    def forget(self, shard: int) -> None:
        """Forgets all of a shard."""
        start, stop = self._start(shard), self._start(shard + 1)
        first = start >> 3
        marks = np.unpackbits(self._marks[first : -(-stop // 8)], bitorder="little")
        marks[start - 8 * first : stop - 8 * first] = 0
        self._marks[first : -(-stop // 8)] = np.packbits(marks, bitorder="little")
        self._others.pop(shard, None)

    def _shards_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._index.sample_end, samples, side="right")

    def _start(self, shard: int) -> int:
        return int(self._index.sample_end[shard - 1]) if shard else 0
