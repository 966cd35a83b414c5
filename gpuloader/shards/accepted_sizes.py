"""Records which images passed validation in this process, in a bit for each sample."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuloader.shards.index import Index


def stored_sizes(index: Index, samples: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns (n, 2) the heights and widths of images as stored, from the index; 0 if unknown."""
    return np.stack([index.at(side, samples) for side in ("height", "width")], 1).astype(np.int64)


class AcceptedSizes:
    """The images, and mipmaps by their shorter sides, that passed validation.

    Images whose size is not the size in the index are not recorded. A mipmap is recorded with the size of its image.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._marks = {0: np.zeros(-(-len(index) // 8), np.uint8)}

    def of(self, samples: NDArray[np.int64], sides: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Returns (b, 2) height and width of the samples that passed validation, and 0 for the others.

        Args:
            sides: (b,) the shorter sides of mipmaps, 0 for the images themselves; None for images only.
        """
        sizes = stored_sizes(self._index, samples)
        asked = np.zeros(len(samples), np.int64) if sides is None else sides
        accepted = np.zeros(len(samples), np.bool_)
        for side, marks in list(self._marks.items()):  # to which another thread may add
            accepted |= (marks[samples >> 3] >> (samples & 7) & 1 == 1) & (asked == side)
        return sizes * accepted[:, None]

    def note(self, sample: int, size: tuple[int, int], side: int = 0) -> None:
        """Records that an image of this (height, width), or its mipmap, passed, if the index has this size."""
        if tuple(self._index.at(name, np.array([sample])).item() for name in ("height", "width")) == size:
            if side not in self._marks:
                self._marks[side] = np.zeros_like(self._marks[0])
            self._marks[side][sample >> 3] |= 1 << (sample & 7)

    def forget(self, shard: int) -> None:
        """Removes the records of a shard."""
        samples = self._index.samples_of(shard)
        first, end = samples.start >> 3, -(-samples.stop // 8)
        for of_side in self._marks.values():
            marks = np.unpackbits(of_side[first:end], bitorder="little")
            marks[samples.start - 8 * first : samples.stop - 8 * first] = 0
            of_side[first:end] = np.packbits(marks, bitorder="little")
