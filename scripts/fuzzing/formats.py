"""Takes files apart and puts them together, with right lengths and checksums: segments, chunks, members."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

TAR_BLOCK_BYTES = 512
_RESTARTS = bytes(range(0xD0, 0xD8))
_ALONE = b"\x01\xd8\xd9" + _RESTARTS
_MARKER, _SCAN_MARKER, _END_MARKER = re.compile(rb"\xff[\x01-\xfe]"), 0xDA, b"\xff\xd9"


class Format(NamedTuple):
    """How files of a format consist of parts, each with its header; what has none, or a broken one, is a part too."""

    split: Callable[[bytes], list[bytes]]
    join: Callable[[Sequence[bytes]], bytes]


def _split_jpeg(data: bytes) -> list[bytes]:
    """Segments, and stray bytes behind them; coded data is in the part of its scan's header, or of its restart marker.

    What follows the end is in the part of its marker.
    """
    parts, place = [], 0
    while place < len(data):
        stop = place + 2
        if data[place] == 0xFF and data[place + 1 : stop] not in _ALONE:
            stop += max(2, int.from_bytes(data[stop : stop + 2], "big"))
        following = None if data[place : place + 2] == _END_MARKER else _MARKER.search(data, min(stop, len(data)))
        end = following.start() if following else len(data)
        if stop < end and data[place] == 0xFF and data[place + 1] not in (*_ALONE, _SCAN_MARKER):
            parts.append(data[place:stop])
            place = stop
        parts.append(data[place:end])
        place = end
    return parts


def _join_jpeg(parts: Sequence[bytes]) -> bytes:
    """The length of a scan's header stays: it has coded data behind it."""
    keeps_length = (*_ALONE, _SCAN_MARKER)
    return b"".join(
        part
        if len(part) < 4 or part[0] != 0xFF or part[1] in keeps_length
        else part[:2] + _number(len(part) - 2, 2) + part[4:]
        for part in parts
    )


def in_order(data: bytes) -> bytes:
    """A JPEG whose restart markers are numbered as they must be."""
    parts, number = _split_jpeg(data), 0
    for place, part in enumerate(parts):
        if part[:1] == b"\xff" and part[1:2] and part[1] in _RESTARTS:
            parts[place] = bytes([0xFF, _RESTARTS[number % 8]]) + part[2:]
            number += 1
    return b"".join(parts)


def with_regular_end(data: bytes) -> bytes:
    """A JPEG that ends where, in its first scan, the first marker is that is not the next restart marker."""
    parts = _split_jpeg(data)
    scan = [part[:2] for part in parts].index(bytes([0xFF, _SCAN_MARKER]))
    intervals = (part[1:2] for part in parts[scan + 1 :])
    count = next((n for n, name in enumerate(intervals) if name != _RESTARTS[n % 8 :][:1]), len(parts))
    return b"".join(parts[: scan + 1 + count]) + _END_MARKER


def _split_png(data: bytes) -> list[bytes]:
    parts, place = [data[:8]], 8
    while (end := place + 12 + int.from_bytes(data[place : place + 4], "big")) <= len(data):
        parts.append(data[place:end])
        place = end
    return parts if place == len(data) else [*parts, data[place:]]


def _join_png(parts: Sequence[bytes]) -> bytes:
    chunks = (
        part if len(part) < 12 else _number(len(part) - 12, 4) + part[4:-4] + _number(zlib.crc32(part[4:-4]), 4)
        for part in parts[1:]
    )
    return b"".join([*parts[:1], *chunks])


def _split_webp(data: bytes) -> list[bytes]:
    parts, place = [data[:12]], 12
    while place + 8 <= len(data):
        size = int.from_bytes(data[place + 4 : place + 8], "little")
        parts.append(data[place : place + 8 + size])
        place += 8 + size + size % 2
    return parts if place >= len(data) else [*parts, data[place:]]


def _join_webp(parts: Sequence[bytes]) -> bytes:
    chunks = b"".join(
        part if len(part) < 8 else part[:4] + _number(len(part) - 8, 4, "little") + part[8:] + bytes(len(part) % 2)
        for part in parts[1:]
    )
    head = b"".join(parts[:1])
    return head[:4] + _number(len(chunks) + 4, 4, "little") + head[8:] + chunks


def _split_tar(data: bytes) -> list[bytes]:
    """Members: each header with what it announces, without the zeros that fill a block."""
    parts, place = [], 0
    while data[place + 257 : place + 262] == b"ustar":
        digits = re.match(rb"[0-7]*", data[place + 124 : place + 135])
        end = place + TAR_BLOCK_BYTES + int(digits[0] or b"0", 8)  # type: ignore[index]
        parts.append(data[place:end])
        place = end + -end % TAR_BLOCK_BYTES
    return [*parts, data[place:]]


def _join_tar(parts: Sequence[bytes]) -> bytes:
    return b"".join(
        _with_checksum(part[:124] + b"%011o\0" % (len(part) - TAR_BLOCK_BYTES) + part[136:])
        + bytes(-len(part) % TAR_BLOCK_BYTES)
        if len(part) >= TAR_BLOCK_BYTES and part[257:262] == b"ustar"
        else part
        for part in parts
    )


def with_tar_checksums(data: bytes) -> bytes:
    """A tar in which all that looks like a header has a right checksum."""
    blocks = [data[place : place + TAR_BLOCK_BYTES] for place in range(0, len(data), TAR_BLOCK_BYTES)]
    return b"".join(_with_checksum(block) if block[257:262] == b"ustar" else block for block in blocks)


def _with_checksum(member: bytes) -> bytes:
    header = member[:TAR_BLOCK_BYTES]
    return member[:148] + b"%06o\0 " % (sum(header) - sum(header[148:156]) + 8 * ord(" ")) + member[156:]


def _number(value: int, size: int, order: str = "big") -> bytes:
    return (value % (1 << 8 * size)).to_bytes(size, order)  # type: ignore[arg-type]


JPEG, PNG = Format(_split_jpeg, _join_jpeg), Format(_split_png, _join_png)
FORMATS = {
    "jpeg": JPEG,
    "seekable": JPEG,
    "scaled": JPEG,
    "png": PNG,
    "webp": Format(_split_webp, _join_webp),
    "tar": Format(_split_tar, _join_tar),
}
