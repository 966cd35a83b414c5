"""The kernel of kernels/resample.h as an operator of the graph."""

from __future__ import annotations

from nvidia.dali import types
from nvidia.dali.data_node import DataNode

from gpuloader.pipelines.kernels.call import call_kernel

_PADDINGS = ("constant", "edge", "reflect", "symmetric")  # in the order of the kernel's numbers


def resample(
    image: DataNode,
    roi: DataNode,
    placed: DataNode,
    like_output: DataNode,
    *,
    antialias: bool,
    padding_mode: str,
    fill: tuple[float, float, float],
    scale: tuple[float, float, float],
    offset: tuple[float, float, float],
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
    return call_kernel(
        "resample",
        ((image, types.UINT8, 3), (roi, types.FLOAT64, 1), (placed, types.INT32, 1)),
        (*scale, *offset, *fill, *filled, antialias, _PADDINGS.index(padding_mode)),
        like_output,
        dtype,
        channels_first,
    )
