"""What becomes of one picture, and which are bad, against Pillow and torchvision."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
import torch
from bad_images import ALPHA, HEIGHT, PICTURE, WIDTH, Kind, rare_kinds, turned, zoo
from making import encoded, jpeg, picture
from oracle import functional
from PIL import Image

from gpuloader.images.limits import RefusalError
from gpuloader.pack.options import Options
from gpuloader.pack.pictures import render

COPIED = Options()
KINDS = [kind for kind in (*zoo(), *rare_kinds()) if "recipes" not in kind.unlike_pillow]

# What only DALI refuses; packing asks Pillow.
REFUSED_BY_DALI_ALONE = {"png-bad-data-checksum", "png-no-palette", "png-taller-than-its-data"}
# What Pillow does not decode and the loader does.
REFUSED_BY_PILLOW_ALONE = {"jpeg-cut-before-another"}


def opened(data: bytes) -> Image.Image:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Image.open(io.BytesIO(data)).convert("RGB")


@pytest.mark.slow(kept=9)
@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS])
def test_a_picture_is_copied_or_bad_as_the_loader_has_it(kind: Kind) -> None:
    good = (kind.verdict == "good" or kind.name in REFUSED_BY_DALI_ALONE) and kind.name not in REFUSED_BY_PILLOW_ALONE
    if not good:
        with pytest.raises(RefusalError, match=r"\w{3}"):
            render(kind.data, None, COPIED)
    elif kind.name.startswith(("jpeg-", "png-", "webp-")):
        assert render(kind.data, None, COPIED)[1] == kind.data
    else:
        extension, data, *_ = render(kind.data, "tif", COPIED)
        assert extension == "png"
        assert Image.open(io.BytesIO(data)).mode in ("RGB", "L")


@pytest.mark.slow(kept=8)
@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS if kind.verdict == "good"])
def test_decoded_pixels_are_pillows_as_stored(kind: Kind) -> None:
    if kind.name in REFUSED_BY_PILLOW_ALONE:
        return
    show = PICTURE if kind.name.startswith(("png-animated-", "png-text")) else kind.shows  # Pillow: not all
    extension, data, *_ = render(kind.data, None, Options(decoded=60_000))
    assert extension == "npy"
    pixels = np.load(io.BytesIO(data), allow_pickle=False)
    expected = np.asarray(show or opened(kind.data))
    assert (pixels.dtype, pixels.shape) == (np.uint8, expected.shape)
    assert np.abs(pixels.astype(int) - expected).max() <= 1


@pytest.mark.parametrize(
    ("data", "extension", "expected"),
    [
        (jpeg(8, 8), None, "jpg"),
        (encoded(PICTURE, "PNG"), None, "png"),
        (encoded(PICTURE, "WEBP"), None, "webp"),
        (encoded(PICTURE, "MPO", save_all=True, append_images=[PICTURE]), None, "jpg"),
        (encoded(PICTURE, "PNG"), "jpeg", "jpeg"),  # of another shard, where it is called so
    ],
)
def test_the_member_is_called_by_its_format(data: bytes, extension: str | None, expected: str) -> None:
    assert render(data, extension, COPIED)[:3] == (expected, data, None)


def resized_by_torchvision(image: Image.Image, size: int) -> np.ndarray:
    pixels = torch.from_numpy(np.asarray(image.convert("RGB")).copy()).permute(2, 0, 1)
    return functional.resize(pixels, [size], antialias=True).permute(1, 2, 0).numpy()


@pytest.mark.parametrize(("height", "width"), [(60, 80), (97, 48), (33, 32), (24, 30)])
def test_decoded_pictures_are_resized_as_torchvision_does(height: int, width: int) -> None:
    data = render(jpeg(height, width), None, Options(decoded=32))[1]
    pixels = np.load(io.BytesIO(data))
    expected = resized_by_torchvision(opened(jpeg(height, width)), min(height, width, 32))  # never enlarged
    assert pixels.shape == expected.shape
    assert np.abs(pixels.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("quality", [None, 60])
def test_a_picture_that_is_too_large_becomes_a_jpeg_of_that_size(quality: int | None) -> None:
    extension, data, *_ = render(encoded(picture(48, 97), "PNG"), None, Options(max_size=24, quality=quality))
    expected = picture(48, 97).resize((48, 24), Image.Resampling.BILINEAR)
    assert (extension, data) == ("jpg", encoded(expected, "JPEG", quality=quality or 90, subsampling="4:4:4"))


@pytest.mark.parametrize("size", [24, 1000])
def test_a_picture_that_is_small_enough_is_copied_as_it_is(size: int) -> None:
    assert render(jpeg(24, 97), None, Options(max_size=size))[:3] == ("jpg", jpeg(24, 97), None)


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_downsizing_keeps_the_stored_pixels_way_up_and_the_tag(image_format: str, orientation: int) -> None:
    options = {"quality": 95} if image_format in ("JPEG", "WEBP") else {}
    data = encoded(picture(48, 96), image_format, exif=turned(orientation), **options)
    small = Image.open(io.BytesIO(render(data, None, Options(max_size=24))[1]))
    expected = np.asarray(picture(48, 96).resize((48, 24), Image.Resampling.BILINEAR), int)
    assert np.abs(np.asarray(small, int) - expected).mean() < 6
    assert small.getexif().get(0x0112, 1) == orientation
    decoded = np.load(io.BytesIO(render(data, None, Options(decoded=24))[1]))
    assert np.abs(decoded.astype(int) - expected).mean() < 6


@pytest.mark.parametrize(
    ("image", "mode"),
    [
        (PICTURE.convert("1"), "L"),
        (Image.fromarray(np.asarray(PICTURE.convert("L"), np.uint16) * 257), "L"),
        (PICTURE.convert("P"), "RGB"),
        (ALPHA, "RGB"),
    ],
)
def test_pictures_of_other_modes_become_gray_or_rgb_jpegs(image: Image.Image, mode: str) -> None:
    data = render(encoded(image, "PNG"), None, Options(max_size=HEIGHT // 2))[1]
    small = Image.open(io.BytesIO(data))
    assert (small.mode, small.size) == (mode, (WIDTH // 2, HEIGHT // 2))
    expected = PICTURE.convert("L").resize(small.size, Image.Resampling.BILINEAR)
    assert np.abs(np.asarray(small.convert("L"), int) - np.asarray(expected, int)).mean() < 12
