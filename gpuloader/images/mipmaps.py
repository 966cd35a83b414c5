"""Smaller copies of large pictures, which `gpuloader pack --mipmaps` writes beside them: their names and sizes."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import BESIDE

LARGEST_SIDE = 65_500
"""The most pixels of a JPEG's side that its encoder allows."""

_EXTENSION = re.compile(r"mip([1-9][0-9]{0,4})", re.ASCII)


def extension_of(side: int) -> str:
    """Returns the extension of a copy whose shorter side has this many pixels: mip1024."""
    return f"mip{side}"


def of_copy(side: int, cause: str) -> str:
    """Returns the cause for which an image is bad; of a copy with this shorter side it names the component."""
    return f"the .{extension_of(side)}{BESIDE}{cause}" if side else cause


def side_of(extension: str) -> int | None:
    """Returns the pixels of a copy's shorter side by its extension, from 1 to 65,500; None if it is of no copy."""
    named = _EXTENSION.fullmatch(extension)
    return int(named[1]) if named and int(named[1]) <= LARGEST_SIDE else None


def size_of(height: int, width: int, side: int) -> tuple[int, int]:
    """Returns the (height, width) of a picture's copy whose shorter side is `side`, in pixels.

    >>> size_of(3024, 4032, 512)
    (512, 682)
    """
    height, width = mipmap_sizes(np.array([[height, width]]), np.array([side]))[0].tolist()
    return height, width


def mipmap_sizes(pictures: NDArray[np.int64], sides: NDArray[np.int64]) -> NDArray[np.int64]:
    """Computes (n, 2) heights and widths of the copies with these shorter sides, (n,); where 0, of the pictures."""
    shorter = np.maximum(pictures.min(1, keepdims=True), 1)
    return pictures * np.where(sides[:, None] > 0, sides[:, None], shorter) // shorter


def are_made(pictures: NDArray[np.int64], sides: Sequence[int]) -> NDArray[np.bool_]:
    """Says which of n pictures get copies, by their (n, 2) heights and widths.

    The shorter side of a picture must be at least 1.25 times the largest copy's, and this copy must fit into a JPEG.
    """
    if not sides:
        return np.zeros(len(pictures), np.bool_)
    largest = mipmap_sizes(pictures, np.full(len(pictures), max(sides)))
    return (4 * pictures.min(1) >= 5 * max(sides)) & (largest.max(1) <= LARGEST_SIDE)
