"""Which part of an image becomes the output, and how it is scaled: torchvision's crops as arithmetic on sizes.

Each crop answers for a batch of image sizes with arrays that the graph takes, one row for each sample:

    region_start, region_shape   (n, 2) int32    the rows and columns to decode: top, left; height, width
    roi      (n, 4) float64   top, left, bottom, right of what is resized to size x size, in that region's pixels
    corner   (n, 2) int32     where the output's top and left lie in the resized image; what lies outside it is black

The arrays are contiguous, as DALI asks for.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from gpuloader.plan import Draws, Stream
from gpuloader.recipe.model import Model, Pair

Arrays: TypeAlias = dict[str, NDArray[Any]]
Ints: TypeAlias = NDArray[np.int64]

ATTEMPTS = 10


class RandomResizedCrop(Model):
    """A window of random area and aspect ratio, resized: torchvision's `RandomResizedCrop`.

    Attributes:
        area: bounds of the window's share of the image's area.
        ratio: bounds of its width over its height, drawn evenly on a logarithmic scale.
    """

    kind: Literal["random_resized"]
    area: Pair = (0.08, 1.0)
    ratio: Pair = (3 / 4, 4 / 3)

    @model_validator(mode="after")
    def _check(self) -> RandomResizedCrop:
        if not 0 < self.area[0] <= self.area[1] <= 1:
            raise ValueError(f"area {list(self.area)}: allowed is [low, high] with 0 < low <= high <= 1")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"ratio {list(self.ratio)}: allowed is [low, high] with 0 < low <= high")
        return self

    def arrays(self, size: int, draws: Draws, heights: Ints, widths: Ints) -> Arrays:
        """See the module's text."""
        windows = random_windows(draws, heights, widths, self.area, self.ratio)
        return _whole_region(windows[:, :2], windows[:, 2:])


class CenterCrop(Model):
    """The middle of the image after resizing its shorter side: torchvision's `Resize(resize)`, `CenterCrop(size)`.

    Only what the crop needs is decoded.

    Attributes:
        resize: the shorter side in pixels, at least the output's size.
    """

    kind: Literal["center"]
    resize: Annotated[int, Field(ge=1, le=16384)] = 256

    def arrays(self, size: int, draws: Draws, heights: Ints, widths: Ints) -> Arrays:
        """See the module's text."""
        resized_heights, resized_widths = resize_shorter(heights, widths, self.resize)
        top, bottom, roi_top, roi_bottom = _source_of_center(heights, resized_heights, size)
        left, right, roi_left, roi_right = _source_of_center(widths, resized_widths, size)
        arrays = _whole_region(np.stack([top, left], 1), np.stack([bottom - top, right - left], 1))
        return arrays | {"roi": np.stack([roi_top, roi_left, roi_bottom, roi_right], 1)}


class RandomPaddedCrop(Model):
    """The image resized to size x size, padded with black and cut to size x size again at a random place.

    For images that are size x size already this is torchvision's `RandomCrop(size, padding)`.

    Attributes:
        padding: pixels added on each side.
    """

    kind: Literal["random_padded"]
    padding: Annotated[int, Field(ge=0, le=16384)] = 4

    def arrays(self, size: int, draws: Draws, heights: Ints, widths: Ints) -> Arrays:
        """See the module's text."""
        places = np.floor(draws.uniform(Stream.CROP, 2) * (2 * self.padding + 1)) - self.padding
        arrays = _whole_region(np.zeros((len(heights), 2)), np.stack([heights, widths], 1))
        return arrays | {"corner": places.astype(np.int32)}


Crop: TypeAlias = Annotated[RandomResizedCrop | CenterCrop | RandomPaddedCrop, Field(discriminator="kind")]


def random_windows(draws: Draws, heights: Ints, widths: Ints, area: Pair, ratio: Pair) -> NDArray[np.int32]:
    """(n, 4) int32: top, left, height, width, distributed as torchvision's `RandomResizedCrop.get_params`.

    Of ten windows drawn for an image the first that fits is taken; where none does, the largest centred window within
    the bounds of the ratio.
    """
    uniform = draws.uniform(Stream.CROP, 2 + 2 * ATTEMPTS)
    places, areas, ratios = uniform[:, :2], uniform[:, 2 : 2 + ATTEMPTS], uniform[:, 2 + ATTEMPTS :]
    target = (heights * widths)[:, None] * (area[0] + areas * (area[1] - area[0]))
    aspect = np.exp(np.log(ratio[0]) + ratios * (np.log(ratio[1]) - np.log(ratio[0])))
    tried_widths, tried_heights = np.rint(np.sqrt(target * aspect)), np.rint(np.sqrt(target / aspect))
    fits = (
        (tried_widths > 0)
        & (tried_widths <= widths[:, None])
        & (tried_heights > 0)
        & (tried_heights <= heights[:, None])
    )
    rows, first = np.arange(len(heights)), fits.argmax(axis=1)
    fallback_height, fallback_width = _largest_within(ratio, heights, widths)
    found = fits.any(axis=1)
    height = np.where(found, tried_heights[rows, first], fallback_height)
    width = np.where(found, tried_widths[rows, first], fallback_width)
    top = np.where(found, np.floor(places[:, 0] * (heights - height + 1)), (heights - height) // 2)
    left = np.where(found, np.floor(places[:, 1] * (widths - width + 1)), (widths - width) // 2)
    return np.stack([top, left, height, width], axis=1).astype(np.int32)


def _largest_within(ratio: Pair, heights: Ints, widths: Ints) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    height = np.where(widths / heights < ratio[0], np.rint(widths / ratio[0]), heights)
    width = np.where(widths / heights > ratio[1], np.rint(heights * ratio[1]), widths)
    return np.maximum(height, 1), np.maximum(width, 1)


def resize_shorter(heights: Ints, widths: Ints, shorter: int) -> tuple[Ints, Ints]:
    """The sizes after torchvision's `Resize(shorter)`: the longer side is rounded down."""
    longer = (shorter * np.maximum(heights, widths) / np.minimum(heights, widths)).astype(np.int64)
    return np.where(heights <= widths, shorter, longer), np.where(heights <= widths, longer, shorter)


def _source_of_center(
    sizes: Ints, resized: Ints, size: int
) -> tuple[Ints, Ints, NDArray[np.float64], NDArray[np.float64]]:
    """Along one axis: the pixels that `size` centred pixels of the resized image come from.

    Returns the first pixel and the one behind the last, with the antialiasing filter's reach, and within them the
    bounds of the part that is scaled. The corner is torchvision's: the half rounded to even.
    """
    corner = np.rint((resized - size) / 2.0)
    scale = sizes / resized
    reach = np.maximum(scale, 1.0) + 1
    first = np.maximum(0, np.floor(scale * corner - reach)).astype(np.int64)
    end = np.minimum(sizes, np.ceil(scale * (corner + size) + reach)).astype(np.int64)
    return first, end, scale * corner - first, scale * (corner + size) - first


def _whole_region(start: NDArray[Any], shape: NDArray[Any]) -> Arrays:
    """All of a region, resized and not moved."""
    return {
        "region_start": start.astype(np.int32),
        "region_shape": shape.astype(np.int32),
        "roi": np.concatenate([np.zeros_like(shape), shape], 1).astype(np.float64),
        "corner": np.zeros((len(shape), 2), np.int32),
    }
