"""The steps of the graph, each a function of DALI nodes; inputs are called as in `inputs.make_inputs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from nvidia.dali import fn, types
from nvidia.dali.data_node import DataNode

from gpuloader.base.dali import change_where
from gpuloader.pipelines.erasing import erase
from gpuloader.pipelines.inputs import under
from gpuloader.pipelines.kernels.call import EraseValue, augment, resample
from gpuloader.pipelines.steps import Nodes, run_steps
from gpuloader.recipe import Graph
from gpuloader.recipe.placement import Placement, Rgb, rgb
from gpuloader.recipe.program import PARAMETERS, Op
from gpuloader.recipe.view import ViewPlan

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
    largest_image: tuple[int, int],
    decoder_options: Mapping[str, float] | None,
    region: bool,
) -> DataNode:
    """Decodes a region of an image, RGB uint8 HWC, without EXIF rotation, like torchvision; see `recipe_pipeline`.

    Either the decoder decodes only the region, or the whole image. The CPU's kernels know where the region is in it. On
    a GPU it is cropped first: DALI's filter would also use pixels beyond the region's border.
    """
    options = {
        "device": "cpu" if device == "cpu" else "mixed",
        "output_type": types.RGB,
        "adjust_orientation": False,
        "preallocate_height_hint": largest_image[0],
        "preallocate_width_hint": largest_image[1],
        **decoder_buffers(*largest_image),
        **(decoder_options or {}),
    }
    if not region:
        image = fn.decoders.image(encoded, **options)
        return cut_region(image, drawn) if "region_start" in drawn else image
    return fn.decoders.image_slice(
        encoded, start=drawn["region_start"], shape=drawn["region_shape"], axes=(0, 1), **options
    )


def decode_where(
    files: DataNode,
    arrays: DataNode,
    are_files: DataNode,
    drawn: Nodes,
    decode: Callable[[DataNode, Nodes], DataNode],
) -> DataNode:
    """Decodes the files of a batch whose other rows are arrays, uint8 HWC."""
    named = {name: drawn[name] for name in ("region_start", "region_shape") if name in drawn}
    return change_where(
        are_files,
        lambda _, file, *region: decode(file, dict(zip(named, region))),
        arrays,
        files,
        *named.values(),
    )


def decoder_buffers(height: int, width: int) -> dict[str, int]:
    """Computes the bytes that a GPU's decoder reserves, by DALI's names; 0, 0 is an unknown size.

    It reserves one buffer on the device and two in host memory, for each thread and once more, and enlarges a buffer
    that is too small. DALI's defaults, the most here, are for images of 1 to 2 megapixels: 288 MiB for 8 threads.
    """
    coefficients = 2 * 3 * height * width
    wanted = {"device_memory_padding": coefficients + 3 * height * width, "host_memory_padding": coefficients}
    return {name: min(size or most, most) for (name, size), most in zip(wanted.items(), (16 << 20, 8 << 20))}


def cut_region(image: DataNode, drawn: Nodes) -> DataNode:
    """Cuts the region out of an image that is already decoded."""
    return fn.slice(image, start=drawn["region_start"], shape=drawn["region_shape"], axes=(0, 1))


def finish_on_cpu(image: DataNode, drawn: Nodes, view: ViewPlan, graph: Graph) -> DataNode:
    """Finishes what `place_on_cpu` made with a second pass, unless it is finished already."""
    if view.in_one_pass:
        return image

    nothing = {
        "ops": np.array([Op.IDENTITY], np.int32),
        "parameters": np.zeros((1, PARAMETERS), np.float32),
        "erase": np.zeros(6, np.int32),
    }
    given = {
        name: drawn[name] if name in drawn else types.Constant(none, device="cpu") for name, none in nothing.items()
    }
    like_output, finish = drawn["like_output"], _finish(view, graph)
    return augment(image, **given, like_output=like_output, erase_value=_erase_value(view), **finish)


def place_on_cpu(region: DataNode, drawn: Nodes, view: ViewPlan, graph: Graph) -> DataNode:
    """Resizes, crops, pads and flips. The result is finished if one pass does everything, otherwise uint8 HWC."""
    placement = view.how_placed
    levels: dict[str, Any] = {"scale": _ONES, "offset": _ZEROS, "dtype": "uint8", "channels_first": False}
    first = _finish(view, graph) if view.in_one_pass else levels
    return resample(
        region,
        drawn["roi"],
        drawn["placed"],
        drawn["like_output"],
        antialias=placement.antialias,
        padding_mode=placement.padding_mode,
        fill=placement.fill,
        **first,
    )


def _finish(view: ViewPlan, graph: Graph) -> dict[str, Any]:
    """Returns the format and scale of the image after the last pass."""
    scale, offset = _scale_and_offset(view, graph)
    return {"scale": scale, "offset": offset, "dtype": graph.dtype, "channels_first": graph.layout == "nchw"}


def _erase_value(view: ViewPlan) -> EraseValue:
    value = 0.0 if view.erasing is None else view.erasing.value
    return value if isinstance(value, str) else rgb(value)


def finish_on_gpu(image: DataNode, given: Nodes, view: ViewPlan, graph: Graph) -> DataNode:
    """Finishes what `place_on_gpu` made with DALI's operators."""
    mirror = given.get("horizontal") if _mirrors_last(given, view) else None
    image = run_steps(image, [under(given, step) for step in range(view.steps)], view.choices)
    if view.erasing is None:
        return normalise(image, view, graph, graph.dtype, mirror)
    image = normalise(image, view, graph, "float32", mirror)
    image = erase(image, given, _erase_value(view), "CHW" if graph.layout == "nchw" else "HWC")
    return image if graph.dtype == "float32" else fn.cast(image, dtype=_DTYPES[graph.dtype])


def place_on_gpu(region: DataNode, given: Nodes, view: ViewPlan, _graph: Graph) -> DataNode:
    """Resizes, crops, pads and flips, except a flip that normalising does; the result is uint8 HWC.

    At the border, DALI's filter repeats pixels, while the filters of PIL and torch are cut off.
    """
    how = view.how_placed
    if "part_start" in given:  # DALI's filter would also use pixels that only other views need
        region = fn.slice(region, start=given["part_start"], end=given["part_end"], axes=(0, 1))
    if how.overlapping[0]:
        region = _pad(region, given, "window", how)
    drawn = given.get("filter")
    image = fn.resize(
        region,
        size=given["resize_size"],
        interp_type=_FILTERS[how.interpolation] if drawn is None else fn.cast(drawn, dtype=types.INTERP_TYPE),
        antialias=how.antialias,
        roi_start=given["resize_start"],
        roi_end=given["resize_end"],
    )
    image = _pad(image, given, "crop", how) if how.overlapping[1] else image
    return image if _mirrors_last(given, view) else _turn(image, given)


def _mirrors_last(given: Nodes, view: ViewPlan) -> bool:
    """Whether normalising mirrors the image, which saves a pass."""
    return not (view.pixels or view.shares_place or "vertical" in given)


def _pad(image: DataNode, given: Nodes, name: str, how: Placement) -> DataNode:
    """Crops and pads as `inputs` says under this name."""
    if how.padding_mode == "edge":
        # Without a fill value, this repeats the border.
        matrix, size = given[f"{name}_shift"], given[f"{name}_shape"]
        return fn.warp_affine(image, matrix=matrix, size=size, interp_type=types.INTERP_NN)
    if how.padding_mode != "constant":
        image = _reflect(image, given, name, how.padding_mode)
    return fn.slice(
        image,
        start=given[f"{name}_start"],
        shape=given[f"{name}_shape"],
        axes=(0, 1),
        out_of_bounds_policy="pad",
        fill_values=[float(round(level)) for level in how.fill],
    )


def _turn(image: DataNode, given: Nodes) -> DataNode:
    """Flips and transposes an image."""
    ways = {name: given[name] for name in ("vertical", "horizontal") if name in given}
    image = fn.flip(image, **{"horizontal": 0, **ways}) if ways else image
    return change_where(given["transposed"], _transpose, image) if "transposed" in given else image


def _transpose(image: DataNode) -> DataNode:
    return fn.transpose(image, perm=[1, 0, 2], transpose_layout=False)


def _reflect(image: DataNode, given: Nodes, name: str, padding_mode: str) -> DataNode:
    """Extends the image on each side by a mirrored strip, as the padding mode says."""
    border = int(padding_mode == "reflect")  # which is not repeated
    for axis in (0, 1):
        before, behind, last = (given[f"{name}_{strip}_{axis}"] for strip in ("before", "behind", "last"))
        strips = [fn.slice(image, start=[border], shape=before, axes=[axis]),
                  fn.slice(image, start=last, shape=behind, axes=[axis])]  # fmt: skip
        first, final = (fn.flip(strip, vertical=int(axis == 0), horizontal=int(axis == 1)) for strip in strips)
        image = fn.cat(first, image, final, axis=axis)
    return image


def normalise(image: DataNode, view: ViewPlan, graph: Graph, dtype: str, mirror: DataNode | None) -> DataNode:
    """Converts HWC in [0, 255] to the recipe's range and layout: CHW, or HWC for channels_last; and mirrors it."""
    scale, offset = _scale_and_offset(view, graph)
    return fn.crop_mirror_normalize(
        image,
        mean=[-shift / factor for shift, factor in zip(offset, scale)],
        std=[1 / factor for factor in scale],
        dtype=_DTYPES[dtype],
        output_layout="CHW" if graph.layout == "nchw" else "HWC",
        mirror=0 if mirror is None else mirror,
    )


def _scale_and_offset(view: ViewPlan, graph: Graph) -> tuple[Rgb, Rgb]:
    """Computes (scale, offset) by channel: a value x in [0, 255] becomes scale x + offset."""
    if graph.dtype == "uint8":
        return _ONES, _ZEROS
    mean, std = (_ZEROS, _ONES) if view.normalize is None else (view.normalize.mean, view.normalize.std)
    scale = (1 / (255 * std[0]), 1 / (255 * std[1]), 1 / (255 * std[2]))
    return scale, (-mean[0] / std[0], -mean[1] / std[1], -mean[2] / std[2])
