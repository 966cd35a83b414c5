"""`Parts`: divides a step into parts that are decoded at once, so that large pictures need little memory.

A step of ordinary photographs is one part: assembling its tensor from several parts costs up to two thirds more CPU
time. DALI has the decoded pictures of two parts in memory at a time. The parts affect neither the samples of a rank nor
their pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from gpuloader.images.mipmaps import mipmap_sizes
from gpuloader.plan import Draws
from gpuloader.recipe import AugmentParams, Recipe, choose_factors
from gpuloader.recipe.model import Ints
from gpuloader.shards import ShardSet

_SAMPLED = 10_000
_DRAWN = 256
_SOME = 0.1  # with fewer large pictures, arrays are few beside files
_COMPRESSION = 10  # for a picture whose size is not in the index


@dataclass(frozen=True)
class Parts:
    """The division of a loader's steps into parts.

    Attributes:
        shards: the data, whose index has the sizes of the pictures.
        max_pixels: the maximum pixels of a picture; larger ones are bad, and take no memory.
        delivered_pixels, pixel_bytes: the mean pixels of a delivered sample, in all views; the bytes of a pixel.
        most_bytes: the maximum bytes of a part: its decoded pictures, and what is delivered of them. It does not limit
            a part of `least_rows`, or a whole step that decodes at most `WHOLE_BYTES`, and at most `WHOLE_PIXELS` for
            each delivered pixel: its tensor is a large share of its work.
        least_rows: the minimum rows of a part for any size of pictures: one for each thread. A part that is not the
            last of its step has a multiple of it, so that no core waits.
        most_rows: the maximum rows of a part. On a GPU it is the number of mean pictures, because the JPEG engines'
            share of a part depends on the longest part.
        oversampling: the recipe's `min_oversampling`, if some JPEGs are decoded smaller; otherwise None.
    """

    WHOLE_BYTES: ClassVar = 1 << 30
    WHOLE_PIXELS: ClassVar = 16
    MOST_BYTES: ClassVar = {"cpu": 192 << 20, "cuda": 1 << 30}
    MOST_AHEAD: ClassVar = 2

    shards: ShardSet
    max_pixels: int
    delivered_pixels: float
    pixel_bytes: int
    most_bytes: int
    least_rows: int
    most_rows: int
    oversampling: float | None = None

    @classmethod
    def on(cls, device_type: str, shards: ShardSet, recipe: Recipe, batch_size: int, num_threads: int) -> Self:
        """Returns the parts for a loader on a device, "cpu" or "cuda"; the recipe is at its largest output."""
        some = np.linspace(0, len(shards) - 1, min(batch_size, _DRAWN, len(shards))).astype(np.int64)
        sizes = np.stack([shards.index.at(name, some) for name in ("height", "width")], 1).astype(np.int64)
        some_draws, sizes = Draws(0, 0, some), np.maximum(sizes, 1)
        params = recipe.draw(some_draws, sizes)
        delivered = mean_pixels(params), bytes_of_pixel(recipe)
        parts = cls(shards, recipe.max_pixels, *delivered, cls.MOST_BYTES[device_type], num_threads, batch_size)
        minimum = recipe.oversampling_on(None if device_type == "cpu" else 0)
        if minimum is not None and shards.index.counts["jpegs"] and not shards.decoded:
            factors = choose_factors(recipe.graphs[0].draw(some_draws, sizes), minimum)
            parts = replace(parts, oversampling=minimum if (factors > 1).mean() > _SOME else None)
        if device_type == "cpu":
            return parts
        return replace(parts, most_rows=max(part.stop - part.start for part in parts.typical(batch_size)))

    def of_step(self, samples: Ints, sides: Ints, factors: Ints | int = 1) -> list[slice]:
        """Returns the rows of each part of a step with these samples, in their order; see `decoded_bytes`."""
        return self.of_rows(self.decoded_bytes(samples, sides, factors))

    def of_rows(self, decoded_bytes: NDArray[np.number]) -> list[slice]:
        """Returns the parts of a step by the decoded bytes of each picture."""
        rows = len(decoded_bytes)
        most_whole = min(self.WHOLE_BYTES, 3 * self.WHOLE_PIXELS * self.delivered_pixels * rows)
        if 0 < rows <= self.most_rows and decoded_bytes.sum() <= most_whole:
            return [slice(0, rows)]
        row_bytes = decoded_bytes + self.delivered_pixels * self.pixel_bytes
        return cut(row_bytes, self.most_bytes, self.least_rows, self.most_rows)

    def typical(self, batch_size: int) -> list[slice]:
        """Returns the parts of a batch of mean-sized pictures."""
        count = len(self.shards)
        some = np.linspace(0, count - 1, min(_SAMPLED, count)).astype(np.int64)
        return self.of_rows(np.full(batch_size, self.decoded_bytes(some, np.zeros_like(some)).mean()))

    def ahead(self, batch_size: int, prefetch: int) -> tuple[int, int]:
        """Returns the numbers of parts that `Ahead` and DALI make ahead, enough for `prefetch` steps of the model."""
        if self.oversampling is not None:  # `Ahead` decodes, too, and arrays need more memory than files
            return 1, max(1, prefetch - 1)
        return prefetch + 1, prefetch * min(len(self.typical(batch_size)), self.MOST_AHEAD)

    def decoded_bytes(self, samples: Ints, sides: Ints, factors: Ints | int = 1) -> NDArray[np.number]:
        """Computes the bytes of decoded pictures, (b,), of b samples.

        Args:
            samples: (b,) their ids.
            sides: (b,) the shorter sides of the mipmaps that are decoded in place of pictures, 0 for a picture.
            factors: (b,) f, if a JPEG is decoded at 1/f of its height and width.
        """
        height, width, size_bytes = (
            self.shards.index.at(name, samples).astype(np.int64) for name in ("height", "width", "image_size")
        )
        files = mipmap_sizes(np.stack([height, width], 1), sides).prod(1)
        known = 3 * files * (height * width <= self.max_pixels)
        jpegs = self.shards.index.counts["jpegs"] / max(1, len(self.shards))
        return np.where(height > 0, known, _COMPRESSION * size_bytes) * (1 - jpegs + jpegs / factors**2)


def mean_pixels(params: AugmentParams) -> float:
    """Computes the mean pixels of a delivered sample, in all views, with padding."""
    sizes = (view.placement.shape if view.shape is None else np.array([view.shape]) for view in params.views)
    return sum(of_view.prod(1).sum().item() / max(1, len(of_view)) for of_view in sizes)


def bytes_of_pixel(recipe: Recipe) -> int:
    """Computes the bytes of a delivered pixel, with its `pixel_mask` if images are padded."""
    return 3 * np.dtype(recipe.graph_dtype).itemsize + isinstance(recipe.batch, dict)


def cut(row_bytes: NDArray[np.number], most_bytes: int, least_rows: int, most_rows: int) -> list[slice]:
    """Divides rows into parts of at most `most_bytes`, but with `least_rows`, or a multiple, to `most_rows` rows.

    The last part takes all rows that are left and fit.

    Example:
        >>> cut(np.array([6, 6, 6, 1, 1]), most_bytes=13, least_rows=1, most_rows=9)
        [slice(0, 2, None), slice(2, 5, None)]
    """
    ends = np.cumsum(row_bytes)
    parts: list[slice] = []
    first = 0
    while first < len(ends):
        before = ends[first - 1] if first else 0
        fitting = int(np.searchsorted(ends, before + most_bytes, "right"))
        if fitting < len(ends):
            fitting -= (fitting - first) % least_rows
        end = min(max(fitting, first + least_rows), first + most_rows, len(ends))
        parts.append(slice(first, end))
        first = end
    return parts
