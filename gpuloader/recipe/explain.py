"""Explains the random parameters of a sample, by the names of the transforms: `explain`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuloader.plan import Draws
from gpuloader.recipe.augment_params import AugmentParams, ViewParams
from gpuloader.recipe.budgets import BudgetResize
from gpuloader.recipe.crops import Pad, RandomHorizontalFlip, RandomResizedCrop, Resize
from gpuloader.recipe.detection import PadIfSmaller, RandomZoomOut, Scaling
from gpuloader.recipe.placement import GeometricTransform, Placement, Shape
from gpuloader.recipe.program import Op
from gpuloader.recipe.recipe import Recipe
from gpuloader.recipe.target_transforms import Floats
from gpuloader.recipe.view import ViewPlan
from gpuloader.recipe.warps import INTERPOLATIONS

Parameters: TypeAlias = "Mapping[str, float | str]"

_BOX = ("top", "left", "height", "width")
_NAMES: dict[Op, tuple[str, ...]] = {
    Op.BRIGHTNESS: ("factor",),
    Op.CONTRAST: ("factor",),
    Op.SATURATION: ("factor",),
    Op.HUE: ("turn",),
    Op.SHARPNESS: ("factor",),
    Op.POSTERIZE: ("bits",),
    Op.SOLARIZE: ("threshold",),
    Op.SOLARIZE_ADD: ("added",),
    Op.BLUR: ("sigma", "kernel_size"),
    Op.PERMUTE: ("red", "green", "blue"),
    Op.MIX_ADD: ("share",),
}
_INTERPOLATIONS = {number: name for name, number in INTERPOLATIONS.items()}
_DIGITS = 4
_NO_BOXES = np.zeros((0, 4))


@dataclass(frozen=True)
class Step:
    """One operation on an image.

    Attributes:
        transform: the name of the recipe's transform, or the key "oversampling".
        operation: "crop", "resize", "pad", "flip", "erase", an operation of `gpuloader.recipe.program`, or "decode" if
            not all of the picture is decoded; None if the transform is not applied.
        parameters: of the operation, rounded to four digits. A crop is in pixels: of the image for `RandomResizedCrop`,
            of the previous step's output for the others; outside is padding. A warp describes the picture's change:
            degrees (counter-clockwise), scale, scale_y (if it differs), shear_x, shear_y, and move_x, move_y of the
            middle in pixels; or the new x and y of the four corners.
    """

    transform: str
    operation: str | None
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True)
class ExplainedView:
    """The random parameters of one view of a sample.

    Attributes:
        window: the visible part: top, left, bottom, right in pixels of the image, before flips and warps, rounded to
            four digits. Outside the image is padding.
        shape: (height, width) of the output.
        steps: the operations, in order, without Normalize, which draws nothing.
    """

    window: tuple[float, float, float, float]
    shape: Shape
    steps: tuple[Step, ...]


def explain(
    recipe: Recipe, seed: int, epoch: int, sample: int, height: int, width: int, boxes: Floats = _NO_BOXES
) -> tuple[ExplainedView, ...]:
    """Returns the random parameters of each view of a sample, in an epoch of a run with this seed.

    The image has height x width pixels. If the recipe turns images upright, size, windows and boxes, (n, 4), are in
    pixels of the upright image.
    """
    params = recipe.draw(Draws(seed, epoch, np.array([sample])), np.array([[height, width]]), boxes=[boxes])
    return explain_params(recipe, params)


def explain_params(recipe: Recipe, params: AugmentParams) -> tuple[ExplainedView, ...]:
    """Returns the random parameters of each view of a sample, from those of one row."""
    return tuple(_view(view, drawn_view) for view, drawn_view in zip(recipe.each_view, params.views, strict=True))


def _view(view: ViewPlan, drawn: ViewParams) -> ExplainedView:
    places = drawn.placements
    height, width = shape = drawn.placement.shape[0].tolist()
    steps = [_placing(transform, *pair) for transform, *pair in zip(view.placing, places, places[1:])]
    program = zip(drawn.program.ops[0], drawn.program.parameters[0])
    for transform in view.pixels:
        name = type(transform).__name__
        done = [(Op(op), row) for op, row in islice(program, transform.steps) if op != Op.IDENTITY]
        if isinstance(transform, RandomHorizontalFlip):
            steps.append(Step(name, "flip" if done else None))
        else:
            steps += [Step(name, op.name.lower(), _parameters(op, row, *shape)) for op, row in done]
            steps += [] if done else [Step(name, None)]
    if drawn.erased is not None:
        name = type(view.erasing).__name__
        boxes = [box for box in drawn.erased[0].reshape(-1, 6)[:, :4].tolist() if any(box)]
        steps += [Step(name, "erase", dict(zip(_BOX, box))) for box in boxes] or [Step(name, None)]
    return ExplainedView(_window(drawn.placement), (height, width), tuple(steps))


def _window(at: Placement) -> tuple[float, float, float, float]:
    scale = (at.window[0, 2:] - at.window[0, :2]) / at.resized[0]
    start = at.window[0, :2] + scale * at.corner[0]
    top, left, bottom, right = np.concatenate([start, start + scale * at.shape[0]]).round(_DIGITS).tolist()
    return top, left, bottom, right


def _placing(transform: GeometricTransform, before: Placement, after: Placement) -> Step:
    name = type(transform).__name__
    if isinstance(transform, RandomHorizontalFlip):
        return Step(name, "flip" if (before.mirrored != after.mirrored).any() else None)
    if after is before:
        return Step(name, None)
    if isinstance(transform, (BudgetResize, Resize, Scaling)):
        return Step(name, "resize", dict(zip(("height", "width"), after.shape[0].tolist())))
    if isinstance(transform, RandomResizedCrop):
        window = after.window[0].round(_DIGITS)
        top, left, bottom, right = (window.astype(int) if (window % 1 == 0).all() else window).tolist()
        return Step(name, "crop", dict(zip(_BOX, (top, left, bottom - top, right - left))))
    box = [*(after.corner - before.corner)[0].tolist(), *after.shape[0].tolist()]
    pads = isinstance(transform, (Pad, PadIfSmaller, RandomZoomOut))
    return Step(name, "pad" if pads else "crop", dict(zip(_BOX, box)))


def _parameters(op: Op, row: NDArray[np.float32], height: int, width: int) -> Parameters:
    if op == Op.WARP:
        matrix = np.linalg.inv(row[:9].astype(np.float64).reshape(3, 3))
        is_affine = np.allclose(matrix[2, :2], 0, atol=1e-9)
        warp = _affine(matrix / matrix[2, 2], height, width) if is_affine else _corners(matrix, height, width)
        return {**dict(warp), "interpolation": _INTERPOLATIONS[int(row[9])]}
    return {name: _round(value) for name, value in zip(_NAMES.get(op, ()), row)}


def _affine(matrix: NDArray[np.floating], height: int, width: int) -> Iterator[tuple[str, float]]:
    """Yields the parameters of an affine map from input to output (x, y, 1) that have an effect."""
    (a, b), (c, d) = matrix[:2, :2]
    middle = np.array([width / 2, height / 2])
    move_x, move_y = matrix[:2, :2] @ middle + matrix[:2, 2] - middle
    area = a * d - b * c
    scale, scale_y = math.hypot(a, c), area / math.hypot(a, c)
    found = {
        "degrees": (-math.degrees(math.atan2(c, a)), 0),
        "scale": (scale, 1),
        "scale_y": (scale_y, _round(scale)),
        "shear_x": ((a * b + c * d) / area, 0),
    }
    if np.allclose((a, b, d), (1, 0, 1), atol=1e-6):
        found = {"shear_y": (c, 0)}
    for name, (value, neutral) in {**found, "move_x": (move_x, 0), "move_y": (move_y, 0)}.items():
        if _round(value) != neutral:
            yield name, _round(value)


def _corners(matrix: NDArray[np.floating], height: int, width: int) -> Iterator[tuple[str, float]]:
    for row, column, name in ((0, 0, "top_left"), (0, 1, "top_right"), (1, 1, "bottom_right"), (1, 0, "bottom_left")):
        x, y, z = matrix @ (column * width, row * height, 1)
        yield f"{name}_x", _round(x / z)
        yield f"{name}_y", _round(y / z)


def _round(value: float) -> float:
    return round(float(value), _DIGITS) + 0.0  # no -0.0
