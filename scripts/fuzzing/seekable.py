"""JPEGs with restart intervals that divide their rows, which the loader cuts; and what is changed in them."""

from __future__ import annotations

import random
import re

from making import encoded, picture

from fuzzing.layouts import RESTARTS, SEEKABLE, Part

_FRAME, _SCAN, _END, _RESTART_INTERVAL = b"\xc0", b"\xda", b"\xd9", b"\xdd"
_MARKER = re.compile(rb"\xff([\x01-\xfe])")
_PLACES = {  # where a header has numbers that decide where pixels are, and with how many bytes
    _FRAME: ((1, 2), (3, 2), (5, 1), (6, 1), (7, 1), (10, 1), (13, 1)),
    _RESTART_INTERVAL: ((0, 2),),
    _SCAN: ((0, 1), (1, 1), (3, 1), (5, 1), (7, 1), (8, 1), (9, 1)),
}


def seekable_jpegs() -> tuple[bytes, ...]:
    """Three intervals a row, of one to three MCUs, in all samplings that Pillow writes, gray and CMYK; and odd ones."""
    jpegs = []
    for mode, sampling, across, down in (
        ("RGB", "4:2:0", 16, 16),
        ("RGB", "4:2:2", 16, 8),
        ("RGB", "4:4:4", 8, 8),
        ("L", "4:4:4", 8, 8),
        ("CMYK", "4:4:4", 8, 8),
    ):
        for mcus in (1, 2, 3):
            image = picture(3 * down + 6, across * (3 * mcus - 1) + 4, mcus).convert(mode)
            jpegs.append(encoded(image, "JPEG", subsampling=sampling, restart_marker_blocks=mcus))
    commented = encoded(picture(64, 96), "JPEG", restart_marker_blocks=2, comment=b"a comment", dpi=(300, 300))
    rows = encoded(picture(64, 48), "JPEG", restart_marker_rows=1, exif=b"Exif\0\0of a camera", optimize=True)
    across_rows = encoded(picture(40, 48), "JPEG", restart_marker_blocks=2)
    gray = bytearray(encoded(picture(30, 44).convert("L"), "JPEG", restart_marker_blocks=2))
    gray[gray.index(b"\xff" + _FRAME) + 11] = 0x22  # sampling factors, which mean nothing in a single component
    return (*jpegs, commented, rows, across_rows, bytes(gray))


def change_header(data: bytes, rng: random.Random) -> bytes:
    """A side, a sampling factor, the number of components or of MCUs in an interval is another one."""
    parts = SEEKABLE.split(data)
    places = [(place, each) for place, part in enumerate(parts) for each in _PLACES.get(part.name, ())]
    if not places:  # a mutation before has seen to that
        return data
    place, (start, size) = rng.choice(places)
    name, content, said = parts[place]
    before = int.from_bytes(content[start : start + size], "big")
    small = rng.choice((0, 1, 2, 3, 4, 6, 8, 12, 0x11, 0x12, 0x14, 0x21, 0x22, 0x24, 0x41, 0x42, 0x44, before + 1))
    after = rng.choice((small, small, before * 2, before // 2, 1 << 8 * size - 1, (1 << 8 * size) - 1))
    number = (after % (1 << 8 * size)).to_bytes(size, "big")
    parts[place] = Part(name, content[:start] + number + content[start + size :], said)
    return SEEKABLE.join(parts)


def with_restarts_in_order(data: bytes) -> bytes:
    """The same with restart markers numbered as they must be."""
    parts, number = [], 0
    for name, content, said in SEEKABLE.split(data):
        restarts = name != b"" and name in RESTARTS
        parts.append(Part(RESTARTS[number % 8 :][:1] if restarts else name, content, said))
        number += restarts
    return SEEKABLE.join(parts)


def with_regular_end(data: bytes) -> bytes:
    """The same with an end where the first marker is that is not the next restart marker."""
    parts = SEEKABLE.split(data)
    scan = [part.name for part in parts].index(_SCAN)
    markers = _MARKER.finditer(data, len(SEEKABLE.join(parts[: scan + 1])))
    ends = (found.start() for number, found in enumerate(markers) if found[1] != RESTARTS[number % 8 :][:1])
    return data[: next(ends)] + b"\xff" + _END
