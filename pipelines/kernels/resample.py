"""Resize, cut, pad, flip, normalise and lay out in one pass over the image, as loops over arrays that Numba compiles.

The filters are PIL's and torch's, widened by the scale where `antialias` is on, cut off at the image's border and
weighted again there (DALI's own resize repeats the border instead, which is up to a few levels off). Index arithmetic
is in double precision: single precision would misplace the pixels of wide images.

Vertical first, two output rows at a time, then horizontal: the rows in between stay in the processor's first cache. The
image comes from main memory, so its rows are asked for beforehand; the output goes there, past the caches.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gpuloader.pipelines.kernels.simd import (
    clamp4,
    convert,
    load4,
    multiply_add4,
    prefetch,
    rgb4,
    scale4,
    store_channels4,
    store_pixels4,
    stream4,
    zero4,
)

# Not cached one by one: a function in Numba's cache does not notice changes of another file's functions that it calls.
OPTIONS: dict[str, Any] = {"fastmath": True, "boundscheck": False, "error_model": "numpy"}
_INLINED = {**OPTIONS, "forceinline": True}
NEAREST, BILINEAR, BICUBIC, LANCZOS = 0, 1, 2, 3
CONSTANT, EDGE, REFLECT, SYMMETRIC = 0, 1, 2, 3
_ROWS_AHEAD = 8
_CACHE_LINE_BYTES = 64


@njit(**OPTIONS)  # type: ignore[untyped-decorator]
def _weight(kind: int, antialias: bool, x: float) -> float:
    """A filter's weight at a distance of x pixels, within its support.

    The cubic is Keys' with a = -1/2, as in PIL, and in torch with antialiasing; torch without has a = -3/4.
    """
    x = abs(x)
    if kind == BILINEAR:
        return max(0.0, 1.0 - x)
    if kind == BICUBIC:
        a = -0.5 if antialias else -0.75
        if x < 1:
            return ((a + 2) * x - (a + 3)) * x * x + 1
        return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0
    if x == 0:
        return 1.0
    return 3 * math.sin(math.pi * x) * math.sin(math.pi * x / 3) / (math.pi * x) ** 2 if x < 3 else 0.0


@njit(**OPTIONS)  # type: ignore[untyped-decorator]
def _unpadded(place: int, size: int, padding: int) -> int:
    """The pixel of a line of `size` that stands at a place outside of it; -1 for none."""
    if 0 <= place < size:
        return place
    if padding == CONSTANT:
        return -1
    if padding == EDGE or size == 1:
        return 0 if place < 0 else size - 1
    period = 2 * size if padding == SYMMETRIC else 2 * size - 2
    place %= period
    return place if place < size else period - place - (1 if padding == SYMMETRIC else 0)


@njit(**OPTIONS)  # type: ignore[untyped-decorator]
def taps(
    start: float,
    end: float,
    source_size: int,
    resized: int,
    corner: int,
    size: int,
    mirror: bool,
    antialias: bool,
    kind: int,
    padding: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """For each output pixel along one axis: the first source pixel, how many, and their weights, which add up to 1.

    `start` to `end` becomes `resized` pixels, of which the output has `size` from `corner` on; padding has no taps, and
    no pixel outside of `start` to `end` has a weight.
    """
    begin, behind = max(0, int(start)), min(source_size, int(end))
    scale = (end - start) / resized
    support = 3.0 if kind == LANCZOS else 2.0 if kind == BICUBIC else 1.0
    stretch = max(scale, 1.0) if antialias else 1.0
    reach = support * stretch
    first = np.zeros(size, np.int64)
    count = np.zeros(size, np.int64)
    weights = np.zeros((size, 2 * math.ceil(reach) + 1), np.float32)
    for pixel in range(size):
        place = _unpadded(corner + (size - 1 - pixel if mirror else pixel), resized, padding)
        if place < 0:
            continue
        if kind == NEAREST:  # halfway between two pixels the sum with `start` would round to either
            first[pixel] = min(max(math.floor(start) + math.floor((place + 0.5) * scale), begin), behind - 1)
            count[pixel] = 1
            weights[pixel, 0] = 1
            continue
        centre = start + (place + 0.5) * scale
        low = math.floor(centre - reach + 0.5)
        high = math.floor(centre + reach + 0.5)
        first[pixel] = min(max(low, begin), behind - 1)
        count[pixel] = min(max(high, begin + 1), behind) - first[pixel]
        total = 0.0
        for tap in range(low, high):
            if not antialias or begin <= tap < behind:
                total += _weight(kind, antialias, (tap + 0.5 - centre) / stretch)
        for tap in range(low, high):
            if not antialias or begin <= tap < behind:  # without antialiasing torch repeats the border's pixel
                nearest = min(max(tap, begin), behind - 1)
                weights[pixel, nearest - first[pixel]] += (
                    _weight(kind, antialias, (tap + 0.5 - centre) / stretch) / total
                )
        while count[pixel] > 1 and weights[pixel, count[pixel] - 1] == 0:  # as where nothing is resized
            count[pixel] -= 1
    return first, count, weights


@njit(**OPTIONS)  # type: ignore[untyped-decorator]
def _padded(
    first: NDArray[np.int64], count: NDArray[np.int64], weights: NDArray[np.float32]
) -> tuple[NDArray[np.uintp], NDArray[np.float32]]:
    """Taps for `_horizontal`: a multiple of four pixels, as many taps for each as the largest has, weighing 0."""
    pixels = -(-len(first) // 4) * 4
    starts = np.zeros(pixels, np.uintp)
    padded = np.zeros((pixels, max(1, count.max())), np.float32)
    for pixel in range(len(first)):
        starts[pixel] = 3 * first[pixel]
        for tap in range(count[pixel]):
            padded[pixel, tap] = weights[pixel, tap]
    return starts, padded


@njit(**_INLINED)  # type: ignore[untyped-decorator]
def _weigh(
    rows: NDArray[np.float32],
    place: int,
    source: NDArray[np.uint8],
    first: int,
    weights: NDArray[np.float32],
    y: int,
    done: int,
    taps_now: int,
) -> None:
    """Adds the weighed sum of `taps_now` rows of `source` to the row at `place`, or begins it if none are done."""
    for value in range(np.uintp(source.shape[1])):
        total = rows[place + value] if done else np.float32(0)
        for tap in range(done, done + taps_now):
            total += weights[y, tap] * np.float32(source[first + tap, value])
        rows[place + value] = total


@njit(**OPTIONS)  # type: ignore[untyped-decorator]
def _vertical(
    rows: NDArray[np.float32],
    place: int,
    source: NDArray[np.uint8],
    first: int,
    count: int,
    weights: NDArray[np.float32],
    y: int,
) -> None:
    """The row at `place` = the weighed sum of `count` rows of `source`, up to four in a pass."""
    if count == 0:
        for value in range(np.uintp(source.shape[1])):
            rows[place + value] = 0
    for done in range(0, count, 4):
        left = count - done
        # The numbers are written out so that each call is compiled for its own.
        if left == 1:
            _weigh(rows, place, source, first, weights, y, done, 1)
        elif left == 2:
            _weigh(rows, place, source, first, weights, y, done, 2)
        elif left == 3:
            _weigh(rows, place, source, first, weights, y, done, 3)
        else:
            _weigh(rows, place, source, first, weights, y, done, 4)


@njit(**_INLINED)  # type: ignore[untyped-decorator]
def _horizontal(
    lines: NDArray[np.float32],
    rows: NDArray[np.float32],
    starts: NDArray[np.uintp],
    weights: NDArray[np.float32],
    scale: Any,  # noqa: ANN401
    offset: Any,  # noqa: ANN401
    taps_of_each: int,
    overshoots: bool,
    channels_first: bool,
) -> None:
    """Two output rows, of two rows: a weight that is loaded serves both.

    An output row is its three channels one behind the other, as many pixels each as `starts` is long; or its pixels.
    """
    pixels, other = len(starts), np.uintp(len(rows) // 2)
    # Unsigned, or Numba looks at each index whether it counts from the end.
    for pixel in range(np.uintp(0), np.uintp(pixels), np.uintp(4)):
        second, third, fourth = pixel + np.uintp(1), pixel + np.uintp(2), pixel + np.uintp(3)
        a, b, c, d = zero4(), zero4(), zero4(), zero4()
        e, f, g, h = zero4(), zero4(), zero4(), zero4()
        for tap in range(np.uintp(taps_of_each)):
            step = np.uintp(3) * tap
            a = multiply_add4(a, load4(rows, starts[pixel] + step), weights[pixel, tap])
            e = multiply_add4(e, load4(rows, starts[pixel] + step + other), weights[pixel, tap])
            b = multiply_add4(b, load4(rows, starts[second] + step), weights[second, tap])
            f = multiply_add4(f, load4(rows, starts[second] + step + other), weights[second, tap])
            c = multiply_add4(c, load4(rows, starts[third] + step), weights[third, tap])
            g = multiply_add4(g, load4(rows, starts[third] + step + other), weights[third, tap])
            d = multiply_add4(d, load4(rows, starts[fourth] + step), weights[fourth, tap])
            h = multiply_add4(h, load4(rows, starts[fourth] + step + other), weights[fourth, tap])
        if overshoots:
            a, b, c, d = clamp4(a), clamp4(b), clamp4(c), clamp4(d)
            e, f, g, h = clamp4(e), clamp4(f), clamp4(g), clamp4(h)
        _store(lines, 0, pixels, pixel, channels_first, scale, offset, a, b, c, d)
        _store(lines, len(lines) // 2, pixels, pixel, channels_first, scale, offset, e, f, g, h)


@njit(**_INLINED)  # type: ignore[untyped-decorator]
def _store(
    lines: NDArray[np.float32],
    line: int,
    pixels: int,
    pixel: int,
    channels_first: bool,
    scale: Any,  # noqa: ANN401
    offset: Any,  # noqa: ANN401
    one: Any,  # noqa: ANN401
    two: Any,  # noqa: ANN401
    three: Any,  # noqa: ANN401
    four: Any,  # noqa: ANN401
) -> None:
    one, two = scale4(one, scale, offset), scale4(two, scale, offset)
    three, four = scale4(three, scale, offset), scale4(four, scale, offset)
    if channels_first:
        store_channels4(lines, pixels, line + pixel, one, two, three, four)
    else:
        store_pixels4(lines, line + 3 * pixel, one, two, three, four)


@njit(**OPTIONS)  # type: ignore[untyped-decorator]
def _two_lines(
    lines: NDArray[np.float32],
    rows: NDArray[np.float32],
    starts: NDArray[np.uintp],
    weights: NDArray[np.float32],
    scale: Any,  # noqa: ANN401
    offset: Any,  # noqa: ANN401
    overshoots: bool,
    channels_first: bool,
) -> None:
    """`_horizontal`, compiled for the small numbers of taps that most images need."""
    taps_of_each = weights.shape[1]
    if overshoots:
        _horizontal(lines, rows, starts, weights, scale, offset, taps_of_each, True, channels_first)
    elif taps_of_each == 1:
        _horizontal(lines, rows, starts, weights, scale, offset, 1, False, channels_first)
    elif taps_of_each == 2:
        _horizontal(lines, rows, starts, weights, scale, offset, 2, False, channels_first)
    elif taps_of_each == 3:
        _horizontal(lines, rows, starts, weights, scale, offset, 3, False, channels_first)
    elif taps_of_each == 4:
        _horizontal(lines, rows, starts, weights, scale, offset, 4, False, channels_first)
    else:
        _horizontal(lines, rows, starts, weights, scale, offset, taps_of_each, False, channels_first)


@njit(**OPTIONS)  # type: ignore[untyped-decorator]
def _fill_padding(
    lines: NDArray[np.float32],
    line: int,
    pixels: int,
    column_count: NDArray[np.int64],
    whole_row: bool,
    fill: NDArray[np.float32],
    channels_first: bool,
) -> None:
    for column in range(len(column_count)):
        if whole_row or column_count[column] == 0:
            for channel in range(3):
                lines[line + (channel * pixels + column if channels_first else 3 * column + channel)] = fill[channel]


@njit(**OPTIONS)  # type: ignore[untyped-decorator]
def resample_image(
    out: NDArray[Any],
    height: int,
    width: int,
    image: NDArray[np.uint8],
    roi: NDArray[np.float64],
    placed: NDArray[np.int32],
    settings: NDArray[np.float32],
    aligned: bool,
) -> None:
    """Resizes `roi` of an image, cuts height x width of it out, pads and flips that, and gives scale x + offset.

    Args:
        out: float32, uint8, or uint16 that keeps float16; height x width x 3 values, flat.
        image: HWC, RGB.
        roi, placed: as the operator `resample` has them.
        settings: scale and offset by channel, the fill after them, antialias, the filter, the padding, channels first.
        aligned: whether `out` begins at a multiple of four of its values in memory.
    """
    image_height, image_width, channels = image.shape
    resized, corner, mirror = placed[0:2], placed[2:4], placed[4:6]
    fill, antialias, kind = settings[6:9], settings[9] != 0, int(settings[10])
    padding, channels_first = int(settings[11]), settings[12] != 0
    first_row, row_count, row_weights = taps(
        roi[0], roi[2], image_height, resized[0], corner[0], height, mirror[0] != 0, antialias, kind, padding
    )
    first_column, column_count, column_weights = taps(
        roi[1], roi[3], image_width, resized[1], corner[1], width, mirror[1] != 0, antialias, kind, padding
    )
    starts, weights = _padded(first_column, column_count, column_weights)
    scale, offset = rgb4(settings[0], settings[1], settings[2]), rgb4(settings[3], settings[4], settings[5])
    source = image.reshape(image_height, image_width * channels)
    padded_rows, padded = row_count.min() == 0, row_count.min() == 0 or column_count.min() == 0
    # Taps that weigh 0 read behind the row's end, and vectors of four read one float more than a pixel has.
    row_floats, line_floats = image_width * channels + 3 * weights.shape[1] + 4, 3 * len(starts) + 1
    rows, lines = np.zeros(2 * row_floats, np.float32), np.empty(2 * line_floats, np.float32)
    pixels, asked_for = image.reshape(-1), first_row.min() * image_width * channels
    runs, run = (3, width) if channels_first else (1, 3 * width)
    # No slices in this loop: Numba counts references to each by an atomic addition, which waits for all writes before.
    for pair in range(0, height, 2):
        end = min(pair + 2, height)
        for y in range(pair, end):
            while asked_for < (first_row[y] + row_count[y] + _ROWS_AHEAD) * image_width * channels:
                prefetch(pixels, asked_for)
                asked_for += _CACHE_LINE_BYTES
            _vertical(rows, np.uintp((y - pair) * row_floats), source, first_row[y], row_count[y], row_weights, y)
        _two_lines(lines, rows, starts, weights, scale, offset, kind >= BICUBIC, channels_first)
        for y in range(pair, end):
            if padded:
                whole_row = padded_rows and row_count[y] == 0
                _fill_padding(
                    lines, (y - pair) * line_floats, len(starts), column_count, whole_row, fill, channels_first
                )
            for number in range(runs):
                first = (y - pair) * line_floats + number * len(starts)
                target = number * height * width + y * run
                if aligned and width % 4 == 0:
                    for place in range(0, run, 4):
                        stream4(out, target + place, load4(lines, first + place))
                else:
                    for place in range(run):
                        convert(out, target + place, lines[first + place])
