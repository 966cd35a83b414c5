"""Checks a WebP before its parser gets it (RFC 9649)."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

MAX_CHUNKS = 1_000_000  # reading this many takes half a second

_EXIF_FLAG = 8


def cause_in_webp(encoded: NDArray[np.uint8]) -> str | None:
    """Why a WebP, (bytes,) of the whole file, is refused; None if it is not refused.

    The parser looks for an EXIF chunk if the header announces one, and reserves the bytes that a chunk claims.
    """
    data = memoryview(encoded)
    if data[12:16].tobytes() != b"VP8X" or len(data) < 21 or not data[20] & _EXIF_FLAG:
        return None
    position = 12
    for _ in range(MAX_CHUNKS):
        if position + 8 > len(data):
            return None
        name, length = struct.unpack_from("<4sI", data, position)
        if position + 8 + length > len(data):
            return f"a WebP that ends within its chunk {name!r}, which is said to have {length:,} bytes"
        if name == b"EXIF":
            return None
        position += 8 + length + length % 2
    return f"a WebP of more than {MAX_CHUNKS:,} chunks"
