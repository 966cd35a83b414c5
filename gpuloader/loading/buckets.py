"""`Buckets`: aspect-ratio buckets, and which image goes to which bucket."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gpuloader.base.text import counted
from gpuloader.recipe.model import Integer, kept_as
from gpuloader.recipe.part import argument

_LARGEST_SIDE = 8192
_MOST = 1000
_Count: TypeAlias = Annotated[Integer, Field(ge=1, lt=2**31)]
_Side: TypeAlias = Annotated[Integer, Field(ge=1, le=_LARGEST_SIDE)]
_Ratio: TypeAlias = Annotated[float, Field(gt=0)]
_Size: TypeAlias = Annotated[Sequence[int], kept_as(tuple[_Side, _Side], "[height, width]")]


@argument
class Buckets:
    """Aspect-ratio buckets: each batch has images of about one aspect ratio. Give `area`, `sizes` or `groups`.

    With `area` or `sizes`, all images of a bucket have one size. Each image goes to the bucket with the nearest ratio:
    the smallest |log(image's ratio / bucket's ratio)|, then the larger area, then the first bucket.
    `area` makes the buckets of NovelAI and kohya's sd-scripts: for each width, a multiple of `step`, the largest height
    with at most this area, the same with width and height exchanged, and a square.

    With `groups`, images have the sizes that the recipe makes, as with `--aspect-ratio-group-factor` of torchvision's
    detection reference. The 2 groups + 1 ratios width / height of `2 ** numpy.linspace(-1, 1, 2 * groups + 1)` separate
    the buckets. An image whose ratio is one of them goes to the bucket above.

    Attributes:
        area: the maximum pixels of an image, such as 1024**2.
        step: both sides are multiples of this number.
        ratios: the smallest and the largest width / height.
        sizes: the buckets as (height, width), instead of `area`.
        groups: the number of buckets from ratio 1/2 to 1; there are as many from 1 to 2.
        quantum: the bucket batch: how many samples of one bucket come together, a multiple of the global batch. A run
            can resume with any number of ranks and batch size whose product divides it. None uses the global batch of a
            new run, and the value of the state when a run resumes.
        unknown: "error" raises an error if the index does not know the size of an image; "skip" skips such images.
            Known bad images are not skipped: they go to the bucket with the most samples, and are replaced there.

    Example:
        >>> from gpuloader import Buckets
        >>> Buckets(area=512**2, ratios=(1, 2)).shapes
        ((512, 512), (448, 576), (384, 640))
        >>> Buckets(groups=1).ends  # so there are four: below 1/2, up to 1, up to 2, and from 2 on
        (0.5, 1.0, 2.0)
    """

    area: _Count | None = None
    step: _Count = 64
    ratios: Annotated[Sequence[float], kept_as(tuple[_Ratio, _Ratio], "[low, high]")] = (1 / 2, 2)
    sizes: Annotated[Sequence[tuple[int, int]], kept_as(tuple[_Size, ...], min_length=1)] | None = None
    groups: Annotated[Integer, Field(ge=1, le=100)] | None = None
    quantum: _Count | None = None
    unknown: Literal["error", "skip"] = "error"

    def __post_init__(self) -> None:
        given = [name for name in ("area", "sizes", "groups") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"found {' and '.join(given) or 'none of them'}: give one of area, such as 1024**2; sizes, a list of "
                f"(height, width); and groups, such as 3, for images in the sizes that the recipe makes"
            )
        if self.ratios[0] > self.ratios[1]:
            raise ValueError(f"ratios {list(self.ratios)}: allowed is [low, high], such as [0.5, 2]")
        if self.groups is None and not 0 < len(self.shapes) <= _MOST:
            raise ValueError(
                f"area={self.area}, step={self.step} and ratios={list(self.ratios)} make "
                f"{counted(len(self.shapes), 'size')}: allowed are 1 to {_MOST}; change the step"
            )

    @cached_property
    def ends(self) -> tuple[float, ...]:
        """The ratios width / height that separate the buckets, with `groups`; otherwise empty."""
        return () if self.groups is None else tuple((2.0 ** np.linspace(-1, 1, 2 * self.groups + 1)).tolist())

    def __len__(self) -> int:
        """Returns the number of buckets."""
        return len(self.shapes) or len(self.ends) + 1

    @cached_property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """The (height, width) of each bucket; empty with `groups`."""
        if self.groups is not None:
            return ()
        if self.sizes is not None:
            return tuple(dict.fromkeys((height, width) for height, width in self.sizes))
        assert self.area is not None
        low, high = self.ratios
        square = int(self.area**0.5) // self.step * self.step
        found = {(square, square)}
        for side in range(self.step, _LARGEST_SIDE + 1, self.step):
            other = self.area // side // self.step * self.step
            found |= {(side, other), (other, side)}
        fitting = [
            (height, width)
            for height, width in found
            if 0 < height <= _LARGEST_SIDE and 0 < width <= _LARGEST_SIDE and low <= width / height <= high
        ]
        return tuple(sorted(fitting, key=lambda shape: (shape[1] / shape[0], shape)))

    def assign(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the bucket number of each image, (n,) int64.

        Args:
            sizes: (n, 2) heights and widths, all above 0.
        """
        if self.ends:
            return np.searchsorted(self.ends, sizes[:, 1] / sizes[:, 0], side="right")
        # A ratio is nearer to the larger of two ratios if its square is above their product. Unlike logarithms, this is
        # exact for usual sizes, and the same on every machine.
        areas = np.prod(self.shapes, axis=1)
        best: dict[Fraction, int] = {}
        for number, (height, width) in enumerate(self.shapes):
            ratio = Fraction(width, height)
            if areas[number] > areas[best.setdefault(ratio, number)]:
                best[ratio] = number
        ratios = sorted(best)
        numbers = np.array([best[ratio] for ratio in ratios])
        bounds = np.array([float(low * high) for low, high in pairwise(ratios)])
        height, width = sizes.T.astype(np.float64)
        squares = width * width / (height * height)
        below, above = (numbers[np.searchsorted(bounds, squares, side)] for side in ("left", "right"))
        takes = (areas[above] > areas[below]) | ((areas[above] == areas[below]) & (above < below))
        return np.where(takes, above, below)
