"""Computes the inputs of the graph beside the images: numbers for whole batches, from the random parameters.

The CPU's kernels take the random parameters almost unchanged. DALI's operators for a GPU take other numbers, which are
computed here: operators of the graph would compute them for each sample on the CPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from nvidia.dali.tensors import TensorCPU

from gpuloader.recipe import AugmentParams, Graph, ViewParams
from gpuloader.recipe.crops import RandomHorizontalFlip
from gpuloader.recipe.model import Ints, Transform, with_inner
from gpuloader.recipe.placement import PaddingMode
from gpuloader.recipe.program import NEAREST, Op
from gpuloader.recipe.view import ViewPlan, placed_by
from gpuloader.recipe.warps import RandomPerspective

LastStep: TypeAlias = Literal["decode", "resize", "all"]
Numbers: TypeAlias = NDArray[Any]
Arrays: TypeAlias = dict[str, Numbers]
"""Numbers by name; one row for each sample."""
Each = TypeVar("Each")

_NO_FILE, _NO_ARRAY = TensorCPU(np.zeros(1, np.uint8)), TensorCPU(np.zeros((1, 1, 3), np.uint8), "HWC")
GRAY = (0.2989, 0.587, 0.114)


class GraphInputs:
    """Makes what DALI takes for a batch: the images of each source of a graph, then numbers by name.

    Args:
        graph: the graph.
        device_id: a GPU; None for the CPU.
        decoded: whether the images are arrays, uint8 HWC RGB, instead of files. A mixed graph takes both.
        region: whether only the region of a file is decoded.
        prefetch_queue_depth: the number of batches that DALI makes ahead.
        last_step: where the graph ends, see `recipe_pipeline`.

    Attributes:
        mixed: whether a batch may have files and arrays.
    """

    def __init__(
        self,
        graph: Graph,
        device_id: int | None,
        *,
        decoded: bool,
        region: bool,
        prefetch_queue_depth: int,
        last_step: LastStep = "all",
    ) -> None:
        self.graph, self.region, self.last_step = graph, region, last_step
        self.device: Literal["cpu", "gpu"] = "cpu" if device_id is None else "gpu"
        self.mixed = self.device == "cpu" and graph.mixed
        self.decoded = decoded and not self.mixed
        self._whole = self.device == "cpu" and (self.decoded or not region)
        self._in_use: deque[list[Numbers]] = deque(maxlen=prefetch_queue_depth + 1)  # DALI does not keep them

    def __call__(self, images: Sequence[Any], params: AugmentParams) -> tuple[Any, ...]:
        """Returns the images of each source and the numbers, and keeps the numbers until DALI has used them.

        The images of a mixed graph are files, arrays, and (n,) whether a row has a file.
        """
        if self.mixed:
            return self._of_both(images[0], params)
        return *map(_as_dali, images), *self._kept(self.numbers(params).values())

    def _of_both(self, images: Sequence[NDArray[np.uint8]], params: AugmentParams) -> tuple[Any, ...]:
        are_files = np.array([image.ndim == 1 for image in images])
        ends = [(0, 0) if is_file else image.shape[:2] for image, is_file in zip(images, are_files)]
        whole = np.concatenate([params.origin, params.origin + np.array(ends, np.int64)], 1)
        params = replace(params, region=np.where(are_files[:, None], params.region, whole))  # all pixels of arrays
        files = [TensorCPU(image) if is_file else _NO_FILE for image, is_file in zip(images, are_files)]
        arrays = [_NO_ARRAY if is_file else TensorCPU(image, "HWC") for image, is_file in zip(images, are_files)]
        return files, arrays, *self._kept([are_files, *self.numbers(params).values()])

    def _kept(self, numbers: Iterable[Any]) -> list[Any]:
        kept: list[Any] = [each if isinstance(each, list) else np.ascontiguousarray(each) for each in numbers]
        self._in_use.append(kept)
        return kept

    def numbers(self, params: AugmentParams) -> Arrays:
        """Returns the numbers of each part of the graph, as PART/NAME; see `make_inputs`."""
        made, left = Arrays(), deque(params.views)
        for number, (_, views) in enumerate(self.graph.parts):
            its = tuple(left.popleft() for _ in views)
            # The region is of all views. Whole images need none, and a part has its own.
            is_all = self._whole or len(self.graph.parts) == 1
            of_part = replace(params, views=its) if is_all else AugmentParams.of(its)
            inputs = make_inputs(views, of_part, self.device, self.last_step, self._whole)
            made |= {f"{number}/{name}": each for name, each in inputs.items()}
        return made


def _as_dali(images: Any) -> Any:  # noqa: ANN401 - an array of all images, or a list
    if isinstance(images, np.ndarray):
        return images
    return [TensorCPU(image) for image in images]  # DALI takes twice as long to do so itself


def make_inputs(
    views: Sequence[ViewPlan],
    params: AugmentParams,
    device: Literal["cpu", "gpu"],
    last_step: LastStep = "all",
    whole: bool = False,
) -> Arrays:
    """Computes the inputs of a graph that ends with `last_step`. Their names depend only on the recipe.

    region_start, region_shape   (n, 2) int32   the rows and columns to decode: top, left in the file; height, width
    V/NAME                                      what view V takes: `_for_kernels`, or `_placing` and `erasing`
    V/K/NAME                                    what step K of its program takes: `step_inputs`; on a GPU

    Args:
        views: the recipe's.
        params: for the same views.
        device: where pixels are changed.
        last_step: as in `recipe_pipeline`.
        whole: whether the kernels get whole images instead of regions; on the CPU only.
    """
    start, end = params.region[:, :2], params.region[:, 2:]
    made: Arrays = {
        "region_start": (start - params.origin).astype(np.int32),
        "region_shape": (end - start).astype(np.int32),
    }
    if whole:
        made, start = {}, params.origin
    if last_step == "decode":
        return made
    for at, (view, drawn_view, placed) in enumerate(zip(views, params.views, placed_by(views), strict=True)):
        is_placed = view.is_placed or placed != at  # with another view, whose numbers say how
        if device == "cpu":
            named = _for_kernels(drawn_view, None if is_placed else start, last_step)
        else:
            named = {} if is_placed else _placing(view, drawn_view, params.region, len(views) > 1)
            if last_step == "all" and view.erasing is not None and drawn_view.erased is not None:
                size = drawn_view.placement.shape.astype(np.int32)
                named |= erasing(drawn_view.erased, size, isinstance(view.erasing.value, str))
        made |= {f"{view.number}/{name}": values for name, values in named.items()}
    if device == "cpu" or last_step == "resize":
        return made
    of_steps = step_inputs(  # for all views at once, which is faster
        np.concatenate([view.program.ops for view in params.views], axis=1),
        np.concatenate([view.program.parameters for view in params.views], axis=1),
        [needed(*each) for view in views for each in zip(view.choices, warps_of(view), strict=True)],
    )
    steps = [f"{view.number}/{step}" for view in views for step in range(view.steps)]
    return made | {f"{step}/{name}": values for step, of in zip(steps, of_steps) for name, values in of.items()}


def under(given: Mapping[str, Each], prefix: object) -> dict[str, Each]:
    """Returns the inputs called PREFIX/NAME, by NAME."""
    return {name.removeprefix(f"{prefix}/"): each for name, each in given.items() if name.startswith(f"{prefix}/")}


def _for_kernels(drawn: ViewParams, region_start: Ints | None, last_step: LastStep) -> Arrays:
    """Computes the inputs of the CPU's kernels that a view uses. Without a region, the view is placed already.

    roi           (n, 8) float64           top, left, bottom, right of the window that is resized, in the image's
                                           pixels, and of the picture; both may reach beyond the region
    placed        (n, 14) int32            the window's height and width after resizing; the row and column in it where
                                           the output begins; 1 if the rows are reversed; 1 if the columns are; top,
                                           left, bottom, right of what is shown of it; 1 if the output is transposed;
                                           the filter's number; the region's top, left in the image
    like_output   (n, 0, h, w) uint8       empty, of the output's height and width; a list of n if these differ
    ops           (n, k) int32             the program
    parameters    (n, k, PARAMETERS) float32
    erase         (n, 6 * count) int32     what `RandomErasing` draws
    """
    at, program = drawn.in_file, drawn.program
    made: Arrays = {}
    if region_start is not None:
        placed = (at.resized, at.corner, at.mirrored, at.shown, at.transposed[:, None], at.filters()[:, None])
        made["roi"] = np.concatenate([at.window, at.part], 1)
        made["placed"] = np.concatenate([*placed, region_start], 1).astype(np.int32)
    made["like_output"] = _empty(at.shape)
    if last_step == "resize":
        return made
    if program.choices:
        made |= {"ops": program.ops, "parameters": program.parameters}
    if drawn.erased is not None:
        made["erase"] = drawn.erased
    return made


def _empty(shapes: Ints) -> Any:  # noqa: ANN401 - DALI takes an array, or a list if its rows differ in shape
    if (shapes == shapes[:1]).all():
        return np.empty((len(shapes), 0, *shapes.max(0, initial=0)), np.uint8)
    return [np.empty((0, *shape), np.uint8) for shape in shapes.tolist()]


# --- resizing, cropping, padding, flips


def _placing(view: ViewPlan, drawn: ViewParams, region: Ints, shared: bool) -> Arrays:
    """Computes the inputs of `place_on_gpu` and `turn`; `shared` is whether several views have the region.

    part_start, part_end           (n, 2) int32    the part of the region for this view, if it is shared
    window_...                                     `_padding` of what is resized, if it may show some
    resize_size                    (n, 2) float32  the size after resizing
    resize_start, resize_end       (n, 2) float32  what is resized
    filter                         (n,) int32      DALI's number of the filter, if it is drawn
    crop_...                                       `_padding` of the output, if it may show some
    vertical, horizontal           (n,) int32      whether it is flipped
    transposed                     (n,) bool       whether rows and columns are exchanged then
    """
    at, made = drawn.in_file, Arrays()
    if shared:
        picture = at.picture()
        first = np.clip(picture[:, :2], region[:, :2], region[:, 2:] - 1)
        behind = np.clip(picture[:, 2:], first + 1, region[:, 2:])
        made["part_start"] = (first - region[:, :2]).astype(np.int32)
        made["part_end"] = (behind - region[:, :2]).astype(np.int32)
        region = np.concatenate([first, behind], 1)
    origin = region[:, :2]
    if at.overlapping[0]:
        made |= _padding("window", at.padding_mode, at.part, region, at.canvas())
        origin = at.canvas()[:, :2]

    # Resize only the part that the output shows; if padding repeats pixels, resize everything.
    output = at.output()
    first, behind = at.shown[:, :2], at.shown[:, 2:]
    if not at.repeats:
        first = np.clip(output[:, :2], first, np.maximum(behind - 1, first))
        behind = np.maximum(np.minimum(output[:, 2:], behind), first + 1)
    start, scale = at.window[:, :2] - origin, (at.window[:, 2:] - at.window[:, :2]) / at.resized
    made |= {
        "resize_size": (behind - first).astype(np.float32),
        "resize_start": (start + first * scale).astype(np.float32),
        "resize_end": (start + behind * scale).astype(np.float32),
    }
    if at.bicubic is not None:
        made["filter"] = at.filters().astype(np.int32)
    if at.overlapping[1]:
        made |= _padding("crop", at.padding_mode, at.shown, np.concatenate([first, behind], 1), output)
    axes = {each.axis for each in view.placing if isinstance(each, RandomHorizontalFlip)}
    for axis in {0, 1} if at.oriented else axes:
        made["horizontal" if axis else "vertical"] = at.mirrored[:, axis].astype(np.int32)
    if at.oriented:
        made["transposed"] = at.transposed
    return made


def _padding(name: str, mode: PaddingMode, picture: Ints, image: Ints, shown: Ints) -> Arrays:
    """Computes the inputs of `_pad` that show a box around a picture; boxes are (n, 4) top, left, bottom, right.

    NAME_start     (n, 2) int32       where it begins in the image, or in that with mirrored strips around it
    NAME_shape     (n, 2) int32       its size; float32 with padding_mode "edge"
    NAME_shift     (n, 2, 3) float32  instead of the start, with padding_mode "edge": the matrix that moves the image
    NAME_before_0, NAME_before_1      (n, 1) int32, if the image is mirrored: how many of its rows and columns before it
    NAME_behind_0, NAME_behind_1      the same for those behind it
    NAME_last_0, NAME_last_1          where those begin in the image

    Args:
        picture: where the picture is; it may be empty.
        image: the part of it that there is.
        shown: the box.
    """
    corner, size, shape = shown[:, :2] - image[:, :2], image[:, 2:] - image[:, :2], shown[:, 2:] - shown[:, :2]
    if mode == "edge":
        shift = np.tile(np.eye(2, 3, dtype=np.float32), (len(corner), 1, 1))
        shift[:, :, 2] = corner[:, ::-1]
        return {f"{name}_shift": shift, f"{name}_shape": shape.astype(np.float32)}
    if mode == "constant":
        empty = (picture[:, :2] == picture[:, 2:]).any(1, keepdims=True)  # DALI's images are not: begin behind it
        numbers = {"start": np.where(empty, size, corner), "shape": shape}
    else:
        most = np.maximum(size - (mode == "reflect"), 0)  # the border is not repeated
        before, behind = (np.minimum(np.maximum(sides, 1), most) for sides in (-corner, corner + shape - size))
        numbers = {"start": corner + before, "shape": shape}
        for axis in (0, 1):
            of_axis = (("before", before), ("behind", behind), ("last", most - behind))
            numbers |= {f"{strip}_{axis}": sides[:, axis : axis + 1] for strip, sides in of_axis}
    return {f"{name}_{number}": values.astype(np.int32) for number, values in numbers.items()}


# --- steps that change pixels


def step_inputs(ops: Numbers, parameters: Numbers, names: Sequence[Sequence[str]]) -> list[Arrays]:
    """Computes the inputs of each of k steps, one row for each of n samples.

    A step does its operations one after the other, on all samples. Only the operation chosen for a sample changes it:
    the others get numbers, or a condition, with which they do nothing.

    Args:
        ops, parameters: as in `gpuloader.recipe.program.Program`.
        names: for each step, the names of `needed`.
    """
    ops, parameters = np.ascontiguousarray(ops.T), np.ascontiguousarray(parameters.transpose(1, 0, 2))
    made = {name: _NUMBERS[name][1](ops, parameters) for name in {name for of in names for name in of}}
    return [{name: made[name][step] for name in of} for step, of in enumerate(names)]


@lru_cache
def needed(possible: frozenset[Op], warps: frozenset[str]) -> tuple[str, ...]:
    """Returns the names of the inputs of a step that may be any of these operations; `warps` comes from `warps_of`."""
    return tuple(
        name
        for name, (users, _) in _NUMBERS.items()
        if users & possible and (users != {Op.WARP} or name in warps) and (name not in _CONDITIONS or len(possible) > 1)
    )


def warps_of(view: ViewPlan) -> list[frozenset[str]]:
    """Returns the names of the inputs of each of a view's steps for Op.WARP."""
    return [warps for transform in view.pixels for warps in [_warps_of(transform)] * transform.steps]


def _warps_of(transform: Transform) -> frozenset[str]:
    """Returns these names for a transform. Only the matrices of `RandomPerspective` may not be affine."""
    inner = list(with_inner([transform]))
    kinds = ["affine", *(["perspective"] if any(isinstance(each, RandomPerspective) for each in inner) else [])]
    interpolations = {getattr(each, "interpolation", None) for each in inner} - {None}
    interpolations |= {"nearest" for each in inner if isinstance(each, RandomHorizontalFlip)}
    ends = {"nearest" if each == "nearest" else "linear" for each in interpolations}
    filled = any(each.fill for each in inner if hasattr(each, "fill"))
    return frozenset({f"{kind}_{end}" for kind in kinds for end in ends} | ({"fill"} if filled else set()))


def _first(op: Op, otherwise: float) -> Callable[[Numbers, Numbers], Numbers]:
    """Makes a function for the operation's first parameter."""
    return lambda ops, parameters: np.where(ops == op, parameters[..., 0], np.float32(otherwise))


def _rest(op: Op) -> Callable[[Numbers, Numbers], Numbers]:
    """Makes a function for 1 minus the first parameter."""
    return lambda ops, parameters: np.where(ops == op, 1 - parameters[..., 0], np.float32(0))


def _is(op: Op) -> Callable[[Numbers, Numbers], Numbers]:
    return lambda ops, parameters: ops == op


def _linear(ops: Numbers, parameters: Numbers) -> Numbers:
    """Computes (k, n, 3, 3): the matrix by which a pixel is multiplied."""
    factors = np.where(np.isin(ops, [Op.BRIGHTNESS, Op.CONTRAST, Op.SATURATION]), parameters[..., 0], np.float32(1))
    factors = factors / _power(ops, parameters)
    matrices = factors[..., None, None] * np.eye(3, dtype=np.float32)
    matrices[ops == Op.GRAYSCALE] = GRAY
    permuted = ops == Op.PERMUTE
    matrices[permuted] = np.eye(3, dtype=np.float32)[parameters[permuted][:, :3].astype(np.int64) % 3]
    return matrices


def _power(ops: Numbers, parameters: Numbers) -> Numbers:
    """Computes 2 to the number of bits that POSTERIZE clears."""
    kept = np.where(ops == Op.POSTERIZE, parameters[..., 0], np.float32(8))
    return np.ldexp(np.float32(1), 8 - kept.astype(np.int32))


def _threshold(ops: Numbers, parameters: Numbers) -> Numbers:
    """Computes the level from which on SOLARIZE and INVERT invert."""
    threshold = np.where(ops == Op.SOLARIZE, parameters[..., 0], np.float32(256))
    return np.where(ops == Op.INVERT, np.float32(0), threshold)


def _matrix(affine: bool, nearest: bool) -> Callable[[Numbers, Numbers], Numbers]:
    """Makes a function for the matrices of warps of this kind, (k, n, 2 or 3, 3); others get the identity."""
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
    "linear": ({Op.BRIGHTNESS, Op.CONTRAST, Op.SATURATION, Op.GRAYSCALE, Op.POSTERIZE, Op.PERMUTE}, _linear),
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
"""Conditions of operations that cost much, or that no number can turn off."""


# --- erasing


def erasing(erased: Numbers, size: Numbers, noise: bool) -> Arrays:
    """Computes the inputs of `erase`, from the parameters of `RandomErasing` and the images' sizes, (n, 2) int32.

    The names of each box begin with its number and ".":

    erase_start, erase_shape     (n, 2) float32
    erased                       (n,) bool       from here on only for noise
    rows, rows_count             (n, 1) int32    of the box
    columns, columns_count       (n, 1) int32
    image_start, image_shape     (n, 2) int32    the image in the box's pixels
    width, key_0, key_1          (n,) uint32     the image's width; the key
    """
    made: Arrays = {}
    for number in range(erased.shape[1] // 6):
        box = _erasing(erased[:, 6 * number : 6 * (number + 1)], size, noise)
        made |= {f"{number}.{name}": values for name, values in box.items()}
    return made


def _erasing(erased: Numbers, size: Numbers, noise: bool) -> Arrays:
    start, shape, key = np.split(erased, [2, 4], axis=1)
    made: Arrays = {"erase_start": start.astype(np.float32), "erase_shape": shape.astype(np.float32)}
    if noise:
        top, left = np.split(start, 2, axis=1)
        height, width = np.split(np.maximum(shape, 1), 2, axis=1)
        made |= {"erased": shape[:, 0] > 0, "image_start": -start, "image_shape": size}
        made |= {"rows": top, "rows_count": height, "columns": left, "columns_count": width}
        made |= {"width": size[:, 1].view(np.uint32)}
        made |= {f"key_{word}": key[:, word].view(np.uint32) for word in (0, 1)}
    return made
