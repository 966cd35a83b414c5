"""Transforms that resize, crop, pad and flip, with torchvision's names and distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from gpuloader.errors import describe
from gpuloader.plan import Draw, Stream
from gpuloader.recipe.model import (
    CropFilter,
    Fill,
    Ints,
    Pair,
    Probability,
    ResizeFilter,
    Transform,
    check_range,
    kept_as,
)
from gpuloader.recipe.part import part
from gpuloader.recipe.placement import (
    GeometricTransform,
    PaddingMode,
    Placement,
    Shape,
    Side,
    Size,
    rgb,
    sides,
)
from gpuloader.recipe.program import NEAREST, Program, sometimes
from gpuloader.recipe.warps import mirror, warp

ATTEMPTS = 10
Pixels: TypeAlias = Annotated[int, Field(ge=0, le=8192)]
Padding: TypeAlias = (
    Pixels
    | Annotated[Sequence[int], kept_as(tuple[Pixels, Pixels], "[left and right, top and bottom]")]
    | Annotated[Sequence[int], kept_as(tuple[Pixels, Pixels, Pixels, Pixels], "[left, top, right, bottom]")]
)
"""One number for all sides, (left and right, top and bottom), or (left, top, right, bottom), in pixels."""


def _as_cover(size: object) -> object:
    if not isinstance(size, str):
        raise PydanticCustomError("cover_type", "'cover'")
    if size != "cover":
        raise ValueError(f"found {describe(size)}; allowed are a side, [height, width], sides by epoch, and 'cover'")
    return size


Cover: TypeAlias = Annotated[Literal["cover"], BeforeValidator(_as_cover)]


class Resampling(GeometricTransform):
    """The base class of transforms that resize with a filter."""

    interpolation: CropFilter
    antialias: bool

    @model_validator(mode="after")
    def _check_filter(self) -> Resampling:
        if self.interpolation == "lanczos" and not self.antialias:
            raise ValueError("interpolation 'lanczos' always antialiases, as in PIL: leave antialias at true")
        return self

    def output_shape(self, before: Shape | None) -> Shape | None:
        return None


@part
class Resize(Resampling):
    """Resizes the image: one number is the shorter side (the longer is rounded down); a pair is (height, width).

    With "cover", the image keeps its aspect ratio and just covers the next crop, as with PIL's `ImageOps.cover`: one
    side equals the crop's side, the other side is rounded.

    With `pad`, the image keeps its aspect ratio, fits into (height, width), and is padded on both sides: a letterbox,
    as in YOLO. Both sides are rounded, and half the padding is rounded down.

    The filters are PIL's. `antialias=False` uses torch's filters, which read only the neighbouring pixels.

    On the CPU its levels differ from PIL's by at most 1 with `bilinear`. With the other filters a few differ by more,
    because PIL rounds and clips to 8 bits between its two passes. On drawn pictures and noise they differ by at most
    13 with `bicubic` and 26 with `lanczos`, and on 660 photographs resized to 256 by at most 10 and 17.

    Attributes:
        size: the shorter side, (height, width), sides by epoch, or "cover".
        max_size: the maximum of the longer side; the shorter side then shrinks in proportion.
        pad: the padding's colour in levels of 0 to 255, for a letterbox; None resizes to exactly (height, width).

    Example:
        >>> from gpuloader.transforms import Resize
        >>> Resize(256, max_size=512)
        Resize(size=256, interpolation='bilinear', max_size=512, antialias=True, pad=None)
    """

    size: Size | Cover
    interpolation: ResizeFilter = "bilinear"
    max_size: Side | None = None
    antialias: bool = True
    pad: Fill | None = None

    @model_validator(mode="after")
    def _check(self) -> Resize:
        if self.pad is not None and not isinstance(self.size, tuple):
            raise ValueError(f"pad {self.pad} with size {self.size}: allowed is size [height, width]")
        if self.max_size is not None:
            if not isinstance(self.size, (int, dict)):
                got = self.size if isinstance(self.size, str) else list(self.size)
                raise ValueError(f"max_size {self.max_size} needs a shorter side, got size {got}")
            shorter = self.size if isinstance(self.size, int) else max(self.size.values())
            if self.max_size <= shorter:
                raise ValueError(f"max_size {self.max_size}: allowed is more than the shorter side, {shorter}")
        return self

    def place(self, at: Placement, draw: Draw) -> Placement:
        assert not isinstance(self.size, str), "the view calls `cover`"
        size = self.size[0] if isinstance(self.size, dict) else self.size
        if self.pad is not None:
            scale = (np.array(size) / at.shape).min(1, keepdims=True)
            shape = np.maximum(np.rint(at.shape * scale), 1).astype(np.int64)
            room = np.array(size) - shape
            at = at.resize(shape, self.interpolation, self.antialias)
            return at.pad(room // 2, room - room // 2, "constant", rgb(self.pad))
        if not isinstance(size, int):
            shape = np.broadcast_to(np.array(size, np.int64), at.shape.shape)
        else:
            shape = resized_shorter(at.shape, size, self.max_size)
        return at.resize(shape, self.interpolation, self.antialias)

    def cover(self, at: Placement, shape: Shape) -> Placement:
        """Returns the placement of "cover" before a crop of this shape."""
        (heights, widths), (height, width) = at.shape.T, shape
        is_tall = widths / np.maximum(heights, 1) < width / height
        ratio = np.where(is_tall, heights, widths) / np.maximum(np.where(is_tall, widths, heights), 1)
        longer = np.rint(ratio * np.where(is_tall, width, height)).astype(np.int64)
        resized = np.stack([np.where(is_tall, longer, height), np.where(is_tall, width, longer)], 1)
        return at.resize(resized, self.interpolation, self.antialias)

    def output_shape(self, before: Shape | None) -> Shape | None:
        return self.size if isinstance(self.size, tuple) else None


@part
class RandomResizedCrop(Resampling):
    """Crops a window of random area and aspect ratio, and resizes it.

    On the CPU its levels are as close to PIL's as those of `Resize`.

    Attributes:
        size: of the output.
        scale: [low, high] of the window's share of the image's area.
        ratio: [low, high] of the window's width over its height, drawn evenly on a logarithmic scale.
        interpolation: the filter; "random" draws bilinear or bicubic for each image, as timm does.

    Example:
        >>> from gpuloader.transforms import RandomResizedCrop
        >>> RandomResizedCrop([192, 256], scale=(0.25, 1)).size
        (192, 256)
    """

    size: Size
    scale: Pair = (0.08, 1.0)
    ratio: Pair = (3 / 4, 4 / 3)
    interpolation: CropFilter = "bilinear"
    antialias: bool = True
    stream: ClassVar[Stream] = Stream.CROP

    @model_validator(mode="after")
    def _check(self) -> RandomResizedCrop:
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale {list(self.scale)}: allowed is [low, high] with 0 < low <= high <= 1")
        check_range("ratio", self.ratio, 0.001, 1000)
        return self

    def place(self, at: Placement, draw: Draw) -> Placement:
        windows = random_windows(draw, at.shape, self.scale, self.ratio)
        size = np.full_like(at.shape, sides(self.size))
        filter_: ResizeFilter = "bicubic" if self.interpolation == "random" else self.interpolation
        at = at.resized_crop(windows[:, :2], windows[:, 2:], size, filter_, self.antialias)
        return at.choose_filters(draw.of(Stream.FILTER)(1)[:, 0] < 0.5) if self.interpolation == "random" else at

    def output_shape(self, before: Shape | None) -> Shape | None:
        return sides(self.size)


class _Crop(GeometricTransform):
    size: Size

    def output_shape(self, before: Shape | None) -> Shape | None:
        return sides(self.size)

    def _shape(self) -> Ints:
        return np.array([sides(self.size)], np.int64)


@part
class CenterCrop(_Crop):
    """Crops the centre of the image; pads an image that is smaller than the crop with black.

    On the CPU its levels equal torchvision's.

    Example:
        >>> from gpuloader.transforms import CenterCrop
        >>> CenterCrop(224)
        CenterCrop(size=224)
    """

    size: Size

    def place(self, at: Placement, draw: Draw) -> Placement:
        shape = self._shape()
        # As in torchvision, half the difference is rounded to even when cropping, and down when padding.
        start = np.where(shape > at.shape, -((shape - at.shape) // 2), np.rint((at.shape - shape) / 2).astype(np.int64))
        return at.crop(start, shape)


@part
class RandomCrop(_Crop):
    """Crops a window of the given size at a random place in the padded image.

    An image smaller than the crop is padded on each side by the missing pixels, as with torchvision's
    `pad_if_needed=True`.

    On the CPU its levels equal torchvision's.

    Attributes:
        padding: pixels on all sides, (left and right, top and bottom), or (left, top, right, bottom).
        fill: the padding's colour in levels of 0 to 255.

    Example:
        >>> from gpuloader.transforms import RandomCrop
        >>> RandomCrop(32, padding=4)
        RandomCrop(size=32, padding=4, fill=0.0, padding_mode='constant')
    """

    size: Size
    padding: Padding = 0
    fill: Fill = 0.0
    padding_mode: PaddingMode = "constant"
    stream: ClassVar[Stream] = Stream.CROP

    @model_validator(mode="after")
    def _check(self) -> RandomCrop:
        sizes = self.size.values() if isinstance(self.size, dict) else [self.size]
        side = min(each if isinstance(each, int) else min(each) for each in sizes)
        if isinstance(self.padding, int) and self.padding >= side:
            raise ValueError(
                f"padding {self.padding} on all sides: allowed is less than the crop's {side}, or a crop may show "
                f"nothing but padding"
            )
        return self

    @property
    def pads(self) -> bool:
        """Whether the crop sets its own padding."""
        return (self.padding, self.fill, self.padding_mode) != (0, 0.0, "constant")

    def place(self, at: Placement, draw: Draw) -> Placement:
        if self.pads:  # otherwise an earlier `Pad` decides
            at = at.pad_with(self.padding_mode, rgb(self.fill))
        left, top, right, bottom = _four(self.padding)
        before, shape = np.array([[top, left]]), self._shape()
        padded = at.shape + before + np.array([[bottom, right]])
        lacking = np.maximum(shape - padded, 0)
        room = padded + 2 * lacking - shape
        start = np.floor(draw(2) * (room + 1)).astype(np.int64) - lacking - before
        return at.crop(start, shape)


@part
class Pad(GeometricTransform):
    """Adds pixels around the image; a later crop that is larger shows more padding of the same kind.

    A later resize resizes the padding, too.

    On the CPU its levels equal torchvision's.

    Attributes:
        padding: pixels on all sides, (left and right, top and bottom), or (left, top, right, bottom).
        fill: the padding's colour in levels of 0 to 255.

    Example:
        >>> from gpuloader.transforms import Pad
        >>> Pad([8, 0], fill=128)
        Pad(padding=(8, 0), fill=128.0, padding_mode='constant')
    """

    padding: Padding
    fill: Fill = 0.0
    padding_mode: PaddingMode = "constant"

    def place(self, at: Placement, draw: Draw) -> Placement:
        left, top, right, bottom = _four(self.padding)
        before, after = np.array([[top, left]]), np.array([[bottom, right]])
        return at.pad(before, after, self.padding_mode, rgb(self.fill))

    def output_shape(self, before: Shape | None) -> Shape | None:
        left, top, right, bottom = _four(self.padding)
        return None if before is None else (before[0] + top + bottom, before[1] + left + right)


@part
class RandomHorizontalFlip(GeometricTransform):
    """Flips the image left to right, with probability p.

    On the CPU its levels equal torchvision's.

    Example:
        >>> from gpuloader.transforms import RandomHorizontalFlip
        >>> RandomHorizontalFlip(p=1)
        RandomHorizontalFlip(p=1.0)
    """

    p: Probability = 0.5
    stream: ClassVar[Stream] = Stream.FLIP
    axis: ClassVar[int] = 1
    steps: ClassVar[int] = 1

    @property
    def random(self) -> bool:
        return 0 < self.p < 1

    def place(self, at: Placement, draw: Draw) -> Placement:
        return at.flip(self.axis, draw(1)[:, 0] < self.p)

    def program(self, draw: Draw, sizes: Ints) -> Program:
        """Draws the same flip as a step of a program, for a flip after a transform of pixels."""
        horizontal = np.full(draw.samples, self.axis == 1)
        return sometimes(warp(mirror(horizontal, ~horizontal, sizes), NEAREST, None), draw(1)[:, 0], self.p)


@part
class RandomVerticalFlip(RandomHorizontalFlip):
    """Flips the image upside down, with probability p.

    On the CPU its levels equal torchvision's.

    Example:
        >>> from gpuloader.transforms import RandomVerticalFlip
        >>> RandomVerticalFlip()
        RandomVerticalFlip(p=0.5)
    """

    stream: ClassVar[Stream] = Stream.VERTICAL_FLIP
    axis: ClassVar[int] = 0


Corner: TypeAlias = Literal["top left", "top right", "bottom left", "bottom right"]


@part
class CornerCrop(_Crop):
    """Crops a corner of the image.

    On the CPU its levels equal torchvision's.

    Example:
        >>> from gpuloader.transforms import CornerCrop
        >>> CornerCrop(112, corner="top left")
        CornerCrop(size=112, corner='top left')
    """

    size: Size
    corner: Corner

    def place(self, at: Placement, draw: Draw) -> Placement:
        shape = self._shape()
        at_end = np.array([["bottom" in self.corner, "right" in self.corner]])
        return at.crop(np.where(at_end, at.shape - shape, 0), shape)


@part
class FiveCrop(Transform):
    """Makes five views: the four corners and the middle.

    On the CPU its levels equal torchvision's.

    Example:
        >>> from gpuloader.transforms import FiveCrop
        >>> FiveCrop(224)
        FiveCrop(size=224)
    """

    size: Size

    def variants(self) -> list[tuple[GeometricTransform, ...]]:
        """Lists the transforms that replace this one in each view, in torchvision's order."""
        corners: tuple[Corner, ...] = ("top left", "top right", "bottom left", "bottom right")
        return [*((CornerCrop(self.size, corner),) for corner in corners), (CenterCrop(self.size),)]


@part
class TenCrop(Transform):
    """Makes ten views: the five of `FiveCrop`, of the image and of the flipped image.

    On the CPU its levels equal torchvision's.

    Example:
        >>> from gpuloader.transforms import TenCrop
        >>> TenCrop(224, vertical_flip=True)
        TenCrop(size=224, vertical_flip=True)
    """

    size: Size
    vertical_flip: bool = False

    def variants(self) -> list[tuple[GeometricTransform, ...]]:
        """Lists the transforms that replace this one in each view, in torchvision's order."""
        flip = (RandomVerticalFlip if self.vertical_flip else RandomHorizontalFlip)(p=1.0)
        five = FiveCrop(self.size).variants()
        return five + [(flip, *crop) for crop in five]


def random_windows(draw: Draw, shape: Ints, scale: Pair, ratio: Pair) -> Ints:
    """Draws (n, 4) int64: top, left, height, width, as torchvision's `RandomResizedCrop.get_params`.

    The first of ten windows that fits is used. If none fits, it is the largest centred window within the ratio.
    """
    heights, widths = shape.T
    uniform = draw(2 + 2 * ATTEMPTS)
    places, areas, ratios = uniform[:, :2], uniform[:, 2 : 2 + ATTEMPTS], uniform[:, 2 + ATTEMPTS :]
    target = (heights * widths)[:, None] * (scale[0] + areas * (scale[1] - scale[0]))
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
    return np.stack([top, left, height, width], axis=1).astype(np.int64)


def _largest_within(ratio: Pair, heights: Ints, widths: Ints) -> tuple[Ints, Ints]:
    height = np.where(widths / heights < ratio[0], np.rint(widths / ratio[0]), heights)
    width = np.where(widths / heights > ratio[1], np.rint(heights * ratio[1]), widths)
    return np.maximum(height, 1).astype(np.int64), np.maximum(width, 1).astype(np.int64)


def resized_shorter(shape: Ints, shorter: int | Ints, max_size: int | None) -> Ints:
    """Computes sizes, (n, 2), after torchvision's `Resize(shorter, max_size=max_size)`; `shorter` may be (n,)."""
    longer = (shorter * shape.max(1) / shape.min(1)).astype(np.int64)
    short = np.full_like(longer, shorter)
    if max_size is not None:
        short = np.where(longer > max_size, np.maximum(1, (max_size * shorter / longer).astype(np.int64)), short)
        longer = np.minimum(longer, max_size)
    return np.where((shape[:, 0] <= shape[:, 1])[:, None], np.stack([short, longer], 1), np.stack([longer, short], 1))


def _four(padding: Padding) -> tuple[int, int, int, int]:
    if isinstance(padding, int):
        return padding, padding, padding, padding
    left, top, right, bottom = padding if len(padding) == 4 else (*padding, *padding)
    return left, top, right, bottom
