"""Checks a WebP before its parser gets it (RFC 9649)."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from gpuloader.images.limits import Refused

MAX_CHUNKS = 1_000_000  # reading this many takes half a second

_EXIF_FLAG = 8


def check_webp(encoded: NDArray[np.uint8]) -> None:
    """Refuses a WebP, (bytes,) of the whole file, that ends within a chunk or has too many.

    The parser looks for an EXIF chunk if the header announces one, and reserves the bytes that a chunk claims.
    """
    data = memoryview(encoded)
    if data[12:16].tobytes() != b"VP8X" or len(data) < 21 or not data[20] & _EXIF_FLAG:
        return
    position = 12
    for _ in range(MAX_CHUNKS):
        if position + 8 > len(data):
            return
        name, length = struct.unpack_from("<4sI", data, position)
        if position + 8 + length > len(data):
            raise Refused(f"a WebP that ends within its chunk {name!r}, which is said to have {length:,} bytes")
        if name == b"EXIF":
            return
        position += 8 + length + length % 2
    raise Refused(f"a WebP of more than {MAX_CHUNKS:,} chunks")
