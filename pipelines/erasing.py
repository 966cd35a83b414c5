"""Random erasing, on the normalised image: a box of one colour, or of noise that is a function of a key.

The noise at (row, column, channel) of an image `width` pixels wide, in 32-bit arithmetic:

    i     = (row * width + column) * 3 + channel
    a, b  = hash(i ^ key[0]), hash(i + key[1])
    value = sqrt(-2 ln((a + 1) / 2**32)) cos(2 pi b / 2**32)

    hash(x): x ^= x >> 16;  x *= 0x7feb352d;  x ^= x >> 15;  x *= 0x846ca68b;  x ^= x >> 16

which is normal with mean 0 and standard deviation 1 (Box and Muller). The hash is Wellons' "lowbias32".
"""

from __future__ import annotations

from math import pi
from typing import Literal, TypeAlias

import numpy as np
from nvidia.dali import fn, math, types
from nvidia.dali.data_node import DataNode

from gpuloader.pipelines.augment import Rgb

Layout: TypeAlias = Literal["CHW", "HWC"]

_LARGEST = 8192  # pixels of height and of width, as `Preset.size`


def erase(image: DataNode, box_and_key: DataNode, value: Rgb | Literal["random"], layout: Layout) -> DataNode:
    """Fills the image's box. It must be traced by a pipeline with conditionals; an empty box costs nothing.

    Args:
        image: float32 (DALI erases no float16 on a GPU), on either device, at most 8192 pixels high and wide.
        box_and_key: (6,) int32, on the CPU: top, left, height and width in pixels (a height of 0 means an empty box),
            then the key's two words.
        value: the colour in the image's units, or "random" for noise.
        layout: the image's layout.
    """
    box, key = box_and_key[0:4], fn.reinterpret(box_and_key[4:6], dtype=types.UINT32)
    if box[2] > 0:
        if value == "random":
            return _fill(image, box, (0.0, 0.0, 0.0)) + _noise_in(image, box, key, layout)
        else:
            return _fill(image, box, value)
    else:
        return image


def _fill(image: DataNode, box: DataNode, colour: Rgb) -> DataNode:
    box = fn.cast(box, dtype=types.FLOAT)
    return fn.erase(image, anchor=box[0:2], shape=box[2:4], axis_names="HW", fill_value=colour)


def _noise_in(image: DataNode, box: DataNode, key: DataNode, layout: Layout) -> DataNode:
    """Noise in the box and 0 around it, in the image's shape."""
    first = layout.index("H")
    size = image.shape(dtype=types.INT32)[first : first + 2]
    width = fn.cast(size[1], dtype=types.UINT32)
    count = types.Constant(np.arange(_LARGEST, dtype=np.uint32), device=image.device)
    rows = fn.expand_dims(fn.slice(count, start=box[0:1], shape=box[2:3], axes=[0]), axes=[1, 2])
    columns = fn.expand_dims(fn.slice(count, start=box[1:2], shape=box[3:4], axes=[0]), axes=[0, 2])
    noise = _noise((rows * width + columns) * _word(3) + count[0:3], key)
    if layout == "CHW":
        noise = fn.transpose(noise, perm=[2, 0, 1])
    return fn.slice(noise, start=-box[0:2], shape=size, axes=[first, first + 1], out_of_bounds_policy="pad")


def _noise(index: DataNode, key: DataNode) -> DataNode:
    a = fn.cast(_hash(index ^ key[0]), dtype=types.FLOAT64)
    b = fn.cast(_hash(index + key[1]), dtype=types.FLOAT64)
    radius = math.sqrt(-2.0 * math.log((a + 1.0) * 2.0**-32))
    return fn.cast(radius * math.cos(b * (2.0 * pi * 2.0**-32)), dtype=types.FLOAT)


def _hash(x: DataNode) -> DataNode:
    x = (x ^ x // _word(1 << 16)) * _word(0x7FEB352D)
    x = (x ^ x // _word(1 << 15)) * _word(0x846CA68B)
    return x ^ x // _word(1 << 16)


def _word(value: int) -> types.ScalarConstant:
    return types.Constant(value, dtype=types.UINT32)
