"""Reads height and width from an image's first bytes, for the index; later, the decoder reads the whole image."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuloader.helpers.regular_file import Read

MAX_SEGMENTS = 4096  # a photograph has about twenty; a file of nothing but segments must not stop a scan
SCAN, FILL = 0xDA, 0xFF
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}

_END_OF_HEADER = frozenset((0xD9, SCAN))
_WITHOUT_LENGTH = frozenset((0x01, *range(0xD0, 0xD8), FILL))
_FILL_BYTES = re.compile(rb"\xff{2,}")
_READ_BYTES = 1024


def image_size(read: Read) -> tuple[int, int]:
    """Returns (height, width) in pixels as stored, without EXIF rotation; (0, 0) if this reader cannot tell.

    Reads JPEG, PNG, WebP and BMP.
    """
    height, width = _stored_size(read)
    return (height, width) if 0 < height < 2**31 and 0 < width < 2**31 else (0, 0)


def _stored_size(read: Read) -> tuple[int, int]:
    head = read(32, 0)
    if len(head) < 32:
        return 0, 0
    if head.startswith(b"\xff\xd8"):
        return _jpeg(read)
    if head.startswith(b"\x89PNG\r\n\x1a\n") and head[12:16] == b"IHDR":
        return _big(head[20:24]), _big(head[16:20])
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return _webp(head)
    if head.startswith(b"BM"):
        return _bmp(head)
    return 0, 0


def segments(read: Read, position: int = 2) -> Iterator[tuple[int, int, int]]:
    """Yields the segments of a JPEG (ITU-T T.81, annex B) up to the next scan: the marker, where its content begins and
    ends. Fill bytes before a marker are segments too, with the marker `FILL`.

    Each segment begins where the one before ends. It stops at the first byte that does not begin a segment, because
    decoders differ on such bytes.
    """
    first, chunk = position, read(_READ_BYTES, position)
    marker = 0
    while marker != SCAN:
        offset = position - first
        if offset + 4 > len(chunk):
            first, offset, chunk = position, 0, read(_READ_BYTES, position)
        if len(chunk) < 4 or chunk[offset] != 0xFF:
            return
        marker = chunk[offset + 1]
        start = position + 4
        if marker not in _WITHOUT_LENGTH:
            position += 2 + (chunk[offset + 2] << 8 | chunk[offset + 3])
        elif fill := _FILL_BYTES.match(chunk, offset):
            start, position = position, first + fill.end() - 1  # the last one may belong to the marker
        else:
            start = position = position + 2
        yield marker, start, position


def _jpeg(read: Read) -> tuple[int, int]:
    """Reads the size in the frame header, if it comes after few segments."""
    left = MAX_SEGMENTS
    for marker, start, end in segments(read):
        if marker in FRAMES:
            sides = read(4, start + 1)
            return (_big(sides[:2]), _big(sides[2:])) if len(sides) == 4 else (0, 0)
        left -= end - start if marker == FILL else 1
        if marker in _END_OF_HEADER or left <= 0:
            break
    return 0, 0


def _webp(head: bytes) -> tuple[int, int]:
    """Reads the size in a WebP header: RFC 9649, sections 2.5 to 2.7."""
    if head[12:16] == b"VP8X":
        return _little(head[27:30]) + 1, _little(head[24:27]) + 1
    if head[12:16] == b"VP8L":
        bits = _little(head[21:25])
        return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    if head[23:26] == b"\x9d\x01\x2a":
        return _little(head[28:30]) & 0x3FFF, _little(head[26:28]) & 0x3FFF
    return 0, 0


def _bmp(head: bytes) -> tuple[int, int]:
    """Reads the size in a BMP header of 12 bytes (OS/2 1.x) or 40 and more (Windows; a negative height is top-down)."""
    header_bytes = _little(head[14:18])
    if header_bytes == 12:
        return _little(head[20:22]), _little(head[18:20])
    if 40 <= header_bytes <= 124:
        return abs(int.from_bytes(head[22:26], "little", signed=True)), _little(head[18:22])
    return 0, 0


def _big(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")
