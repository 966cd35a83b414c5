"""The operations of `gpuloader.recipe.program` that look at one pixel at a time, as loops that Numba compiles.

An image is flat, uint8, RGB pixel by pixel; `target` is never `source`. Arithmetic is torch's: single precision, in its
order, with its fused additions, for the results are truncated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gpuloader.pipelines.kernels.resample import OPTIONS
from gpuloader.pipelines.kernels.simd import multiply_add
from gpuloader.recipe.program import Op

EXACT: dict[str, Any] = {**OPTIONS, "fastmath": False}
INLINED: dict[str, Any] = {**EXACT, "forceinline": True}

# Unsigned, or Numba looks at each index whether it counts from the end, and LLVM finds no vectors.
GREEN, BLUE, CHANNELS = np.uintp(1), np.uintp(2), np.uintp(3)
_GREENS, _BLUES = np.uintp(256), np.uintp(512)

_BRIGHTNESS, _CONTRAST, _POSTERIZE = int(Op.BRIGHTNESS), int(Op.CONTRAST), int(Op.POSTERIZE)
_SOLARIZE, _SOLARIZE_ADD = int(Op.SOLARIZE), int(Op.SOLARIZE_ADD)
_AUTOCONTRAST, _EQUALIZE = int(Op.AUTOCONTRAST), int(Op.EQUALIZE)
_ZERO, _ONE, _255 = np.float32(0), np.float32(1), np.float32(255)
_GRAY = np.float32(0.2989), np.float32(0.587), np.float32(0.114)
_PER_LEVEL, _LEVELS = np.float32(1 / 255), np.float32(256 - 1e-3)
_SIXTH, _TWO, _FOUR, _SIX = np.float32(1 / 6), np.float32(2), np.float32(4), np.float32(6)


@njit(**INLINED)  # type: ignore[untyped-decorator]
def level(value: np.float32) -> np.uint8:
    """A float32 clamped to [0, 255] and truncated; 0 for NaN."""
    value = value if value > _ZERO else _ZERO
    return np.uint8(value if value < _255 else _255)


@njit(**INLINED)  # type: ignore[untyped-decorator]
def _gray(red: np.uint8, green: np.uint8, blue: np.uint8) -> np.float32:
    """A whole number."""
    total = np.float32(red) * _GRAY[0]
    total = multiply_add(total, np.float32(green), _GRAY[1])
    return np.float32(np.int32(multiply_add(total, np.float32(blue), _GRAY[2])))


@njit(**INLINED)  # type: ignore[untyped-decorator]
def _blend(value: np.float32, other: np.float32, factor: np.float32) -> np.uint8:
    """The level factor value + (1 - factor) other."""
    return level(multiply_add(value * factor, other, _ONE - factor))


@njit(**EXACT)  # type: ignore[untyped-decorator]
def copy(source: NDArray[np.uint8], target: NDArray[np.uint8]) -> None:
    """Target = source."""
    for value in range(np.uintp(len(source))):
        target[value] = source[value]


@njit(**EXACT)  # type: ignore[untyped-decorator]
def _mean_gray(source: NDArray[np.uint8]) -> np.float32:
    total = np.int64(0)
    for pixel in range(np.uintp(len(source) // 3)):
        place = CHANNELS * pixel
        total += np.int64(_gray(source[place], source[place + GREEN], source[place + BLUE]))
    return np.float32(total) / np.float32(len(source) // 3)


@njit(**EXACT)  # type: ignore[untyped-decorator]
def _histograms(source: NDArray[np.uint8]) -> NDArray[np.int64]:
    """256 counts for red, then for green, then for blue."""
    counts = np.zeros(768, np.int64)
    for pixel in range(np.uintp(len(source) // 3)):
        place = CHANNELS * pixel
        counts[source[place]] += 1
        counts[_GREENS + source[place + GREEN]] += 1
        counts[_BLUES + source[place + BLUE]] += 1
    return counts


@njit(**EXACT)  # type: ignore[untyped-decorator]
def _autocontrast(table: NDArray[np.uint8], counts: NDArray[np.int64]) -> None:
    least, greatest = 0, 255
    while counts[least] == 0 and least < 255:
        least += 1
    while counts[greatest] == 0 and greatest > least:
        greatest -= 1
    if least == greatest:
        least, greatest = 0, 255
    scale = np.float32(greatest - least) * _PER_LEVEL
    for x in range(256):
        table[x] = level(np.float32(x - least) / scale)


@njit(**EXACT)  # type: ignore[untyped-decorator]
def _equalize(table: NDArray[np.uint8], counts: NDArray[np.int64]) -> None:
    """PIL's `ImageOps.equalize`."""
    greatest = 255
    while counts[greatest] == 0 and greatest > 0:
        greatest -= 1
    step = (counts.sum() - counts[greatest]) // 255
    below = 0
    for x in range(256):
        table[x] = min((below + step // 2) // step, 255) if step else x
        below += counts[x]


@njit(**EXACT)  # type: ignore[untyped-decorator]
def _new_level(op: int, x: int, factor: np.float32, mean: np.float32) -> np.uint8:
    """What becomes of a level; `mean` is for CONTRAST."""
    value = np.float32(x)
    if op == _BRIGHTNESS:
        return level(value * factor)
    if op == _CONTRAST:
        return _blend(value, mean, factor)
    if op == _POSTERIZE:
        return np.uint8(x & (0xFF00 >> min(level(factor), np.uint8(8))))
    if op == _SOLARIZE:
        return np.uint8(255 - x if value >= factor else x)
    if op == _SOLARIZE_ADD:
        return level(value + factor) if x < 128 else np.uint8(x)
    return np.uint8(255 - x)


@njit(**EXACT)  # type: ignore[untyped-decorator]
def by_table(source: NDArray[np.uint8], target: NDArray[np.uint8], op: int, factor: np.float32) -> None:
    """The operations that are a table of levels, for some of them made from the whole image."""
    tables = np.empty(768, np.uint8)
    if op in (_AUTOCONTRAST, _EQUALIZE):
        counts = _histograms(source)
        for channel in range(0, 768, 256):
            if op == _AUTOCONTRAST:
                _autocontrast(tables[channel:], counts[channel : channel + 256])
            else:
                _equalize(tables[channel:], counts[channel : channel + 256])
    else:
        mean = _mean_gray(source) if op == _CONTRAST else _ZERO
        for x in range(768):
            tables[x] = _new_level(op, x % 256, factor, mean)
    for pixel in range(np.uintp(len(source) // 3)):
        place = CHANNELS * pixel
        target[place] = tables[source[place]]
        target[place + GREEN] = tables[_GREENS + source[place + GREEN]]
        target[place + BLUE] = tables[_BLUES + source[place + BLUE]]


@njit(**EXACT)  # type: ignore[untyped-decorator]
def grayscale(source: NDArray[np.uint8], target: NDArray[np.uint8]) -> None:
    """GRAYSCALE."""
    for pixel in range(np.uintp(len(source) // 3)):
        place = CHANNELS * pixel
        gray = np.uint8(_gray(source[place], source[place + GREEN], source[place + BLUE]))
        target[place], target[place + GREEN], target[place + BLUE] = gray, gray, gray


@njit(**EXACT)  # type: ignore[untyped-decorator]
def saturation(source: NDArray[np.uint8], target: NDArray[np.uint8], factor: np.float32) -> None:
    """SATURATION."""
    for pixel in range(np.uintp(len(source) // 3)):
        place = CHANNELS * pixel
        red, green, blue = source[place], source[place + GREEN], source[place + BLUE]
        gray = _gray(red, green, blue)
        target[place] = _blend(np.float32(red), gray, factor)
        target[place + GREEN] = _blend(np.float32(green), gray, factor)
        target[place + BLUE] = _blend(np.float32(blue), gray, factor)


@njit(**EXACT)  # type: ignore[untyped-decorator]
def hue(source: NDArray[np.uint8], target: NDArray[np.uint8], turn: np.float32) -> None:
    """HUE, with the steps of torchvision's `_rgb_to_hsv` and `_hsv_to_rgb`."""
    for pixel in range(np.uintp(len(source) // 3)):
        place = CHANNELS * pixel
        red = np.float32(source[place]) * _PER_LEVEL
        green = np.float32(source[place + GREEN]) * _PER_LEVEL
        blue = np.float32(source[place + BLUE]) * _PER_LEVEL
        value, low = max(red, green, blue), min(red, green, blue)
        divisor = value - low if value > low else _ONE
        chroma = (value - low) / (value if value > low else _ONE)
        r, g, b = (value - red) / divisor, (value - green) / divisor, (value - blue) / divisor
        sixths = b - g if value == red else (r + _TWO) - b if value == green else (g + _FOUR) - r
        circles = sixths * _SIXTH + _ONE
        circles = circles - np.floor(circles) + turn
        sixths = (circles - np.floor(circles)) * _SIX
        sector = np.floor(sixths)
        part, pale = chroma * (sixths - sector), _ONE - chroma
        p, q, t = pale * value, (_ONE - part) * value, (part + pale) * value
        # The sixth is the first again, where the circle's end was rounded up to.
        red = q if sector == 1 else p if sector in (2, 3) else t if sector == 4 else value
        green = value if sector in (1, 2) else q if sector == 3 else p if sector in (4, 5) else t
        blue = t if sector == 2 else value if sector in (3, 4) else q if sector == 5 else p
        target[place] = level(red * _LEVELS)
        target[place + GREEN] = level(green * _LEVELS)
        target[place + BLUE] = level(blue * _LEVELS)
