"""The kernels as operators of the graph; they run in DALI's threads, without Python's GIL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from nvidia.dali import fn, types
from nvidia.dali.data_node import DataNode

from gpuloader.internals.dali import call_compiled
from gpuloader.pipelines.kernels.library import address_of

# The operator does not accept float16 as an output type, so the output is declared as 16-bit integers with its bits.
_DTYPES = {"float32": types.FLOAT, "float16": types.UINT16, "uint8": types.UINT8}
_NUMBERS = {"float32": 0, "float16": 1, "uint8": 2}  # as in vectors.h


def call_kernel(
    kernel: str,
    inputs: Sequence[tuple[DataNode, Any, int]],
    settings: Sequence[float],
    like_output: DataNode,
    dtype: str,
    channels_first: bool,
) -> DataNode:
    """Calls a kernel of kernels.c, "resample" or "augment", which returns an image of three dimensions.

    Args:
        inputs: the kernel's inputs, each with DALI's type and the number of dimensions.
        settings: numbers that are the same for all samples; the layout and the dtype's number are appended to them.
        like_output: uint8, (0, h, w); it is empty, and tells the kernel the output's height and width.
        dtype: "float32", "float16", "uint8".
        channels_first: whether the output is CHW; otherwise HWC.
    """
    constants = types.Constant(np.array([*settings, channels_first, _NUMBERS[dtype]], np.float32), device="cpu")
    nodes, in_types, ins_ndim = zip(*inputs, (constants, types.FLOAT, 1), (like_output, types.UINT8, 3))
    setup = address_of("setup_chw" if channels_first else "setup_hwc")
    image = call_compiled(address_of(kernel), setup, nodes, in_types, ins_ndim, _DTYPES[dtype])
    return fn.reinterpret(image, dtype=types.FLOAT16) if dtype == "float16" else image
