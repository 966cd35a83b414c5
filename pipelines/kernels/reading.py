"""Reads images from the page cache in one call, during which other threads have Python's lock."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.pipelines.kernels.library import address_of


def read_cached(rows: NDArray[np.int64]) -> None:
    """Reads the rows that are in the page cache, and asks the disk for the others. It never waits for the disk.

    A file system that cannot read without waiting, such as NFS, is asked for all of them.

    Reading row by row in Python would release its lock and wait for it at each row, up to 5 ms if another thread is
    busy: longer than reading a hundred images.

    Args:
        rows: (n, 4), C-contiguous: an open file, the offset and the size in it in bytes, and the address of as many
            bytes to read into. The sizes of the rows that were read are set to 0. If a row cannot be read, its size
            stays, and reading it again finds the error.
    """
    _function()(rows.ctypes.data, len(rows))


@cache
def _function() -> Any:  # noqa: ANN401 - a function of ctypes
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(address_of("read_cached"))
