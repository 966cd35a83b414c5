"""Validates a JPEG before it is decoded or packed, and makes the file for decoders (ITU-T T.81)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.regular_file import Read
from gpuloader.base.text import counted
from gpuloader.images.header import FRAMES, MAX_SEGMENTS, MAX_STRAY_BYTES, SCAN, STRAY, segments
from gpuloader.images.limits import RefusalError

MAX_SCANS = 100
MAX_PIXELS_TIMES_SCANS = 2_000_000_000  # 4 s on a slow core; a photograph has about ten scans

_SEQUENTIAL, _PROGRESSIVE = frozenset((0xC0, 0xC1, 0xC9)), frozenset((0xC2, 0xCA))
_ARITHMETIC = frozenset((0xC9, 0xCA))
_FIRST_FRAME = 0xC0
_SAMPLE_BITS = 8
_HUFFMAN_TABLES, _QUANTISATION_TABLES = 0xC4, 0xDB
_IMAGE_BEGINS, _IMAGE_ENDS = 0xD8, 0xD9
_END_OF_IMAGE = b"\xff\xd9"
_MARKER_BEHIND_SCAN = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")  # the other markers belong to the scan
_STRAY_BEGINNING = re.compile(rb"(\xff\xd8[^\xff](?:[^\xff]|\xff[^\xc0-\xfe])*)\xff+([\xc0-\xfe])")
_APP14, _ADOBE, _ADOBE_BYTES = 0xEE, b"Adobe", 12  # libjpeg ignores a shorter one
_ADOBE_CMYK = np.frombuffer(b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\0", np.uint8)
_AC, _QUANTISATION = 0x10, 0x20  # the first numbers of these tables; DC Huffman tables begin at 0


def decoder_jpeg(encoded: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns the file that a decoder gets for a JPEG, from the (bytes,) of the whole file.

    It is `encoded` itself unless DALI would refuse it or invert its colours. Stray bytes in the header are taken out.
    Four components without Adobe's marker get this marker: programs store CMYK inverted, and Pillow takes it so, but
    DALI only with the marker. Stray bytes at the beginning are refused, as Pillow does.
    """
    if found := _STRAY_BEGINNING.match(encoded):
        raise RefusalError(
            f"{counted(found.end(1) - 2, 'stray byte')} before the marker 0x{found[2].hex()}: save the image again"
        )
    parts, end_of_part, strays, is_cmyk, has_adobe = [encoded[:2]], 2, 0, False, False
    for marker, start, end in islice(segments(_read(memoryview(encoded))), MAX_SEGMENTS):
        content = encoded[start : min(end, start + _ADOBE_BYTES)].tobytes()
        if marker == STRAY:
            parts.append(encoded[end_of_part:start])
            end_of_part = end
            strays += end - start
        elif marker in FRAMES:
            is_cmyk = content[5:6] == b"\4"
        has_adobe |= marker == _APP14 and content.startswith(_ADOBE) and len(content) == _ADOBE_BYTES
    if strays > MAX_STRAY_BYTES:
        raise RefusalError(f"more than {MAX_STRAY_BYTES:,} stray bytes before the markers of its header")
    if is_cmyk and not has_adobe:
        parts.insert(1, _ADOBE_CMYK)
    return np.concatenate([*parts, encoded[end_of_part:]]) if len(parts) > 1 else encoded


def check_jpeg(encoded: NDArray[np.uint8]) -> None:
    """Refuses a JPEG, (bytes,) of the whole file, that decoders read differently, or that takes minutes.

    A JPEG is refused if it is cut, if decoding takes minutes, or if it uses a table that it does not define. For such a
    table, some decoders raise an error, some use a standard table, and some use the previous image's table. For rare
    kinds of frames, some decoders return a black image.
    """
    data = memoryview(encoded)
    frame, components, pixels, first_scan, scans, several_scans = 0, 0, 0, 0, 0, False
    quantisation: dict[int, set[int]] = {}  # of each component without a scan so far
    defined: set[int] = set()
    for number, (marker, start, end) in enumerate(_all_segments(data)):
        if number == MAX_SEGMENTS:
            raise RefusalError(f"a JPEG of more than {MAX_SEGMENTS:,} segments")
        if marker == _QUANTISATION_TABLES:
            defined |= _quantisation_tables(data[start:end].tobytes())
        elif marker == _HUFFMAN_TABLES:
            defined |= _huffman_tables(data[start:end].tobytes())
        elif marker in FRAMES:
            content = data[start:end].tobytes()
            _check_frame(marker, content)
            frame, components, quantisation = marker, content[5], _tables_of_components(content)
            pixels = int.from_bytes(content[1:3], "big") * int.from_bytes(content[3:5], "big")
        elif marker == SCAN:
            scan = data[start:end].tobytes()
            used = _used_huffman_tables(frame, scan)
            for component in scan[1:-3:2]:
                used |= quantisation.pop(component, set())
            if not used <= defined:
                raise RefusalError(f"a JPEG without the {_name(min(used - defined))}, which it uses")
            if not scans:
                in_scan = int.from_bytes(scan[:1], "big")  # as in libjpeg: components may share a name
                first_scan, several_scans = start, frame in _PROGRESSIVE or in_scan < components
            scans += 1
            if not several_scans:
                break
        elif marker == _IMAGE_BEGINS:
            raise RefusalError("a JPEG with another start-of-image marker")
        elif marker == _IMAGE_ENDS:
            break
    if not scans:
        raise RefusalError("a JPEG without a scan")
    # The thumbnail in the header has its own end marker, so the image's marker follows the first scan.
    if data[-2:] != _END_OF_IMAGE and encoded[first_scan:].tobytes().rfind(_END_OF_IMAGE) < 0:
        raise RefusalError("a JPEG that is cut: it has no end-of-image marker")
    if scans > MAX_SCANS:
        raise RefusalError(f"a JPEG of {scans} scans, more than {MAX_SCANS}")
    if scans * pixels > MAX_PIXELS_TIMES_SCANS:
        raise RefusalError(f"a JPEG of {pixels:,} pixels times {scans} scans, more than {MAX_PIXELS_TIMES_SCANS:,}")


def ends_with_its_image(jpeg: bytes) -> bool:
    """Returns whether a JPEG ends with its end-of-image marker; a motion photo has a film after it."""
    for marker, _, end in _all_segments(memoryview(jpeg)):
        if marker == SCAN and (found := _MARKER_BEHIND_SCAN.search(jpeg, end)) and found[0] == _END_OF_IMAGE:
            return found.end() == len(jpeg)
    return False


def _all_segments(data: memoryview) -> Iterator[tuple[int, int, int]]:
    """Yields all segments of a JPEG; a scan has all bytes between its header and the next marker."""
    marker, position, read = 0, 2, _read(data)
    for marker, start, position in segments(read):
        yield marker, start, position
    if marker != SCAN:
        return
    while match := _MARKER_BEHIND_SCAN.search(data, position):
        position = match.end()
        for marker, start, position in segments(read, match.start()):
            yield marker, start, position


def _read(data: memoryview) -> Read:
    return lambda count, offset: data[offset : offset + count].tobytes()


def _check_frame(marker: int, content: bytes) -> None:
    if marker not in _SEQUENTIAL and marker not in _PROGRESSIVE:
        raise RefusalError(
            f"a JPEG with a frame SOF{marker - _FIRST_FRAME}: allowed are SOF0, SOF1, SOF2, SOF9 and SOF10"
        )
    if len(content) < 6:
        raise RefusalError("a JPEG with a cut frame header")
    if content[0] != _SAMPLE_BITS:
        raise RefusalError(f"a JPEG of {content[0]} bits per sample: allowed are {_SAMPLE_BITS}")


def _tables_of_components(frame: bytes) -> dict[int, set[int]]:
    """Returns each component's quantisation tables, as a set: some encoders give all components the same name."""
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
    """Returns a scan's Huffman tables. A progressive scan uses DC or AC tables, or none to refine DC."""
    if frame in _ARITHMETIC or len(scan) < 6:
        return set()
    uses_dc = frame in _SEQUENTIAL or (frame in _PROGRESSIVE and scan[-3] == 0 and scan[-1] < 16)
    uses_ac = frame in _SEQUENTIAL or (frame in _PROGRESSIVE and scan[-3] > 0)
    pairs = scan[2:-3:2]
    return {pair >> 4 for pair in pairs if uses_dc} | {_AC + (pair & 15) for pair in pairs if uses_ac}
