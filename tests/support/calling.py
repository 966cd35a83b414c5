"""Calls a kernel of kernels.c as DALI calls it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuloader.pipelines.kernels.library import address_of

_FUNCTION = ctypes.CFUNCTYPE(None, *2 * [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32])


def addresses(arrays: Sequence[np.ndarray]) -> Any:  # noqa: ANN401
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


def call(kernel: str, out: np.ndarray, inputs: Sequence[np.ndarray], variant: str | None = None) -> np.ndarray:
    """Returns `out`, as the kernel writes it in this variant; by default in the fastest one."""
    shapes = [np.array(array.shape, np.int64) for array in (out, *inputs)]
    _FUNCTION(address_of(kernel, variant))(
        *(addresses([out]), addresses(shapes[:1]), None, 1),
        *(addresses(inputs), addresses(shapes[1:]), None, len(inputs)),
    )
    return out
