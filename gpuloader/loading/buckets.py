"""`Buckets`: the sizes of batches by aspect ratio, and which image goes to which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import ConfigError, describe
from gpuloader.helpers.text import counted
from gpuloader.helpers.values import is_integer

Unknown: TypeAlias = Literal["error", "skip"]

_LARGEST_SIDE = 8192
_MOST = 1000


@dataclass(frozen=True)
class Buckets:
    """Sizes of batches by aspect ratio: each image goes to the bucket whose ratio is nearest to its own.

    The distance is |log(image's ratio / bucket's ratio)|; of two buckets at the same distance, the one with the larger
    area takes it, then the first. Give either `area` or `sizes`. With `area`, the buckets are those of NovelAI and
    kohya's sd-scripts: for each width, a multiple of `step`, the largest height with at most this area, the same with
    width and height exchanged, and a square.

    Attributes:
        area: the most pixels of a batch's images, such as 1024**2.
        step: what both sides are multiples of.
        ratios: the smallest and the largest width / height.
        sizes: the buckets as (height, width), instead of those made by `area`.
        quantum: a multiple of the global batch: how many samples of one bucket come together. A run can resume with any
            number of ranks and batch size whose product divides it. None takes the global batch at the start, and then
            the state's.
        unknown: "error", or "skip" to leave out images whose size the index does not know. Known bad images are not
            among them: they go to the bucket of the most samples, and are replaced there.

    Example:
        >>> from gpuloader import Buckets
        >>> Buckets(area=512**2, ratios=(1, 2)).shapes
        ((512, 512), (448, 576), (384, 640))
    """

    area: int | None = None
    step: int = 64
    ratios: tuple[float, float] = (1 / 2, 2)
    sizes: Sequence[tuple[int, int]] | None = None
    quantum: int | None = None
    unknown: Unknown = "error"

    def __post_init__(self) -> None:
        if (self.area is None) == (self.sizes is None):
            raise ConfigError("Buckets: give either area, such as 1024**2, or sizes, a list of (height, width)")
        for name in ("area", "step", "quantum"):
            if getattr(self, name) is not None and not is_integer(getattr(self, name), 1, 2**31):
                raise ConfigError(f"Buckets({name}={getattr(self, name)!r}): allowed is an integer of at least 1")
        if not _is_range(self.ratios):
            raise ConfigError(f"Buckets(ratios={self.ratios!r}): allowed are two numbers above 0, such as (0.5, 2)")
        if self.unknown not in get_args(Unknown):
            raise ConfigError(f'Buckets(unknown={self.unknown!r}): allowed are "error" and "skip"')
        if self.sizes is not None and not (
            isinstance(self.sizes, Sequence) and self.sizes and all(map(_is_size, self.sizes))
        ):
            raise ConfigError(
                f"Buckets(sizes={describe(self.sizes)}): allowed is a list of (height, width) with sides of 1 to "
                f"{_LARGEST_SIDE}"
            )
        if not 0 < len(self.shapes) <= _MOST:
            raise ConfigError(
                f"Buckets(area={self.area}, step={self.step}, ratios={self.ratios}) makes "
                f"{counted(len(self.shapes), 'size')}: allowed are 1 to {_MOST}; change the step"
            )

    @cached_property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(height, width) of each bucket."""
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
        """Returns the number of the bucket, (n,) int64, of images of these heights and widths, (n, 2), all above 0."""
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


def _is_size(size: object) -> bool:
    return (
        isinstance(size, Sequence)
        and not isinstance(size, str)
        and len(size) == 2
        and all(is_integer(side, 1, _LARGEST_SIDE + 1) for side in size)
    )


def _is_range(ratios: object) -> bool:
    if not isinstance(ratios, Sequence) or isinstance(ratios, str) or len(ratios) != 2:
        return False
    numbers = [each for each in ratios if isinstance(each, (int, float)) and not isinstance(each, bool)]
    return len(numbers) == 2 and 0 < numbers[0] <= numbers[1] < float("inf")
