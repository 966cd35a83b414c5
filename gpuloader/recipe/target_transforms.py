"""Moves boxes, points and masks with the pixels, one transform after the other, as torchvision does.

A placement records the moves that made it, so transforms know nothing about targets. Boxes are clipped at crops,
paddings and warps, not at resizes and flips, as with torchvision's `clamping_mode="soft"`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuloader.plan import Draw
from gpuloader.recipe.augment_params import ViewParams
from gpuloader.recipe.model import Ints
from gpuloader.recipe.placement import Bools, GeometricTransform, Move, PaddingMode, Placement
from gpuloader.recipe.program import Op
from gpuloader.recipe.warps import mirror

Floats = NDArray[np.float64]
Pixels = NDArray[np.integer]

_CORNERS = np.array([[0, 1], [2, 1], [2, 3], [0, 3]])


class BoxTransform(GeometricTransform, ABC):
    """The base class of transforms that use the boxes of the samples, and may drop some of them."""

    def place_by_boxes(self, at: Placement, draw: Draw, boxes: Floats, rows: Ints) -> Placement:
        """Returns the placement after this transform, drawn by the boxes.

        Args:
            boxes: (N, 4) left, top, right, bottom in pixels of the output so far.
            rows: (N,) the sample of each box, ascending.
        """
        return self.place(at, draw)

    @abstractmethod
    def keeps(self, boxes: Floats, moved: Floats, rows: Ints, after: Placement) -> Bools:
        """Returns (N,) bool, which boxes stay, from the boxes before and after this transform."""


@dataclass(frozen=True, eq=False)
class _Warp:
    """A step of the program that moves the pixels of some samples.

    Attributes:
        applied: (n,) bool, to which samples.
        matrices: (n, 3, 3) float32, see `program`.
        flipped: (n, 2) bool, whether the step only reverses columns (x) or rows (y).
    """

    applied: Bools
    matrices: NDArray[np.float32]
    flipped: Bools


def _warps(view: ViewParams) -> Iterator[_Warp]:
    flips = [mirror(horizontal, not horizontal, view.placement.shape) for horizontal in (True, False)]
    for number, choices in enumerate(view.program.choices):
        if Op.WARP in choices:
            applied = view.program.ops[:, number] == Op.WARP
            matrices = view.program.parameters[:, number, :9].reshape(-1, 3, 3)
            flipped = np.stack([applied & (matrices == flip).all((1, 2)) for flip in flips], 1)
            yield _Warp(applied, matrices, flipped)


def move_boxes(boxes: Floats, rows: Ints, view: ViewParams, *, clamped: bool = True) -> Floats:
    """Moves boxes to a view's output.

    A warped box becomes the smallest upright box around it. The rest of a clipped box may be empty.

    Args:
        boxes: (N, 4) left, top, right, bottom in pixels of the images.
        rows: (N,) the sample of each box.
        view: the random parameters of the samples.
        clamped: whether boxes are clipped to the image.

    Returns:
        (N, 4) float64, in pixels of the output.

    """
    moved = _hulls(_place(boxes.reshape(-1, 2, 2), rows, view, last=0, clamped=clamped)[0])
    for warp in _warps(view):
        at = np.flatnonzero(warp.applied[rows])
        warped = _hulls(_warp(moved[at][:, _CORNERS], rows[at], warp))
        cut = np.clip(warped, 0, np.tile(view.placement.shape[rows[at], ::-1], 2))
        whole = warp.flipped[rows[at]].any(1, keepdims=True) | (not clamped)
        moved[at] = np.where(whole, warped, cut)
    return moved


def move_points(points: Floats, rows: Ints, view: ViewParams) -> tuple[Floats, Bools]:
    """Moves points to a view's output: (N, 2) x and y, as `move_boxes` does; a flip moves x to width - 1 - x.

    Also returns (N,) bool, whether the output shows them: no crop and no warp left them outside.

    """
    placed, shown = _place(points[:, None], rows, view, last=1, clamped=False)
    moved, shown = placed[:, 0], shown & are_inside(placed[:, 0], rows, view)
    for warp in _warps(view):
        at = np.flatnonzero(warp.applied[rows])
        warped = _warp(moved[at, None], rows[at], warp)[:, 0] - warp.flipped[rows[at]]
        moved[at] = warped
        shown[at] &= are_inside(warped, rows[at], view)
    return moved, shown


def which_are_flipped(view: ViewParams) -> Bools:
    """Returns (n,) bool, which samples are flipped left to right an odd number of times."""
    flips = [*(move.flipped[:, 1] for move in view.placement.moves), *(warp.flipped[:, 0] for warp in _warps(view))]
    return np.sum([np.zeros(len(view.placement.shape)), *flips], 0) % 2 == 1


def are_inside(points: Floats, rows: Ints, view: ViewParams) -> Bools:
    """Returns (N,) bool, which points lie in the output: 0 <= x < width and 0 <= y < height."""
    return np.all((points >= 0) & (points < view.placement.shape[rows, ::-1]), 1)


def _place(points: Floats, rows: Ints, view: ViewParams, *, last: int, clamped: bool) -> tuple[Floats, Bools]:
    """Moves (N, k, 2) points by the placements; a flip exchanges 0 and the side less `last`.

    Also returns (N,) bool, whether all crops kept all of the k points.
    """
    shown = np.ones(len(points), np.bool_)
    for move in view.placement.moves:
        points, stayed = _move(points, rows, move, last=last, clamped=clamped)
        shown &= stayed
    return points, shown


def _move(points: Floats, rows: Ints, move: Move, *, last: int, clamped: bool) -> tuple[Floats, Bools]:
    """Moves points by one transform, as `_place` does."""
    points = points - move.window[rows, None, 1::-1]
    ends = (move.window[:, 2:] - move.window[:, :2])[rows, None, ::-1]
    shown = ((points >= 0) & (points < ends)).all((1, 2)) | ~move.clamps[rows]
    if clamped:
        points = np.where(move.clamps[rows, None, None], np.clip(points, 0, ends), points)
    sides = move.size[rows, None, ::-1]
    points = points * sides / ends  # so the border maps exactly to the border
    return np.where(move.flipped[rows, None, ::-1], sides - last - points, points), shown


def boxes_after(
    transforms: Sequence[GeometricTransform], placements: Sequence[Placement], boxes: Floats, rows: Ints
) -> tuple[Floats, Bools]:
    """Moves boxes by the placements before and after each of the transforms, as `move_boxes` does.

    Also returns (N,) bool, whether all of the transforms keep the box.
    """
    stay = np.ones(len(boxes), np.bool_)
    for transform, before, after in zip(transforms, placements, placements[1:]):
        points = boxes.reshape(-1, 2, 2)
        for move in after.moves[len(before.moves) :]:
            points, _ = _move(points, rows, move, last=0, clamped=True)
        moved = _hulls(points)
        if isinstance(transform, BoxTransform):
            stay &= transform.keeps(boxes, moved, rows, after)
        boxes = moved
    return boxes, stay


def which_boxes_stay(boxes: Floats, rows: Ints, view: ViewParams) -> Bools:
    """Returns (N,) bool, which boxes no transform of the recipe drops."""
    if not any(isinstance(transform, BoxTransform) for transform in view.placing):
        return np.ones(len(boxes), np.bool_)
    return boxes_after(view.placing, view.placements, boxes, rows)[1]


def _hulls(points: Floats) -> Floats:
    return np.concatenate([points.min(1), points.max(1)], 1)


def _warp(points: Floats, rows: Ints, warp: _Warp) -> Floats:
    """Moves (N, k, 2) points by the inverse of their samples' matrices."""
    inverse = np.linalg.inv(np.where(warp.applied[:, None, None], warp.matrices, np.eye(3)))
    moved = points @ inverse[rows, :, :2].swapaxes(1, 2) + inverse[rows, None, :, 2]
    return moved[..., :2] / moved[..., 2:]


def move_mask(
    mask: Pixels, row: int, view: ViewParams, fill: int, into: Pixels | None = None, *, exact: bool = False
) -> Pixels:
    """Moves the mask of one sample to a view's output, by nearest pixels as in torchvision.

    Args:
        mask: (height, width) of the image, or (k, height, width), of any integers.
        row: of the sample.
        view: the random parameters of the samples.
        fill: the value outside the image.
        into: an array for the result; None makes a new array of the mask's type.
        exact: whether a resize takes the pixel under the centre, as torch's "nearest-exact" does, not its "nearest".

    """
    places = [np.arange(side) for side in mask.shape[-2:]]
    for move in view.placement.moves:
        for axis in (0, 1):
            cut = _cut(places[axis], move.window[row, axis::2], move.padding_mode)
            places[axis] = cut[_nearest(len(cut), int(move.size[row, axis]), exact)]
        places = [each[::-1] if flipped else each for each, flipped in zip(places, move.flipped[row])]
    rows, columns = places
    no_row, no_column = np.flatnonzero(rows < 0), np.flatnonzero(columns < 0)
    matrices = [warp.matrices[row] for warp in _warps(view) if warp.applied[row]]
    warped = _find_warped(len(rows), len(columns), matrices)
    moved = np.empty((*mask.shape[:-2], len(rows), len(columns)), mask.dtype) if into is None else into
    height, width = mask.shape[-2:]
    for index in np.ndindex(mask.shape[:-2]):  # one by one, so that temporary arrays need the memory of one mask
        if len(rows) * width < height * len(columns):
            one = mask[index].take(rows, 0).take(columns, 1)
        else:
            one = mask[index].take(columns, 1).take(rows, 0)
        one[no_row] = fill
        one[:, no_column] = fill
        if warped is not None:
            y, x, outside = warped
            one = one[y, x]
            one[outside] = fill
        moved[index] = one
    return moved


def _cut(places: Ints, ends: Ints, padding_mode: PaddingMode) -> Ints:
    """Returns the indices from a start to an end; -1 is outside the image."""
    start, end = ends.tolist()
    before, after = max(-start, 0), max(end - len(places), 0)
    if before or after:
        around = before, after
        constant = padding_mode == "constant"
        places = np.pad(places, around, constant_values=-1) if constant else np.pad(places, around, padding_mode)
    return places[start + before : end + before]


def _nearest(before: int, after: int, exact: bool) -> Ints:
    """Finds the nearest pixels as `torch.nn.functional.interpolate` does, in float32."""
    place: NDArray[np.float32] = np.arange(after, dtype=np.float32) + np.float32(0.5 if exact else 0)
    places = place * (np.float32(before) / np.float32(after))
    return np.minimum(places.astype(np.int64), before - 1)


def _find_warped(height: int, width: int, matrices: list[NDArray[np.float32]]) -> tuple[Ints, Ints, Bools] | None:
    """Finds each pixel's row and column before the warps, and whether it is outside; None without warps.

    It computes as the graph's kernel warps images: the nearest pixel, in float32.
    """
    if not matrices:
        return None
    half = np.float32(0.5)
    x: NDArray[np.float32] = np.arange(width, dtype=np.float32)
    y: NDArray[np.float32] = np.arange(height, dtype=np.float32)[:, None]
    inside: Bools = np.ones((height, width), bool)
    for m in reversed(matrices):
        column, row = x + half, y + half
        depth = m[2, 0] * column + (m[2, 1] * row + m[2, 2])
        x = np.rint((m[0, 0] * column + (m[0, 1] * row + m[0, 2])) / depth - half)
        y = np.rint((m[1, 0] * column + (m[1, 1] * row + m[1, 2])) / depth - half)
        here = (x >= 0) & (x < width) & (y >= 0) & (y < height)  # false for NaN
        x, y, inside = np.where(here, x, 0), np.where(here, y, 0), inside & here
    return y.astype(np.int64), x.astype(np.int64), ~inside
