"""Reduces a PNG to the chunks that its pixels need, before it is decoded (ISO/IEC 15948).

Text, profiles, animations and other chunks never reach the decoder, so they cannot harm it.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.regular_file import Read
from gpuloader.images.limits import RefusalError

MAX_CHUNKS = 100_000
MAX_CHUNKS_READ = 1000  # for an index; a picture has about ten before its pixels
MOST_EXCESS_BYTES = 1_000_000_000  # that data may unpack to beyond the rows; a decoder takes seconds for them

_BEGINNING = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"
_SIGNATURE_BYTES, _HEADER_END, _CHUNK_BYTES = 8, 33, 12
_KINDS = {b"IHDR": "H", b"PLTE": "P", b"tRNS": "T", b"IDAT": "D", b"IEND": "E"}  # others are "-"
_IN_ORDER = re.compile(r"H-*(?:P-*)?(?:T-*)?(D+)-*E")
_NEEDED = re.compile(r"[^-]+")
_BITS, _CHANNELS = (1, 2, 4, 8, 16), {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_NOT_INTERLACED = ((0, 0, 1, 1),)  # the first row and column, and the distances to the next
_ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
_SPARE_BYTES = 1 << 16
_MOST_RATIO = 1032  # of deflate
_STEP_BYTES = 1 << 16


def decoder_png(encoded: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns the file that a decoder gets for a PNG, from the (bytes,) of the whole file.

    It has the chunks IHDR, PLTE, tRNS, IDAT and IEND, unchanged; other ancillary chunks are dropped. Without such
    chunks, it is `encoded` itself. A PNG is refused if another chunk is critical, if the chunks are not in order, or if
    the data are longer than deflate needs at worst.
    """
    data = memoryview(encoded)
    if len(data) < _HEADER_END or data[: len(_BEGINNING)].tobytes() != _BEGINNING:
        raise RefusalError("a PNG that does not begin with the chunk IHDR")
    if data[24] not in _BITS or data[25] not in _CHANNELS:
        raise RefusalError(f"a PNG of the colour type {data[25]} with {data[24]} bits")
    kinds: list[str] = []
    ends = [_SIGNATURE_BYTES]
    while not kinds or kinds[-1] != "E":
        position = ends[-1]
        if position + 8 > len(data):
            raise RefusalError("a PNG that is cut: it has no chunk IEND")
        length, name = struct.unpack_from(">I4s", data, position)
        end = position + _CHUNK_BYTES + length
        if end > len(data) and (length or name != b"IEND"):  # decoders accept an IEND without its checksum
            raise RefusalError(f"a PNG that ends within its chunk {name!r}, which is said to have {length:,} bytes")
        if name not in _KINDS and not (name.isalpha() and name[:1].islower()):
            raise RefusalError(f"a PNG with the critical chunk {name!r}, which decoders do not know")
        if len(kinds) == MAX_CHUNKS:
            raise RefusalError(f"a PNG of more than {MAX_CHUNKS:,} chunks")
        kinds.append(_KINDS.get(name, "-"))
        ends.append(end)
    # A letter for each chunk: regular expressions then check the order and find the chunks to keep.
    text = "".join(kinds)
    match = _IN_ORDER.fullmatch(text)
    if match is None:
        raise RefusalError(
            "a PNG whose chunks are not IHDR, PLTE, tRNS, IDATs one behind the other, and IEND, in this order"
        )
    first, behind = match.span(1)
    if ends[behind] - ends[first] - _CHUNK_BYTES * (behind - first) > _rows_bytes(data) * 9 // 8 + _SPARE_BYTES:
        raise RefusalError(f"a PNG of {_pixels(data)} with more data than they need")
    ends[0] = 0  # the signature belongs to the first part
    parts = [encoded[ends[part.start()] : ends[part.end()]] for part in _NEEDED.finditer(text)]
    if len(parts) > 1:
        return np.concatenate(parts)
    return encoded if len(parts[0]) == len(encoded) else parts[0]


def chunks_before_pixels(read: Read) -> Iterator[tuple[bytes, int, int]]:
    """Yields the first chunks of a PNG: the name, and the start and end of the content (ISO/IEC 15948, section 5)."""
    position = _SIGNATURE_BYTES
    for _ in range(MAX_CHUNKS_READ):
        header = read(8, position)
        if len(header) < 8 or header[4:] == b"IDAT":
            return
        end = position + 8 + int.from_bytes(header[:4], "big")
        yield header[4:], position + 8, end
        position = end + 4


def check_data(file: NDArray[np.uint8]) -> None:
    """Refuses a PNG, as `decoder_png` returns it, if its data unpack to gigabytes beyond its rows.

    The data are unpacked, without keeping them, until the rest is too short for that.
    """
    data = memoryview(file)
    rows_bytes, left_bytes, unpacked_bytes = _rows_bytes(data), len(data), 0
    most_bytes = rows_bytes + MOST_EXCESS_BYTES
    if left_bytes * _MOST_RATIO <= most_bytes:
        return
    inflate = zlib.decompressobj()
    for piece in _pieces_of_data(data):
        packed: bytes | memoryview = piece
        while packed and unpacked_bytes + left_bytes * _MOST_RATIO > most_bytes and not inflate.eof:
            try:
                unpacked_bytes += len(inflate.decompress(packed, _STEP_BYTES))
            except zlib.error:  # the decoder stops here, too
                return
            if unpacked_bytes > rows_bytes + _SPARE_BYTES:
                raise RefusalError(f"a PNG of {_pixels(data)} whose data unpack to more than their rows")
            left_bytes -= len(packed) - len(inflate.unconsumed_tail)
            packed = inflate.unconsumed_tail


def _pieces_of_data(data: memoryview) -> Iterator[memoryview]:
    """Yields the contents of the chunks IDAT in small pieces, because zlib copies the unread rest of a piece."""
    position, name = _SIGNATURE_BYTES, b""
    while name != b"IEND":
        length, name = struct.unpack_from(">I4s", data, position)
        if name == b"IDAT":
            for start in range(position + 8, position + 8 + length, _STEP_BYTES):
                yield data[start : min(start + _STEP_BYTES, position + 8 + length)]
        position += _CHUNK_BYTES + length


def _pixels(data: memoryview) -> str:
    width, height = struct.unpack_from(">II", data, 16)
    return f"{width}x{height} pixels"


def _rows_bytes(data: memoryview) -> int:
    """Counts the bytes of a PNG's rows, including the filter types."""
    width, height, bits, kind, _, _, interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    total = 0
    for top, left, down, right in _ADAM7 if interlaced else _NOT_INTERLACED:
        rows, columns = -(-(height - top) // down), -(-(width - left) // right)
        if rows > 0 and columns > 0:
            total += rows * (1 + (columns * bits * _CHANNELS[kind] + 7) // 8)
    return total
