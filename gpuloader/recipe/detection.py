"""Transforms of detectors and segmenters, with the names and distributions of torchvision and DETR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, model_validator

from gpuloader.plan import Draw, Stream
from gpuloader.recipe.crops import Resampling, resized_shorter
from gpuloader.recipe.model import Factor, Fill, Ints, Pair, Probability, ResizeFilter, check_range, kept_as
from gpuloader.recipe.part import part
from gpuloader.recipe.placement import (
    Bools,
    GeometricTransform,
    PaddingMode,
    Placement,
    Shape,
    Side,
    Size,
    rgb,
    sides,
)
from gpuloader.recipe.target_transforms import BoxTransform, Floats

_ROUNDS = 32
_MOST_AT_ONCE = 1_000_000  # overlaps
Sides = Annotated[Sequence[int], kept_as(tuple[Side, ...], min_length=1, max_length=1_000)]
Overlaps = Annotated[Sequence[float], kept_as(tuple[Factor, ...], min_length=1, max_length=1_000)]


class Scaling(Resampling):
    """The base class of resizes to a random size."""

    interpolation: ResizeFilter
    stream: ClassVar[Stream] = Stream.SCALE

    def _resize(self, at: Placement, scale: Floats) -> Placement:
        shape = np.maximum(np.floor(at.shape * scale[:, None]), 1).astype(np.int64)
        return at.resize(shape, self.interpolation, self.antialias)


@part
class ScaleJitter(Scaling):
    """Resizes the image by a random scale, relative to `target_size`, as torchvision's `ScaleJitter`.

    The scale is the smaller of target width / height and target height / width of the image, as in torchvision, times a
    number drawn evenly from `scale_range`. Both sides are rounded down.

    On the CPU its levels are as close to PIL's as those of `Resize`.

    Attributes:
        target_size: (height, width).

    Example:
        >>> from gpuloader.transforms import ScaleJitter
        >>> ScaleJitter((1024, 1024)).scale_range
        (0.1, 2.0)
    """

    target_size: Annotated[Sequence[int], kept_as(tuple[Side, Side], "[height, width]")]
    scale_range: Pair = (0.1, 2.0)
    interpolation: ResizeFilter = "bilinear"
    antialias: bool = True

    @model_validator(mode="after")
    def _check(self) -> ScaleJitter:
        check_range("scale_range", self.scale_range, 0.001, 100)
        return self

    def place(self, at: Placement, draw: Draw) -> Placement:
        low, high = self.scale_range
        scale = (np.array(self.target_size[::-1]) / at.shape).min(1) * (low + (high - low) * draw(1)[:, 0])
        return self._resize(at, scale)


@part
class RandomShortestSize(Scaling):
    """Resizes the shorter side to a random size of a list; both sides are rounded down.

    On the CPU its levels are as close to PIL's as those of `Resize`.

    Attributes:
        min_size: the sizes, drawn evenly, or a single size.
        max_size: the maximum of the longer side; the shorter side then shrinks in proportion.

    Example:
        >>> from gpuloader.transforms import RandomShortestSize
        >>> RandomShortestSize([640, 672, 704, 736, 768, 800], max_size=1333).max_size
        1333
    """

    min_size: Side | Sides
    max_size: Side | None = None
    interpolation: ResizeFilter = "bilinear"
    antialias: bool = True

    @property
    def random(self) -> bool:
        return not isinstance(self.min_size, int) and len(self.min_size) > 1

    def place(self, at: Placement, draw: Draw) -> Placement:
        scale = _one_of(self.min_size, draw(1)[:, 0]) / at.shape.min(1)
        if self.max_size is not None:
            scale = np.minimum(scale, self.max_size / at.shape.max(1))
        return self._resize(at, scale)


@part
class RandomResize(Scaling):
    """Resizes the shorter side to a random size in a range; the longer side is rounded down.

    On the CPU its levels are as close to PIL's as those of `Resize`.

    Attributes:
        min_size, max_size: the size is in [min_size, max_size), as in torchvision.

    Example:
        >>> from gpuloader.transforms import RandomResize
        >>> RandomResize(260, 1040)
        RandomResize(min_size=260, max_size=1040, interpolation='bilinear', antialias=True)
    """

    min_size: Side
    max_size: Side
    interpolation: ResizeFilter = "bilinear"
    antialias: bool = True

    @model_validator(mode="after")
    def _check(self) -> RandomResize:
        if self.min_size >= self.max_size:
            raise ValueError(f"max_size {self.max_size}: allowed is more than min_size, {self.min_size}")
        return self

    def place(self, at: Placement, draw: Draw) -> Placement:
        shorter = self.min_size + np.floor(draw(1)[:, 0] * (self.max_size - self.min_size)).astype(np.int64)
        return at.resize(resized_shorter(at.shape, shorter, None), self.interpolation, self.antialias)


@part
class RandomSizeCrop(Resampling):
    """Resizes the shorter side to a random size of a list and crops a random window, with probability p.

    DETR's recipe does so in half of the images. A resize after it is combined with this resize into one.

    On the CPU its levels are as close to PIL's as those of `Resize`.

    Attributes:
        min_size, max_size: the bounds of the window's sides, which are drawn within the image.
        sizes: of the shorter side before the crop, drawn evenly.

    Example:
        >>> from gpuloader.transforms import RandomSizeCrop
        >>> RandomSizeCrop(384, 600, sizes=[400, 500, 600]).p
        0.5
    """

    min_size: Side
    max_size: Side
    sizes: Sides
    p: Probability = 0.5
    interpolation: ResizeFilter = "bilinear"
    antialias: bool = True
    stream: ClassVar[Stream] = Stream.CROP

    @model_validator(mode="after")
    def _check(self) -> RandomSizeCrop:
        if self.min_size > self.max_size:
            raise ValueError(f"max_size {self.max_size}: allowed is min_size, {self.min_size}, or more")
        return self

    def place(self, at: Placement, draw: Draw) -> Placement:
        numbers = draw(6)
        applied = numbers[:, :1] < self.p
        resized = resized_shorter(at.shape, _one_of(self.sizes, numbers[:, 1]), None)
        at = at.resize(np.where(applied, resized, at.shape), self.interpolation, self.antialias)
        least, most = np.minimum(self.min_size, at.shape), np.minimum(self.max_size, at.shape)
        shape = np.where(applied, _from_to(least, most, numbers[:, 2:4]), at.shape)
        return at.crop(_from_to(0, at.shape - shape, numbers[:, 4:]), shape)


@part
class RandomZoomOut(GeometricTransform):
    """Puts the image at a random place in a larger one, with probability p.

    On the CPU its levels equal torchvision's.

    Attributes:
        fill: the colour around the image, in levels of 0 to 255.
        side_range: [low, high] of the larger image's sides, as multiples of the image's sides.

    Example:
        >>> from gpuloader.transforms import RandomZoomOut
        >>> RandomZoomOut(fill=(123, 117, 104))
        RandomZoomOut(fill=(123.0, 117.0, 104.0), side_range=(1.0, 4.0), p=0.5)
    """

    fill: Fill = 0.0
    side_range: Pair = (1.0, 4.0)
    p: Probability = 0.5
    stream: ClassVar[Stream] = Stream.ZOOM_OUT

    @model_validator(mode="after")
    def _check(self) -> RandomZoomOut:
        check_range("side_range", self.side_range, 1, 100)
        return self

    def place(self, at: Placement, draw: Draw) -> Placement:
        numbers, (low, high) = draw(4), self.side_range
        sides = np.floor(at.shape * (low + (high - low) * numbers[:, 1:2])).astype(np.int64)
        room = np.where(numbers[:, :1] < self.p, sides - at.shape, 0)
        before = np.floor(room * numbers[:, 2:]).astype(np.int64)
        return at.pad(before, room - before, "constant", rgb(self.fill))

    def output_shape(self, before: Shape | None) -> Shape | None:
        return None


@part
class FixedSizeCrop(GeometricTransform):
    """Crops a random window of the given size, and pads a smaller image at the right and the bottom.

    One random number decides both coordinates of the window, as in torchvision's detection reference. Boxes outside the
    window are dropped, as by every crop.

    On the CPU its levels equal torchvision's.

    Attributes:
        fill: the padding's colour in levels of 0 to 255.

    Example:
        >>> from gpuloader.transforms import FixedSizeCrop
        >>> FixedSizeCrop((1024, 1024), fill=(123, 117, 104)).size
        (1024, 1024)
    """

    size: Size
    fill: Fill = 0.0
    padding_mode: PaddingMode = "constant"
    stream: ClassVar[Stream] = Stream.CROP

    def place(self, at: Placement, draw: Draw) -> Placement:
        size = np.array([sides(self.size)])
        start = np.floor(np.maximum(at.shape - size, 0) * draw(1)).astype(np.int64)
        at = at.crop(start, np.minimum(at.shape, size), clamps=False)
        return at.pad(np.zeros_like(at.shape), size - at.shape, self.padding_mode, rgb(self.fill))

    def output_shape(self, before: Shape | None) -> Shape | None:
        return sides(self.size)


@part
class PadIfSmaller(GeometricTransform):
    """Pads an image at the right and the bottom to the given size; a side that is larger does not change.

    Use it before a `RandomCrop` of the same size for the padding of torchvision's segmentation reference.

    On the CPU its levels equal torchvision's.

    Attributes:
        fill: the padding's colour in levels of 0 to 255.

    Example:
        >>> from gpuloader.transforms import PadIfSmaller
        >>> PadIfSmaller(480)
        PadIfSmaller(size=480, fill=0.0)
    """

    size: Size
    fill: Fill = 0.0

    def place(self, at: Placement, draw: Draw) -> Placement:
        room = np.maximum(np.array([sides(self.size)]) - at.shape, 0)
        return at.pad(np.zeros_like(room), room, "constant", rgb(self.fill))

    def output_shape(self, before: Shape | None) -> Shape | None:
        height, width = sides(self.size)
        return None if before is None else (max(before[0], height), max(before[1], width))


@part
class RandomIoUCrop(BoxTransform):
    """Crops a random window that overlaps a box of the sample enough, as SSD's recipe does.

    An option is drawn evenly from `sampler_options`. Then windows are drawn until one contains the centre of a box and
    its intersection over union with this box reaches the option. After `trials` windows another option is drawn.

    The image does not change if the option is 1 or more, after 32 options without a window, or without boxes. Boxes
    whose centre is outside the window are dropped.

    On the CPU its levels equal torchvision's.

    Attributes:
        min_scale, max_scale: the bounds of the window's sides, as shares of the image's sides.
        min_aspect_ratio, max_aspect_ratio: the bounds of the window's width over its height.
        sampler_options: the least overlaps, to draw one from.
        trials: the number of windows for an option.

    Example:
        >>> from gpuloader.transforms import RandomIoUCrop
        >>> RandomIoUCrop().sampler_options
        (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    """

    min_scale: Probability = 0.3
    max_scale: Probability = 1.0
    min_aspect_ratio: Factor = 0.5
    max_aspect_ratio: Factor = 2.0
    sampler_options: Overlaps = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    trials: Annotated[int, Field(ge=1, le=100)] = 40
    stream: ClassVar[Stream] = Stream.CROP

    @model_validator(mode="after")
    def _check(self) -> RandomIoUCrop:
        if not 0 < self.min_scale <= self.max_scale:
            raise ValueError(f"min_scale {self.min_scale}, max_scale {self.max_scale}: allowed is 0 < min <= max <= 1")
        check_range("aspect ratios", (self.min_aspect_ratio, self.max_aspect_ratio), 0.001, 100)
        return self

    def place(self, at: Placement, draw: Draw) -> Placement:
        return self.place_by_boxes(at, draw, np.zeros((0, 4)), np.zeros(0, np.int64))

    def place_by_boxes(self, at: Placement, draw: Draw, boxes: Floats, rows: Ints) -> Placement:
        start, shape = np.zeros_like(at.shape), at.shape.copy()
        left = np.unique(rows)
        for part_of_draw in draw.split(_ROUNDS):
            if not len(left):
                break
            numbers = part_of_draw.take(left)(1 + 4 * self.trials)
            option = np.array(self.sampler_options)[(numbers[:, 0] * len(self.sampler_options)).astype(np.int64)]
            windows = self._windows(at.shape[left], numbers[:, 1:].reshape(len(left), self.trials, 4))
            mine: Bools = np.isin(rows, left)
            overlaps = _overlaps(boxes[mine], np.searchsorted(left, rows[mine]), windows)
            fits = (overlaps >= option[:, None]) & (option < 1)[:, None]
            found, first = np.flatnonzero(fits.any(1)), fits.argmax(1)
            taken = windows[found, first[found]]
            start[left[found]], shape[left[found]] = taken[:, 1::-1], taken[:, :1:-1] - taken[:, 1::-1]
            left = left[~fits.any(1) & (option < 1)]
        return at.crop(start, shape, clamps=False)

    def _windows(self, shape: Ints, numbers: Floats) -> Floats:
        """Makes windows, (m, t, 4) x1, y1, x2, y2, in images of these shapes, (m, 2); windows not allowed are NaN."""
        whole = shape[:, None, ::-1]
        sides = np.floor(whole * (self.min_scale + (self.max_scale - self.min_scale) * numbers[..., :2]))
        start = np.floor((whole - sides) * numbers[..., 2:])
        width, height = np.moveaxis(sides, -1, 0)
        allowed = (sides > 0).all(-1)
        allowed &= (width >= self.min_aspect_ratio * height) & (width <= self.max_aspect_ratio * height)
        return np.where(allowed[..., None], np.concatenate([start, start + sides], -1), np.nan)

    def keeps(self, boxes: Floats, moved: Floats, rows: Ints, after: Placement) -> Bools:
        crop = after.moves[-1]
        return ~crop.clamps[rows] | _hold_centres(boxes, crop.window[rows][:, [1, 0, 3, 2]])

    def output_shape(self, before: Shape | None) -> Shape | None:
        return None


def _hold_centres(boxes: Floats, windows: Floats | Ints) -> Bools:
    """Returns whether the centres of boxes, (..., 4), are inside windows, (..., 4), and not on the border."""
    centres = (boxes[..., :2] + boxes[..., 2:]) / 2
    return np.all((windows[..., :2] < centres) & (centres < windows[..., 2:]), -1)


def _overlaps(boxes: Floats, rows: Ints, windows: Floats) -> Floats:
    """Computes the largest intersection over union, (m, t), of each window, (m, t, 4), and a box centred in it.

    It is -1 without such a box.

    Args:
        boxes: (N, 4) x1, y1, x2, y2; each of the m samples has at least one.
        rows: (N,) the sample of each box, ascending.
    """
    if windows.shape[1] > 1 and len(boxes) * windows.shape[1] > _MOST_AT_ONCE:
        parts = np.array_split(windows, 2, axis=1)
        return np.concatenate([_overlaps(boxes, rows, each) for each in parts], 1)
    windows, boxes = windows[rows], boxes[:, None]
    sides = np.minimum(boxes[..., 2:], windows[..., 2:]) - np.maximum(boxes[..., :2], windows[..., :2])
    shared = np.maximum(sides, 0).prod(-1)
    of_both = sum((each[..., 2:] - each[..., :2]).prod(-1) for each in (boxes, windows)) - shared
    overlaps = np.where(_hold_centres(boxes, windows), shared / of_both, -1)
    best: Floats = np.maximum.reduceat(overlaps, np.flatnonzero(np.diff(rows, prepend=-1)), axis=0)
    return best


@part
class SanitizeBoundingBoxes(BoxTransform):
    """Drops small boxes and boxes that reach beyond the image, with their labels and other columns.

    The images do not change. This transform checks the boxes at its place in the recipe, `Boxes(min_size=...)` at the
    end.

    Attributes:
        min_size: the least width and height, in pixels.
        min_area: the least area, in square pixels.

    Example:
        >>> from gpuloader.transforms import SanitizeBoundingBoxes
        >>> SanitizeBoundingBoxes(min_size=10)
        SanitizeBoundingBoxes(min_size=10.0, min_area=1.0)
    """

    min_size: Annotated[float, Field(ge=1, le=1e6)] = 1.0
    min_area: Annotated[float, Field(ge=1, le=1e12)] = 1.0

    def place(self, at: Placement, draw: Draw) -> Placement:
        return at

    def keeps(self, boxes: Floats, moved: Floats, rows: Ints, after: Placement) -> Bools:
        sides, ends = moved[:, 2:] - moved[:, :2], after.shape[rows, ::-1]
        inside = (moved[:, :2] >= 0).all(1) & (moved[:, 2:] <= ends).all(1)
        kept: Bools = inside & (sides >= self.min_size).all(1) & (sides.prod(1) >= self.min_area)
        return kept


def _one_of(sizes: int | Sequence[int], uniform: Floats) -> Ints:
    listed = np.array([sizes] if isinstance(sizes, int) else sizes, np.int64)
    return listed[(uniform * len(listed)).astype(np.int64)]


def _from_to(least: Ints | int, most: Ints, uniform: Floats) -> Ints:
    """Draws integers from `least` to `most`, both possible."""
    drawn: Ints = least + np.floor(uniform * (most - least + 1)).astype(np.int64)
    return drawn
