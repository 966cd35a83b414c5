"""`Parts`: divides a step into parts that are decoded at once, so that large pictures need little memory.

A step of ordinary photographs is one part: assembling its tensor from several parts costs a third more CPU time. The
parts affect neither the samples of a rank nor their pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from gpuloader.images.mipmaps import mipmap_sizes
from gpuloader.recipe.model import Ints
from gpuloader.shards import ShardSet

_SAMPLED = 10_000
_COMPRESSION = 10  # for a picture whose size is not in the index


@dataclass(frozen=True)
class Parts:
    """The division of a loader's steps into parts.

    Attributes:
        shards: the data, whose index has the sizes of the pictures.
        max_pixels: the maximum pixels of a picture; larger ones are bad, and take no memory.
        most_bytes: the maximum bytes of a part's decoded pictures. It does not limit a part of `least_rows`, or a whole
            step of at most `WHOLE_BYTES`.
        least_rows: the minimum rows of a part for any size of pictures: two for each thread, so that no core waits long
            for the last picture. The last part of a step may have fewer.
        most_rows: the maximum rows of a part. On a GPU it is the number of mean pictures, because the JPEG engines'
            share of a part depends on the longest part.
    """

    WHOLE_BYTES: ClassVar = 1 << 30
    MOST_BYTES: ClassVar = {"cpu": 256 << 20, "cuda": 1 << 30}
    ROWS_OF_A_THREAD: ClassVar = 2
    MOST_AHEAD: ClassVar = 2

    shards: ShardSet
    max_pixels: int
    most_bytes: int
    least_rows: int
    most_rows: int

    @classmethod
    def on(cls, device_type: str, shards: ShardSet, max_pixels: int, batch_size: int, num_threads: int) -> Self:
        """Returns the parts for a loader on a device, "cpu" or "cuda"."""
        least_rows = cls.ROWS_OF_A_THREAD * num_threads
        parts = cls(shards, max_pixels, cls.MOST_BYTES[device_type], least_rows, batch_size)
        if device_type == "cpu":
            return parts
        return replace(parts, most_rows=max(part.stop - part.start for part in parts.typical(batch_size)))

    def of_step(self, samples: Ints, sides: Ints) -> list[slice]:
        """Returns the rows of each part of a step with these samples, in their order.

        Args:
            samples: (b,) their ids.
            sides: (b,) the shorter sides of the copies that are decoded in place of pictures, 0 for a picture.
        """
        return self.of_rows(self._decoded_bytes(samples, sides))

    def of_rows(self, decoded_bytes: NDArray[np.number]) -> list[slice]:
        """Returns the parts of a step by the decoded bytes of each picture."""
        if 0 < len(decoded_bytes) <= self.most_rows and decoded_bytes.sum() <= self.WHOLE_BYTES:
            return [slice(0, len(decoded_bytes))]
        return cut(decoded_bytes, self.most_bytes, self.least_rows, self.most_rows)

    def typical(self, batch_size: int) -> list[slice]:
        """Returns the parts of a batch of mean-sized pictures."""
        count = len(self.shards)
        some = np.linspace(0, count - 1, min(_SAMPLED, count)).astype(np.int64)
        mean = self._decoded_bytes(some, np.zeros_like(some)).mean()
        return self.of_rows(np.full(batch_size, mean))

    def ahead(self, batch_size: int) -> int:
        """Returns the parts to decode ahead for each batch of `Decoder.prefetch`, enough for a step of the model."""
        return min(len(self.typical(batch_size)), self.MOST_AHEAD)

    def _decoded_bytes(self, samples: Ints, sides: Ints) -> Ints:
        height, width, size_bytes = (
            self.shards.index.at(name, samples).astype(np.int64) for name in ("height", "width", "image_size")
        )
        files = mipmap_sizes(np.stack([height, width], 1), sides).prod(1)
        known = 3 * files * (height * width <= self.max_pixels)
        return np.where(height > 0, known, _COMPRESSION * size_bytes)


def cut(decoded_bytes: NDArray[np.number], most_bytes: int, least_rows: int, most_rows: int) -> list[slice]:
    """Divides rows into parts of at most `most_bytes`, but with `least_rows` to `most_rows` rows.

    Example:
        >>> cut(np.array([6, 6, 6, 1, 1]), most_bytes=13, least_rows=1, most_rows=9)
        [slice(0, 2, None), slice(2, 5, None)]
    """
    ends = np.cumsum(decoded_bytes)
    parts: list[slice] = []
    first = 0
    while first < len(ends):
        before = ends[first - 1] if first else 0
        fitting = int(np.searchsorted(ends, before + most_bytes, "right"))
        end = min(max(fitting, first + least_rows), first + most_rows, len(ends))
        parts.append(slice(first, end))
        first = end
    return parts
