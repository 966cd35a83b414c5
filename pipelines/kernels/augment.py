"""A program of `gpuloader.recipe.program` on an image, then normalising, layout and erasing, as Numba compiles it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gpuloader.pipelines.kernels.colours import (
    BLUE,
    CHANNELS,
    EXACT,
    GREEN,
    INLINED,
    by_table,
    copy,
    grayscale,
    hue,
    level,
    saturation,
)
from gpuloader.pipelines.kernels.filters import blur, sharpness
from gpuloader.pipelines.kernels.simd import convert, multiply_add
from gpuloader.pipelines.kernels.warps import warp
from gpuloader.recipe.program import Op

_IDENTITY, _WARP, _SATURATION, _HUE = int(Op.IDENTITY), int(Op.WARP), int(Op.SATURATION), int(Op.HUE)
_SHARPNESS, _GRAYSCALE, _BLUR = int(Op.SHARPNESS), int(Op.GRAYSCALE), int(Op.BLUR)
_MIX_BEGIN, _MIX_ADD, _MIX_END = int(Op.MIX_BEGIN), int(Op.MIX_ADD), int(Op.MIX_END)
_MOST_TAPS = 4095
_ONE, _MINUS_TWO, _PER_WORD, _CIRCLE = np.float32(1), np.float32(-2), np.float32(2**-32), np.float32(2 * math.pi)


@njit(**EXACT)  # type: ignore[untyped-decorator]
def _apply(
    op: int,
    parameters: NDArray[np.float32],
    source: NDArray[np.uint8],
    target: NDArray[np.uint8],
    height: int,
    width: int,
) -> None:
    """Target = the source after an operation that is neither IDENTITY nor one of those that mix."""
    if op == _WARP:
        warp(source, target, height, width, parameters)
    elif op == _SATURATION:
        saturation(source, target, parameters[0])
    elif op == _HUE:
        hue(source, target, parameters[0])
    elif op == _SHARPNESS:
        sharpness(source, target, height, width, parameters[0])
    elif op == _GRAYSCALE:
        grayscale(source, target)
    elif op == _BLUR:
        radius = int(parameters[1]) // 2 if 0 < parameters[1] <= _MOST_TAPS else 0
        blur(source, target, height, width, parameters[0], radius)
    else:
        by_table(source, target, op, parameters[0])


@njit(**EXACT)  # type: ignore[untyped-decorator]
def _run(
    image: NDArray[np.uint8], height: int, width: int, ops: NDArray[np.int32], parameters: NDArray[np.float32]
) -> NDArray[np.uint8]:
    """The image after all steps; memory is only taken for what they need."""
    kept = len(image) if ops.max() > _IDENTITY else 0
    mixed = len(image) if ops.max() >= _MIX_BEGIN else 0
    source, target, other = image, np.empty(kept, np.uint8), np.empty(kept, np.uint8)
    noted, total = np.zeros(mixed, np.uint8), np.zeros(mixed, np.float32)
    for step in range(len(ops)):
        op = ops[step]
        if op == _MIX_BEGIN:
            copy(source, noted)
            for value in range(np.uintp(len(total))):
                total[value] = 0
        elif op == _MIX_ADD:
            for value in range(np.uintp(len(total))):
                total[value] += parameters[step, 0] * np.float32(source[value])
            source = noted
        elif _IDENTITY < op <= _MIX_END:
            if op == _MIX_END:
                for value in range(np.uintp(len(total))):
                    target[value] = level(total[value])
            else:
                _apply(op, parameters[step], source, target, height, width)
            source, target, other = target, other, target
    return source


@njit(**EXACT)  # type: ignore[untyped-decorator]
def _finish(out: NDArray[Any], source: NDArray[np.uint8], settings: NDArray[np.float32]) -> None:
    pixels = np.uintp(len(source) // 3)
    if settings[10] != 0:
        for channel in range(CHANNELS):
            scale, offset = settings[channel], settings[CHANNELS + channel]
            for pixel in range(pixels):
                value = np.float32(source[CHANNELS * pixel + channel])
                convert(out, channel * pixels + pixel, multiply_add(offset, value, scale))
    else:
        red, green, blue = settings[0], settings[1], settings[2]
        red_offset, green_offset, blue_offset = settings[3], settings[4], settings[5]
        for pixel in range(pixels):
            place = CHANNELS * pixel
            convert(out, place, multiply_add(red_offset, np.float32(source[place]), red))
            convert(out, place + GREEN, multiply_add(green_offset, np.float32(source[place + GREEN]), green))
            convert(out, place + BLUE, multiply_add(blue_offset, np.float32(source[place + BLUE]), blue))


@njit(**INLINED)  # type: ignore[untyped-decorator]
def _hash(x: np.uint32) -> np.uint32:
    """lowbias32 of Chris Wellons ("Prospecting for Hash Functions"), of 32 bits."""
    x = np.uint32(x ^ (x >> 16))
    x = np.uint32(x * np.uint32(0x7FEB352D))
    x = np.uint32(x ^ (x >> 15))
    x = np.uint32(x * np.uint32(0x846CA68B))
    return np.uint32(x ^ (x >> 16))


@njit(**INLINED)  # type: ignore[untyped-decorator]
def _noise(place: np.uint32, first_key: np.uint32, second_key: np.uint32) -> np.float32:
    """A number of the standard normal distribution (Box and Muller) for a place and a key."""
    first = (np.float32(_hash(np.uint32(place ^ first_key))) + _ONE) * _PER_WORD
    second = np.float32(_hash(np.uint32(place + second_key))) * _PER_WORD
    return np.sqrt(_MINUS_TWO * np.log(first)) * np.cos(_CIRCLE * second)


@njit(**EXACT)  # type: ignore[untyped-decorator]
def _erase(
    out: NDArray[Any],
    height: int,
    width: int,
    erase: NDArray[np.int32],
    settings: NDArray[np.float32],
) -> None:
    noisy, channels_first = settings[9] != 0, settings[10] != 0
    first_key, second_key = np.uint32(erase[4]), np.uint32(erase[5])
    for row in range(max(erase[0], 0), min(erase[0] + erase[2], height)):
        for column in range(max(erase[1], 0), min(erase[1] + erase[3], width)):
            for channel in range(3):
                place = 3 * (row * width + column) + channel
                value = _noise(np.uint32(place), first_key, second_key) if noisy else settings[6 + channel]
                convert(out, (channel * height + row) * width + column if channels_first else place, value)


@njit(**EXACT)  # type: ignore[untyped-decorator]
def augment_image(
    out: NDArray[Any],
    image: NDArray[np.uint8],
    ops: NDArray[np.int32],
    parameters: NDArray[np.float32],
    erase: NDArray[np.int32],
    settings: NDArray[np.float32],
) -> None:
    """Runs a program on an image, gives scale x + offset, and erases a part.

    Args:
        out: float32, uint8, or uint16 that keeps float16; as many values as the image, flat.
        image: HWC, RGB.
        ops, parameters: k steps, as a `Program` has them for one sample.
        erase: top, left, height, width, and the noise's key, two words.
        settings: scale, offset and the value of what is erased, each by channel; whether it is noise instead; whether
            the channels come first.
    """
    height, width, _ = image.shape
    pixels = image.reshape(-1)
    if len(out) != len(pixels):
        raise ValueError("the output must be as large as the image")
    _finish(out, _run(pixels, height, width, ops, parameters), settings)
    _erase(out, height, width, erase, settings)
