"""The kernel of `resample_kernel` as an operator of the graph: it runs in DALI's threads, without Python's lock."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import numpy as np
from numba import carray, cfunc, njit
from numba import types as numba_types
from nvidia.dali import fn, types
from nvidia.dali.data_node import DataNode
from nvidia.dali.plugin.numba import NumbaFunction, address_as_void_pointer  # type: ignore[attr-defined]

from gpuloader.pipelines import resample_kernel, simd
from gpuloader.pipelines.resample_kernel import OPTIONS, resample_image

_POINTER = numba_types.uint64
_COUNT = numba_types.int32


def resample(
    image: DataNode,
    roi: DataNode,
    corner: DataNode,
    mirror: DataNode,
    *,
    size: int,
    antialias: bool,
    scale: tuple[float, float, float],
    offset: tuple[float, float, float],
    dtype: str,
    channels_first: bool,
) -> DataNode:
    """Resizes `roi` of an image to size x size, moves it by `corner`, flips it, and gives scale x + offset.

    Args:
        image: uint8 HWC, RGB, values x in [0, 255].
        roi: float64 top, left, bottom, right, in the image's pixels.
        corner: int32 top, left of the output in the resized image; what lies outside is 0 before scaling.
        mirror: int32, not 0 to flip horizontally.
        dtype: "float32", "float16", or "uint8", which rounds and needs scale 1 and offset 0.
        channels_first: CHW instead of HWC.
    """
    shape = (3, size, size) if channels_first else (size, size, 3)
    settings = types.Constant(np.array([*scale, *offset, antialias, channels_first], np.float32), device="cpu")
    # It holds nothing: its dimensions tell the kernel the output's.
    like_output = types.Constant(np.empty((0, *shape), np.uint8), device="cpu")
    inputs = (image, roi, corner, mirror, settings, like_output)
    in_types = [types.UINT8, types.FLOAT64, types.INT32, types.INT32, types.FLOAT, types.UINT8]
    kept_as, out_type = _DTYPES[dtype]
    operator = _Compiled(
        run_fn=_compile(kept_as, _sources()),
        setup_fn=_setup,
        out_types=[out_type],
        in_types=in_types,
        outs_ndim=[3],
        ins_ndim=[3, 1, 1, 0, 1, 4],
    )
    image = operator(*inputs)
    return fn.reinterpret(image, dtype=types.FLOAT16) if dtype == "float16" else image


class _Compiled(NumbaFunction):
    """DALI's operator around functions that Numba compiled and cached.

    DALI compiles a wrapper of its own at every start, which takes seconds: these two methods are where it does.
    """

    def _get_run_fn_cpu(self, run_fn: Any, *_: Any) -> int:  # noqa: ANN401
        address: int = run_fn.address
        return address

    def _get_setup_fn_cpu(self, setup_fn: Any) -> int:  # noqa: ANN401
        address: int = setup_fn.address
        return address


@njit(**OPTIONS)  # type: ignore[untyped-decorator]
def _inputs(in_pointer: int, in_shapes: int) -> Any:  # noqa: ANN401
    pointers = carray(address_as_void_pointer(in_pointer), 6, np.int64)
    shapes = carray(address_as_void_pointer(in_shapes), 6, np.int64)
    height, width, channels = carray(address_as_void_pointer(shapes[0]), 3, np.int64)
    return (
        carray(address_as_void_pointer(pointers[0]), (height, width, channels), np.uint8),
        carray(address_as_void_pointer(pointers[1]), 4, np.float64),
        carray(address_as_void_pointer(pointers[2]), 2, np.int32),
        carray(address_as_void_pointer(pointers[3]), 1, np.int32)[0] != 0,
        carray(address_as_void_pointer(pointers[4]), 8, np.float32),
    )


@njit(**OPTIONS)  # type: ignore[untyped-decorator]
def _output(out_pointer: int, out_shapes: int) -> Any:  # noqa: ANN401
    """(pointer, how many values, size) of the output."""
    shapes = carray(address_as_void_pointer(out_shapes), 1, np.int64)
    shape = carray(address_as_void_pointer(shapes[0]), 3, np.int64)
    return carray(address_as_void_pointer(out_pointer), 1, np.int64)[0], shape[0] * shape[1] * shape[2], shape[1]


_RUN = numba_types.void(_POINTER, _POINTER, _POINTER, _COUNT, _POINTER, _POINTER, _POINTER, _COUNT)
_SETUP = numba_types.void(_POINTER, _POINTER, _COUNT, _POINTER, _POINTER, _COUNT, _COUNT)


def _sources() -> str:
    """What the compiled kernel is made of beside this file, which is all that Numba's cache looks at."""
    return "".join(inspect.getsource(module) for module in (resample_kernel, simd))


@cache  # DALI keeps the address of what is compiled, which lives as long as the function
def _compile(dtype: type[Any], sources: str) -> Any:  # noqa: ANN401
    align_bytes = 4 * np.dtype(dtype).itemsize

    @cfunc(_RUN, **OPTIONS)  # type: ignore[untyped-decorator]
    def run(
        out: int, out_shapes: int, out_dims: int, outs: int, inputs: int, in_shapes: int, in_dims: int, ins: int
    ) -> None:
        sources  # noqa: B018 - what a function refers to is part of its key in the cache
        address, values, size = _output(out, out_shapes)
        image, roi, corner, mirror, settings = _inputs(inputs, in_shapes)
        target = carray(address_as_void_pointer(address), values, dtype)
        resample_image(target, size, image, roi, corner, mirror, settings, address % align_bytes == 0)

    return run


@cfunc(_SETUP, **OPTIONS)  # type: ignore[untyped-decorator]
def _setup(out_shapes: int, out_dims: int, outs: int, in_shapes: int, in_dims: int, ins: int, samples: int) -> None:
    outputs = carray(address_as_void_pointer(out_shapes), samples, np.int64)
    inputs = carray(address_as_void_pointer(in_shapes), (ins, samples), np.int64)
    for sample in range(samples):
        shape = carray(address_as_void_pointer(outputs[sample]), 3, np.int64)
        like_output = carray(address_as_void_pointer(inputs[5, sample]), 4, np.int64)
        for dimension in range(3):
            shape[dimension] = like_output[dimension + 1]


_DTYPES = {
    "float32": (np.float32, types.FLOAT),
    # The plugin refuses to declare float16, so it is declared as the integers that hold its bits.
    "float16": (np.uint16, types.UINT16),
    "uint8": (np.uint8, types.UINT8),
}
