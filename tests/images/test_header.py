"""Sizes and traits from image headers, against Pillow. tests/pipelines/kernels/test_cutting.py has what is seekable."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
from bad_images import good_kinds
from making import encoded, jpeg, picture
from PIL import Image, ImageCms

from gpuloader.images.header import image_header
from gpuloader.images.traits import ALPHA, ANIMATED, DEEP, PROFILE, SEEKABLE

EXIF = Image.Exif()
EXIF[0x010E] = "x" * 60_000  # one APP1 segment, nearly as long as one can be
NOISE = np.random.default_rng(0).bytes(200_000)
FRAME = b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", 41, 67)


def header_of(data: bytes) -> tuple[tuple[int, int, int], int]:
    """Height, width and traits, and how many bytes were asked for."""
    read = []

    def reading(count: int, offset: int) -> bytes:
        read.append(count)
        return data[offset : offset + count]

    return image_header(reading), sum(read)


def size_of(data: bytes) -> tuple[int, int]:
    return header_of(data)[0][:2]


def pillow_size(data: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(data)) as image:
        return image.height, image.width


def with_segments(data: bytes, *segments: tuple[int, int]) -> bytes:
    """A JPEG with segments of (marker, bytes) behind its first marker."""
    extra = b"".join(struct.pack(">BBH", 0xFF, marker, size + 2) + bytes(size) for marker, size in segments)
    return data[:2] + extra + data[2:]


PICTURE = picture(41, 67)
IMAGES = {
    **{kind.name: kind.data for kind in good_kinds() if not kind.unlike_pillow},
    "JPEG with a long EXIF": encoded(PICTURE, "JPEG", exif=EXIF),
    "JPEG with a profile in several segments": encoded(PICTURE, "JPEG", icc_profile=NOISE),
    "JPEG with a comment": encoded(PICTURE, "JPEG", comment=b"\xff\xc0" * 1000),  # looks like a frame, is none
    "JPEG with all of it": encoded(PICTURE, "JPEG", exif=EXIF, icc_profile=NOISE, comment=b"x" * 65_000),
    "JPEG with a thousand segments": with_segments(jpeg(41, 67), *[(0xFE, 3)] * 1000),
    "JPEG with the longest segments": with_segments(jpeg(41, 67), (0xE1, 65_533), (0xE2, 65_533), (0xFE, 0)),
    "JPEG with tables before its frame": with_segments(jpeg(41, 67), (0xC4, 19), (0xC8, 2), (0xCC, 2)),
    "JPEG with fill bytes": jpeg(41, 67)[:2] + b"\xff" * 3000 + jpeg(41, 67)[2:],
    "JPEG with stray bytes": jpeg(41, 67).replace(b"\xff\xdb", b"\0\1\xff\0\2\xff\xdb"),
    "JPEG with a thousand stray bytes": jpeg(41, 67).replace(b"\xff\xc0", b"\0" * 1111 + b"\xff\xc0"),
    "JPEG, as large as one can be": encoded(Image.new("L", (65_500, 1)), "JPEG"),
    "PNG, large": encoded(Image.new("1", (70_000, 300)), "PNG"),
    "WebP, lossless, large": encoded(Image.new("RGB", (16_383, 9)), "WEBP", lossless=True),
}


@pytest.mark.filterwarnings("ignore")  # Pillow's, of what it does not understand
def test_sizes_are_those_of_pillow_and_a_cut_image_gives_its_size_or_none() -> None:
    for name, data in IMAGES.items():
        assert size_of(data) == pillow_size(data), name
        found = [size_of(data[:cut]) for cut in range(min(300, len(data)))]
        assert set(found) <= {(0, 0), pillow_size(data)}, name
        assert found == sorted(found), name  # and no longer none once it is known
        assert found[0] == (0, 0), name


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8" + b"\xff" * 5_000_000,
        b"\xff\xd8" + b"\xff\xd0" * 2_000_000,
        b"\xff\xd8\xff\xfe\x00\x02" + bytes(5_000_000) + FRAME + bytes(99),
        b"\xff\xd8\0" + jpeg(41, 67)[2:],  # Pillow refuses it, too
        b"\xff\xd8" + b"\xff\xfe\x00\x02" * 1_000_000,
        b"\xff\xd8" + b"\xff\xfe\x00\x00" * 1_000_000,  # a length that a segment cannot have
        b"\xff\xd8" + b"\xff\xda\x00\x02" + FRAME + bytes(99),  # a frame behind the scan
        b"\xff\xd8" + b"\xff\xd9" + FRAME + bytes(99),  # or behind the end
        b"\xff\xd8" + b"\xff\xc0\x00\x11\x08\x00\x00\x00\x43" + bytes(99),  # no height yet (it comes behind the scan)
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\xff" * 99,  # 2**32 - 1 pixels, more than PNG and the index have room for
        b"RIFF\0\0\0\0WEBPVP8 " + b"x" * 99,
        *(np.random.default_rng(seed).bytes(2000) for seed in range(20)),
    ],
    ids=lambda data: repr(data[:12]),
)
def test_what_is_no_image_has_no_size_and_little_of_it_is_read(data: bytes) -> None:
    found, read_bytes = header_of(data)
    assert found == (0, 0, 0)
    assert read_bytes < 1_000_000


FRAME_ENDS = jpeg(41, 67).index(b"\xff\xc0") + 19


@pytest.mark.parametrize(
    "data",
    [
        IMAGES["JPEG with the longest segments"] + bytes(10_000_000),
        jpeg(41, 67)[:FRAME_ENDS] + b"\xff\xfe\x00\x02" * 1_000_000,  # comments and no scan behind the frame
        jpeg(41, 67)[:FRAME_ENDS] + bytes(10_000_000),
        jpeg(41, 67)[:FRAME_ENDS] + b"\xff\xfe\xff\xff" + bytes(65_533) + jpeg(41, 67)[FRAME_ENDS:],
    ],
    ids=["long segments", "comments", "stray bytes behind the frame", "a long comment behind the frame"],
)
def test_little_is_read_of_a_large_image(data: bytes) -> None:
    found, read_bytes = header_of(data)
    assert found == (41, 67, 0)
    assert read_bytes < 20_000


def with_alpha(alpha: int) -> Image.Image:
    return Image.merge("RGBA", (*PICTURE.split(), Image.new("L", PICTURE.size, alpha)))


ICC = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
ICC_SEGMENT = b"\xff\xe2" + struct.pack(">H", len(ICC) + 16) + b"ICC_PROFILE\0\1\1" + ICC
TWO: dict[str, Any] = {"save_all": True, "append_images": [picture(41, 67, seed=1)]}
SIXTEEN = Image.fromarray(np.zeros((41, 67), np.uint16))
TRAITS = [
    ("JPEG", IMAGES["jpeg-420"], 0),
    ("JPEG, CMYK", IMAGES["jpeg-cmyk"], 0),
    ("JPEG, seekable", encoded(PICTURE, "JPEG", restart_marker_blocks=1), SEEKABLE),
    ("JPEG, seekable, profile", encoded(PICTURE, "JPEG", restart_marker_blocks=1, icc_profile=ICC), SEEKABLE | PROFILE),
    ("JPEG, profile in several segments", IMAGES["JPEG with a profile in several segments"], PROFILE),
    ("JPEG, profile behind EXIF", encoded(PICTURE, "JPEG", exif=EXIF, icc_profile=ICC), PROFILE),
    ("JPEG, profile behind the frame", jpeg(41, 67)[:FRAME_ENDS] + ICC_SEGMENT + jpeg(41, 67)[FRAME_ENDS:], 0),
    ("JPEG, progressive, profile", encoded(PICTURE, "JPEG", progressive=True, icc_profile=ICC), PROFILE),
    ("JPEG, another APP2", with_segments(jpeg(41, 67), (0xE2, 99)), 0),
    ("JPEG, a second view behind it", encoded(PICTURE, "MPO", **TWO), 0),
    ("JPEG, 12 bits", jpeg(41, 67).replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"), DEEP),
    *((f"PNG, {mode}", encoded(PICTURE.convert(mode), "PNG"), 0) for mode in ("RGB", "L", "P", "1")),
    ("PNG, 16 bits", encoded(SIXTEEN, "PNG"), DEEP),
    ("PNG, RGBA", encoded(with_alpha(255), "PNG"), ALPHA),
    ("PNG, LA", encoded(PICTURE.convert("LA"), "PNG"), ALPHA),
    ("PNG, transparent colour", encoded(PICTURE, "PNG", transparency=(1, 2, 3)), ALPHA),
    ("PNG, transparent entry", encoded(PICTURE.convert("P"), "PNG", transparency=3), ALPHA),
    ("PNG, profile", encoded(PICTURE, "PNG", icc_profile=ICC), PROFILE),
    ("PNG, animated", encoded(PICTURE, "PNG", **TWO), ANIMATED),
    ("PNG, all", encoded(with_alpha(9), "PNG", icc_profile=NOISE, **TWO), ALPHA | PROFILE | ANIMATED),
    ("WebP, lossy", IMAGES["webp-lossy"], 0),
    ("WebP, lossless", IMAGES["webp-lossless"], 0),
    ("WebP, EXIF", IMAGES["webp-orientation-6"], 0),
    ("WebP, lossy, alpha", encoded(with_alpha(9), "WEBP"), ALPHA),
    ("WebP, lossless, alpha", encoded(with_alpha(9), "WEBP", lossless=True), ALPHA),
    ("WebP, profile", encoded(PICTURE, "WEBP", icc_profile=ICC), PROFILE),
    ("WebP, animated", IMAGES["webp-animated"], ANIMATED),
    ("WebP, all", encoded(with_alpha(9), "WEBP", icc_profile=ICC, **TWO), ALPHA | PROFILE | ANIMATED),
    ("none", b"no image" * 9, 0),
]


@pytest.mark.parametrize(("data", "traits"), [pytest.param(*row, id=name) for name, *row in TRAITS])
def test_traits_are_what_the_header_announces(data: bytes, traits: int) -> None:
    assert header_of(data)[0][2] == traits


@pytest.mark.parametrize(
    ("data", "traits"), [pytest.param(*row, id=name) for name, *row in TRAITS if name not in ("none", "JPEG, 12 bits")]
)
def test_alpha_profiles_and_frames_are_those_that_pillow_finds(data: bytes, traits: int) -> None:
    with Image.open(io.BytesIO(data)) as image:
        assert image.has_transparency_data == bool(traits & ALPHA)
        assert bool(image.info.get("icc_profile")) == bool(traits & PROFILE)
        assert (image.format != "MPO" and getattr(image, "is_animated", False)) == bool(traits & ANIMATED)
