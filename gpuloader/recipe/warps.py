"""Transforms that move pixels: torchvision's rotation, affine and perspective maps, and flips, as matrices.

The matrices, (n, 3, 3), are the parameters of `program`'s WARP. They map the centre of an output pixel, in pixels from
the left and the top, to its place in the input. So they are the inverse of the picture's own transform.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from gpuloader.plan import Draw, Stream
from gpuloader.recipe.model import XY, Fill, Ints, Number, Pair, PixelTransform, Probability, check_range, kept_as
from gpuloader.recipe.part import part
from gpuloader.recipe.placement import rgb
from gpuloader.recipe.program import BICUBIC, BILINEAR, NEAREST, Op, Program, sometimes, step

Matrices: TypeAlias = NDArray[np.float64]
Interpolation: TypeAlias = Literal["nearest", "bilinear", "bicubic"]
Four: TypeAlias = Annotated[Sequence[float], kept_as(tuple[Number, Number, Number, Number], "[x, x, y, y]")]

INTERPOLATIONS: dict[Interpolation, int] = {"nearest": NEAREST, "bilinear": BILINEAR, "bicubic": BICUBIC}


def warp(matrices: Matrices, interpolation: ArrayLike, fill: Fill | None) -> Program:
    """Makes one step that moves pixels.

    Args:
        matrices: (n, 3, 3).
        interpolation: NEAREST, BILINEAR or BICUBIC, for all or for each sample.
        fill: the level outside the image, for all channels or for each; None is black, see `program`.
    """
    return step(Op.WARP, len(matrices), *matrices.reshape(-1, 9).T, interpolation, *rgb(fill or 0.0), fill is not None)


Point: TypeAlias = Sequence[ArrayLike]
"""x and y in pixels: numbers, or (n,)."""


def rotation(degrees: ArrayLike, center: Point) -> Matrices:
    """Rotates the picture counter-clockwise about a point."""
    return affine(-np.asarray(degrees), (0, 0), 1.0, (0, 0), center)


def affine(
    degrees: ArrayLike,
    translate: Point,
    scale: ArrayLike,
    shear: tuple[ArrayLike, ArrayLike],
    center: Point,
) -> Matrices:
    """Shears, scales, rotates (clockwise, about a point) and moves the picture, as torchvision's `affine`.

    Its inverse is C (R(degrees) scale Y(shear y) X(shear x))^-1 C^-1 T^-1, with C and T moves by `center` and
    `translate`, and X = [[1, -tan(shear x)], [0, 1]], Y = [[1, 0], [-tan(shear y), 1]]: `_get_inverse_affine_matrix` of
    torchvision.transforms.v2.functional.

    Args:
        degrees, scale: numbers, or (n,).
        shear: along x and y in degrees.
    """
    angle, shear_x, shear_y = np.radians(degrees), np.radians(shear[0]), np.radians(shear[1])
    a = np.cos(angle - shear_y) / np.cos(shear_y)
    c = np.sin(angle - shear_y) / np.cos(shear_y)
    b = -(a * np.tan(shear_x) + np.sin(angle))
    d = np.cos(angle) - c * np.tan(shear_x)
    a, b, c, d = d / scale, -b / scale, -c / scale, a / scale
    x, y = center[0] + np.asarray(translate[0]), center[1] + np.asarray(translate[1])
    return _matrices(a, b, center[0] - a * x - b * y, c, d, center[1] - c * x - d * y)


def shear(x: ArrayLike, y: ArrayLike) -> Matrices:
    """Shears the picture: an output pixel is the input at (column + x row, row + y column)."""
    return _matrices(1, x, 0, y, 1, 0)


def translate(x: ArrayLike, y: ArrayLike) -> Matrices:
    """Moves the picture by x pixels to the right and y down."""
    return _matrices(1, 0, np.negative(x), 0, 1, np.negative(y))


def mirror(horizontal: ArrayLike, vertical: ArrayLike, sizes: Ints) -> Matrices:
    """Flips pictures left to right and upside down where true; sizes are as in `PixelTransform.program`."""
    height, width = sizes.T
    x, y = np.where(horizontal, -1, 1), np.where(vertical, -1, 1)
    return _matrices(x, 0, np.where(horizontal, width, 0), 0, y, np.where(vertical, height, 0))


def perspective(corners: NDArray[np.float64], sizes: Ints) -> Matrices:
    """Moves the picture's corner pixels to other places, as torchvision's `_get_perspective_coeffs`.

    With the corners P as (x, y, 1) and [A B C] a determinant, Q = ([P1 P2 P3] P0, [P0 P2 P3] P1, ...) are multiples of
    theirs for which Q0 - Q1 + Q2 - Q3 = 0. So (Q1 - Q0, Q3 - Q0, Q0) are the columns of the map of the unit square onto
    the corners, and cross products of them are the rows of its inverse.

    Args:
        corners: (n, 4, 2) integers: x and y in pixels of the new top left, top right, bottom right and bottom left.
            If three corners of a sample are on one line, no such map exists, and its picture does not change.
        sizes: of the pictures, as in `PixelTransform.program`.
    """
    points = np.concatenate([corners, np.ones((len(corners), 4, 1))], 2)
    triangles = points[:, [1, 0, 0, 0]] * np.cross(points[:, [2, 2, 1, 1]], points[:, [3, 3, 3, 2]])
    determinants = triangles.sum(axis=2, keepdims=True)
    top_left, top_right, _, bottom_left = np.moveaxis(determinants * points, 1, 0)
    rows = np.cross(
        np.stack([bottom_left, top_left, top_right - top_left], 1),
        np.stack([top_left, top_right, bottom_left - top_left], 1),
    )
    reach = np.stack([sizes[:, 1] - 1, sizes[:, 0] - 1, np.ones(len(sizes), np.int64)], 1)
    matrices = rows * reach[:, :, None]
    last = matrices[:, 2:, 2:]
    matrices = matrices / np.where(last == 0, 1, last)
    return np.where((determinants != 0).all(axis=1, keepdims=True), matrices, np.eye(3))


def middle(sizes: Ints) -> Point:
    """Returns the middle of pictures of these sizes, as in `PixelTransform.program`."""
    return sizes[:, 1] / 2, sizes[:, 0] / 2


def _matrices(*rows: ArrayLike) -> Matrices:
    """Makes matrices (n, 3, 3) from the six numbers of the upper two rows, each a number or (n,)."""
    return np.stack(np.broadcast_arrays(*rows, 0.0, 0.0, np.ones(1)), -1).astype(np.float64).reshape(-1, 3, 3)


def _spread(values: float | Sequence[float]) -> Sequence[float]:
    return (-values, values) if isinstance(values, (int, float)) else values


def _between(uniform: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    return low + uniform * (high - low)


def _increasing(name: str, values: float | Sequence[float]) -> None:
    """Raises ValueError if a number is negative, or a pair among the values is not [low, high]."""
    spread = _spread(values)
    if any(low > high for low, high in zip(spread[::2], spread[1::2])):
        raise ValueError(f"{name} {values}: allowed is a number from 0, or [low, high] with low <= high")


@part
class RandomRotation(PixelTransform):
    """Rotates the image by a random angle, as torchvision's `RandomRotation`, without `expand`.

    On the CPU its levels differ from torchvision's by at most 1 with `bilinear`. With `nearest` they are equal, except
    where two pixels are equally near.

    Attributes:
        degrees: counter-clockwise, drawn from [-degrees, degrees] or from [low, high].
        center: x and y of the fixed point in pixels; None is the middle.
        interpolation, fill: as in `RandomAffine`.

    Example:
        >>> from gpuloader.transforms import RandomRotation
        >>> RandomRotation(15)
        RandomRotation(degrees=15.0, interpolation='nearest', center=None, fill=0.0)
    """

    stream: ClassVar[Stream] = Stream.ROTATION

    degrees: Number | Pair
    interpolation: Interpolation = "nearest"
    center: XY | None = None
    fill: Fill | None = 0.0

    @model_validator(mode="after")
    def _check(self) -> RandomRotation:
        _increasing("degrees", self.degrees)
        return self

    @property
    def random(self) -> bool:
        low, high = _spread(self.degrees)
        return low < high

    def program(self, draw: Draw, sizes: Ints) -> Program:
        low, high = _spread(self.degrees)
        degrees = _between(draw(1)[:, 0], low, high)
        return warp(rotation(degrees, self.center or middle(sizes)), INTERPOLATIONS[self.interpolation], self.fill)


@part
class RandomAffine(PixelTransform):
    """Rotates, moves, scales and shears the image, as torchvision's `RandomAffine`.

    On the CPU its levels differ from torchvision's by at most 1 with `bilinear`. With `nearest` they are equal, except
    where two pixels are equally near.

    Attributes:
        degrees: clockwise, drawn from [-degrees, degrees] or from [low, high].
        translate: the largest moves, as shares of width and height; drawn in whole pixels.
        scale: [low, high] of the factor, above 0.
        shear: degrees along x, drawn from [-shear, shear] or from [low, high]; of four numbers, the last two are for y.
        fill: the level from 0 to 255 outside the image, or one for each channel; None is black. A level and None blend
            a bilinear border differently, as in torchvision.
        center: x and y in pixels of the fixed point of rotation, scale and shear; None is the middle.

    Example:
        >>> from gpuloader.transforms import RandomAffine
        >>> RandomAffine(10, translate=(0.1, 0.1), scale=(0.9, 1.1)).interpolation
        'nearest'
    """

    stream: ClassVar[Stream] = Stream.AFFINE

    degrees: Number | Pair
    translate: XY | None = None
    scale: Pair | None = None
    shear: Number | Pair | Four | None = None
    interpolation: Interpolation = "nearest"
    fill: Fill | None = 0.0
    center: XY | None = None

    @model_validator(mode="after")
    def _check(self) -> RandomAffine:
        _increasing("degrees", self.degrees)
        _increasing("shear", self.shear or 0.0)
        if self.translate is not None and not all(0 <= share <= 1 for share in self.translate):
            raise ValueError(f"translate {list(self.translate)}: allowed are two shares from 0 to 1")
        if self.scale is not None:
            check_range("scale", self.scale, 0.001, 1000)
        return self

    @property
    def random(self) -> bool:
        bounds = (*_spread(self.degrees), *(self.scale or (1.0, 1.0)), *_spread(self.shear or 0.0))
        return bounds[::2] != bounds[1::2] or any(self.translate or ())

    def program(self, draw: Draw, sizes: Ints) -> Program:
        """Draws one step. Columns of random numbers: degrees, move along x and y, scale, shear along x and y."""
        uniform, (height, width) = draw(6).T, sizes.T
        low, high = _spread(self.degrees)
        x, y = self.translate or (0.0, 0.0)
        least, most = self.scale or (1.0, 1.0)
        shears = (*_spread(self.shear or 0.0), 0.0, 0.0)
        matrices = affine(
            _between(uniform[0], low, high),
            (
                np.rint(_between(uniform[1], -x * width, x * width)),
                np.rint(_between(uniform[2], -y * height, y * height)),
            ),
            _between(uniform[3], least, most),
            (_between(uniform[4], shears[0], shears[1]), _between(uniform[5], shears[2], shears[3])),
            self.center or middle(sizes),
        )
        return warp(matrices, INTERPOLATIONS[self.interpolation], self.fill)


_CORNERS = np.array([(0, 0), (1, 0), (1, 1), (0, 1)])


@part
class RandomPerspective(PixelTransform):
    """Moves each corner towards the middle by a random distance, as torchvision's `RandomPerspective`.

    On the CPU its levels differ from torchvision's by at most 1 with `bilinear`. With `nearest` they are equal, except
    where two pixels are equally near.

    Attributes:
        distortion_scale: the largest distance, as a share of half the width and half the height.
        interpolation, fill: as in `RandomAffine`.

    Example:
        >>> from gpuloader.transforms import RandomPerspective
        >>> RandomPerspective(0.3)
        RandomPerspective(distortion_scale=0.3, p=0.5, interpolation='bilinear', fill=0.0)
    """

    stream: ClassVar[Stream] = Stream.PERSPECTIVE

    distortion_scale: Annotated[float, Field(ge=0, le=1)] = 0.5
    p: Probability = 0.5
    interpolation: Interpolation = "bilinear"
    fill: Fill | None = 0.0

    @property
    def random(self) -> bool:
        return self.p > 0

    def program(self, draw: Draw, sizes: Ints) -> Program:
        """Draws one step. Columns: whether it is applied; x and y of the corners in the order of `perspective`."""
        uniform = draw(9)
        most = sizes[:, None, ::-1]  # x before y
        reach = (self.distortion_scale * (most // 2)).astype(np.int64) + 1
        inwards = np.floor(uniform[:, 1:].reshape(-1, 4, 2) * reach)
        corners = inwards + (most - reach) * _CORNERS
        warped = warp(perspective(corners, sizes), INTERPOLATIONS[self.interpolation], self.fill)
        return sometimes(warped, uniform[:, 0], self.p)
