"""Transforms of the finished image: `Normalize` and `RandomErasing`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from gpuloader.plan import Draw, Stream
from gpuloader.recipe.model import (
    ByEpoch,
    Ints,
    Number,
    Pair,
    Probability,
    Transform,
    Triple,
    at_epoch,
    check_range,
    in_all_epochs,
)
from gpuloader.recipe.part import part
from gpuloader.recipe.placement import Bools
from gpuloader.recipe.target_transforms import Floats

ATTEMPTS = 10
_COLUMNS = 5 + 2 * ATTEMPTS  # random numbers: p, two for the key, two for the place, two for each attempt
_LEAST_STD = 1e-9
_GREATEST = 2.0
"""A larger mean or standard deviation is for levels of 0 to 255; for values in [0, 1] both are at most 1."""


@part
class Normalize(Transform):
    """Normalises each channel to (x - mean) / std; mean and std are for values in [0, 1], not in [0, 255].

    Example:
        >>> from gpuloader.transforms import Normalize
        >>> Normalize([0.5, 0.5, 0.5], [0.5, 0.5, 0.5])
        Normalize(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    """

    mean: Triple
    std: Triple

    @model_validator(mode="after")
    def _check(self) -> Normalize:
        if min(self.std) < _LEAST_STD:
            raise ValueError(f"std {list(self.std)}: allowed are numbers above 0, from {_LEAST_STD} on")
        if max(*map(abs, self.mean), *self.std) > _GREATEST:
            mean, std = _of_one(self.mean, 1.0), _of_one(self.std, 0.5)
            raise ValueError(
                f"mean {list(self.mean)}, std {list(self.std)} are for levels of 0 to 255, but values are in [0, 1] "
                f"here: write mean {mean}, std {std}"
            )
        return self


def _of_one(values: Triple, greatest: float) -> list[float]:
    """Returns values for [0, 1], converted from [0, 255] if any is above `greatest`."""
    return [float(f"{value / 255:.6g}") for value in values] if max(map(abs, values)) > greatest else list(values)


@part
class RandomErasing(Transform):
    """Erases a random rectangle of the output with probability p.

    Attributes:
        p: the probability; or by epoch, such as `{0: 0.25, 90: 0}`.
        scale: [low, high] of the rectangle's share of the area; several rectangles share it.
        ratio: [low, high] of the rectangle's height over its width, drawn evenly on a logarithmic scale.
        value: one number, or one for each channel, in units of the output: 0 is the mean of a normalised output.
            "random" is standard normal noise for each pixel and channel, "random_color" for each channel of a
            rectangle.
        count: the maximum number of rectangles; the number is drawn evenly from 1 to `count`.

    Example:
        >>> from gpuloader.transforms import RandomErasing
        >>> RandomErasing(p=0.25, value="random")
        RandomErasing(p=0.25, scale=(0.02, 0.33), ratio=(0.3, 3.3), value='random', count=1)
    """

    p: ByEpoch[Probability] = 0.5
    scale: Pair = (0.02, 0.33)
    ratio: Pair = (0.3, 3.3)
    value: Number | Triple | Literal["random", "random_color"] = 0.0
    count: Annotated[int, Field(ge=1, le=100)] = 1
    stream: ClassVar[Stream] = Stream.ERASING

    @model_validator(mode="after")
    def _check(self) -> RandomErasing:
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale {list(self.scale)}: allowed is [low, high] with 0 < low <= high <= 1")
        check_range("ratio", self.ratio, 0.001, 1000)
        return self

    @property
    def random(self) -> bool:
        return max(in_all_epochs(self.p)) > 0

    def draw(self, draw: Draw, sizes: Ints) -> NDArray[np.int32]:
        """Draws (n, 6 * count): each rectangle's top, left, height, width, or 0 for none; then the key of its noise.

        `sizes` are as in `PixelTransform.program`. Of ten drawn rectangles, the first that is smaller than the image is
        used. If none is smaller, nothing is erased.
        """
        uniform = draw(_COLUMNS * self.count + 1)
        erases, counts = uniform[:, 0] < at_epoch(self.p), 1 + np.floor(self.count * uniform[:, -1])
        numbers = [uniform[:, _COLUMNS * number : _COLUMNS * (number + 1)] for number in range(self.count)]
        boxes = [self._draw_one(each, sizes, counts, erases & (n < counts)) for n, each in enumerate(numbers)]
        return np.concatenate(boxes, 1)

    def _draw_one(self, uniform: Floats, sizes: Ints, counts: Floats, erases: Bools) -> NDArray[np.int32]:
        """Draws one rectangle of `counts`, (n,), as (n, 6); it is 0 where `erases`, (n,), is false."""
        places, areas, ratios = uniform[:, 3:5], uniform[:, 5 : 5 + ATTEMPTS], uniform[:, 5 + ATTEMPTS :]
        sizes = sizes[:, None]
        area = sizes.prod(2) * (self.scale[0] + areas * (self.scale[1] - self.scale[0])) / counts[:, None]
        low, high = np.log(self.ratio)
        ratio = np.exp(low + ratios * (high - low))
        boxes = np.rint(np.sqrt(np.stack([area * ratio, area / ratio], 2)))  # (n, ATTEMPTS, 2)
        fits = (boxes < sizes).all(2)
        box = boxes[np.arange(len(uniform)), fits.argmax(1)]
        start = np.floor(places * (sizes[:, 0] - box + 1))
        erases = erases & fits.any(1)
        box, key = np.concatenate([start, box], 1), (uniform[:, 1:3] * 2**32).astype(np.uint32)
        return np.concatenate([np.where(erases[:, None], box, 0).astype(np.int32), key.view(np.int32)], 1)
