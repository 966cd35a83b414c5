"""The graph's steps, each a function of DALI nodes. The names of the inputs are those of `gpuloader.recipe`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, math, types
from nvidia.dali.data_node import DataNode

from gpuloader.pipelines.augment import Rgb, augment
from gpuloader.pipelines.erasing import erase
from gpuloader.pipelines.resample import resample
from gpuloader.pipelines.steps import run_steps
from gpuloader.recipe import Preset
from gpuloader.recipe.program import PARAMETERS, Op
from gpuloader.recipe.view import ViewPlan

Nodes: TypeAlias = Mapping[str, DataNode]

_ZEROS: Rgb = (0.0, 0.0, 0.0)
_ONES: Rgb = (1.0, 1.0, 1.0)
_FILTERS = {
    "nearest": types.INTERP_NN,
    "bilinear": types.INTERP_LINEAR,
    "bicubic": types.INTERP_CUBIC,
    "lanczos": types.INTERP_LANCZOS3,
}
_DTYPES = {"float32": types.FLOAT, "float16": types.FLOAT16, "uint8": types.UINT8}


def decode_region(
    encoded: DataNode,
    drawn: Nodes,
    device: str,
    preset: Preset,
    size_hint: tuple[int, int] = (0, 0),
    knobs: Mapping[str, Any] | None = None,
    by_decoder: bool = True,
) -> DataNode:
    """Decodes a region of an image, RGB uint8 HWC, without EXIF rotation, like torchvision.

    Either the decoder decodes only the region, or it decodes the whole image, which is then cropped. The resize cannot
    select the region instead: DALI's filter would also use pixels beyond the region's border, so pixels would differ.
    """
    options = {
        "device": "cpu" if device == "cpu" else "mixed",
        "output_type": types.RGB,
        "adjust_orientation": False,
        "use_fast_idct": preset.fast_idct,
        "preallocate_height_hint": size_hint[0],
        "preallocate_width_hint": size_hint[1],
        **(knobs or {}),
    }
    if not by_decoder:
        return cut_region(fn.decoders.image(encoded, **options), drawn)
    return fn.decoders.image_slice(
        encoded, start=drawn["region_start"], shape=drawn["region_shape"], axes=(0, 1), **options
    )


def cut_region(image: DataNode, drawn: Nodes) -> DataNode:
    """Cuts the region out of an image that is already decoded."""
    return fn.slice(image, start=drawn["region_start"], shape=drawn["region_shape"], axes=(0, 1))


def view_on_cpu(region: DataNode, drawn: Nodes, view: ViewPlan, preset: Preset) -> DataNode:
    """Makes one view of a decoded region with compiled kernels: one pass, and a second one if pixels are changed."""
    image = place_on_cpu(region, drawn, view, preset)
    if view.in_one_pass:
        return image

    nothing = {
        "ops": np.array([Op.IDENTITY], np.int32),
        "parameters": np.zeros((1, PARAMETERS), np.float32),
        "erase": np.zeros(6, np.int32),
    }
    given = {name: drawn[name] if name in drawn else _constant(none) for name, none in nothing.items()}
    finish = _finish(view, preset)
    like_output = _like_output(drawn["size"], finish["channels_first"])
    return augment(image, **given, like_output=like_output, erase_value=_erase_value(view), **finish)


def place_on_cpu(region: DataNode, drawn: Nodes, view: ViewPlan, preset: Preset) -> DataNode:
    """Resizes, crops, pads and flips; if all is done in one pass, the result is finished, otherwise uint8 HWC."""
    placement = view.how_placed
    levels: dict[str, Any] = {"scale": _ONES, "offset": _ZEROS, "dtype": "uint8", "channels_first": False}
    first = _finish(view, preset) if view.in_one_pass else levels
    return resample(
        region,
        drawn["roi"],
        drawn["placed"],
        _like_output(drawn["size"], first["channels_first"]),
        interpolation=placement.interpolation,
        antialias=placement.antialias,
        padding_mode=placement.padding_mode,
        fill=placement.fill,
        **first,
    )


def _finish(view: ViewPlan, preset: Preset) -> dict[str, Any]:
    """The format and scale of the image after the last pass."""
    scale, offset = _scale_and_offset(view, preset)
    return {"scale": scale, "offset": offset, "dtype": preset.dtype, "channels_first": preset.layout == "nchw"}


def _erase_value(view: ViewPlan) -> Rgb | Literal["random"]:
    value = 0.0 if view.erasing is None else view.erasing.value
    return (value, value, value) if isinstance(value, (int, float)) else value


def _like_output(size: DataNode, channels_first: bool) -> DataNode:
    """An empty tensor whose shape tells the kernels the output's shape."""
    parts = ([0, 3], size) if channels_first else ([0], size, [3])
    shape = fn.cat(*(_constant(np.array(p, np.int32)) if isinstance(p, list) else p for p in parts))
    return fn.zeros(shape=shape, dtype=types.UINT8)


def _constant(values: NDArray[Any]) -> DataNode:
    return types.Constant(values, device="cpu")


def view_on_gpu(region: DataNode, drawn: Nodes, view: ViewPlan, preset: Preset) -> DataNode:
    """Makes one view of a decoded region with DALI's operators."""
    image = place_on_gpu(region, drawn, view, preset)
    if view.pixels:
        image = run_steps(image, drawn["ops"], drawn["parameters"], view.choices)
    if view.erasing is None:
        return normalise(image, view, preset)
    image = normalise(image, view, preset, dtype="float32")
    image = erase(image, drawn["erase"], _erase_value(view), "CHW" if preset.layout == "nchw" else "HWC")
    return fn.cast(image, dtype=_DTYPES[preset.dtype])


def place_on_gpu(region: DataNode, drawn: Nodes, view: ViewPlan, preset: Preset) -> DataNode:
    """Resizes, crops, pads and flips; the result is uint8 HWC.

    At the border, DALI's filter repeats pixels, while the filters of PIL and torch are cut off.
    """
    how, roi, size, placed = view.how_placed, drawn["roi"], drawn["size"], drawn["placed"]
    start, end = roi[0:2], roi[2:4]
    if len(preset.each_view) > 1:
        region, start, end = _own_part(region, start, end)
    resized, corner = placed[0:2], placed[2:4]
    # Resize only the part that the output shows; if padding repeats pixels, resize everything.
    constant = how.padding_mode == "constant"
    first = math.clamp(corner, 0, resized - 1) if constant else corner * 0
    behind = math.max(math.min(corner + size, resized), first + 1) if constant else resized
    scale = (end - start) / resized
    image = fn.resize(
        region,
        size=fn.cast(behind - first, dtype=types.FLOAT),
        interp_type=_FILTERS[how.interpolation],
        antialias=how.antialias,
        roi_start=fn.cast(start + first * scale, dtype=types.FLOAT),
        roi_end=fn.cast(start + behind * scale, dtype=types.FLOAT),
    )
    if how.padding_mode == "edge":
        place = fn.cast(fn.stack(corner[1], corner[0]), dtype=types.FLOAT)
        # Without a fill value, this repeats the border.
        image = fn.warp_affine(
            image,
            matrix=fn.transforms.translation(offset=place),
            size=fn.cast(size, dtype=types.FLOAT),
            interp_type=types.INTERP_NN,
        )
    elif not constant:
        image, before = _reflect(image, resized, how.padding_mode)
        image = fn.slice(image, start=corner + before, shape=size, axes=(0, 1))
    elif view.pads:
        image = fn.slice(
            image,
            start=corner - first,
            shape=size,
            axes=(0, 1),
            out_of_bounds_policy="pad",
            fill_values=[float(round(level)) for level in how.fill],
        )
    return fn.flip(image, vertical=placed[4], horizontal=placed[5])


def _own_part(region: DataNode, start: DataNode, end: DataNode) -> tuple[DataNode, DataNode, DataNode]:
    """Returns the part of a shared region that belongs to a view's window, and the window's place in it.

    Without this, DALI's filter would also use pixels that only other views need.
    """
    first = math.max(start, 0.0)
    behind = math.min(end, region.shape(dtype=types.INT32)[0:2])
    part = fn.slice(
        region, start=fn.cast(first, dtype=types.INT32), end=fn.cast(behind, dtype=types.INT32), axes=(0, 1)
    )
    return part, start - first, end - first


def _reflect(image: DataNode, resized: DataNode, padding_mode: str) -> tuple[DataNode, DataNode]:
    """Extends the image on each side by a mirrored copy, as the padding mode says; returns by how much, too."""
    for axis in (0, 1):
        before = behind = fn.flip(image, vertical=int(axis == 0), horizontal=int(axis == 1))
        if padding_mode == "reflect":  # without repeating the border
            before, behind = (before[:-1], before[1:]) if axis == 0 else (before[:, :-1], before[:, 1:])
        image = fn.cat(before, image, behind, axis=axis)
    return image, resized - 1 if padding_mode == "reflect" else resized


def normalise(image: DataNode, view: ViewPlan, preset: Preset, dtype: str | None = None) -> DataNode:
    """Converts HWC in [0, 255] to the recipe's range, dtype and layout: CHW, or HWC for channels_last."""
    scale, offset = _scale_and_offset(view, preset)
    return fn.crop_mirror_normalize(
        image,
        mean=[-shift / factor for shift, factor in zip(offset, scale)],
        std=[1 / factor for factor in scale],
        dtype=_DTYPES[dtype or preset.dtype],
        output_layout="CHW" if preset.layout == "nchw" else "HWC",
    )


def _scale_and_offset(view: ViewPlan, preset: Preset) -> tuple[Rgb, Rgb]:
    """(scale, offset) by channel: a value x in [0, 255] becomes scale x + offset."""
    if preset.dtype == "uint8":
        return _ONES, _ZEROS
    mean, std = (_ZEROS, _ONES) if view.normalize is None else (view.normalize.mean, view.normalize.std)
    scale = (1 / (255 * std[0]), 1 / (255 * std[1]), 1 / (255 * std[2]))
    return scale, (-mean[0] / std[0], -mean[1] / std[1], -mean[2] / std[2])
