"""The names and sizes of the smaller copies that `gpuloader pack --mipmaps` writes beside large pictures."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import BESIDE

LARGEST_SIDE = 65_500
"""The largest side of a JPEG, in pixels, that the encoder allows."""

_EXTENSION = re.compile(r"mip([1-9][0-9]{0,4})", re.ASCII)


def extension_of(side: int) -> str:
    """Returns the extension of a mipmap by the pixels of its shorter side, such as mip1024."""
    return f"mip{side}"


def of_mipmap(side: int, cause: str) -> str:
    """Returns the cause for a bad image; for a mipmap with this shorter side, the cause names the component."""
    return f"the .{extension_of(side)}{BESIDE}{cause}" if side else cause


def side_of(extension: str) -> int | None:
    """Returns the pixels of a mipmap's shorter side by its extension, from 1 to 65,500; None for other extensions."""
    named = _EXTENSION.fullmatch(extension)
    return int(named[1]) if named and int(named[1]) <= LARGEST_SIDE else None


def size_of(height: int, width: int, side: int) -> tuple[int, int]:
    """Returns (height, width) of a picture's mipmap with the shorter side `side`, in pixels.

    >>> size_of(3024, 4032, 512)
    (512, 682)
    """
    height, width = mipmap_sizes(np.array([[height, width]]), np.array([side]))[0].tolist()
    return height, width


def mipmap_sizes(pictures: NDArray[np.int64], sides: NDArray[np.int64]) -> NDArray[np.int64]:
    """Computes the sizes, (n, 2), of mipmaps with these shorter sides, (n,); 0 stands for the picture."""
    shorter = np.maximum(pictures.min(1, keepdims=True), 1)
    return pictures * np.where(sides[:, None] > 0, sides[:, None], shorter) // shorter


def are_made(pictures: NDArray[np.int64], sides: Sequence[int]) -> NDArray[np.bool_]:
    """Returns which of n pictures get mipmaps, by their heights and widths, (n, 2).

    The picture's shorter side must be at least 1.25 times the largest mipmap's shorter side. It must fit into a JPEG.
    """
    if not sides:
        return np.zeros(len(pictures), np.bool_)
    largest = mipmap_sizes(pictures, np.full(len(pictures), max(sides)))
    return (4 * pictures.min(1) >= 5 * max(sides)) & (largest.max(1) <= LARGEST_SIDE)
