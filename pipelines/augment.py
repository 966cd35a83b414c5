"""The kernel of `kernels.augment` as an operator of the graph."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import numpy as np
from numba import carray
from nvidia.dali import types
from nvidia.dali.data_node import DataNode

from gpuloader.pipelines.kernels import augment as augment_kernel
from gpuloader.pipelines.kernels import colours, compiled, filters, simd, warps
from gpuloader.pipelines.kernels.augment import augment_image
from gpuloader.pipelines.kernels.compiled import as_pointer
from gpuloader.recipe import program
from gpuloader.recipe.program import PARAMETERS

Rgb = tuple[float, float, float]


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
    erase_value: Rgb | Literal["random"],
) -> DataNode:
    """Runs a program on an image, gives scale x + offset for its levels x, and erases a part of that.

    Args:
        image: uint8 (h, w, 3), RGB.
        ops: int32 (k,), the steps of `gpuloader.recipe.program`; k is at least 1.
        parameters: float32 (k, PARAMETERS).
        erase: int32 (6,), top, left, height, width of the part that is erased, in pixels; what of it is outside of
            the image is cut off; height 0 erases nothing. Then two words that say which noise to erase with.
        like_output: (0, 3, h, w), or (0, h, w, 3) without `channels_first`; holds nothing.
        dtype: "float32", "float16", or "uint8", which needs scale 1 and offset 0.
        channels_first: CHW instead of HWC.
        erase_value: what is put there by channel, in the output's values; or "random", which is standard normal noise,
            another for each value, and not for uint8.
    """
    values = (0.0, 0.0, 0.0) if erase_value == "random" else erase_value
    settings = np.array([*scale, *offset, *values, erase_value == "random", channels_first], np.float32)
    return compiled.call(
        _compile(dtype, _SOURCES),
        (image, ops, parameters, erase, types.Constant(settings, device="cpu"), like_output),
        (types.UINT8, types.INT32, types.FLOAT, types.INT32, types.FLOAT, types.UINT8),
        (3, 1, 2, 1, 1, 4),
        dtype,
    )


_SOURCES = compiled.sources(augment_kernel, colours, filters, warps, simd, compiled, program)


@cache  # DALI keeps the address of what is compiled, which lives as long as the function
def _compile(dtype: str, sources: str) -> Any:  # noqa: ANN401
    kept_as = compiled.kept_as(dtype)

    @compiled.compile_kernel
    def run(
        out: int, out_shapes: int, out_dims: int, outs: int, inputs: int, in_shapes: int, in_dims: int, ins: int
    ) -> None:
        sources  # noqa: B018 - what a function refers to is part of its key in the cache
        address, shape = compiled.output(out, out_shapes)
        pointers = carray(as_pointer(inputs), 6, np.int64)
        shapes = carray(as_pointer(in_shapes), 6, np.int64)
        height, width, channels = carray(as_pointer(shapes[0]), 3, np.int64)
        steps = carray(as_pointer(shapes[1]), 1, np.int64)[0]
        augment_image(
            carray(as_pointer(address), shape[0] * shape[1] * shape[2], kept_as),
            carray(as_pointer(pointers[0]), (height, width, channels), np.uint8),
            carray(as_pointer(pointers[1]), steps, np.int32),
            carray(as_pointer(pointers[2]), (steps, PARAMETERS), np.float32),
            carray(as_pointer(pointers[3]), 6, np.int32),
            carray(as_pointer(pointers[4]), 11, np.float32),
        )

    return run
