"""Reads an image's size and traits from its first bytes, for the index."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from gpuloader.base.regular_file import Read
from gpuloader.images import png
from gpuloader.images.traits import ALPHA, ANIMATED, DEEP, PROFILE, SEEKABLE

MAX_SEGMENTS = 4096  # a photograph has about twenty; a file full of segments must not stop a scan
SCAN, FILL, STRAY = 0xDA, 0xFF, 0x00
MAX_STRAY_BYTES = 4096  # webcams write up to 258
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}

_SEQUENTIAL, _RESTART_INTERVAL = frozenset((0xC0, 0xC1)), 0xDD
_BESIDE_FRAME = frozenset((0xC4, 0xDB, _RESTART_INTERVAL, 0xFE, *range(0xE0, 0xF0)))  # tables, comments, metadata
_SAMPLE_BITS, _MOST_COMPONENTS, _LARGEST_FACTOR = 8, 4, 4
_LONGEST_SIDE = 65_500  # libjpeg-turbo refuses longer scans
_MOST_FRAME_BYTES = 6 + 3 * _MOST_COMPONENTS + 1  # one byte more shows that it is longer
_ALL_COEFFICIENTS = b"\0\x3f\0"  # the end of a scan's header in a sequential JPEG
_END_OF_HEADER = frozenset((0xD9, SCAN))
_WITHOUT_LENGTH = frozenset((0x01, *range(0xD0, 0xD8), FILL))
_FILL_BYTES, _STRAY_BYTES = re.compile(rb"\xff{2,}"), re.compile(rb"(?:[^\xff]|\xff\0)+")
_READ_BYTES = 1024
_APP2, _ICC = 0xE2, b"ICC_PROFILE\0"
_PNG_ALPHA, _PNG_TRAITS = 4, {b"tRNS": ALPHA, b"iCCP": PROFILE, b"acTL": ANIMATED}
_VP8L_ALPHA, _WEBP_TRAITS = 1 << 28, {0x02: ANIMATED, 0x10: ALPHA, 0x20: PROFILE}


def image_header(read: Read) -> tuple[int, int, int]:
    """Reads the header of a JPEG, PNG or WebP.

    Returns:
        Height and width in pixels as stored, without EXIF rotation; (0, 0) if unknown. And the bits of
        `gpuloader.images.traits`; SEEKABLE if `cutting.h` (in pipelines/kernels) can cut parts of it: a JPEG of a
        single, sequential, interleaved scan of 8 bits, with restart intervals that divide the rows of MCUs. The coded
        bytes are not read. No JPEG is ANIMATED: the further images of an MPO are other views.
    """
    found = height, width, _ = _stored(read)
    return found if 0 < height < 2**31 and 0 < width < 2**31 else (0, 0, 0)


def _stored(read: Read) -> tuple[int, int, int]:
    head = read(32, 0)
    if len(head) < 32:
        return 0, 0, 0
    if head.startswith(b"\xff\xd8"):
        return _jpeg(read)
    if head.startswith(b"\x89PNG\r\n\x1a\n") and head[12:16] == b"IHDR":
        return _big(head[20:24]), _big(head[16:20]), _traits_of_png(read, *head[24:26])
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return _webp(head)
    return 0, 0, 0


def segments(read: Read, position: int = 2) -> Iterator[tuple[int, int, int]]:
    """Yields the segments of a JPEG (ITU-T T.81, annex B) up to the next scan: (marker, start and end of the content).

    Fill bytes before a marker are segments with the marker `FILL`, and stray bytes with `STRAY`: libjpeg skips both.
    Each segment begins at the end of the previous one. It stops at stray bytes at the beginning, as Pillow does, and
    behind the first `STRAY` that makes them more than `MAX_STRAY_BYTES`.
    """
    first, chunk = position, read(_READ_BYTES, position)
    marker = strays = 0
    while marker != SCAN:
        offset = position - first
        if offset + 4 > len(chunk):
            first, offset, chunk = position, 0, read(_READ_BYTES, position)
        if len(chunk) < 4:
            return
        marker = chunk[offset + 1]
        start = position + 4
        if chunk[offset] != 0xFF or not marker:
            stray = _STRAY_BYTES.match(chunk, offset)
            if stray is None or strays > MAX_STRAY_BYTES or (position == 2 and chunk[offset] != 0xFF):
                return
            marker, start, position = STRAY, position, first + stray.end()
            strays += position - start
        elif marker not in _WITHOUT_LENGTH:
            position += 2 + (chunk[offset + 2] << 8 | chunk[offset + 3])
        elif fill := _FILL_BYTES.match(chunk, offset):
            start, position = position, first + fill.end() - 1  # the last byte may belong to the marker
        else:
            start = position = position + 2
        yield marker, start, position


def _jpeg(read: Read) -> tuple[int, int, int]:
    """Reads the frame header, if it follows few segments, and continues to the scan if the frame is sequential."""
    left, traits = MAX_SEGMENTS, 0
    walk = segments(read)
    others: list[tuple[int, int, int]] = []
    for segment in walk:
        marker, start, end = segment
        if marker in FRAMES:
            frame = read(_MOST_FRAME_BYTES, start)
            if len(frame) < 5:
                break
            if marker in _SEQUENTIAL:
                others += islice(walk, MAX_SEGMENTS)
            traits |= SEEKABLE * _is_seekable(read, frame[: max(0, end - start)], others)
            return _big(frame[1:3]), _big(frame[3:5]), traits | DEEP * (frame[0] > _SAMPLE_BITS)
        others.append(segment)
        if marker == _APP2 and read(len(_ICC), start) == _ICC:
            traits = PROFILE
        left -= end - start if marker == FILL else 1
        if marker in _END_OF_HEADER or left <= 0:
            break
    return 0, 0, 0


def frame_of(read: Read) -> tuple[int, bytes, bool] | None:
    """Finds the frame header of a JPEG.

    Returns:
        Its offset, its content, and whether it is of a single, sequential, interleaved scan of 8 bits, which has its
        rows in order; None if there is none, or if there are several, of which decoders take different ones.
    """
    walk, others = islice(segments(read), MAX_SEGMENTS), list[tuple[int, int, int]]()
    for marker, start, end in walk:
        if marker in FRAMES:
            frame = read(min(_MOST_FRAME_BYTES, max(0, end - start)), start)
            others += walk
            if not FRAMES.isdisjoint(each for each, _, _ in others):
                return None
            return start, frame, marker in _SEQUENTIAL and _has_one_scan(read, frame, others)
        others.append((marker, start, end))
    return None


def mcu_of(frame: bytes) -> tuple[int, int]:
    """Returns the (height, width) in pixels of an MCU, the least that a JPEG with this frame header codes."""
    across, down = (max(each) for each in zip(*(divmod(each, 16) for each in frame[7::3])))
    return (8, 8) if frame[5] == 1 else (8 * down, 8 * across)  # of a single component it is one block


def _is_seekable(read: Read, frame: bytes, others: Sequence[tuple[int, int, int]]) -> bool:
    """Returns whether `cutting.h` can cut a JPEG with this frame header and these other segments."""
    restarts = [start for marker, start, _ in others if marker == _RESTART_INTERVAL]
    if not restarts or not _has_one_scan(read, frame, others):
        return False
    interval = _big(read(2, restarts[-1]))
    return interval > 0 and -(-_big(frame[3:5]) // mcu_of(frame)[1]) % interval == 0


def _has_one_scan(read: Read, frame: bytes, others: Sequence[tuple[int, int, int]]) -> bool:
    """Returns whether all data of a JPEG with this frame header and these other segments is in one scan of 8 bits."""
    markers = [marker for marker, _, _ in others]
    restarts = [end - start for marker, start, end in others if marker == _RESTART_INTERVAL]
    if markers[-1:] != [SCAN] or not _BESIDE_FRAME.issuperset(markers[:-1]) or {*restarts} - {2}:
        return False
    _, start, end = others[-1]
    scan, count = read(max(0, end - start), start), frame[5] if len(frame) > 5 else 0
    height, width = _big(frame[1:3]), _big(frame[3:5])
    return (
        all(start <= end for _, start, end in others)
        and 1 <= count <= _MOST_COMPONENTS
        and (frame[0], len(frame)) == (_SAMPLE_BITS, 6 + 3 * count)
        and all(1 <= factor <= _LARGEST_FACTOR for each in frame[7::3] for factor in divmod(each, 16))
        and (len(scan), scan[:1], scan[1:-3:2], scan[-3:])
        == (4 + 2 * count, frame[5:6], frame[6::3], _ALL_COEFFICIENTS)
        and min(height, width) > 0
        and max(height, width) <= _LONGEST_SIDE
    )


def _traits_of_png(read: Read, bits: int, colours: int) -> int:
    traits = DEEP * (bits > _SAMPLE_BITS) | ALPHA * (colours & _PNG_ALPHA > 0)
    for name, _, _ in png.chunks_before_pixels(read):
        traits |= _PNG_TRAITS.get(name, 0)
    return traits


def _webp(head: bytes) -> tuple[int, int, int]:
    """Reads the size and the traits in a WebP header: RFC 9649, sections 2.5 to 2.7."""
    if head[12:16] == b"VP8X":
        traits = sum(trait for flag, trait in _WEBP_TRAITS.items() if head[20] & flag)
        return _little(head[27:30]) + 1, _little(head[24:27]) + 1, traits
    if head[12:16] == b"VP8L":
        bits = _little(head[21:25])
        return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1, ALPHA * (bits & _VP8L_ALPHA > 0)
    if head[23:26] == b"\x9d\x01\x2a":
        return _little(head[28:30]) & 0x3FFF, _little(head[26:28]) & 0x3FFF, 0
    return 0, 0, 0


def _big(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")
