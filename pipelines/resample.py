"""Resize, cut, flip, normalise and lay out in one pass over the image: the CPU's kernel.

It runs in DALI's own threads without Python's lock. The filter is PIL's and torch's: a triangle over the source,
widened by the scale where `antialias` is on, cut off at the image's border and weighted anew there (DALI's own resize
repeats the border instead, which is up to a few levels off). Index arithmetic is in double precision: single precision
would misplace the pixels of wide images.

Vertical first, one output row at a time, then horizontal: the row in between stays in the processor's first cache.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
from numba import carray, cfunc, njit
from numba import types as numba_types
from numpy.typing import NDArray
from nvidia.dali import fn, types
from nvidia.dali.data_node import DataNode
from nvidia.dali.plugin.numba import NumbaFunction, address_as_void_pointer  # type: ignore[attr-defined]

from gpuloader.pipelines.simd import converted, load4, multiply_add4, rgb4, scale4, store_channels4, zero4


def _can_cache() -> bool:
    """Whether Numba finds a folder for what it compiles; it needs one beside this file or in the user's home."""
    try:
        njit(cache=True)(_can_cache)
    except RuntimeError:
        _log.warning("the kernel is compiled at every start: Numba finds no folder to keep it in; set NUMBA_CACHE_DIR")
        return False
    return True


_log = logging.getLogger("gpuloader")
_OPTIONS: dict[str, Any] = {"fastmath": True, "boundscheck": False, "error_model": "numpy", "cache": _can_cache()}
_INLINED = {**_OPTIONS, "forceinline": True}
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
    run_fn, out_type = _RUN_BY_DTYPE[dtype]
    operator = _Compiled(
        run_fn=run_fn, setup_fn=_setup, out_types=[out_type], in_types=in_types, outs_ndim=[3], ins_ndim=[3, 1, 1, 0, 1, 4]
    )
    image = operator(*inputs)
    # The plugin refuses to declare float16, so it is declared as the integers that hold its bits.
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


@njit(**_OPTIONS)  # type: ignore[untyped-decorator]
def taps(
    start: float,
    end: float,
    source_size: int,
    size: int,
    corner: int,
    mirror: bool,
    antialias: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """For each output pixel along one axis: the first source pixel, how many, and their weights, which add up to 1."""
    scale = (end - start) / size
    reach = max(scale, 1.0) if antialias else 1.0
    first = np.zeros(size, np.int64)
    count = np.zeros(size, np.int64)
    weights = np.zeros((size, 2 * math.ceil(reach) + 1), np.float32)
    for pixel in range(size):
        resized = corner + (size - 1 - pixel if mirror else pixel)
        if resized < 0 or resized >= size:
            continue
        centre = start + (resized + 0.5) * scale
        low = max(0, int(centre - reach + 0.5))
        high = min(source_size, int(centre + reach + 0.5))
        total = 0.0
        for place in range(low, high):
            total += max(0.0, 1.0 - abs((place + 0.5 - centre) / reach))
        for place in range(low, high):
            weights[pixel, place - low] = max(0.0, 1.0 - abs((place + 0.5 - centre) / reach)) / total
        first[pixel] = low
        count[pixel] = high - low
    return first, count, weights


@njit(**_OPTIONS)  # type: ignore[untyped-decorator]
def _padded(
    first: NDArray[np.int64], count: NDArray[np.int64], weights: NDArray[np.float32]
) -> tuple[NDArray[np.uintp], NDArray[np.float32]]:
    """Taps for `_horizontal`: a multiple of four pixels, as many taps for each as the largest has, weighing 0."""
    pixels = -(-len(first) // 4) * 4
    starts = np.zeros(pixels, np.uintp)
    padded = np.zeros((pixels, max(2, count.max())), np.float32)
    for pixel in range(len(first)):
        starts[pixel] = 3 * first[pixel]
        for tap in range(count[pixel]):
            padded[pixel, tap] = weights[pixel, tap]
    return starts, padded


@njit(**_INLINED)  # type: ignore[untyped-decorator]
def _weigh(
    row: NDArray[np.float32],
    source: NDArray[np.uint8],
    first: int,
    weights: NDArray[np.float32],
    y: int,
    done: int,
    taps_now: int,
) -> None:
    """Adds the weighed sum of `taps_now` rows of `source` to `row`, or begins it if none are done."""
    for place in range(source.shape[1]):
        total = row[place] if done else np.float32(0)
        for tap in range(done, done + taps_now):
            total += weights[y, tap] * np.float32(source[first + tap, place])
        row[place] = total


@njit(**_OPTIONS)  # type: ignore[untyped-decorator]
def _vertical(
    row: NDArray[np.float32], source: NDArray[np.uint8], first: int, count: int, weights: NDArray[np.float32], y: int
) -> None:
    """row = the weighed sum of `count` rows of `source`, up to four in a pass."""
    if count == 0:
        row[:] = 0
    for done in range(0, count, 4):
        left = count - done
        # The numbers are written out so that each call is compiled for its own.
        if left == 1:
            _weigh(row, source, first, weights, y, done, 1)
        elif left == 2:
            _weigh(row, source, first, weights, y, done, 2)
        elif left == 3:
            _weigh(row, source, first, weights, y, done, 3)
        else:
            _weigh(row, source, first, weights, y, done, 4)


@njit(**_INLINED)  # type: ignore[untyped-decorator]
def _horizontal(
    line: NDArray[np.float32],
    row: NDArray[np.float32],
    starts: NDArray[np.uintp],
    weights: NDArray[np.float32],
    scale: Any,  # noqa: ANN401
    offset: Any,  # noqa: ANN401
    taps_of_each: int,
) -> None:
    """One output row: the three channels one behind the other, as many pixels each as `starts` is long."""
    pixels = len(starts)
    # Unsigned, or Numba looks at each index whether it counts from the end.
    for pixel in range(np.uintp(0), np.uintp(pixels), np.uintp(4)):
        second, third, fourth = pixel + np.uintp(1), pixel + np.uintp(2), pixel + np.uintp(3)
        a, b, c, d = zero4(), zero4(), zero4(), zero4()
        for tap in range(np.uintp(taps_of_each)):
            step = np.uintp(3) * tap
            a = multiply_add4(a, load4(row, starts[pixel] + step), weights[pixel, tap])
            b = multiply_add4(b, load4(row, starts[second] + step), weights[second, tap])
            c = multiply_add4(c, load4(row, starts[third] + step), weights[third, tap])
            d = multiply_add4(d, load4(row, starts[fourth] + step), weights[fourth, tap])
        a, b, c, d = (
            scale4(a, scale, offset),
            scale4(b, scale, offset),
            scale4(c, scale, offset),
            scale4(d, scale, offset),
        )
        store_channels4(line, pixels, pixel, a, b, c, d)


@njit(**_OPTIONS)  # type: ignore[untyped-decorator]
def _line(
    line: NDArray[np.float32],
    row: NDArray[np.float32],
    starts: NDArray[np.uintp],
    weights: NDArray[np.float32],
    scale: Any,  # noqa: ANN401
    offset: Any,  # noqa: ANN401
) -> None:
    """`_horizontal`, compiled for the small numbers of taps that most images need."""
    taps_of_each = weights.shape[1]
    if taps_of_each == 2:
        _horizontal(line, row, starts, weights, scale, offset, 2)
    elif taps_of_each == 3:
        _horizontal(line, row, starts, weights, scale, offset, 3)
    elif taps_of_each == 4:
        _horizontal(line, row, starts, weights, scale, offset, 4)
    else:
        _horizontal(line, row, starts, weights, scale, offset, taps_of_each)


@njit(**_OPTIONS)  # type: ignore[untyped-decorator]
def _image(
    out: NDArray[Any],
    image: NDArray[np.uint8],
    roi: NDArray[np.float64],
    corner: NDArray[np.int32],
    mirror: bool,
    settings: NDArray[np.float32],
) -> None:
    height, width, channels = image.shape
    antialias, channels_first = settings[6] != 0, settings[7] != 0
    size = out.shape[1]
    first_row, row_count, row_weights = taps(roi[0], roi[2], height, size, corner[0], False, antialias)
    first_column, column_count, column_weights = taps(roi[1], roi[3], width, size, corner[1], mirror, antialias)
    starts, weights = _padded(first_column, column_count, column_weights)
    scale, offset = rgb4(settings[0], settings[1], settings[2]), rgb4(settings[3], settings[4], settings[5])
    source = image.reshape(height, width * channels)
    # Taps that weigh 0 read behind the row's end, and vectors of four read one float more than a pixel has.
    row = np.zeros(width * channels + 3 * weights.shape[1] + 4, np.float32)
    line = np.empty(3 * len(starts), np.float32)
    # No slices in this loop: Numba counts references to each by an atomic addition, which waits for all writes before.
    for y in range(size):
        _vertical(row, source, first_row[y], row_count[y], row_weights, y)
        _line(line, row, starts, weights, scale, offset)
        for channel in range(3):
            first = channel * len(starts)
            if channels_first:
                for x in range(size):
                    out[channel, y, x] = converted(line[first + x], out)
            else:
                for x in range(size):
                    out[y, x, channel] = converted(line[first + x], out)


@njit(**_OPTIONS)  # type: ignore[untyped-decorator]
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


@njit(**_OPTIONS)  # type: ignore[untyped-decorator]
def _output(out_pointer: int, out_shapes: int) -> Any:  # noqa: ANN401
    shapes = carray(address_as_void_pointer(out_shapes), 1, np.int64)
    shape = carray(address_as_void_pointer(shapes[0]), 3, np.int64)
    pointer = carray(address_as_void_pointer(out_pointer), 1, np.int64)[0]
    return address_as_void_pointer(pointer), (shape[0], shape[1], shape[2])


_RUN = numba_types.void(_POINTER, _POINTER, _POINTER, _COUNT, _POINTER, _POINTER, _POINTER, _COUNT)
_SETUP = numba_types.void(_POINTER, _POINTER, _COUNT, _POINTER, _POINTER, _COUNT, _COUNT)


@cfunc(_RUN, **_OPTIONS)  # type: ignore[untyped-decorator]
def _run_float32(
    out: int, out_shapes: int, out_dims: int, outs: int, inputs: int, in_shapes: int, in_dims: int, ins: int
) -> None:
    pointer, shape = _output(out, out_shapes)
    image, roi, corner, mirror, settings = _inputs(inputs, in_shapes)
    _image(carray(pointer, shape, np.float32), image, roi, corner, mirror, settings)


@cfunc(_RUN, **_OPTIONS)  # type: ignore[untyped-decorator]
def _run_float16(
    out: int, out_shapes: int, out_dims: int, outs: int, inputs: int, in_shapes: int, in_dims: int, ins: int
) -> None:
    pointer, shape = _output(out, out_shapes)
    image, roi, corner, mirror, settings = _inputs(inputs, in_shapes)
    _image(carray(pointer, shape, np.uint16), image, roi, corner, mirror, settings)


@cfunc(_RUN, **_OPTIONS)  # type: ignore[untyped-decorator]
def _run_uint8(
    out: int, out_shapes: int, out_dims: int, outs: int, inputs: int, in_shapes: int, in_dims: int, ins: int
) -> None:
    pointer, shape = _output(out, out_shapes)
    image, roi, corner, mirror, settings = _inputs(inputs, in_shapes)
    _image(carray(pointer, shape, np.uint8), image, roi, corner, mirror, settings)


@cfunc(_SETUP, **_OPTIONS)  # type: ignore[untyped-decorator]
def _setup(out_shapes: int, out_dims: int, outs: int, in_shapes: int, in_dims: int, ins: int, samples: int) -> None:
    outputs = carray(address_as_void_pointer(out_shapes), samples, np.int64)
    inputs = carray(address_as_void_pointer(in_shapes), (ins, samples), np.int64)
    for sample in range(samples):
        shape = carray(address_as_void_pointer(outputs[sample]), 3, np.int64)
        like_output = carray(address_as_void_pointer(inputs[5, sample]), 4, np.int64)
        for dimension in range(3):
            shape[dimension] = like_output[dimension + 1]


_RUN_BY_DTYPE = {
    "float32": (_run_float32, types.FLOAT),
    "float16": (_run_float16, types.UINT16),
    "uint8": (_run_uint8, types.UINT8),
}
