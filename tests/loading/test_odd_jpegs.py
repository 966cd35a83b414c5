"""CMYK and YCCK JPEGs, and those with stray bytes in the header, have one value on every path: Pillow's."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from making import encoded, picture, write_tree
from packing import samples_of
from PIL import Image, ImageOps

from gpuloader import Compose, GPULoader, Stage
from gpuloader import transforms as T
from gpuloader.pack import pack
from gpuloader.tools.check import check_shards
from gpuloader.tools.info import describe_shards
from gpuloader.tools.show import Gallery

WHOLE = Compose([], batch="list", dtype="uint8")
PICTURE = picture(96, 128).convert("CMYK")
PLAIN = encoded(PICTURE, "JPEG", quality=95)


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def adobe(transform: int, length: int = 12) -> bytes:
    return segment(0xEE, (b"Adobe" + struct.pack(">HHHB", 100, 0, 0, transform) + bytes(9))[:length])


def put(data: bytes, *segments: bytes, before: int = 0) -> bytes:
    """The JPEG with these segments instead of Adobe's, at its beginning or before the first segment of a marker."""
    at = data.index(b"\xff\xee\0\x0eAdobe")
    data = data[:at] + data[at + 16 :]
    place = data.index(bytes([0xFF, before])) if before else 2
    return data[:place] + b"".join(segments) + data[place:]


def strayed(data: bytes, stray: bytes, markers: bytes = b"\xdb\xc0\xc2\xc4\xdd\xfe\xda") -> bytes:
    """The JPEG with these bytes before each segment of the markers, except the first segment of all."""
    result, at = data[:2], 2
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        result += (stray if data[at + 1] in markers and at > 2 else b"") + data[at:end]
        at = end
    return result + (stray if 0xDA in markers else b"") + data[at:]


RGB = encoded(picture(96, 128), "JPEG", quality=95, comment=b"a comment")
STRAY = {"one": b"\0", "two": b"\0\1", "many": b"\x11" * 258, "a stuffed zero": b"\xff\0\x12", "fill": b"\x12\xff\xff"}
FILES = {
    "adobe 0": PLAIN,
    "none": put(PLAIN),
    "none, progressive": put(encoded(PICTURE, "JPEG", progressive=True)),
    "none, seekable": put(encoded(PICTURE, "JPEG", restart_marker_blocks=4)),
    "none, in another ink": put(encoded(ImageOps.invert(picture(96, 128)).convert("CMYK"), "JPEG")),
    "none, JFIF": put(PLAIN, segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0"), segment(0xFE, b"a comment")),
    "none, APP14 of another": put(PLAIN, segment(0xEE, b"Ducky" + bytes(20))),
    "too short to count": put(PLAIN, adobe(0, 11)),
    "longer": put(PLAIN, adobe(0, 20)),
    "before the scan": put(PLAIN, adobe(0), before=0xDA),
    "YCCK": put(PLAIN, adobe(2)),
    "YCCK, before the frame": put(PLAIN, adobe(2), before=0xC0),
    **{f"stray: {name}": strayed(RGB, stray) for name, stray in STRAY.items()},
    **{f"stray: before 0x{marker:02x}": strayed(RGB, b"\1\2\3", bytes([marker])) for marker in b"\xdb\xc0\xc4\xfe\xda"},
    "stray, progressive": strayed(encoded(picture(96, 128), "JPEG", progressive=True), b"\1\2\3"),
    "stray, seekable": strayed(encoded(picture(96, 128), "JPEG", restart_marker_blocks=4), b"\1\2\3"),
    "stray, CMYK": strayed(put(PLAIN, segment(0xFE, b"a comment")), b"\1\2\3"),
    "RGB": RGB,
    "gray": encoded(picture(96, 128).convert("L"), "JPEG", quality=95),
}


def pillows(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), int)


def as_pixels(image: torch.Tensor) -> np.ndarray:
    return image.permute(1, 2, 0).numpy().astype(int)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {f"a/{number:02}.jpg": data for number, data in enumerate(FILES.values())}
    return write_tree(tmp_path_factory.mktemp("cmyk") / "photos", files)


def delivered(source: Path, preset: Compose = WHOLE) -> list[np.ndarray]:
    with GPULoader(source, 1, None, preset=preset, shuffle="none", output="dict", last_batch="partial") as loader:
        return [as_pixels(batch["image"][0]) for batch in loader]


def assert_pillows(found: list[np.ndarray]) -> None:
    expected = list(map(pillows, FILES.values()))
    assert [each.shape for each in found] == [each.shape for each in expected]
    most = {name: np.abs(one - other).max() for name, one, other in zip(FILES, found, expected, strict=True)}
    assert {name: difference for name, difference in most.items() if difference > 1} == {}


def test_their_sizes_are_in_the_index_and_pack_keeps_their_bytes(photos: Path, tmp_path: Path) -> None:
    assert describe_shards(photos).unknown_size == 0
    pack(photos, tmp_path / "packed", shuffle=False, workers=1)
    assert [sample["jpg"] for sample in samples_of(tmp_path / "packed")] == list(FILES.values())


def test_of_the_folder_and_one_by_one(photos: Path) -> None:
    gallery, files = Gallery(photos, device_id=None), list(FILES.values())
    assert_pillows(delivered(photos))
    assert_pillows(list(map(as_pixels, WHOLE(files))))
    [(images, _)] = Stage(WHOLE, device_id=None)([(files, list(range(len(files))))])
    assert_pillows(list(map(as_pixels, images)))
    assert_pillows([as_pixels(gallery.tensors(WHOLE, sample, 0, 0)[0]) for sample in range(len(FILES))])


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"seekable": True}, marks=pytest.mark.needs_program("jpegtran")),
        {"decoded": 96},
        {"max_size": 96},  # which changes none
    ],
)
def test_of_packs(photos: Path, tmp_path: Path, options: Mapping[str, Any]) -> None:
    assert pack(photos, tmp_path / "packed", shuffle=False, workers=1, **options).left_out == ()
    assert_pillows(delivered(tmp_path / "packed"))


def test_of_smaller_pictures_and_copies(photos: Path, tmp_path: Path) -> None:
    pack(photos, tmp_path / "small", shuffle=False, workers=1, max_size=48)
    pack(photos, tmp_path / "copies", shuffle=False, workers=1, mipmaps=(48,))
    half = [T.Resize(48)]
    takes, leaves = (Compose(half, batch="list", dtype="uint8", oversampling=scale) for scale in (1.0, "off"))
    expected = delivered(photos, leaves)
    for found in (delivered(tmp_path / "small"), delivered(tmp_path / "copies", takes)):
        for one, other in zip(found, expected, strict=True):
            assert np.abs(one - other).mean() < 6  # another inversion differs by 100
    assert check_shards(tmp_path / "copies", device_id=None).all_well


def test_of_regions(photos: Path, tmp_path: Path) -> None:
    crop = Compose([T.RandomResizedCrop(32, scale=(0.02, 0.1))], dtype="uint8")
    as_png = {
        f"a/{number:02}.png": encoded(Image.open(io.BytesIO(data)).convert("RGB"), "PNG")
        for number, data in enumerate(FILES.values())
    }
    write_tree(tmp_path / "png", as_png)
    for one, other in zip(delivered(photos, crop), delivered(tmp_path / "png", crop), strict=True):
        assert np.abs(one - other).max() <= 2
