"""The kernel of kernels/augment.h as an operator of the graph."""

from __future__ import annotations

from typing import Literal, TypeAlias

from nvidia.dali import types
from nvidia.dali.data_node import DataNode

from gpuloader.pipelines.kernels.call import call_kernel

Rgb: TypeAlias = tuple[float, float, float]


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
    erase_value: Rgb | Literal["random", "random_color"],
) -> DataNode:
    """Runs a program on an image, computes scale x + offset for its levels x, and erases a part of the result.

    Args:
        image: uint8 (h, w, 3), RGB.
        ops: int32 (k,), the steps of `gpuloader.recipe.program`; k is at least 1.
        parameters: float32 (k, PARAMETERS).
        erase: int32 (6 * k,), for each erased part: its top, left, height, width in pixels; only what is inside the
            image counts, and height 0 erases nothing. Then two words, the key of the noise.
        like_output: uint8 (0, h, w); it is empty, only its shape counts.
        dtype: "float32", "float16", or "uint8", which needs scale 1 and offset 0.
        channels_first: CHW instead of HWC.
        erase_value: the value for each channel, in the output's units; or "random" for standard normal noise, with a
            different number for each value, "random_color" with one for each channel of a part; not for uint8.
    """
    noisy = ("random", "random_color").index(erase_value) + 1 if isinstance(erase_value, str) else 0
    values = (0.0, 0.0, 0.0) if isinstance(erase_value, str) else erase_value
    return call_kernel(
        "augment",
        ((image, types.UINT8, 3), (ops, types.INT32, 1), (parameters, types.FLOAT, 2), (erase, types.INT32, 1)),
        (*scale, *offset, *values, noisy),
        like_output,
        dtype,
        channels_first,
    )
