"""The numbers that the graph's operators take, for whole batches: pure functions of what a recipe draws.

DALI's operators for a GPU take other numbers than the CPU's kernels, for which the recipe's arrays are made. They are
computed here, so the graph has no operator for them, which would work on each sample on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuloader.recipe.crops import RandomHorizontalFlip
from gpuloader.recipe.model import Arrays, with_inner
from gpuloader.recipe.program import NEAREST, Op
from gpuloader.recipe.view import ViewPlan
from gpuloader.recipe.warps import RandomPerspective

LastStep: TypeAlias = Literal["decode", "resize", "all"]
Numbers: TypeAlias = NDArray[Any]
Each = TypeVar("Each")

GRAY = (0.2989, 0.587, 0.114)

_REGION = ("region_start", "region_shape")
_PLACING = ("roi", "placed", "size")
_CHANGING = ("ops", "parameters", "erase")
_UP_TO = {"decode": _REGION, "resize": _REGION + _PLACING, "all": _REGION + _PLACING + _CHANGING}


def arguments(
    views: Sequence[ViewPlan], drawn: Arrays, device: Literal["cpu", "gpu"], last_step: LastStep = "all"
) -> Arrays:
    """What a graph that ends with `last_step` takes, one row for each sample.

    Args:
        views: all of the recipe's.
        drawn: the arrays of `Preset.arrays`.
        device: where pixels are changed.
        last_step: as in `recipe_pipeline`.
    """
    if device == "cpu":
        return _for_kernels(drawn, last_step)
    made: Arrays = {name: drawn[name] for name in _REGION}
    if last_step != "decode":
        region_shape = drawn["region_shape"] if len(views) > 1 else None
        for view in views:
            made |= _named(_placing(view, of_number(drawn, view.number), region_shape), view.number)
    if last_step == "all":
        made |= _changing([view for view in views if view.pixels], drawn)
        for view in views:
            if view.erasing is not None:
                of = of_number(drawn, view.number)
                made |= _named(erasing(of["erase"], of["size"], view.erasing.value == "random"), view.number)
    return made


def _for_kernels(drawn: Arrays, last_step: LastStep) -> Arrays:
    """The drawn arrays for the CPU's kernels: unchanged, except that `size` becomes an empty array of that shape.

    like_output   (n, 0, height, width) uint8   empty, instead of the size
    """
    made: Arrays = {}
    for name, array in drawn.items():
        kind, _, view = name.partition(".")
        if kind not in _UP_TO[last_step]:
            continue
        if kind == "size":
            made[f"like_output.{view}"] = np.empty((len(array), 0, *array[0]), np.uint8)
        else:
            made[name] = array
    return made


def of_number(given: Mapping[str, Each], number: int) -> dict[str, Each]:
    """What belongs to a view, or to a step of a view, by its name without that number."""
    end = f".{number}"
    return {name.removesuffix(end): each for name, each in given.items() if name.endswith(end)}


def _named(arrays: Arrays, number: int) -> Arrays:
    return {f"{name}.{number}": array for name, array in arrays.items()}


# --- resizing, cropping, padding, flips


def _placing(view: ViewPlan, drawn: Arrays, shared_shape: Numbers | None) -> Arrays:
    """What `place_on_gpu` and `flip` take; `shared_shape` is the region's if several views share it.

    part_start, part_end           (n, 2) int32    the part of the region for this view, if it is shared
    resize_size                    (n, 2) float32  the size after resizing
    resize_start, resize_end       (n, 2) float32  what is resized
    shift                          (n, 2, 3) float32, with padding_mode "edge": the matrix that moves the image
    crop_start, crop_shape         (n, 2) int32    the output in the resized image, if padding can show
    vertical, horizontal           (n,) int32      whether it is flipped
    """
    how = view.how_placed
    start, end = drawn["roi"][:, :2], drawn["roi"][:, 2:]
    resized, corner, mirrored = np.split(drawn["placed"], [2, 4], axis=1)
    made: Arrays = {}
    if shared_shape is not None:
        first, behind = np.maximum(start, 0), np.minimum(end, shared_shape)
        made |= {"part_start": first.astype(np.int32), "part_end": behind.astype(np.int32)}
        start, end = start - first, end - first

    # Resize only the part that the output shows; if padding repeats pixels, resize everything.
    first, behind = np.zeros_like(resized), resized
    if how.padding_mode == "constant":
        first = np.clip(corner, 0, resized - 1)
        behind = np.maximum(np.minimum(corner + drawn["size"], resized), first + 1)
    scale = (end - start) / resized
    made |= {
        "resize_size": (behind - first).astype(np.float32),
        "resize_start": (start + first * scale).astype(np.float32),
        "resize_end": (start + behind * scale).astype(np.float32),
    }

    if how.padding_mode == "edge":
        made["shift"] = np.stack([np.eye(2, 3, dtype=np.float32)] * len(corner))
        made["shift"][:, :, 2] = corner[:, ::-1]
        made["crop_shape"] = drawn["size"].astype(np.float32)
    elif how.padding_mode != "constant" or view.pads:
        before = {"constant": -first, "reflect": resized - 1, "symmetric": resized}[how.padding_mode]
        made |= {"crop_start": corner + before, "crop_shape": drawn["size"]}
    for axis in {each.axis for each in view.placing if isinstance(each, RandomHorizontalFlip)}:
        made["horizontal" if axis else "vertical"] = np.ascontiguousarray(mirrored[:, axis])
    return made


# --- steps that change pixels


def _changing(views: Sequence[ViewPlan], drawn: Arrays) -> Arrays:
    """What `run_steps` takes: NAME.STEP.VIEW, with the names of `step_arguments`; computed for all views at once."""
    if not views:
        return {}
    places = [(step, view.number) for view in views for step in range(view.steps)]
    of_steps = step_arguments(
        np.concatenate([drawn[f"ops.{view.number}"] for view in views], axis=1),
        np.concatenate([drawn[f"parameters.{view.number}"] for view in views], axis=1),
        [needed(possible, warps) for view in views for warps in [warps_of(view)] for possible in view.choices],
    )
    return {f"{name}.{step}.{view}": array for (step, view), of in zip(places, of_steps) for name, array in of.items()}


def step_arguments(ops: Numbers, parameters: Numbers, names: Sequence[Sequence[str]]) -> list[Arrays]:
    """What each of k steps takes, one row for each of n samples.

    A step does its operations one after the other, on all samples. Only the operation that was drawn for a sample
    changes it, because the others get numbers, or a condition, with which they do nothing.

    Args:
        ops, parameters: as in `gpuloader.recipe.program.Program`.
        names: for each step, the names of `needed`.
    """
    ops, parameters = np.ascontiguousarray(ops.T), np.ascontiguousarray(parameters.transpose(1, 0, 2))
    made = {name: _NUMBERS[name][1](ops, parameters) for name in {name for of in names for name in of}}
    return [{name: made[name][step] for name in of} for step, of in enumerate(names)]


@lru_cache
def needed(possible: frozenset[Op], warps: frozenset[str]) -> tuple[str, ...]:
    """The names of what a step takes that may be one of these operations; `warps` is that of `warps_of`."""
    return tuple(
        name
        for name, (users, _) in _NUMBERS.items()
        if users & possible and (users != {Op.WARP} or name in warps) and (name not in _CONDITIONS or len(possible) > 1)
    )


def warps_of(view: ViewPlan) -> frozenset[str]:
    """What a view's steps take for Op.WARP; the matrices of `RandomPerspective` alone may not be affine."""
    inner = list(with_inner(view.pixels))
    kinds = ["affine", *(["perspective"] if any(isinstance(each, RandomPerspective) for each in inner) else [])]
    samplings = {getattr(each, "interpolation", None) for each in inner} - {None}
    samplings |= {"nearest" for each in inner if isinstance(each, RandomHorizontalFlip)}
    ends = {"nearest" if sampling == "nearest" else "linear" for sampling in samplings}
    filled = any(each.fill for each in inner if hasattr(each, "fill"))
    return frozenset({f"{kind}_{end}" for kind in kinds for end in ends} | ({"fill"} if filled else set()))


def _first(op: Op, otherwise: float) -> Callable[[Numbers, Numbers], Numbers]:
    """The operation's first parameter."""
    return lambda ops, parameters: np.where(ops == op, parameters[..., 0], np.float32(otherwise))


def _rest(op: Op) -> Callable[[Numbers, Numbers], Numbers]:
    """What its first parameter leaves of 1."""
    return lambda ops, parameters: np.where(ops == op, 1 - parameters[..., 0], np.float32(0))


def _is(op: Op) -> Callable[[Numbers, Numbers], Numbers]:
    return lambda ops, parameters: ops == op


def _linear(ops: Numbers, parameters: Numbers) -> Numbers:
    """(k, n, 3, 3): the matrix by which a pixel is multiplied."""
    factors = np.where(np.isin(ops, [Op.BRIGHTNESS, Op.CONTRAST, Op.SATURATION]), parameters[..., 0], np.float32(1))
    factors = factors / _power(ops, parameters)
    matrices = factors[..., None, None] * np.eye(3, dtype=np.float32)
    matrices[ops == Op.GRAYSCALE] = GRAY
    return matrices


def _power(ops: Numbers, parameters: Numbers) -> Numbers:
    """2 to the number of bits that POSTERIZE clears."""
    kept = np.where(ops == Op.POSTERIZE, parameters[..., 0], np.float32(8))
    return np.ldexp(np.float32(1), 8 - kept.astype(np.int32))


def _threshold(ops: Numbers, parameters: Numbers) -> Numbers:
    """The level from which on SOLARIZE and INVERT invert."""
    threshold = np.where(ops == Op.SOLARIZE, parameters[..., 0], np.float32(256))
    return np.where(ops == Op.INVERT, np.float32(0), threshold)


def _matrix(affine: bool, nearest: bool) -> Callable[[Numbers, Numbers], Numbers]:
    """(k, n, 2, 3) if affine, otherwise (k, n, 3, 3): the matrix of a warp of this kind, or one that moves nothing."""
    rows = 2 if affine else 3

    def matrix(ops: Numbers, parameters: Numbers) -> Numbers:
        is_affine = (parameters[..., 6:9] == (0, 0, 1)).all(-1)
        is_nearest = parameters[..., 9] == NEAREST
        warped = (ops == Op.WARP) & (is_affine == affine) & (is_nearest == nearest)
        matrices = parameters[..., : 3 * rows].reshape(*ops.shape, rows, 3)
        return np.where(warped[..., None, None], matrices, np.eye(rows, 3, dtype=np.float32))

    return matrix


_NUMBERS: Mapping[str, tuple[set[Op], Callable[[Numbers, Numbers], Numbers]]] = {
    "affine_nearest": ({Op.WARP}, _matrix(affine=True, nearest=True)),
    "affine_linear": ({Op.WARP}, _matrix(affine=True, nearest=False)),
    "perspective_nearest": ({Op.WARP}, _matrix(affine=False, nearest=True)),
    "perspective_linear": ({Op.WARP}, _matrix(affine=False, nearest=False)),
    "fill": ({Op.WARP}, lambda ops, p: np.where((ops == Op.WARP)[..., None], p[..., 10:13], np.float32(0))),
    "linear": ({Op.BRIGHTNESS, Op.CONTRAST, Op.SATURATION, Op.GRAYSCALE, Op.POSTERIZE}, _linear),
    "mean": ({Op.CONTRAST}, _rest(Op.CONTRAST)),
    "gray": ({Op.SATURATION}, _rest(Op.SATURATION)),
    "added": ({Op.SOLARIZE_ADD}, _first(Op.SOLARIZE_ADD, 0)),
    "power": ({Op.POSTERIZE}, _power),
    "threshold": ({Op.SOLARIZE, Op.INVERT}, _threshold),
    # A window of 3 with weights 0, 1, 0 changes nothing.
    "sigma": ({Op.BLUR}, _first(Op.BLUR, 0.01)),
    "window": ({Op.BLUR}, lambda ops, p: np.where(ops == Op.BLUR, p[..., 1], 3).astype(np.int32)),
    "turn": ({Op.HUE}, lambda ops, p: 6 * p[..., 0]),
    "edges": ({Op.SHARPNESS}, _rest(Op.SHARPNESS)),
    "share": ({Op.MIX_ADD}, _first(Op.MIX_ADD, 0)),
    **{
        f"is_{op.name}": ({op}, _is(op))
        for op in (Op.HUE, Op.SHARPNESS, Op.AUTOCONTRAST, Op.EQUALIZE, Op.MIX_ADD, Op.MIX_END)
    },
}
_CONDITIONS = {name for name in _NUMBERS if name.startswith("is_")}
"""For operations that cost much, or that no number can make do nothing."""


# --- erasing


def erasing(box_and_key: Numbers, size: Numbers, noise: bool) -> Arrays:
    """What `erase` takes, from the array of `RandomErasing` and the image's height and width, (n, 2).

    erase_start, erase_shape     (n, 2) float32
    erased                       (n,) bool       from here on only for noise
    rows, rows_count             (n, 1) int32    of the box
    columns, columns_count       (n, 1) int32
    image_start, image_shape     (n, 2) int32    the image in the box's pixels
    width, key_0, key_1          (n,) uint32     the image's width; the key
    """
    start, shape, key = np.split(box_and_key, [2, 4], axis=1)
    made: Arrays = {"erase_start": start.astype(np.float32), "erase_shape": shape.astype(np.float32)}
    if noise:
        top, left = np.split(start, 2, axis=1)
        height, width = np.split(np.maximum(shape, 1), 2, axis=1)
        made |= {"erased": shape[:, 0] > 0, "image_start": -start, "image_shape": size}
        made |= {"rows": top, "rows_count": height, "columns": left, "columns_count": width}
        made |= {"width": size[:, 1].view(np.uint32)}
        made |= {f"key_{word}": key[:, word].view(np.uint32) for word in (0, 1)}
    return {name: np.ascontiguousarray(array) for name, array in made.items()}
