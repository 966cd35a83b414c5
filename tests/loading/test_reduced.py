"""Of 16 bits, alpha, profiles and animations, RGB of 8 bits keeps little: the loader and the tools say so."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import command_line
import numpy as np
import pytest
from making import encoded, picture, write_shard, write_tree
from PIL import Image, ImageCms

from gpuloader import GPULoader
from gpuloader.pack import pack
from gpuloader.tools.check import check_shards
from gpuloader.tools.info import describe_shards

PICTURE = picture(24, 32)
SRGB, OTHER = (ImageCms.ImageCmsProfile(ImageCms.createProfile(name)).tobytes() for name in ("sRGB", "XYZ"))
GRAY_16 = Image.fromarray(np.arange(24 * 32, dtype=np.uint16).reshape(24, 32) * 85)
PPM_16 = b"P6 32 24 65535\n" + bytes(24 * 32 * 6)
PPM = encoded(PICTURE, "PPM")


def animated(image_format: str) -> bytes:
    return encoded(picture(24, 32), image_format, save_all=True, append_images=[picture(24, 32, seed=1)])


def rgba(*alpha: int) -> Image.Image:
    """The picture with these levels of alpha; its first pixel has the first."""
    levels = Image.new("L", PICTURE.size, alpha[-1])
    levels.putpixel((0, 0), alpha[0])
    return Image.merge("RGBA", (*PICTURE.split(), levels))


def of_16_bits(jpeg_2000: bytes) -> bytes:
    """A codestream that says 16 bits of its three components."""
    return b"".join((jpeg_2000[:42], *(b"\x0f" + jpeg_2000[at : at + 2] for at in (43, 46, 49)), jpeg_2000[51:]))


NONE: tuple[str, ...] = ()
FILES: dict[str, tuple[bytes, tuple[str, ...], tuple[str, ...]]] = {  # what the headers announce, what `pack` finds
    "plain.jpg": (encoded(PICTURE, "JPEG"), NONE, NONE),
    "cmyk.jpg": (encoded(PICTURE.convert("CMYK"), "JPEG"), NONE, NONE),
    "srgb.jpg": (encoded(PICTURE, "JPEG", icc_profile=SRGB), ("profile",), NONE),
    "other.jpg": (encoded(PICTURE, "JPEG", icc_profile=OTHER), ("profile",), ("profile_not_srgb",)),
    "broken.jpg": (encoded(PICTURE, "JPEG", icc_profile=b"sRGB"), ("profile",), ("profile_not_srgb",)),
    "views.jpg": (animated("MPO"), NONE, NONE),
    "gray16.png": (encoded(GRAY_16, "PNG"), ("above_8_bits",), ("above_8_bits",)),
    "gray16-hole.png": (
        encoded(GRAY_16, "PNG", transparency=85),
        ("above_8_bits", "alpha"),
        ("above_8_bits", "alpha_below_255"),
    ),
    "gray16-no-hole.png": (encoded(GRAY_16, "PNG", transparency=86), ("above_8_bits", "alpha"), ("above_8_bits",)),
    "opaque.png": (encoded(rgba(255), "PNG"), ("alpha",), NONE),
    "hole.png": (encoded(rgba(254, 255), "PNG"), ("alpha",), ("alpha_below_255",)),
    "palette.png": (encoded(PICTURE.convert("P"), "PNG", transparency=bytes(256)), ("alpha",), ("alpha_below_255",)),
    "gray-alpha.png": (encoded(rgba(9).convert("LA"), "PNG"), ("alpha",), ("alpha_below_255",)),
    "srgb.png": (encoded(PICTURE, "PNG", icc_profile=SRGB), ("profile",), NONE),
    "other.png": (encoded(PICTURE, "PNG", icc_profile=OTHER), ("profile",), ("profile_not_srgb",)),
    "animated.png": (animated("PNG"), ("frames",), ("frames",)),
    "hole.webp": (encoded(rgba(0, 255), "WEBP", lossless=True), ("alpha",), ("alpha_below_255",)),
    "other.webp": (encoded(PICTURE, "WEBP", icc_profile=OTHER), ("profile",), ("profile_not_srgb",)),
    "animated.webp": (animated("WEBP"), ("frames",), ("frames",)),
    # What a loader does not read.
    "plain.tif": (encoded(PICTURE, "TIFF"), NONE, NONE),
    "gray16.tif": (encoded(GRAY_16, "TIFF"), NONE, ("above_8_bits",)),
    "hole.tif": (encoded(rgba(0, 255), "TIFF"), NONE, ("alpha_below_255",)),
    "other.tif": (encoded(PICTURE, "TIFF", icc_profile=OTHER), NONE, ("profile_not_srgb",)),
    "pages.tif": (animated("TIFF"), NONE, ("frames",)),
    "plain.ppm": (PPM, NONE, NONE),
    "rgb16.ppm": (PPM_16, NONE, ("above_8_bits",)),
    "gray16.pgm": (encoded(GRAY_16, "PPM"), NONE, ("above_8_bits",)),
    "plain.jp2": (encoded(PICTURE, "JPEG2000"), NONE, NONE),
    "rgb16.jp2": (of_16_bits(encoded(PICTURE, "JPEG2000", no_jp2=True)), NONE, ("above_8_bits",)),
    "hole.jp2": (encoded(rgba(0, 255), "JPEG2000"), NONE, ("alpha_below_255",)),
}
ANNOUNCED = {"above_8_bits": 3, "alpha": 7, "profile": 6, "frames": 2}
FOUND = {"above_8_bits": 7, "alpha_below_255": 7, "profile_not_srgb": 5, "frames": 3}


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"__key__": name.replace(".", "-"), name.rpartition(".")[2]: data} for name, (data, *_) in FILES.items()]
    return write_shard(tmp_path_factory.mktemp("reduced") / "a.tar", rows)


@pytest.mark.parametrize("name", FILES)
def test_pack_finds_it_in_the_pixels_and_profiles(name: str, tmp_path: Path) -> None:
    data, _, found = FILES[name]
    result = pack([(data, 0)], tmp_path / "packed", workers=1)
    assert {trait for trait, count in result.reduced.items() if count} == set(found)


def test_pack_counts_it_whatever_becomes_of_the_pictures(tmp_path: Path) -> None:
    source = write_tree(tmp_path / "photos", {f"a/{name}": data for name, (data, *_) in FILES.items()})
    for options in ({}, {"max_size": 16}, {"decoded": 16}):
        assert pack(source, tmp_path / f"{options}", workers=1, **options).reduced == FOUND
    names = ("gray16.png", "hole.png", "other.jpg", "pages.tif")
    of_pillow = [(Image.open(io.BytesIO(FILES[name][0])), 0) for name in names]
    assert list(pack(of_pillow, tmp_path / "of Pillow", workers=1).reduced.values()) == [1, 1, 1, 1]


def test_the_tools_count_what_headers_announce(tar: Path) -> None:
    assert describe_shards(tar).reduced == check_shards(tar, device_id=None).reduced == ANNOUNCED
    for command in (("info",), ("check", "--cpu")):
        said = command_line.run(*command, tar).stdout
        for part in ("3 of more than 8 bits", "7 with an alpha", "6 with a colour profile", "2 with several frames"):
            assert part in said


def test_pack_prints_what_it_found(tmp_path: Path) -> None:
    write_tree(tmp_path / "photos", {f"a/{name}": FILES[name][0] for name in ("hole.png", "gray16.png", "plain.jpg")})
    said = command_line.run("pack", tmp_path / "photos", tmp_path / "packed", "--workers", 1).stdout
    assert "1 of more than 8 bits" in said
    assert "1 with alpha below 255" in said
    assert "profile" not in said


@pytest.mark.parametrize(
    ("names", "level"),
    [
        (["plain.jpg", "cmyk.jpg", "views.jpg"], None),
        (["plain.jpg", "srgb.jpg", "other.png"], logging.INFO),  # as most photographs have them
        (["plain.jpg", "gray16.png"], logging.WARNING),
        (["plain.jpg", "srgb.jpg", "opaque.png", "animated.webp"], logging.WARNING),
    ],
)
def test_the_loader_logs_one_line_when_it_is_made(
    names: list[str], level: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tree(tmp_path / "photos", {f"a/{name}": FILES[name][0] for name in names})
    with caplog.at_level(logging.INFO, "gpuloader"), GPULoader(tmp_path / "photos", 1, None):
        pass
    logged = [(record.levelno, record.getMessage()) for record in caplog.records if "8 bits" in record.getMessage()]
    assert [each for each, _ in logged] == ([] if level is None else [level])
    counts = {word: sum(word in FILES[name][1] for name in names) for word in ANNOUNCED}
    for word, text in (("above_8_bits", "of more"), ("alpha", "with an alpha"), ("profile", "with a colour")):
        assert all((f"{counts[word]} {text}" in line) == (counts[word] > 0) for _, line in logged)
