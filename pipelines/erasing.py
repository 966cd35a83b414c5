"""Random erasing, on the normalised image: a box of one colour, or of noise that is a function of a key.

The noise at (row, column, channel) of an image `width` pixels wide, in 32-bit arithmetic:

    i     = (row * width + column) * 3 + channel    of a box of one random colour: channel
    a, b  = hash(i ^ key[0]), hash(i + key[1])
    value = sqrt(-2 ln((a + 1) / 2**32)) cos(2 pi b / 2**32)

    hash(x): x ^= x >> 16;  x *= 0x7feb352d;  x ^= x >> 15;  x *= 0x846ca68b;  x ^= x >> 16

which is normal with mean 0 and standard deviation 1 (Box and Muller). The hash is Wellons' "lowbias32".
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from typing import Literal, TypeAlias

import numpy as np
from nvidia.dali import fn, math, types
from nvidia.dali.data_node import DataNode

from gpuloader.base.dali import change_where
from gpuloader.pipelines.kernels.call import EraseValue
from gpuloader.pipelines.steps import Nodes, to_device_of

Layout: TypeAlias = Literal["CHW", "HWC"]

_LARGEST = 8192  # pixels of height and of width, as `Recipe.size`


def erase(image: DataNode, inputs: Nodes, value: EraseValue, layout: Layout) -> DataNode:
    """Fills the image's boxes, one after the other.

    Args:
        image: float32 (DALI erases no float16 on a GPU), on either device, at most 8192 pixels high and wide.
        inputs: on the CPU, what `inputs.erasing` makes.
        layout: the image's layout.
    """
    for number in range(sum(name.endswith("erase_start") for name in inputs)):
        box = {name.partition(".")[2]: node for name, node in inputs.items() if name.startswith(f"{number}.")}
        image = fn.erase(
            image,
            anchor=box["erase_start"],
            shape=box["erase_shape"],
            axis_names="HW",
            fill_value=(0.0, 0.0, 0.0) if isinstance(value, str) else value,
        )
        if isinstance(value, str):
            image = _add_noise(image, box, 3 if value == "random" else 0, layout)
    return image


def _add_noise(image: DataNode, inputs: Nodes, per_pixel: int, layout: Layout) -> DataNode:
    """Adds noise to a box, whose index i grows by `per_pixel` from pixel to pixel: by 0 if all have one colour."""
    first = layout.index("H")
    count = types.Constant(np.arange(_LARGEST, dtype=np.uint32), device=image.device)
    rows = fn.slice(count, start=inputs["rows"], shape=inputs["rows_count"], axes=[0])
    columns = fn.slice(count, start=inputs["columns"], shape=inputs["columns_count"], axes=[0])
    numbers = (to_device_of(image, inputs[name]) for name in ("width", "key_0", "key_1"))

    def add(
        image: DataNode,
        start: DataNode,
        shape: DataNode,
        rows: DataNode,
        columns: DataNode,
        channels: DataNode,
        width: DataNode,
        *key: DataNode,
    ) -> DataNode:
        rows, columns = fn.expand_dims(rows, axes=[1, 2]), fn.expand_dims(columns, axes=[0, 2])
        noise = _noise((rows * width + columns) * _word(per_pixel) + channels, key)
        if layout == "CHW":
            noise = fn.transpose(noise, perm=[2, 0, 1])
        return image + fn.slice(noise, start=start, shape=shape, axes=[first, first + 1], out_of_bounds_policy="pad")

    place = (inputs["image_start"], inputs["image_shape"])
    return change_where(inputs["erased"], add, image, *place, rows, columns, count[0:3], *numbers)


def _noise(index: DataNode, key: Sequence[DataNode]) -> DataNode:
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
