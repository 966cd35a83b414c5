"""The kernels as operators of the graph; they run in DALI's threads, without Python's GIL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from nvidia.dali import fn, types
from nvidia.dali.data_node import DataNode

from gpuloader.base.dali import call_compiled
from gpuloader.pipelines.kernels.library import address_of
from gpuloader.recipe.placement import Rgb

EraseValue: TypeAlias = Rgb | Literal["random", "random_color"]
"""The colour in the image's units, noise for each pixel and channel, or for each channel of a box."""

# The operator does not accept float16 as an output type, so the output is declared as 16-bit integers with its bits.
_DTYPES = {"float32": types.FLOAT, "float16": types.UINT16, "uint8": types.UINT8}
# In the order of the kernels' numbers.
_NUMBERS = ("float32", "float16", "uint8")
_PADDINGS = ("constant", "edge", "reflect", "symmetric")
_NOISES = ("random", "random_color")


def resample(
    image: DataNode,
    roi: DataNode,
    placed: DataNode,
    like_output: DataNode,
    *,
    antialias: bool,
    padding_mode: str,
    fill: Rgb,
    scale: Rgb,
    offset: Rgb,
    dtype: str,
    channels_first: bool,
) -> DataNode:
    """Crops, pads, resizes, crops, pads, flips and transposes an image, and computes scale x + offset.

    Args:
        image: uint8 HWC, RGB, values x in [0, 255].
        roi, placed: as in `inputs.make_inputs`.
        like_output: uint8 (0, h, w), of the output's height and width; it is empty, only its shape counts.
        antialias, padding_mode, fill: as in a `Placement`.
        dtype: "float32", "float16", or "uint8", which rounds and needs scale 1 and offset 0.
        channels_first: CHW instead of HWC.
    """
    filled = [factor * level + shift for factor, level, shift in zip(scale, fill, offset)]
    inputs = ((image, types.UINT8, 3), (roi, types.FLOAT64, 1), (placed, types.INT32, 1))
    settings = (*scale, *offset, *fill, *filled, antialias, _PADDINGS.index(padding_mode))
    return _call("resample", inputs, settings, like_output, dtype, channels_first)


def augment(
    image: DataNode,
    ops: DataNode,
    parameters: DataNode,
    erase: DataNode,
    like_output: DataNode,
    *,
    scale: Rgb,
    offset: Rgb,
    dtype: str,
    channels_first: bool,
    erase_value: EraseValue,
) -> DataNode:
    """Runs a program on an image, computes scale x + offset for its levels x, and erases a part of the result.

    Args:
        image: uint8 (h, w, 3), RGB.
        ops: int32 (k,), the steps of `gpuloader.recipe.program`; k is at least 1.
        parameters: float32 (k, PARAMETERS).
        erase: int32 (6 * k,), for each erased part: its top, left, height, width in pixels; only what is inside the
            image counts, and height 0 erases nothing. Then two words, the key of the noise.
        like_output, dtype, channels_first: as for `resample`.
        erase_value: noise only for a float dtype.
    """
    noisy = _NOISES.index(erase_value) + 1 if isinstance(erase_value, str) else 0
    values = (0.0, 0.0, 0.0) if isinstance(erase_value, str) else erase_value
    inputs = ((image, types.UINT8, 3), (ops, types.INT32, 1), (parameters, types.FLOAT, 2), (erase, types.INT32, 1))
    return _call("augment", inputs, (*scale, *offset, *values, noisy), like_output, dtype, channels_first)


def _call(
    kernel: str,
    inputs: Sequence[tuple[DataNode, Any, int]],
    settings: Sequence[float],
    like_output: DataNode,
    dtype: str,
    channels_first: bool,
) -> DataNode:
    """Calls a kernel of kernels.c: `inputs` have DALI's types and numbers of dimensions; all samples share settings."""
    constants = types.Constant(np.array([*settings, channels_first, _NUMBERS.index(dtype)], np.float32), device="cpu")
    nodes, in_types, ins_ndim = zip(*inputs, (constants, types.FLOAT, 1), (like_output, types.UINT8, 3))
    setup = address_of("setup_chw" if channels_first else "setup_hwc")
    image = call_compiled(address_of(kernel), setup, nodes, in_types, ins_ndim, _DTYPES[dtype])
    return fn.reinterpret(image, dtype=types.FLOAT16) if dtype == "float16" else image
