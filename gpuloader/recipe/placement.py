"""`Placement`: which part of an image becomes the output, and how it is scaled, as arithmetic on sizes.

Resizing, cropping, padding and flipping change no pixel: they say where the output's pixels come from. A recipe's
transforms of that kind are folded into one `Placement`, and the graph makes one pass over the pixels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from gpuloader.errors import describe
from gpuloader.plan import Draw
from gpuloader.recipe.model import Fill, Ints, ResizeFilter, Transform, kept_as

Shape: TypeAlias = tuple[int, int]
PaddingMode: TypeAlias = Literal["constant", "edge", "reflect", "symmetric"]

SUPPORT = {"nearest": 0.5, "bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}
"""How far a filter reaches to each side, in pixels of the coarser of the two images."""


@dataclass(frozen=True, eq=False)
class Placement:
    """Where the pixels of n samples come from; rows first, then columns.

    Attributes:
        window: (n, 4) int64 top, left, bottom, right of the part of the image that is resized.
        resized: (n, 2) int64, that part's size after resizing.
        corner: (n, 2) int64, where the output begins in the resized part; outside of that part is padding.
        shape: (n, 2) int64, the output's size.
        mirrored: (n, 2) bool, whether the output's rows and its columns are reversed.
        interpolation, antialias: how it is resized.
        padding_mode, fill: what the padding shows; the fill in levels of 0 to 255, for "constant".
    """

    window: Ints
    resized: Ints
    corner: Ints
    shape: Ints
    mirrored: NDArray[np.bool_]
    interpolation: ResizeFilter = "bilinear"
    antialias: bool = True
    padding_mode: PaddingMode = "constant"
    fill: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @classmethod
    def whole(cls, sizes: Ints) -> Placement:
        """The placement of unchanged images with these heights and widths, (n, 2)."""
        zero = np.zeros_like(sizes)
        return cls(np.concatenate([zero, sizes], 1), sizes, zero, sizes, zero.astype(bool))

    def take(self, rows: Sequence[int] | Ints) -> Placement:
        """The placement of some of the samples, in that order."""
        window, resized, corner = self.window[rows], self.resized[rows], self.corner[rows]
        shape, mirrored = self.shape[rows], self.mirrored[rows]
        return replace(self, window=window, resized=resized, corner=corner, shape=shape, mirrored=mirrored)

    def resize(self, shape: Ints, interpolation: ResizeFilter, antialias: bool) -> Placement:
        """Resizes all of the output to a shape. No resizing, cropping or padding may have come before."""
        return replace(self, resized=shape, shape=shape, interpolation=interpolation, antialias=antialias)

    def crop(self, start: Ints, shape: Ints) -> Placement:
        """Crops the output, or extends it: `start`, (n, 2), may be negative."""
        offset = np.where(self.mirrored, self.shape - start - shape, start)
        return replace(self, corner=self.corner + offset, shape=np.broadcast_to(shape, self.shape.shape))

    def flip(self, axis: int, flipped: NDArray[np.bool_]) -> Placement:
        """Reverses rows (0) or columns (1) where `flipped`, (n,)."""
        mirrored = self.mirrored.copy()
        mirrored[:, axis] ^= flipped
        return replace(self, mirrored=mirrored)

    def needed(self) -> Ints:
        """(n, 4) int64 top, left, bottom, right of the pixels of the image that the output depends on."""
        start, end = self.window[:, :2], self.window[:, 2:]
        scale = (end - start) / self.resized
        first, last = np.zeros_like(self.resized), self.resized
        if self.padding_mode == "constant":
            first, last = (np.clip(side, 0, self.resized) for side in (self.corner, self.corner + self.shape))
        reach = SUPPORT[self.interpolation] * (np.maximum(scale, 1) if self.antialias else 1) + 1
        low = np.clip(np.floor(start + scale * first - reach), start, end - 1)
        high = np.clip(np.ceil(start + scale * last + reach), low + 1, end)
        return np.concatenate([low, high], 1).astype(np.int64)


class PlacingTransform(Transform, ABC):
    """An operation that changes no pixel, only where the output's pixels come from."""

    @abstractmethod
    def place(self, at: Placement, draw: Draw) -> Placement:
        """The placement after this operation, drawn for each sample."""

    def output_shape(self, before: Shape | None) -> Shape | None:
        """Returns (height, width) after it, or None if that depends on the image; `before` is the shape before it."""
        return before


MAX_SIDE = 8192
Side: TypeAlias = Annotated[int, Field(ge=1, le=MAX_SIDE)]


_MOST_SIZES = 1_000


def _check_schedule(schedule: dict[int, int]) -> dict[int, int]:
    if 0 not in schedule or min(schedule) < 0 or max(schedule) >= 2**32 or len(schedule) > _MOST_SIZES:
        raise ValueError(
            f"sizes by epoch {describe(schedule)}: allowed are epochs from 0 on, and 0 must be among them; at most "
            f"{_MOST_SIZES} epochs"
        )
    return dict(sorted(schedule.items()))


Schedule: TypeAlias = Annotated[dict[int, Side], AfterValidator(_check_schedule)]
Size: TypeAlias = Side | Annotated[Sequence[int], kept_as(tuple[Side, Side])] | Schedule
"""A side, (height, width), or sides by epoch: `{0: 128, 30: 224}` is 128 from epoch 0 and 224 from epoch 30.

Transforms take those of epoch 0; `Recipe.at` gives them those of another.
"""


def at_epoch(size: Size, epoch: int) -> int | Shape:
    """Returns the size in an epoch: of sizes by epoch, the one that began last."""
    if isinstance(size, dict):
        return size[max(start for start in size if start <= epoch)]
    return size if isinstance(size, int) else (size[0], size[1])


def sides(size: Size) -> Shape:
    """Returns (height, width) of a size; one number is a square."""
    now = at_epoch(size, 0)
    return (now, now) if isinstance(now, int) else now


def rgb(fill: Fill) -> tuple[float, float, float]:
    """A fill for three channels."""
    return (fill, fill, fill) if isinstance(fill, (int, float)) else (fill[0], fill[1], fill[2])
