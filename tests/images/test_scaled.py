"""JPEGs decoded at 1/2, 1/4 and 1/8, against Pillow's pixels of the whole."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from making import encoded, picture
from numpy.typing import NDArray
from PIL import Image

from gpuloader.images.gate import admit
from gpuloader.images.scaled import decode_scaled

SIZES = ((256, 320), (203, 301), (50, 17), (9, 400), (8, 8))
EXIF = Image.Exif()
EXIF[274] = 6
KINDS: dict[str, dict[str, Any]] = {
    "4:2:0": {"subsampling": "4:2:0"},
    "4:4:4": {"subsampling": "4:4:4"},
    "progressive": {"subsampling": "4:2:0", "progressive": True},
    "restarts": {"subsampling": "4:2:0", "restart_marker_blocks": 5},
    "turned": {"subsampling": "4:4:4", "exif": EXIF, "comment": b"a comment"},
    "gray": {},
}


def file_of(data: bytes) -> NDArray[np.uint8]:
    """The file as the loader has it, after validation."""
    return admit(np.frombuffer(data, np.uint8))[0].copy()


def smooth(height: int, width: int) -> Image.Image:
    return picture(40, 60).resize((width, height), Image.Resampling.BICUBIC)


def jpeg_of(kind: str, height: int, width: int) -> NDArray[np.uint8]:
    image = smooth(height, width)
    return file_of(encoded(image.convert("L") if kind == "gray" else image, "JPEG", quality=95, **KINDS[kind]))


def means(pixels: NDArray[np.uint8], factor: int) -> NDArray[np.float64]:
    """The means of factor x factor pixels, of fewer at the right and the bottom."""
    height, width = (-(-side // factor) for side in pixels.shape[:2])
    padding = ((0, height * factor - pixels.shape[0]), (0, width * factor - pixels.shape[1]), (0, 0))
    repeated = np.pad(pixels.astype(np.float64), padding, "edge")
    return np.asarray(repeated.reshape(height, factor, width, factor, 3).mean((1, 3)))


@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_a_pixel_is_the_mean_of_its_pixels(kind: str, factor: int) -> None:
    for height, width in SIZES:
        file = jpeg_of(kind, height, width)
        whole = np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))
        found = decode_scaled(file, factor, height)
        assert found is not None
        assert found.dtype == np.uint8
        expected = means(whole, factor)
        assert found.shape == expected.shape
        if "4:2:0" not in str(KINDS[kind]) or min(height, width) > 200:  # of few pixels, chroma is coarse
            inside = slice(height // factor), slice(width // factor)  # the encoder chooses what is behind the border
            assert not expected[inside].size or np.abs(found - expected)[inside].mean() < 0.75


@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_ramp_is_not_shifted(axis: int, factor: int) -> None:
    sides = (777, 1003)  # which no factor divides
    levels = np.linspace(10, 245, sides[axis])
    ramp = np.repeat(np.expand_dims(levels, (1 - axis, 2)), sides[1 - axis], 1 - axis).repeat(3, 2)
    file = file_of(encoded(Image.fromarray(np.rint(ramp).astype(np.uint8)), "JPEG", quality=100, subsampling="4:4:4"))
    found = decode_scaled(file, factor, sides[0])
    assert found is not None
    along = found.astype(np.float64).mean((1 - axis, 2))[: sides[axis] // factor]
    middles = factor * (np.arange(len(along)) + 0.5) - 0.5
    step = 235 / (sides[axis] - 1)  # levels between two pixels
    assert np.abs(along - (10 + step * middles)).max() < 0.75
    assert abs((along - (10 + step * middles)).mean()) < 0.2 * step * factor + 0.05  # a shift of a fifth of a pixel


@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_needed_rows_are_those_of_the_whole_and_the_file_stays(kind: str, factor: int) -> None:
    fewer = 0
    for height, width in SIZES:
        file = jpeg_of(kind, height, width)
        data = file.copy()
        whole = decode_scaled(file, factor, height)
        assert whole is not None
        for bottom in range(1, height + 1, 7):
            found = decode_scaled(file, factor, bottom)
            assert found is not None
            assert len(found) >= -(-bottom // factor)
            rows = bottom // factor  # those that only needed rows make
            assert np.array_equal(found[:rows], whole[:rows])
            assert np.array_equal(file, data)
            fewer += len(found) < len(whole)
    assert (fewer > 0) == (kind != "progressive")  # whose scans each have all rows


def with_adobe(data: bytes, transform: int) -> bytes:
    return data[:2] + b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0" + bytes([transform]) + data[20:]  # in place of JFIF's


def with_frame_before(data: bytes, height: int) -> bytes:
    frame = data.index(b"\xff\xc0")
    return data[: frame + 5] + height.to_bytes(2, "big") + data[frame + 7 : frame + 19] + data[frame:]


@pytest.mark.parametrize(
    "data",
    [
        encoded(picture(64, 64), "PNG"),
        encoded(picture(64, 64), "WEBP"),
        encoded(picture(64, 64).convert("CMYK"), "JPEG"),
        with_adobe(encoded(picture(64, 64), "JPEG"), 7),  # a transform that TurboJPEG does not know
        with_frame_before(encoded(picture(64, 64), "JPEG"), 0),
        with_frame_before(encoded(picture(64, 64), "JPEG"), 65_000),
    ],
    ids=["PNG", "WebP", "CMYK", "unknown transform", "two frames, of no rows", "two frames, of many rows"],
)
def test_other_files_are_left_to_the_graph(data: bytes) -> None:
    assert decode_scaled(file_of(data), 2, 64) is None


def test_what_libjpeg_only_warns_of_is_decoded() -> None:
    data = encoded(picture(160, 160), "JPEG")
    scan = data.index(b"\xff\xda")
    damaged = data[: scan + 200] + data[-2:]  # the rest of the scan is missing
    assert decode_scaled(file_of(damaged), 2, 160) is not None


def test_what_is_decoded_only_in_part_is_left_to_the_graph() -> None:
    data = bytearray(encoded(picture(160, 203), "JPEG", progressive=True))
    scan, table = data.index(b"\xff\xda"), data.rindex(b"\xff\xc4")
    data[scan + 20 : scan + 60] = bytes(byte ^ 0x5A for byte in data[scan + 20 : scan + 60])  # of which libjpeg warns
    data[table + 5 : table + 21] = bytes([255] * 16)  # which ends the decoding
    file = file_of(bytes(data))
    assert [decode_scaled(file, factor, 160) for factor in (2, 4, 8)] == [None] * 3
