"""`Placement`: the part of an image that becomes the output, and its scale, as arithmetic on sizes.

Resizes, crops, paddings and flips only decide where the output's pixels come from. They are combined into one
`Placement`, so the graph reads the pixels once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gpuloader.plan import Draw
from gpuloader.recipe.model import ByEpoch, Fill, Ints, ResizeFilter, Transform, kept_as

Shape: TypeAlias = tuple[int, int]
Rgb: TypeAlias = tuple[float, float, float]
Bools: TypeAlias = NDArray[np.bool_]
Points: TypeAlias = NDArray[np.floating]
PaddingMode: TypeAlias = Literal["constant", "edge", "reflect", "symmetric"]

MoveOrPlacement = TypeVar("MoveOrPlacement", "Move", "Placement")
Values = TypeVar("Values", Ints, NDArray[np.float64], NDArray[np.bool_])

SUPPORT = {"nearest": 0.5, "bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}
"""The radius of a filter in pixels of the coarser image."""


@dataclass(frozen=True, eq=False)
class Move:
    """One step on n pictures: crops a window, resizes it, and flips it.

    Attributes:
        window: (n, 4) int64 top, left, bottom, right of the crop; may reach beyond the picture.
        size: (n, 2) int64, the window's height and width after resizing.
        clamps: (n,) bool, whether boxes are clipped to the window.
        flipped: (n, 2) bool, whether rows and columns are then reversed.
        padding_mode: of the area outside the picture.
    """

    window: Ints
    size: Ints
    clamps: Bools
    flipped: Bools
    padding_mode: PaddingMode

    def take(self, rows: Sequence[int] | Ints) -> Move:
        return _take(self, rows)


@dataclass(frozen=True, eq=False)
class Placement:
    """The origin of the output's pixels for n samples; rows come first, then columns.

    A window of the image is resized, and the output is cropped from the result. Both may reach beyond the picture:

        image             window                     output
        +-------------+   +-----------+              +-----------+
        | part +----+ |   | +----+    |   resized    |  +-----+  |   mirrored,
        |      |    | | > | |part|    | > with one > |  |shown|  | > transposed
        |      +----+ |   | +----+    |   filter     |  +-----+  |
        +-------------+   +-----------+              +-----------+

    Each method adds an operation. A second resize is combined with the first: its window is converted to the first
    image.

    Attributes:
        part: (n, 4) int64 top, left, bottom, right of the picture in the image; the rest of the window is padding.
        window: (n, 4) float64 top, left, bottom, right of the window to resize, in the image's pixels.
        resized: (n, 2) int64, the window's size after resizing.
        shown: (n, 4) int64 top, left, bottom, right of the visible part of the resized window; the rest is padding.
        corner: (n, 2) int64, the output's top left corner in the resized window.
        shape: (n, 2) int64, the output's size along its own axes; all other values are along the image's axes.
        mirrored: (n, 2) bool, whether rows and columns are reversed.
        transposed: (n,) bool, whether rows and columns are exchanged, as the last step.
        interpolation, antialias: of the resize.
        bicubic: (n,) bool, whether a sample's filter is bicubic or bilinear, if the filter is drawn; `interpolation` is
            then bicubic, the wider filter.
        padding_mode, fill: of the padding; the fill in levels of 0 to 255, for "constant".
        padded: whether an operation has set the padding.
        overlapping: whether the window, and whether the output, may reach beyond the picture.
        oriented: whether rows and columns may be exchanged.
        moves: the steps from the upright picture, each in pixels of the output before it.
    """

    part: Ints
    window: NDArray[np.float64]
    resized: Ints
    shown: Ints
    corner: Ints
    shape: Ints
    mirrored: Bools
    transposed: Bools
    interpolation: ResizeFilter = "bilinear"
    antialias: bool = True
    bicubic: Bools | None = None
    padding_mode: PaddingMode = "constant"
    fill: Rgb = (0.0, 0.0, 0.0)
    padded: bool = False
    overlapping: tuple[bool, bool] = (False, False)
    oriented: bool = False
    moves: tuple[Move, ...] = ()

    @classmethod
    def whole(cls, sizes: Ints) -> Placement:
        """Makes the placement of unchanged images of these heights and widths, (n, 2)."""
        zero = np.zeros_like(sizes)
        all_of_it = np.concatenate([zero, sizes], 1)
        flipped = zero.astype(bool)
        return cls(all_of_it, all_of_it.astype(np.float64), sizes, all_of_it, zero, sizes, flipped, flipped[:, 0])

    def take(self, rows: Sequence[int] | Ints) -> Placement:
        """Returns some of the samples, in that order."""
        return replace(_take(self, rows), moves=tuple(move.take(rows) for move in self.moves))

    def scaled(self, pictures: Ints, files: Ints) -> Placement:
        """Converts the placement to files of other heights and widths, (n, 2), for the same output.

        The window keeps its place in the picture, to a fraction of a pixel. `part` is rounded, unless it is a whole
        picture.
        """
        before, now = np.tile(pictures, 2), np.tile(files, 2)
        window = np.where(before == now, self.window, self.window * now / before)  # exact for whole pictures
        return replace(self, part=self.part * now // before, window=window)

    def divided(self, factors: Ints) -> Placement:
        """Converts the placement to files decoded at 1/f of their height and width, for f of (n,) and the same output.

        A pixel of these stands for f x f pixels, fewer at the right and the bottom, so coordinates are divided exactly.
        """
        by = factors[:, None]
        return replace(self, part=-(-self.part // by), window=self.window / by)

    @staticmethod
    def joined(parts: Sequence[Placement]) -> Placement:
        """Joins the samples of several placements from the same operations."""
        moves = zip(*(part.moves for part in parts), strict=True)
        return replace(_join(parts), moves=tuple(_join(each) for each in moves))

    def resize(self, shape: Ints, interpolation: ResizeFilter, antialias: bool) -> Placement:
        """Resizes the whole output to a shape, (n, 2)."""
        origin, scale = self._origin_and_scale()
        start, resized, part = origin + scale * self.corner, self._turn(shape), self.part
        if self.padded:
            part = _overlap(part, np.rint(np.tile(origin, 2) + np.tile(scale, 2) * self.shown).astype(np.int64))
        window = np.concatenate([start, start + scale * self._turn(self.shape)], 1)
        made = replace(
            self,
            part=part,
            window=np.round(window, 6),  # a window of the whole image must not end beyond it
            resized=resized,
            shown=np.concatenate([np.zeros_like(resized), resized], 1),
            corner=np.zeros_like(self.corner),
            shape=shape,
            interpolation=interpolation,
            antialias=antialias,
            bicubic=None,
            overlapping=(any(self.overlapping), False),
        )
        return self._moved(made, np.zeros_like(shape), self.shape, clamps=False)

    def choose_filters(self, bicubic: Bools) -> Placement:
        """Resizes with the bicubic filter where `bicubic`, (n,), is true, otherwise with the bilinear filter."""
        return replace(self, interpolation="bicubic", bicubic=bicubic)

    def crop(self, start: Ints, shape: Ints, *, clamps: bool = True) -> Placement:
        """Crops or extends the output: `start`, (n, 2), may be negative. Pixels that were cropped before stay away.

        Args:
            clamps: whether boxes are also clipped where the crop changes nothing.
        """
        shown = _overlap(self.shown, self.output())
        made = replace(self._cut(start, shape), shown=shown, overlapping=(self.overlapping[0], True))
        return self._moved(made, start, shape, clamps=clamps)

    def resized_crop(
        self, start: Ints, shape: Ints, size: Ints, interpolation: ResizeFilter, antialias: bool
    ) -> Placement:
        """Crops within the output, and resizes the crop to a size, (n, 2)."""
        made = self._cut(start, shape).resize(size, interpolation, antialias)
        return self._moved(made, start, shape)

    def pad(self, before: Ints, after: Ints, padding_mode: PaddingMode, fill: Rgb) -> Placement:
        """Adds rows and columns to the output, (n, 2) each."""
        return self.pad_with(padding_mode, fill).crop(-before, self.shape + before + after, clamps=False)

    def pad_with(self, padding_mode: PaddingMode, fill: Rgb) -> Placement:
        """Sets the padding of crops that reach beyond the output.

        Raises:
            ValueError: there is another padding already, or one that repeats pixels.
        """
        if self.padded and (padding_mode, self.padding_mode, fill) != ("constant", "constant", self.fill):
            raise ValueError(
                f"padded twice, {self.padding_mode!r} with fill {self.fill} and {padding_mode!r} with fill {fill}: "
                f"allowed are several paddings that are all 'constant' with one fill, or a single one"
            )
        return replace(self, padding_mode=padding_mode, fill=fill, padded=True)

    def flip(self, axis: int, flipped: Bools) -> Placement:
        """Reverses rows (0) or columns (1) where `flipped`, (n,)."""
        flips = np.zeros_like(self.mirrored)
        flips[:, axis] = flipped
        made = replace(self, mirrored=self.mirrored ^ self._turn(flips))
        return self._moved(made, np.zeros_like(self.shape), self.shape, flipped=flips, clamps=False)

    def transpose(self, transposed: Bools) -> Placement:
        """Exchanges rows and columns where `transposed`, (n,)."""
        shape = np.where(transposed[:, None], self.shape[:, ::-1], self.shape)
        return replace(self, shape=shape, transposed=self.transposed ^ transposed, oriented=True)

    def orient(self, orientations: Ints) -> Placement:
        """Turns pictures upright by their EXIF orientations, (n,) from 1 to 8; other values change nothing."""
        at = self.transpose((orientations >= 5) & (orientations <= 8))
        at = at.flip(0, np.isin(orientations, (3, 4, 7, 8))).flip(1, np.isin(orientations, (2, 3, 6, 7)))
        return replace(at, moves=())

    def to_output(self, points: Points) -> Points:
        """Maps points of the image, (n, k, 2) x and y in pixels from its top left corner, to points of the output."""
        origin, scale = (each[:, None] for each in self._origin_and_scale())
        moved = (points[..., ::-1] - origin) / scale - self.corner[:, None]
        moved = np.where(self.mirrored[:, None], self._turn(self.shape)[:, None] - moved, moved)
        return np.where(self.transposed[:, None, None], moved, moved[..., ::-1])

    def needed(self) -> Ints:
        """Computes (n, 4) int64 top, left, bottom, right of the pixels of the image that the output depends on."""
        picture = self.picture()
        if self.repeats_before:
            return picture
        start, scale = self._origin_and_scale()
        first, last = _halves(self.shown)
        if not self.repeats and self.overlapping[1]:
            first, last = (np.clip(side, first, last) for side in _halves(self.output()))
        reach = SUPPORT[self.interpolation] * (np.maximum(scale, 1) if self.antialias else 1) + 1
        least, most = picture[:, :2], np.maximum(picture[:, 2:], picture[:, :2] + 1)
        low = np.minimum(np.maximum(np.floor(start + scale * first - reach), least), most - 1)
        high = np.minimum(np.maximum(np.ceil(start + scale * last + reach), low + 1), most)
        return np.concatenate([low, high], 1).astype(np.int64)

    def filters(self) -> Ints:
        """Returns (n,) int64, the number of each sample's filter, in the order of `SUPPORT`."""
        names = list(SUPPORT)
        if self.bicubic is None:
            return np.full(len(self.part), names.index(self.interpolation))
        return np.where(self.bicubic, names.index("bicubic"), names.index("bilinear"))

    def canvas(self) -> Ints:
        """Computes (n, 4) int64 top, left, bottom, right of the image's pixels that the window touches."""
        start, end = _halves(self.window)
        return np.concatenate([np.floor(start), np.ceil(end)], 1).astype(np.int64)

    def picture(self) -> Ints:
        """Computes (n, 4) int64 top, left, bottom, right of the part's pixels that the window may show."""
        if self.repeats_before:
            return self.part
        return _overlap(self.part, self.canvas()) if self.overlapping[0] else self.canvas()

    def output(self) -> Ints:
        """Computes (n, 4) int64 top, left, bottom, right of the output in the resized window."""
        return np.concatenate([self.corner, self.corner + self._turn(self.shape)], 1)

    @property
    def repeats(self) -> bool:
        """Whether padding repeats pixels of the picture."""
        return self.padding_mode != "constant"

    @property
    def repeats_before(self) -> bool:
        """Whether the resized window may repeat pixels, from anywhere in the picture."""
        return self.repeats and self.overlapping[0]

    def _cut(self, start: Ints, shape: Ints) -> Placement:
        shape = np.broadcast_to(shape, self.shape.shape) if len(shape) != len(self.shape) else shape
        first, room = self._turn(start), self._turn(self.shape - start - shape)
        return replace(self, corner=self.corner + np.where(self.mirrored, room, first), shape=shape)

    def _moved(
        self,
        made: Placement,
        start: Ints,
        shape: Ints,
        *,
        flipped: Bools | None = None,
        clamps: bool = True,
    ) -> Placement:
        """Returns the new placement with the move that made it: a crop, a resize, a flip."""
        start, shape = (np.broadcast_to(each, self.shape.shape) for each in (start, shape))
        cuts = ((start != 0) | (shape != self.shape)).any(1)
        unflipped = np.zeros_like(self.mirrored) if flipped is None else flipped
        window = np.concatenate([start, start + shape], 1)
        move = Move(window, made.shape, cuts | clamps, unflipped, made.padding_mode)
        return replace(made, moves=(*self.moves, move))

    def _turn(self, values: Values) -> Values:
        """Converts (n, 2) between the output's axes and the image's."""
        return np.where(self.transposed[:, None], values[:, ::-1], values) if self.oriented else values

    def _origin_and_scale(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Computes the window's start, and the image's pixels in one of the resized window, (n, 2) each."""
        start, end = _halves(self.window)
        return start, (end - start) / self.resized


def _take(value: MoveOrPlacement, rows: Sequence[int] | Ints) -> MoveOrPlacement:
    """Takes some rows of all arrays of a dataclass."""
    arrays: dict[str, Any] = {name: each for name, each in vars(value).items() if isinstance(each, np.ndarray)}
    return replace(value, **{name: array[rows] for name, array in arrays.items()})


def _join(parts: Sequence[MoveOrPlacement]) -> MoveOrPlacement:
    """Joins the rows of all arrays of dataclasses that are equal otherwise."""
    names = [name for name, each in vars(parts[0]).items() if isinstance(each, np.ndarray)]
    joined: dict[str, Any] = {name: np.concatenate([vars(part)[name] for part in parts]) for name in names}
    return replace(parts[0], **joined)


def _halves(boxes: Values) -> tuple[Values, Values]:
    return boxes[:, :2], boxes[:, 2:]


def _overlap(boxes: Ints, others: Ints) -> Ints:
    """Clips boxes, (n, 4), to other boxes; an empty result begins at a pixel of its box."""
    low, high = np.maximum(boxes, others)[:, :2], np.minimum(boxes, others)[:, 2:]
    start = np.minimum(low, np.maximum(boxes[:, 2:] - 1, boxes[:, :2]))
    return np.concatenate([start, np.where(low < high, high, start)], 1)


class GeometricTransform(Transform, ABC):
    """The base class of transforms that only decide where the output's pixels come from."""

    @abstractmethod
    def place(self, at: Placement, draw: Draw) -> Placement:
        """Returns the placement after this transform, drawn for each sample."""

    def output_shape(self, before: Shape | None) -> Shape | None:
        """Returns (height, width) after this transform, from `before`; None if it depends on the image."""
        return before

    def refused(self, shape: Ints) -> dict[int, str]:
        """Returns the causes, by row, of images that it cannot take, from their (n, 2) heights and widths before it."""
        return {}


MAX_SIDE = 8192
Side: TypeAlias = Annotated[int, Field(ge=1, le=MAX_SIDE)]


Size: TypeAlias = ByEpoch[Side] | Annotated[Sequence[int], kept_as(tuple[Side, Side], "[height, width]")]
"""A side, sides by epoch, or (height, width)."""


def sides(size: Size) -> Shape:
    """Returns (height, width) of a size; one number is a square."""
    now = size[0] if isinstance(size, dict) else size
    return (now, now) if isinstance(now, int) else (now[0], now[1])


def rgb(fill: Fill) -> Rgb:
    """Returns a fill for three channels."""
    return (fill, fill, fill) if isinstance(fill, (int, float)) else (fill[0], fill[1], fill[2])
