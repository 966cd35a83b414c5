"""Reads an image's EXIF orientation from its first bytes, without the pixels.

The orientation is the tag 0x0112 in the first directory of the EXIF data, which have the layout of a TIFF (TIFF 6.0,
section 8). 1 is upright, 2 to 4 are mirrored or upside down, and 5 to 8 are turned by 90 degrees. It is read from

    JPEG    the first segment APP1 that begins with "Exif", before the frame header
    PNG     the chunk eXIf, if it is before the pixels
    WebP    the chunk EXIF, if the header announces one

XMP and the text chunks of old programs are not read. Chunks after a PNG's pixels are not read either, because an index
would then need the whole file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.regular_file import Read
from gpuloader.images import png, webp
from gpuloader.images.header import FILL, FRAMES, MAX_SEGMENTS, segments

MAX_CHUNKS = 1000  # of a WebP
MAX_ENTRIES = 1000  # of a directory; a camera writes about fifteen

FIRST_TRANSPOSED = 5
"""From this orientation on, the rows of the stored picture are columns of the upright picture."""

_TIFF, _ENTRY_BYTES, _ORIENTATION = 42, 12, 0x0112
_BYTES = {3: 2, 4: 4}  # of the types SHORT and LONG
_APP1, _EXIF = 0xE1, b"Exif\0\0"
_BYTE_ORDERS: dict[bytes, Literal["little", "big"]] = {b"II": "little", b"MM": "big"}


def image_orientation(read: Read) -> int:
    """Returns the EXIF orientation of an image, 1 to 8; 0 if it has none or it is unknown."""
    head = read(32, 0)
    if head.startswith(b"\xff\xd8"):
        return _of_exif(read, *_exif_of_jpeg(read))
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return _of_exif(read, *_find_chunk(png.chunks_before_pixels(read), b"eXIf"))
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return _of_exif(read, *_find_chunk(webp.chunks(read), webp.EXIF))
    return 0


def image_orientations(images: Sequence[bytes]) -> NDArray[np.int64]:
    """Returns the EXIF orientations, (n,), of several images in memory."""

    def of(image: bytes) -> int:
        return image_orientation(lambda count, offset: bytes(image[offset : offset + count]))

    return np.array([of(image) for image in images], np.int64)


def _exif_of_jpeg(read: Read) -> tuple[int, int]:
    """Returns the start and the end of the EXIF data; (0, 0) without EXIF data."""
    left = MAX_SEGMENTS
    for marker, start, end in segments(read):
        if marker == _APP1 and read(len(_EXIF), start) == _EXIF:
            return start + len(_EXIF), end
        left -= end - start if marker == FILL else 1
        if marker in FRAMES or left <= 0:
            break
    return 0, 0


def _find_chunk(chunks: Iterator[tuple[bytes, int, int]], wanted: bytes) -> tuple[int, int]:
    for _, (name, start, end) in zip(range(MAX_CHUNKS), chunks):
        if name == wanted:
            return start, end
    return 0, 0


def _of_exif(read: Read, start: int, end: int) -> int:
    """Reads the orientation from the first directory of the EXIF data in these bytes."""
    if read(min(len(_EXIF), end - start), start) == _EXIF:  # some programs write this prefix in every format
        start += len(_EXIF)

    def part(count: int, offset: int) -> bytes:
        place = start + offset
        return read(count, place) if place + count <= end else b""

    head = part(8, 0)
    order = _BYTE_ORDERS.get(head[:2])
    if order is None:
        return 0

    number = partial(int.from_bytes, byteorder=order)
    if number(head[2:4]) != _TIFF:
        return 0
    directory = number(head[4:])
    entries = number(part(2, directory))
    for entry in range(min(entries, MAX_ENTRIES)):
        data = part(_ENTRY_BYTES, directory + 2 + entry * _ENTRY_BYTES)
        if not data:
            break
        if number(data[:2]) == _ORIENTATION:
            kind, count = number(data[2:4]), number(data[4:8])
            value = number(data[8 : 8 + _BYTES.get(kind, 0)])
            return value if count == 1 and value <= 8 else 0
    return 0
