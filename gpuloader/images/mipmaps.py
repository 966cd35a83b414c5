"""Smaller copies of large pictures, which `gpuloader pack --mipmaps` writes beside them: their names and sizes."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
    return (side, side * width // height) if height <= width else (side * height // width, side)


def are_made(height: int, width: int, sides: Sequence[int]) -> bool:
    """Says whether a picture gets copies: its shorter side is at least 1.25 times the largest copy's.

    One that is so long that this copy could be no JPEG gets none.
    """
    if not sides or 4 * min(height, width) < 5 * max(sides):
        return False
    return max(size_of(height, width, max(sides))) <= LARGEST_SIDE
