"""The kernel of `kernels.resample` as an operator of the graph: it runs in DALI's threads, without Python's lock."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import carray
from nvidia.dali import types
from nvidia.dali.data_node import DataNode

from gpuloader.pipelines.kernels import compiled, simd
from gpuloader.pipelines.kernels import resample as resample_kernel
from gpuloader.pipelines.kernels.compiled import as_pointer
from gpuloader.pipelines.kernels.resample import resample_image

_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")  # by the kernel's numbers
_PADDINGS = ("constant", "edge", "reflect", "symmetric")
_SOURCES = compiled.sources(resample_kernel, simd, compiled)


def resample(
    image: DataNode,
    roi: DataNode,
    placed: DataNode,
    like_output: DataNode,
    *,
    interpolation: str,
    antialias: bool,
    padding_mode: str,
    fill: tuple[float, float, float],
    scale: tuple[float, float, float],
    offset: tuple[float, float, float],
    dtype: str,
    channels_first: bool,
) -> DataNode:
    """Resizes a part of an image, cuts the output out of that, pads and flips it, and gives scale x + offset.

    Args:
        image: uint8 HWC, RGB, values x in [0, 255].
        roi, placed: as `gpuloader.recipe.placement.Placement.arrays` has them.
        like_output: uint8 of shape (0, 3, h, w) for CHW or (0, h, w, 3); it holds nothing, its dimensions are
            the output's.
        interpolation, antialias, padding_mode, fill: as a `Placement` has them.
        dtype: "float32", "float16", or "uint8", which rounds and needs scale 1 and offset 0.
        channels_first: CHW instead of HWC.
    """
    filled = [factor * level + shift for factor, level, shift in zip(scale, fill, offset)]
    kinds = _INTERPOLATIONS.index(interpolation), _PADDINGS.index(padding_mode)
    settings = np.array([*scale, *offset, *filled, antialias, *kinds, channels_first], np.float32)
    return compiled.call(
        _compile(dtype, _SOURCES),
        (image, roi, placed, types.Constant(settings, device="cpu"), like_output),
        (types.UINT8, types.FLOAT64, types.INT32, types.FLOAT, types.UINT8),
        (3, 1, 1, 1, 4),
        dtype,
    )


@cache  # DALI keeps the address of what is compiled, which lives as long as the function
def _compile(dtype: str, sources: str) -> Any:  # noqa: ANN401
    kept_as = compiled.kept_as(dtype)
    align_bytes = 4 * np.dtype(kept_as).itemsize

    @compiled.compile_kernel
    def run(
        out: int, out_shapes: int, out_dims: int, outs: int, inputs: int, in_shapes: int, in_dims: int, ins: int
    ) -> None:
        sources  # noqa: B018 - what a function refers to is part of its key in the cache
        address, shape = compiled.output(out, out_shapes)
        pointers = carray(as_pointer(inputs), 5, np.int64)
        shapes = carray(as_pointer(in_shapes), 5, np.int64)
        image_height, image_width, channels = carray(as_pointer(shapes[0]), 3, np.int64)
        settings = carray(as_pointer(pointers[3]), 13, np.float32)
        height, width = (shape[1], shape[2]) if settings[12] != 0 else (shape[0], shape[1])
        resample_image(
            carray(as_pointer(address), 3 * height * width, kept_as),
            height,
            width,
            carray(as_pointer(pointers[0]), (image_height, image_width, channels), np.uint8),
            carray(as_pointer(pointers[1]), 4, np.float64),
            carray(as_pointer(pointers[2]), 6, np.int32),
            settings,
            address % align_bytes == 0,
        )

    return run
