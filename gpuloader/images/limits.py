"""Limits for an image of any format: pixels, sides and bytes."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import DataError

MAX_PIXELS = 100_000_000
DEFAULT_MAX_PIXELS = 50_000_000  # the largest common size of cameras and phones
MAX_SIDE = 2**18 - 1  # with the shorter side resized to the maximum, 8,192, the longer side fits into 32 bits
MAX_ENCODED_BYTES = 256 << 20  # 2.7 bytes for each of MAX_PIXELS pixels; photographs have a tenth of that

AdmittedImage: TypeAlias = tuple[NDArray[np.uint8], tuple[int, int]]
"""An image for the graph (a file or an array), and its (height, width) as stored, without EXIF rotation."""


class RefusalError(DataError):
    """Raised for an image, or a component beside it, that fails validation; the reader then applies `on_error`.

    Attributes:
        cause: the reason, for an error that names the sample.
    """

    def __init__(self, cause: str, message: str = "") -> None:
        super().__init__(message or cause)
        self.cause = cause


def check_size(height: int, width: int, max_pixels: int = MAX_PIXELS) -> None:
    """Refuses an image of this size if it is above the limits or the recipe's `max_pixels`."""
    if height < 1 or width < 1:
        raise RefusalError(f"its header says {width}x{height} pixels")
    if height * width > MAX_PIXELS:
        raise RefusalError(f"its header says {width}x{height} pixels, more than {MAX_PIXELS:,}")
    if max(height, width) > MAX_SIDE:
        raise RefusalError(f"its header says {width}x{height} pixels, a side of more than {MAX_SIDE:,}")
    if height * width > max_pixels:
        raise RefusalError(
            f"its header says {width}x{height} pixels, more than the recipe's {max_pixels:,}: set "
            f"`max_pixels: {height * width}` in it (up to {MAX_PIXELS:,}), or make the image smaller"
        )


def cause_in_bytes(size_bytes: int) -> str | None:
    """Returns why a file with this number of bytes is refused; None if it is accepted."""
    if size_bytes > MAX_ENCODED_BYTES:
        return f"it has {size_bytes:,} bytes, more than {MAX_ENCODED_BYTES:,}"
    return None
