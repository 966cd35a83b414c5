"""Which TIFFs have data for all of their pixels: decoders show other memory in the place of those that are missing."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from bad_images import tiff
from making import encoded, picture
from verdicts import verdict

from gpuloader.pack.rare_formats import decode

HEIGHT, WIDTH = 48, 64
PICTURE = picture(HEIGHT, WIDTH)
PIXELS = np.asarray(PICTURE)
TAGS = {256: (WIDTH,), 257: (HEIGHT,), 258: (8, 8, 8), 259: (1,), 262: (2,), 277: (3,)}
WHITE = bytes([255])


def strips(parts: list[bytes], rows: int = HEIGHT, sizes: list[int] | None = None, **tags: tuple[int, ...]) -> bytes:
    """A TIFF of such strips; other tags are `t` and their number."""
    return of_parts(parts, sizes, {273: (), 279: (), 278: (rows,)}, tags)


def tiles(parts: list[bytes], side: int = 32, sizes: list[int] | None = None, **tags: tuple[int, ...]) -> bytes:
    return of_parts(parts, sizes, {324: (), 325: (), 322: (side,), 323: (side,)}, tags)


def of_parts(parts: list[bytes], sizes: list[int] | None, place: dict[int, tuple[int, ...]], tags: dict) -> bytes:
    offsets = tuple(8 + sum(map(len, parts[:number])) for number in range(len(parts)))
    starts, counts = list(place)[:2]
    found = tuple(map(len, parts)) if sizes is None else tuple(sizes)
    said = {int(name[1:]): value for name, value in tags.items()}
    all_tags = {**TAGS, **place, starts: offsets, counts: found, **said}
    return tiff({tag: value for tag, value in all_tags.items() if value}, b"".join(parts))


def rows_of(pixels: np.ndarray, rows: int) -> list[bytes]:
    return [pixels[first : first + rows].tobytes() for first in range(0, HEIGHT, rows)]


def tiles_of(pixels: np.ndarray, side: int = 32) -> list[bytes]:
    filled = np.pad(pixels, ((0, -HEIGHT % side), (0, -WIDTH % side), *((0, 0),) * (pixels.ndim - 2)))
    return [
        filled[y : y + side, x : x + side].tobytes()
        for y in range(0, len(filled), side)
        for x in range(0, filled.shape[1], side)
    ]


PLANES = [PIXELS[:, :, channel] for channel in range(3)]
WIDE = PIXELS.astype("<u2") * 257
WIDE_PLANES = [WIDE[:, :, channel] for channel in range(3)]
BITS_16 = {"t258": (16, 16, 16)}
PLANAR = {"t284": (2,)}
LAST_IS_SHORT = rows_of(PIXELS, 20)  # strips of 20, 20 and 8 rows


def check(data: bytes) -> str | np.ndarray:
    decoded = verdict(decode, data)
    return decoded if isinstance(decoded, str) else np.asarray(decoded[0])


@pytest.mark.parametrize(
    "data",
    [
        strips([PIXELS.tobytes()]),
        strips([PIXELS.tobytes()], rows=2**32 - 1),  # said by some writers
        strips(LAST_IS_SHORT, rows=20),
        strips([plane.tobytes() for plane in PLANES], **PLANAR),
        strips([WIDE.tobytes()], **BITS_16),
        strips([zlib.compress(PIXELS.tobytes())], t259=(8,)),
        tiles(tiles_of(PIXELS)),
        tiles([tile for plane in PLANES for tile in tiles_of(plane)], **PLANAR),
        tiles([zlib.compress(tile) for tile in tiles_of(PIXELS)], t259=(8,)),
    ],
    ids=range(9),
)
def test_a_whole_one_comes_with_its_pixels(data: bytes) -> None:
    assert np.array_equal(check(data), PIXELS)


JPEG = encoded(PICTURE, "JPEG", subsampling="4:4:4")


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (strips(LAST_IS_SHORT[:1], rows=20), "a TIFF of 3 strips or tiles: it has the places of 1, and the sizes of 1"),
        (strips([PIXELS.tobytes()], **PLANAR), "a TIFF of 3 strips or tiles: it has the places of 1"),
        (tiles(tiles_of(PIXELS)[:2]), "a TIFF of 4 strips or tiles: it has the places of 2, and the sizes of 2"),
        (strips([plane.tobytes() for plane in WIDE_PLANES], **BITS_16, **PLANAR), "a TIFF of 3 planes with 16 bits"),
        (strips([PIXELS.tobytes()], sizes=[PIXELS.nbytes - 1]), "strip or tile 0 has less than its 64x48 pixels"),
        (strips([*LAST_IS_SHORT[:2], LAST_IS_SHORT[2][:-1]], rows=20), "strip or tile 2 has less than its 64x8 pixels"),
        (strips([PIXELS.tobytes()], t273=(2**31,)), "strip or tile 0 has less than its 64x48 pixels"),
        (tiles([*tiles_of(PIXELS)[:3], b"x"]), "strip or tile 3 has less than its 32x32 pixels"),
        (strips([zlib.compress(WHITE * 3000)], t259=(8,)), "Pillow cannot decode it: decoder error"),
        (strips([b"\x81" + WHITE], t259=(32773,)), "Pillow cannot decode it: decoder error"),
        (strips([encoded(PICTURE.crop((0, 0, 32, HEIGHT)), "JPEG")], t259=(7,)), "0 has less than its 64"),
        (tiles([JPEG, JPEG, JPEG, encoded(picture(31, 32), "JPEG")], t259=(7,)), "tile 3 has less than its 32x32"),
        (encoded(PICTURE.convert("1"), "TIFF", compression="group4"), "a TIFF with the compression 4"),
        (strips([JPEG], t259=(6,)), "a TIFF with the compression 6: allowed are none, LZW, Deflate"),
        (tiles(tiles_of(PIXELS), t322=(0,)), "in parts of 0x32"),
    ],
    ids=range(15),
)
def test_one_that_does_not_fill_its_planes_is_bad(data: bytes, cause: str) -> None:
    said = check(data)
    assert isinstance(said, str)
    assert cause in said
