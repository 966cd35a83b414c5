"""Resizes to a budget of pixels or patches, for vision-language models and NaFlex."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, TypeAlias

import numpy as np
from pydantic import Field, model_validator

from gpuloader.images.limits import MAX_PIXELS
from gpuloader.plan import Draw
from gpuloader.recipe.crops import Resampling
from gpuloader.recipe.model import Ints, ResizeFilter
from gpuloader.recipe.part import part
from gpuloader.recipe.placement import Placement, Side
from gpuloader.recipe.target_transforms import Floats

Budget: TypeAlias = Annotated[int, Field(ge=1, le=MAX_PIXELS)]
_MOST_RATIO = 200
_SCALES, _PRECISION = (1e-6, 100.0), 1e-5


class BudgetResize(Resampling):
    """The base class of resizes to whole patches within a budget."""

    interpolation: ResizeFilter

    @abstractmethod
    def fit(self, shape: Ints) -> Ints:
        """Computes the sizes after the resize, (n, 2), from the sizes before it."""

    def place(self, at: Placement, draw: Draw) -> Placement:
        return at.resize(self.fit(at.shape), self.interpolation, self.antialias)


@part
class SmartResize(BudgetResize):
    """Resizes both sides to multiples of a factor, with a number of pixels within bounds, as Qwen2-VL does.

    It follows `smart_resize` of transformers: each side is rounded to a multiple. With too many pixels, both sides
    shrink in proportion and are rounded down, but not to 0. With too few pixels, they grow and are rounded up. An image
    with one side more than 200 times the other is bad. The recipe needs `batch: list` or `{pad: N}`, or a later crop.

    On the CPU its levels differ from PIL's by at most 22 with `bicubic`, in enlarged noise: PIL rounds and clips to 8
    bits between its two passes. They equal those of `Resize` to the same size.

    Attributes:
        factor: a patch's side times the number of merged patches: 28 for Qwen2-VL and Qwen2.5-VL, 32 for Qwen3-VL.
        min_pixels, max_pixels: bounds of the resized image's pixels.

    Example:
        >>> import numpy as np
        >>> from gpuloader.transforms import SmartResize
        >>> SmartResize(28, max_pixels=256 * 28 * 28).fit(np.array([[480, 640], [3000, 4000], [20, 30]])).tolist()
        [[364, 504], [364, 504], [56, 84]]
    """

    factor: Side = 28
    min_pixels: Budget = 56 * 56
    max_pixels: Budget = 1280 * 28 * 28
    interpolation: ResizeFilter = "bicubic"
    antialias: bool = True

    @model_validator(mode="after")
    def _check(self) -> SmartResize:
        if self.min_pixels > self.max_pixels:
            raise ValueError(f"max_pixels {self.max_pixels}: allowed is min_pixels, {self.min_pixels}, or more")
        return self

    def fit(self, shape: Ints) -> Ints:
        pixels = shape.prod(1, keepdims=True)
        near = np.rint(shape / self.factor)
        fewer = np.maximum(np.floor(shape / np.sqrt(pixels / self.max_pixels) / self.factor), 1)
        more = np.ceil(shape * np.sqrt(self.min_pixels / pixels) / self.factor)
        made = near.prod(1, keepdims=True) * self.factor**2
        patches = np.where(made > self.max_pixels, fewer, np.where(made < self.min_pixels, more, near))
        return self.factor * patches.astype(np.int64)

    def refused(self, shape: Ints) -> dict[int, str]:
        return {
            row: f"SmartResize gets {shape[row, 1]}x{shape[row, 0]} pixels of it: allowed are sides of up to "
            f"{_MOST_RATIO} times the other"
            for row in np.flatnonzero(shape.max(1) > _MOST_RATIO * shape.min(1)).tolist()
        }


@part
class ResizeToSequence(BudgetResize):
    """Resizes the image to as many whole patches as `max_seq_len` allows, as timm's NaFlex and SigLIP2 do.

    Both sides are scaled by the same number, at most 100, and rounded up to whole patches. The number is the largest
    with at most `max_seq_len` patches, found by bisection, as in timm and transformers. The recipe needs `batch: list`
    or `{pad: N}`, or a crop after it.

    On the CPU its levels differ from PIL's by at most 20 with `bicubic`, in enlarged noise: PIL rounds and clips to 8
    bits between its two passes. They equal those of `Resize` to the same size.

    Attributes:
        patch_size: a patch's side; 16 for SigLIP2.
        max_seq_len: the maximum number of patches.

    Example:
        >>> import numpy as np
        >>> from gpuloader.transforms import ResizeToSequence
        >>> ResizeToSequence(patch_size=16, max_seq_len=256).fit(np.array([[480, 640], [1000, 100]])).tolist()
        [[224, 288], [800, 80]]
    """

    patch_size: Side
    max_seq_len: Budget
    interpolation: ResizeFilter = "bicubic"
    antialias: bool = True

    def fit(self, shape: Ints) -> Ints:
        low, high = (np.full((len(shape), 1), scale) for scale in _SCALES)
        while (high - low >= _PRECISION).any():
            middle = (low + high) / 2
            fits = self._patches(shape * middle).prod(1, keepdims=True) <= self.max_seq_len
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        return self.patch_size * self._patches(shape * low)

    def _patches(self, sides: Floats) -> Ints:
        return np.maximum(np.ceil(sides / self.patch_size), 1).astype(np.int64)
