"""Validates a WebP before it is parsed, and reads its chunks (RFC 9649)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.regular_file import Read
from gpuloader.images.limits import RefusalError

MAX_CHUNKS = 1_000_000  # reading so many takes 0.6 seconds
EXIF = b"EXIF"

_EXIF_FLAG = 8


def check_webp(encoded: NDArray[np.uint8]) -> None:
    """Refuses a WebP, (bytes,) of the whole file, that ends within a chunk or has too many chunks.

    If the header announces EXIF data, the parser searches them, and allocates the bytes that a chunk claims to have.
    """
    data = memoryview(encoded)
    for number, (name, start, end) in enumerate(chunks(lambda count, offset: bytes(data[offset : offset + count]))):
        if number == MAX_CHUNKS:
            raise RefusalError(f"a WebP of more than {MAX_CHUNKS:,} chunks")
        if end > len(data):
            raise RefusalError(
                f"a WebP that ends within its chunk {name!r}, which is said to have {end - start:,} bytes"
            )
        if name == EXIF:
            return


def chunks(read: Read) -> Iterator[tuple[bytes, int, int]]:
    """Yields the chunks of a WebP: (name, start and end of the content); none if it announces no EXIF data."""
    head = read(32, 0)
    if head[12:16] != b"VP8X" or len(head) < 21 or not head[20] & _EXIF_FLAG:
        return
    position = 12
    while len(header := read(8, position)) == 8:
        end = position + 8 + int.from_bytes(header[4:], "little")
        yield header[:4], position + 8, end
        position = end + (end - position) % 2
