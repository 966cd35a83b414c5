"""Checks that a TIFF has data for all of its pixels (TIFF 6.0): decoders return other memory where it has none."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from PIL import Image

from gpuloader.images.limits import RefusalError

if TYPE_CHECKING:
    from PIL.TiffImagePlugin import TiffImageFile

_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _SAMPLES, _PLANAR = 256, 257, 258, 259, 277, 284
_STRIP_OFFSETS, _ROWS_PER_STRIP, _STRIP_BYTES = 273, 278, 279
_TILE_WIDTH, _TILE_HEIGHT, _TILE_OFFSETS, _TILE_BYTES = 322, 323, 324, 325
_PLAIN, _JPEG = 1, 7
# LZW, Deflate under two numbers, PackBits, LZMA and Zstandard: libtiff fails if these have too few data. It does not
# with those of a fax.
_CHECKED_BY_LIBTIFF = (5, 8, 32946, 32773, 34925, 50000)
_ALLOWED = "none, LZW, Deflate, PackBits, LZMA, Zstandard and JPEG"


def check_tiff(picture: TiffImageFile, encoded: bytes) -> None:
    """Refuses a TIFF that Pillow opened if it lacks data. Only its first image is checked.

    Args:
        encoded: the whole file.
    """
    tags = picture.tag_v2
    width, height, compression, samples = tags[_WIDTH], tags[_HEIGHT], tags.get(_COMPRESSION, 1), tags.get(_SAMPLES, 1)
    if _TILE_OFFSETS in tags:
        columns, rows = tags[_TILE_WIDTH], tags[_TILE_HEIGHT]
        starts, sizes = tags[_TILE_OFFSETS], tags.get(_TILE_BYTES, ())
    else:
        columns, rows = width, min(tags.get(_ROWS_PER_STRIP, height), height)
        starts, sizes = tags.get(_STRIP_OFFSETS, ()), tags.get(_STRIP_BYTES, ())
    if min(width, height, columns, rows) < 1:
        raise RefusalError(f"a TIFF of {width}x{height} pixels in parts of {columns}x{rows}")
    planes = samples if tags.get(_PLANAR, 1) == 2 else 1
    bits = max(tags.get(_BITS, (1,)))
    if planes > 1 and bits != 8:  # Pillow takes them for 8 bits
        raise RefusalError(f"a TIFF of {planes} planes with {bits} bits per sample: allowed are 8")
    down, across = -(-height // rows), -(-width // columns)
    needed = planes * down * across
    if (len(starts), len(sizes)) != (needed, needed):
        raise RefusalError(
            f"a TIFF of {needed} strips or tiles: it has the places of {len(starts)}, and the sizes of {len(sizes)}"
        )
    if compression in _CHECKED_BY_LIBTIFF:
        return
    if compression not in (_PLAIN, _JPEG):
        raise RefusalError(f"a TIFF with the compression {compression}: allowed are {_ALLOWED}")
    row_bytes = (columns * bits * (samples // planes) + 7) // 8
    for number, (start, size) in enumerate(zip(starts, sizes)):
        last = _TILE_OFFSETS not in tags and number % down == down - 1
        needed_rows = height - rows * (down - 1) if last else rows
        if compression == _PLAIN:
            enough = min(size, len(encoded) - start) >= needed_rows * row_bytes
        else:
            frame = Image.open(io.BytesIO(encoded[start : start + size]), formats=("JPEG",)).size
            enough = frame[0] >= columns and frame[1] >= needed_rows
        if not enough:
            raise RefusalError(f"a TIFF whose strip or tile {number} has less than its {columns}x{needed_rows} pixels")
