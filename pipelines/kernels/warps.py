"""The operation WARP of `gpuloader.recipe.program`, as loops that Numba compiles.

A row of the output at a time. Where its pixels come from, and what each of their neighbours weighs, is computed for all
of them first, which LLVM makes vectors of. Coordinates are in single precision, as torch's are.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gpuloader.pipelines.kernels.colours import BLUE, CHANNELS, EXACT, GREEN, INLINED, level
from gpuloader.pipelines.kernels.simd import load4, multiply_add4, store4, zero4
from gpuloader.recipe.program import BILINEAR, NEAREST

_HALF, _BELOW = np.float32(0.5), np.float32(-4)
_KEYS = -0.75


@njit(**EXACT)  # type: ignore[untyped-decorator]
def warp(
    source: NDArray[np.uint8], target: NDArray[np.uint8], height: int, width: int, parameters: NDArray[np.float32]
) -> None:
    """Target = the warped source; parameters as WARP has them."""
    if parameters[9] == NEAREST:
        _nearest(source, target, height, width, parameters)
    elif parameters[9] == BILINEAR:
        _weighed(source, target, height, width, parameters, 2)
    else:
        _weighed(source, target, height, width, parameters, 4)


@njit(**INLINED)  # type: ignore[untyped-decorator]
def _origins(xs: NDArray[np.float32], ys: NDArray[np.float32], y: int, matrix: NDArray[np.float32]) -> None:
    """Where in the input the pixels of the output's row y come from; its pixels' centres are whole numbers."""
    a, b, c = matrix[0], matrix[1], matrix[2]
    d, e, f = matrix[3], matrix[4], matrix[5]
    g, h, i = matrix[6], matrix[7], matrix[8]
    row = np.float32(y) + _HALF
    for x in range(np.uintp(len(xs))):
        column = np.float32(np.int32(x)) + _HALF
        depth = g * column + (h * row + i)
        xs[x] = (a * column + (b * row + c)) / depth - _HALF
        ys[x] = (d * column + (e * row + f)) / depth - _HALF


@njit(**EXACT)  # type: ignore[untyped-decorator]
def _nearest(
    source: NDArray[np.uint8], target: NDArray[np.uint8], height: int, width: int, parameters: NDArray[np.float32]
) -> None:
    xs, ys, places = np.empty(width, np.float32), np.empty(width, np.float32), np.empty(width, np.int64)
    red, green, blue = level(np.rint(parameters[10])), level(np.rint(parameters[11])), level(np.rint(parameters[12]))
    to = np.uintp(0)
    for y in range(height):
        _origins(xs, ys, y, parameters)
        for x in range(np.uintp(width)):
            column, row = np.rint(xs[x]), np.rint(ys[x])
            inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)  # which NaN is not
            places[x] = 3 * (np.int64(row) * width + np.int64(column)) if inside else -1
        for x in range(np.uintp(width)):
            if places[x] < 0:
                target[to], target[to + GREEN], target[to + BLUE] = red, green, blue
            else:
                at = np.uintp(places[x])
                target[to], target[to + GREEN], target[to + BLUE] = source[at], source[at + GREEN], source[at + BLUE]
            to += CHANNELS


@njit(**INLINED)  # type: ignore[untyped-decorator]
def _weight(part: float, tap: int, taps: int) -> float:
    """What the `tap`-th neighbour of a place weighs that lies `part` behind the middle ones' first.

    Linear, or cubic with a = -0.75 (Keys, "Cubic convolution interpolation for digital image processing", 1981).
    """
    if taps == 2:
        return part if tap else 1 - part
    distance = abs(part + 1 - tap)
    if tap in (1, 2):
        return ((_KEYS + 2) * distance - (_KEYS + 3)) * distance * distance + 1
    return ((_KEYS * distance - 5 * _KEYS) * distance + 8 * _KEYS) * distance - 4 * _KEYS


@njit(**INLINED)  # type: ignore[untyped-decorator]
def _neighbours(
    places: NDArray[np.uintp],
    weights: NDArray[np.float32],
    mask: NDArray[np.float32],
    origins: NDArray[np.float32],
    size: int,
    stride: int,
    taps: int,
) -> None:
    """Along one axis, for each pixel: its `taps` neighbours, their weights, 0 outside of the input, and their sum."""
    for x in range(np.uintp(len(origins))):
        before = np.floor(origins[x])
        part = origins[x] - before
        # A whole number in any case, NaN too, and far enough from the input for all neighbours to be outside.
        before = before if before > _BELOW else _BELOW
        first = np.int64(before if before < size + 4 else np.float32(size + 4)) + 1 - taps // 2
        mask[x] = 0
        for tap in range(taps):
            inside = (first + tap >= 0) & (first + tap < size)
            weights[tap, x] = _weight(part, tap, taps) if inside else 0
            places[tap, x] = stride * (first + tap) if inside else 0
            mask[x] += weights[tap, x]


@njit(**INLINED)  # type: ignore[untyped-decorator]
def _weighed(
    source: NDArray[np.uint8],
    target: NDArray[np.uint8],
    height: int,
    width: int,
    parameters: NDArray[np.float32],
    taps: int,
) -> None:
    xs, ys = np.empty(width, np.float32), np.empty(width, np.float32)
    columns, rows = np.empty((taps, width), np.uintp), np.empty((taps, width), np.uintp)
    column_weights, row_weights = np.empty((taps, width), np.float32), np.empty((taps, width), np.float32)
    column_mask, row_mask = np.empty(width, np.float32), np.empty(width, np.float32)
    # One float more, for pixels are read and written as vectors of four.
    image, line = np.zeros(len(source) + 1, np.float32), np.empty(3 * width + 1, np.float32)
    red, green, blue, again = parameters[10], parameters[11], parameters[12], parameters[13]
    for value in range(np.uintp(len(source))):
        image[value] = source[value]
    for y in range(height):
        _origins(xs, ys, y, parameters)
        _neighbours(columns, column_weights, column_mask, xs, width, 3, taps)
        _neighbours(rows, row_weights, row_mask, ys, height, 3 * width, taps)
        for x in range(np.uintp(width)):
            total = zero4()
            for i in range(taps):
                for j in range(taps):
                    pixel = load4(image, rows[i, x] + columns[j, x])
                    total = multiply_add4(total, pixel, row_weights[i, x] * column_weights[j, x])
            store4(line, CHANNELS * x, total)
        for x in range(np.uintp(width)):
            mask, at = row_mask[x] * column_mask[x], CHANNELS * x
            to, share = np.uintp(3 * width * y) + at, mask if again else np.float32(1)
            target[to] = level(np.rint(share * line[at] + (1 - mask) * red))
            target[to + GREEN] = level(np.rint(share * line[at + GREEN] + (1 - mask) * green))
            target[to + BLUE] = level(np.rint(share * line[at + BLUE] + (1 - mask) * blue))
