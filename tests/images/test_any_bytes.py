"""Whatever the bytes of an image are, its readers return an answer or raise `RefusalError`, and indexing goes on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import encoded, jpeg, picture, saved
from PIL import Image
from tar_bytes import END, member

from gpuloader.images.arrays import admit_array
from gpuloader.images.formats import image_format
from gpuloader.images.gate import admit_each, decoder_file
from gpuloader.images.header import image_header
from gpuloader.images.jpeg import check_jpeg, ends_with_its_image
from gpuloader.images.limits import RefusalError
from gpuloader.images.orientation import image_orientation, image_orientations
from gpuloader.images.png import check_data, decoder_png
from gpuloader.images.webp import check_webp
from gpuloader.shards.index import Index
from gpuloader.shards.scan import scan_bytes

PICTURE = picture(24, 32)
TURNED = Image.Exif()
TURNED[0x0112] = 6
FILES = {
    "jpg": encoded(PICTURE, "JPEG", exif=TURNED),
    "progressive.jpg": encoded(PICTURE, "JPEG", progressive=True, restart_marker_blocks=4),
    "stray.jpg": encoded(PICTURE, "JPEG").replace(b"\xff\xc4", b"\0\1\2\xff\xc4"),
    "cmyk.jpg": encoded(PICTURE.convert("CMYK"), "JPEG").replace(b"Adobe", b"Ducky"),
    "png": encoded(PICTURE, "PNG", exif=TURNED),
    "lossy.webp": encoded(PICTURE, "WEBP"),
    "lossless.webp": encoded(PICTURE, "WEBP", lossless=True),
    "extended.webp": encoded(PICTURE, "WEBP", exif=TURNED),
    "animated.webp": encoded(PICTURE, "WEBP", save_all=True, append_images=[picture(24, 32, seed=1)]),
    "bmp": encoded(PICTURE, "BMP"),
    "ppm": encoded(PICTURE, "PPM"),
    "jp2": encoded(PICTURE, "JPEG2000"),
    "j2k": encoded(PICTURE, "JPEG2000", no_jp2=True),
    "tiff": encoded(PICTURE, "TIFF", exif=TURNED),
    "npy": saved(np.asarray(PICTURE)),
}
GOOD = jpeg(20, 30)
HEADER_BYTES = 700  # more than any of these headers has


def changed(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    """The bytes with other values at some places, each place a number modulo their length."""
    array = bytearray(data)
    for place, value in changes:
        if array:
            array[place % len(array)] = value
    return bytes(array)


def cut(data: bytes) -> st.SearchStrategy[bytes]:
    """Beginnings of a file, most of them within its header."""
    return st.one_of(st.integers(0, HEADER_BYTES), st.integers(0, len(data))).map(lambda end: data[:end])


VALUES = st.one_of(st.sampled_from([0x00, 0xFF, 0x7F, 0x80]), st.integers(0, 255))
PLACES = st.one_of(st.integers(0, 63), st.integers(0, HEADER_BYTES))
BYTES = st.builds(
    changed, st.sampled_from([*FILES.values()]).flatmap(cut), st.lists(st.tuples(PLACES, VALUES), max_size=6)
)


def read_of(data: bytes) -> Callable[[int, int], bytes]:
    return lambda count, offset: data[offset : offset + count]


def check_answers(data: bytes) -> None:
    """Calls all readers in `images`."""
    array, read = np.frombuffer(data, np.uint8), read_of(data)
    height, width, traits = image_header(read)
    assert (height > 0) == (width > 0)
    assert height or not traits
    assert 0 <= image_orientation(read) <= 8
    assert image_orientations([data]).tolist() == [image_orientation(read)]
    image_format(array)
    admit_each([data], 10_000)
    ends_with_its_image(data)
    assert decoder_file(decoder_file(array)).tobytes() == decoder_file(array).tobytes()
    for reader in (admit_array, check_jpeg, check_webp, lambda png: check_data(decoder_png(png))):
        with suppress(RefusalError):
            reader(array)


def indexed(members: dict[str, bytes]) -> Index:
    tar = b"".join(member(name, data) for name, data in members.items()) + END

    def read(count: int, offset: int) -> bytes:
        assert 0 <= offset < len(tar)  # also if a header names a place far behind the image
        return tar[offset : offset + count]

    return scan_bytes(read, len(tar), 0, "a shard")


def check_is_indexed(data: bytes, name: str) -> None:
    """Indexes an image beside a good one, which must keep its size."""
    index = indexed({name: data, "good.jpg": GOOD})
    assert [index.key(row) for row in range(len(index))] in (["bad", "good"], ["good"])  # an array must be whole
    assert index.column("image_size").tolist()[-1] == len(GOOD)
    assert (index.column("height")[-1], index.column("width")[-1]) == (20, 30)


@pytest.mark.parametrize("name", FILES)
def test_each_beginning_of_a_file_has_an_answer(name: str) -> None:
    for end in range(min(HEADER_BYTES, len(FILES[name])) + 1):
        check_answers(FILES[name][:end])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.slow(kept=3)
def test_each_beginning_of_a_file_is_indexed(name: str) -> None:
    for end in range(min(HEADER_BYTES, len(FILES[name])) + 1):
        check_is_indexed(FILES[name][:end], f"bad.{name.rpartition('.')[2]}")


@settings(max_examples=200, deadline=None, derandomize=True)
@given(BYTES)
def test_changed_bytes_have_an_answer(data: bytes) -> None:
    check_answers(data)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(BYTES, st.sampled_from(["jpg", "webp", "npy"]))
def test_changed_bytes_are_indexed(data: bytes, extension: str) -> None:
    check_is_indexed(data, f"bad.{extension}")
