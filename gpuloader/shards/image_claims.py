"""Checks that the sizes in a file's header fit its bytes, before anything parses the file.

Otherwise parsers and decoders reserve memory for what the header claims, although the file has less.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gpuloader.helpers.image_limits import MAX_PIXELS
from gpuloader.shards.image_checks import cause_in_room
from gpuloader.shards.image_header import MAX_SEGMENTS

MAX_CHUNKS = 1_000_000  # of a PNG or WebP; reading this many takes half a second
MAX_TILE_PIXELS = 4096 * 4096  # of a TIFF that is smaller than a tile
MAX_TIFF_BYTES = 8 * MAX_PIXELS  # four samples of 16 bits to a pixel

_SPARE_BYTES = 1 << 16
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_EXIF_FLAG = 8
_WIDTH, _HEIGHT, _BITS, _SAMPLES, _TILE_WIDTH, _TILE_HEIGHT = _TIFF_TAGS = (256, 257, 258, 277, 322, 323)
_TIFF_INTEGERS = {1: "B", 3: "H", 4: "I", 6: "B", 8: "H", 9: "I", 16: "Q", 17: "Q"}
_PLAIN_BMP, _RUNS_OF_BMP = (0, 3, 6), (1, 2)
_MOST_IN_A_RUN = 255


def cause_in_claims(encoded: NDArray[np.uint8]) -> str | None:
    """Why a PNG, WebP, TIFF or BMP, (bytes,) of the whole file, is refused; None if it is not, or for other formats."""
    head = encoded[:4].tobytes()
    check = _CHECKS.get(head) or _CHECKS.get(head[:2])
    if check is None:
        return None
    try:
        return check(memoryview(encoded))
    except (struct.error, IndexError, OverflowError):  # the file ends within its header; the parser reports this
        return None


def _cause_in_png(data: memoryview) -> str | None:
    width, height, bits, kind = struct.unpack_from(">IIBB", data, 16)
    row_bytes = 1 + (width * bits * _PNG_CHANNELS.get(kind, 4) + 7) // 8
    most_bytes = 2 * height * row_bytes + _SPARE_BYTES  # deflate never doubles the size
    position, data_bytes = 8, 0
    for _ in range(MAX_CHUNKS):
        length, name = struct.unpack_from(">I4s", data, position)
        checksum_bytes = 0 if name == b"IEND" else 4  # decoders accept an end without its checksum
        position += 8 + length + checksum_bytes
        if position > len(data):
            return _behind_the_file("PNG", name, length)
        if name == b"IEND":
            return None
        data_bytes += length if name == b"IDAT" else 0
        if data_bytes > most_bytes:
            return f"a PNG of {width}x{height} pixels with more data than they need"
    return f"a PNG of more than {MAX_CHUNKS:,} chunks"


def _cause_in_webp(data: memoryview) -> str | None:
    """Why a WebP is refused. The parser looks for an EXIF chunk if the header announces one; only these are checked."""
    if data[12:16].tobytes() != b"VP8X" or not data[20] & _EXIF_FLAG:
        return None
    position = 12
    for _ in range(MAX_CHUNKS):
        name, length = struct.unpack_from("<4sI", data, position)
        if position + 8 + length > len(data):
            return _behind_the_file("WebP", name, length)
        if name == b"EXIF":
            return None
        position += 8 + length + length % 2
    return f"a WebP of more than {MAX_CHUNKS:,} chunks"


def _behind_the_file(kind: str, chunk: bytes, length: int) -> str:
    return f"a {kind} that ends within its chunk {chunk!r}, which is said to have {length:,} bytes"


def _cause_in_tiff(data: memoryview) -> str | None:
    """Why a TIFF is refused; only its first image is checked, because only that is decoded.

    TIFF 6.0, section 2. BigTIFF uses 8 bytes instead of 4, and also for the number of tags instead of 2.
    """
    order = "<" if data[0] == ord("I") else ">"
    big = struct.unpack_from(f"{order}H", data, 2) == (43,)
    word, number = (f"{order}Q", f"{order}Q") if big else (f"{order}I", f"{order}H")
    [directory] = struct.unpack_from(word, data, 8 if big else 4)
    [tags] = struct.unpack_from(number, data, directory)
    if tags > MAX_SEGMENTS:
        return f"a TIFF of {tags:,} tags, more than {MAX_SEGMENTS:,}"
    position = directory + struct.calcsize(number)
    values: defaultdict[int, int] = defaultdict(lambda: 1)
    for _ in range(tags):
        tag, kind = struct.unpack_from(f"{order}HH", data, position)
        [count] = struct.unpack_from(word, data, position + 4)
        place = position + 4 + struct.calcsize(word)
        position = place + struct.calcsize(word)
        if tag in _TIFF_TAGS and kind in _TIFF_INTEGERS:
            integer = f"{order}{_TIFF_INTEGERS[kind]}"
            if count * struct.calcsize(integer) > struct.calcsize(word):
                [place] = struct.unpack_from(word, data, place)
            if place + struct.calcsize(integer) <= len(data):
                [value] = struct.unpack_from(integer, data, place)
                values[tag] = max(values[tag], value)  # decoders differ on a tag that occurs twice
    return _cause_in_tags(values)


def _cause_in_tags(values: Mapping[int, int]) -> str | None:
    """Why these tags are refused. A tile may be larger than the image; a decoder reserves memory for all of it."""
    width, height, tile_width, tile_height = (values[tag] for tag in (_WIDTH, _HEIGHT, _TILE_WIDTH, _TILE_HEIGHT))
    tile_pixels = tile_width * tile_height
    if tile_pixels > max(MAX_TILE_PIXELS, (width + 15) * (height + 15)):  # a tile's sides are multiples of 16
        return f"a TIFF of {width}x{height} pixels with tiles of {tile_width}x{tile_height}"
    bits = values[_SAMPLES] * values[_BITS]
    if max(width * height, tile_pixels) * bits > 8 * MAX_TIFF_BYTES:
        return f"a TIFF of {width}x{height} pixels of {bits:,} bits each, more than {MAX_TIFF_BYTES:,} bytes"
    return None


def _cause_in_bmp(data: memoryview) -> str | None:
    if struct.unpack_from("<I", data, 14) == (12,):
        width, height, _, bits = struct.unpack_from("<HHHH", data, 18)
        compression = 0
    else:
        width, height, _, bits, compression = struct.unpack_from("<iiHHI", data, 18)
    height = abs(height)  # negative if the rows begin at the top
    needed_bytes = 0
    if compression in _PLAIN_BMP:
        needed_bytes = (height - 1) * ((width * bits + 31) // 32 * 4) + width * bits // 8
    elif compression in _RUNS_OF_BMP:
        needed_bytes = height * width // _MOST_IN_A_RUN
    return cause_in_room(height, width, needed_bytes, len(data))


_CHECKS = {
    b"\x89PNG": _cause_in_png,
    b"RIFF": _cause_in_webp,
    **dict.fromkeys((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), _cause_in_tiff),
    b"BM": _cause_in_bmp,
}
