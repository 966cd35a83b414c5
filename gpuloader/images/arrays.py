"""Validates decoded images: `.npy` members, uint8 (height, width, 3), RGB, as `numpy.save` writes them.

Version 1.0 of `numpy.lib.format`: b"\\x93NUMPY\\x01\\x00", the length of the header as two bytes, little-endian, the
header as Python's text of a dictionary, then the pixels, row by row.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from gpuloader.images.limits import MAX_PIXELS, AdmittedImage, RefusalError, check_size

NO_ARRAY = "not an array of uint8 (height, width, 3) as numpy.save writes it"

MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(rb"\{'descr': '\|u1', 'fortran_order': False, 'shape': \((\d{1,7}), (\d{1,7}), 3\), \} *\n")
_MOST_BYTES = 256  # numpy writes 128 for such arrays


def array_size(head: bytes, size_bytes: int) -> tuple[int, int]:
    """Returns (height, width) of a member from its first bytes and size; (0, 0) if it is not a decoded image."""
    header_end = 10 + int.from_bytes(head[8:10], "little")
    header = _HEADER.fullmatch(head[10:header_end]) if head.startswith(MAGIC) else None
    if header is None:
        return 0, 0
    height, width = int(header[1]), int(header[2])
    return (height, width) if height and width and header_end + 3 * height * width == size_bytes else (0, 0)


def admit_array(member: NDArray[np.uint8], max_pixels: int = MAX_PIXELS) -> AdmittedImage:
    """Returns a decoded image, (height, width, 3), as a view of its member's bytes, and its (height, width).

    Raises:
        RefusalError: the member is not a decoded image, or is too large.
    """
    size = array_size(member[:_MOST_BYTES].tobytes(), len(member))
    if size == (0, 0):
        raise RefusalError(NO_ARRAY)
    check_size(*size, max_pixels)
    return member[len(member) - 3 * size[0] * size[1] :].reshape(*size, 3), size
