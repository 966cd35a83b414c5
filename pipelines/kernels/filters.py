"""The operations of `gpuloader.recipe.program` that look at a pixel's neighbours, as loops that Numba compiles."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gpuloader.pipelines.kernels.colours import BLUE, CHANNELS, EXACT, GREEN, INLINED, copy, level
from gpuloader.pipelines.kernels.simd import multiply_add

_ONE = np.float32(1)
_TAPS_AT_ONCE = 4


@njit(**EXACT)  # type: ignore[untyped-decorator]
def sharpness(
    source: NDArray[np.uint8], target: NDArray[np.uint8], height: int, width: int, factor: np.float32
) -> None:
    """SHARPNESS."""
    row, pixel = np.uintp(3 * width), np.uintp(3)
    copy(source, target)
    if height < 3 or width < 3:
        return
    for y in range(np.uintp(1), np.uintp(height - 1)):
        for place in range(y * row + pixel, y * row + row - pixel):
            above, below, centre = place - row, place + row, np.int32(source[place])
            total = np.int32(
                (source[above - pixel] + source[above] + source[above + pixel])
                + (source[place - pixel] + 5 * centre + source[place + pixel])
                + (source[below - pixel] + source[below] + source[below + pixel])
            )
            smooth = np.int32(2 * total + 13) // np.int32(26)
            target[place] = level(multiply_add(np.float32(centre), np.float32(smooth - centre), _ONE - factor))


@njit(**EXACT)  # type: ignore[untyped-decorator]
def _gaussian(deviation: np.float32, radius: int) -> NDArray[np.float32]:
    """The weights, and zeros up to a whole number of steps of `_weigh`."""
    weights = np.zeros(-(-(2 * radius + 1) // _TAPS_AT_ONCE) * _TAPS_AT_ONCE, np.float64)
    for tap in range(2 * radius + 1):
        weights[tap] = math.exp(-0.5 * ((tap - radius) / deviation) ** 2)
    return (weights / weights.sum()).astype(np.float32)


@njit(**INLINED)  # type: ignore[untyped-decorator]
def _reflected(place: int, size: int) -> int:
    """Where in [0, size) a place is that lies behind the border, which is a mirror, as often as it takes."""
    place = abs(place) % max(2 * (size - 1), 1)
    return min(place, 2 * (size - 1) - place)


@njit(**EXACT)  # type: ignore[untyped-decorator]
def _weigh(
    sums: NDArray[np.float32],
    first: int,
    count: int,
    rows: NDArray[np.float32],
    places: NDArray[np.uintp],
    weights: NDArray[np.float32],
) -> None:
    """sums[first : first + count] = the weighed sum of what stands in `rows` from each of the places on."""
    start = np.uintp(first)
    for value in range(np.uintp(count)):
        sums[start + value] = 0
    for tap in range(0, len(places), _TAPS_AT_ONCE):
        one, two, three, four = places[tap], places[tap + 1], places[tap + 2], places[tap + 3]
        for value in range(np.uintp(count)):
            total = multiply_add(sums[start + value], rows[one + value], weights[tap])
            total = multiply_add(total, rows[two + value], weights[tap + 1])
            total = multiply_add(total, rows[three + value], weights[tap + 2])
            sums[start + value] = multiply_add(total, rows[four + value], weights[tap + 3])


@njit(**EXACT)  # type: ignore[untyped-decorator]
def blur(
    source: NDArray[np.uint8], target: NDArray[np.uint8], height: int, width: int, deviation: np.float32, radius: int
) -> None:
    """BLUR over 2 radius + 1 pixels, horizontally, then vertically: what is in between is kept as floats."""
    weights, row, taps = _gaussian(deviation, radius), 3 * width, 2 * radius + 1
    rows, line = np.empty(height * row, np.float32), np.empty(row, np.float32)
    columns, padded = np.empty(width + 2 * radius, np.uintp), np.empty(row + 6 * radius, np.float32)
    places = np.zeros(len(weights), np.uintp)
    for tap in range(taps):
        places[tap] = 3 * tap
    for x in range(len(columns)):
        columns[x] = 3 * _reflected(x - radius, width)
    for y in range(height):
        for x in range(np.uintp(len(columns))):
            at, to = np.uintp(y * row) + columns[x], CHANNELS * x
            padded[to] = source[at]
            padded[to + GREEN] = source[at + GREEN]
            padded[to + BLUE] = source[at + BLUE]
        _weigh(rows, y * row, row, padded, places, weights)
    for y in range(height):
        for tap in range(taps):
            places[tap] = row * _reflected(y + tap - radius, height)
        _weigh(line, 0, row, rows, places, weights)
        for value in range(np.uintp(row)):
            target[np.uintp(y * row) + value] = level(np.rint(line[value]))
