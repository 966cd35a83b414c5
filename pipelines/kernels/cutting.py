"""Cuts JPEGs with restart intervals to the pixels that are needed, in one call without Python's lock."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.pipelines.kernels.library import address_of
from gpuloader.recipe import AugmentParams


def cut_to_region(
    files: Sequence[NDArray[np.uint8]], params: AugmentParams
) -> tuple[list[NDArray[np.uint8]], AugmentParams]:
    """Cuts JPEGs in place to the regions in their random parameters; see `cut_jpegs`.

    Returns:
        The cut files, and the random parameters for these.
    """
    left = cut_jpegs(files, params.region)
    return [file[:size] for file, size in zip(files, left[:, 0].tolist())], replace(params, origin=left[:, 1:])


def cut_jpegs(files: Sequence[NDArray[np.uint8]], windows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cuts JPEGs in place to the restart intervals that their windows touch.

    A decoder makes the same pixels of the window from the cut file: see `cutting.h`. A file stays unchanged if it is
    not a JPEG with restart intervals that divide its rows of MCUs (blocks of 8 or 16 pixels), if its whole image is
    needed, or if anything in it is irregular.

    Args:
        files: (bytes,) each; the first bytes of those that are cut are overwritten.
        windows: (n, 4) top, left, bottom, right of the pixels that are needed.

    Returns:
        (n, 3): the bytes of each file that are left, and the top and left of its pixels in the image; 0 and 0 if the
        file is not cut.
    """
    cuts = np.empty((len(files), 6), np.int64)
    cuts[:, 0] = [file.__array_interface__["data"][0] for file in files]
    cuts[:, 1] = [len(file) for file in files]
    cuts[:, 2:] = windows
    _function()(cuts.ctypes.data, len(cuts))
    return cuts[:, 1:4]


@cache
def _function() -> Any:  # noqa: ANN401 - a function of ctypes
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(address_of("cut_jpegs"))
