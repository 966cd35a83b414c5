"""Checks an image's bytes before a decoder gets them, for the gate and for packing: returns why it is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gpuloader.helpers.image_limits import MAX_PIXELS
from gpuloader.shards.image_header import MAX_SEGMENTS, SCAN, segments

MAX_SIDE = 2**18 - 1  # if the shorter side is resized to the maximum of 8,192, the longer one stays within 32 bits
MAX_SCANS = 100
MAX_PIXELS_TIMES_SCANS = 2_000_000_000  # 4 s on a slow core; a photograph has about ten scans
MAX_ENCODED_BYTES = 256 << 20  # 2.7 bytes for each of MAX_PIXELS pixels; photographs have a tenth of that

_PROGRESSIVE = frozenset((0xC2, 0xC6, 0xCA, 0xCE))
_SEQUENTIAL = frozenset((0xC0, 0xC1, 0xC5, 0xC9, 0xCD))
_ARITHMETIC = frozenset((0xC9, 0xCA, 0xCD, 0xCE))
_HUFFMAN_TABLES, _QUANTISATION_TABLES = 0xC4, 0xDB
_IMAGE_BEGINS, _IMAGE_ENDS = 0xD8, 0xD9
_END_OF_IMAGE = b"\xff\xd9"
_MARKER_BEHIND_SCAN = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")  # the other markers belong to the scan
_PNM_HEADER = re.compile(rb"P([1-6])\s+(\d+)\s+(\d+)(?:\s+(\d+))?")
_HEADER_BYTES = 1 << 14  # comments may be long
_TEXTS, _BITMAPS, _THREE_SAMPLES = (1, 2, 3), (1, 4), (3, 6)
_AC, _QUANTISATION = 0x10, 0x20  # the first numbers of these tables; DC Huffman tables begin at 0


def cause_in_size(height: int, width: int, max_pixels: int = MAX_PIXELS) -> str | None:
    """Why an image of this size is refused if the recipe allows `max_pixels`; None if it is not refused."""
    if height < 1 or width < 1:
        return f"its header says {width}x{height} pixels"
    if height * width > MAX_PIXELS:
        return f"its header says {width}x{height} pixels, more than {MAX_PIXELS:,}"
    if max(height, width) > MAX_SIDE:
        return f"its header says {width}x{height} pixels, a side of more than {MAX_SIDE:,}"
    if height * width > max_pixels:
        return (
            f"its header says {width}x{height} pixels, more than the recipe's {max_pixels:,}: set "
            f"`max_pixels: {height * width}` in it (up to {MAX_PIXELS:,}), or make the image smaller"
        )
    return None


def cause_in_bytes(size_bytes: int) -> str | None:
    """Why a file with this number of bytes is refused; None if it is not refused."""
    if size_bytes > MAX_ENCODED_BYTES:
        return f"it has {size_bytes:,} bytes, more than {MAX_ENCODED_BYTES:,}"
    return None


def cause_in_room(height: int, width: int, needed_bytes: int, size_bytes: int) -> str | None:
    """Why a file is refused if its pixels need at least `needed_bytes`; None if it is not refused."""
    if needed_bytes > size_bytes:
        return f"its header says {width}x{height} pixels, which its {size_bytes:,} bytes cannot hold"
    return None


def cause_in_jpeg(encoded: NDArray[np.uint8]) -> str | None:
    """Why a JPEG, (bytes,) of the whole file, is refused; None if it is not refused.

    It is refused if it is cut, if decoding would take minutes, or if it uses a table that it does not define. Decoders
    differ on such a table: some raise an error, some use a standard table, some use the previous image's table.
    """
    data = memoryview(encoded)
    frame, pixels, first_scan, scans, several_scans = 0, 0, 0, 0, False
    quantisation: dict[int, set[int]] = {}  # of each component that has had no scan yet
    defined: set[int] = set()
    for number, (marker, start, end) in enumerate(_all_segments(data)):
        if number == MAX_SEGMENTS:
            return f"a JPEG of more than {MAX_SEGMENTS:,} segments"
        if marker == _QUANTISATION_TABLES:
            defined |= _quantisation_tables(data[start:end].tobytes())
        elif marker == _HUFFMAN_TABLES:
            defined |= _huffman_tables(data[start:end].tobytes())
        elif marker in _SEQUENTIAL or marker in _PROGRESSIVE:
            content = data[start:end].tobytes()
            frame, quantisation = marker, _components(content)
            pixels = int.from_bytes(content[1:3], "big") * int.from_bytes(content[3:5], "big")
        elif marker == SCAN:
            scan = data[start:end].tobytes()
            used = _used_huffman_tables(frame, scan)
            for component in scan[1:-3:2]:
                used |= quantisation.pop(component, set())
            if not used <= defined:
                return f"a JPEG without the {_name(min(used - defined))}, which it uses"
            if not scans:
                first_scan, several_scans = start, frame in _PROGRESSIVE or bool(quantisation)
            scans += 1
            if not several_scans:
                break
        elif marker == _IMAGE_BEGINS:
            return "a JPEG with another start-of-image marker"
        elif marker == _IMAGE_ENDS:
            break
    if not scans:
        return "a JPEG without a scan"
    # The thumbnail in the header has its own end marker, so only one after the first scan counts.
    if data[-2:] != _END_OF_IMAGE and encoded[first_scan:].tobytes().rfind(_END_OF_IMAGE) < 0:
        return "a JPEG that is cut: it has no end-of-image marker"
    if scans > MAX_SCANS:
        return f"a JPEG of {scans} scans, more than {MAX_SCANS}"
    if scans * pixels > MAX_PIXELS_TIMES_SCANS:
        return f"a JPEG of {pixels:,} pixels times {scans} scans, more than {MAX_PIXELS_TIMES_SCANS:,}"
    return None


def cause_in_pnm(encoded: NDArray[np.uint8]) -> str | None:
    """Why a PBM, PGM or PPM, (bytes,) of the whole file that its parser accepts, is refused; None if it is not.

    DALI does not scale values, so white must be the largest value of 8 or 16 bits.
    """
    head = re.sub(rb"#[^\n]*", b"", encoded[:_HEADER_BYTES].tobytes())
    header = _PNM_HEADER.match(head)
    if header is None:
        return f"its header is {head[:20]!r}, not a kind with width, height and white"
    kind, width, height, white = int(header[1]), int(header[2]), int(header[3]), header[4] or b""
    if kind not in _BITMAPS and white not in (b"255", b"65535"):
        return f"its white is {white!r}, allowed are 255 and 65535"
    samples = height * width * (3 if kind in _THREE_SAMPLES else 1)
    if kind in _TEXTS:
        needed_bytes = samples if kind in _BITMAPS else 2 * samples - 1  # a digit and a space; bits need no space
    elif kind in _BITMAPS:
        needed_bytes = height * ((width + 7) // 8)
    else:
        needed_bytes = samples * (2 if white == b"65535" else 1)
    return cause_in_room(height, width, needed_bytes, len(encoded))


def _all_segments(data: memoryview) -> Iterator[tuple[int, int, int]]:
    """The segments of a whole JPEG: all bytes between a scan's header and the next marker belong to the scan."""

    def read(count: int, offset: int) -> bytes:
        return data[offset : offset + count].tobytes()

    marker, position = 0, 2
    for marker, start, position in segments(read):
        yield marker, start, position
    if marker != SCAN:
        return
    while found := _MARKER_BEHIND_SCAN.search(data, position):
        position = found.end()
        for marker, start, position in segments(read, found.start()):
            yield marker, start, position


def _components(frame: bytes) -> dict[int, set[int]]:
    """The quantisation tables of each component: a set, because some encoders give all components the same name."""
    tables: dict[int, set[int]] = {}
    for component, table in zip(frame[6::3], frame[8::3]):
        tables.setdefault(component, set()).add(_QUANTISATION + table)
    return tables


def _quantisation_tables(segment: bytes) -> set[int]:
    tables, position = set(), 0
    while position < len(segment):
        tables.add(_QUANTISATION + (segment[position] & 15))
        position += 129 if segment[position] >> 4 else 65
    return tables


def _huffman_tables(segment: bytes) -> set[int]:
    tables, position = set(), 0
    while position < len(segment):
        tables.add(segment[position] & 0x1F)
        position += 17 + sum(segment[position + 1 : position + 17])
    return tables


def _name(table: int) -> str:
    if table >= _QUANTISATION:
        return f"quantisation table {table - _QUANTISATION}"
    return f"AC Huffman table {table - _AC}" if table >= _AC else f"DC Huffman table {table}"


def _used_huffman_tables(frame: int, scan: bytes) -> set[int]:
    """The Huffman tables that a scan uses. A progressive scan uses those of DC or of AC; refining DC uses none."""
    if frame in _ARITHMETIC or len(scan) < 6:
        return set()
    uses_dc = frame in _SEQUENTIAL or (frame in _PROGRESSIVE and scan[-3] == 0 and scan[-1] < 16)
    uses_ac = frame in _SEQUENTIAL or (frame in _PROGRESSIVE and scan[-3] > 0)
    pairs = scan[2:-3:2]
    return {pair >> 4 for pair in pairs if uses_dc} | {_AC + (pair & 15) for pair in pairs if uses_ac}
