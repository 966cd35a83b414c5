"""The gate: what may go to DALI."""

import zlib

import numpy as np
import pytest
from making import encoded, jpeg, picture
from PIL import Image

from gpuloader.pipelines import gate
from gpuloader.shards.image_checks import MAX_PIXELS, MAX_SCANS

GOOD = jpeg(60, 80)


def check(data: bytes) -> tuple[int, int] | str:
    return gate(np.frombuffer(data, np.uint8))


def claiming(height: int, width: int) -> bytes:
    """A JPEG whose frame header claims another size."""
    frame = GOOD.index(b"\xff\xc0")
    size = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return GOOD[: frame + 5] + size + GOOD[frame + 9 :]


def with_thumbnail(data: bytes) -> bytes:
    """A JPEG with another one, end marker included, in its header."""
    thumbnail = jpeg(16, 16)
    return data[:2] + b"\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail + data[2:]


def png_claiming(height: int, width: int) -> bytes:
    """A PNG whose header, checksum included, claims another size."""
    image = encoded(picture(60, 80), "PNG")
    header = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + image[24:29]
    return image[:12] + header + zlib.crc32(header).to_bytes(4, "big") + image[33:]


@pytest.mark.parametrize(
    "data",
    [
        GOOD,
        jpeg(60, 80, subsampling="4:4:4"),
        encoded(picture(60, 80), "JPEG", progressive=True),
        encoded(picture(60, 80).convert("L"), "JPEG"),
        encoded(picture(60, 80).convert("CMYK"), "JPEG"),
        encoded(picture(60, 80), "PNG"),
        encoded(picture(60, 80).convert("RGBA"), "PNG"),
        encoded(Image.fromarray(np.zeros((60, 80), np.uint16)), "PNG"),
        encoded(picture(60, 80), "WEBP"),
        encoded(picture(60, 80), "BMP"),
        encoded(picture(60, 80), "TIFF"),
        encoded(picture(60, 80), "JPEG2000"),
        encoded(picture(60, 80), "PPM"),
        GOOD + b"trailing bytes",  # common, harmless, and the reason to look for the end marker backwards
        GOOD + bytes(100),
        with_thumbnail(GOOD),
        # An EXIF orientation is not applied: these are the sizes that a crop counts in.
        encoded(
            picture(60, 80), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
        ),
    ],
)
def test_images_pass_with_their_size(data: bytes) -> None:
    assert check(data) == (60, 80)


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "the file is empty"),
        (b"\xff", "no image format that DALI reads"),
        (b"<!DOCTYPE html><html>404</html>", "no image format that DALI reads"),
        (bytes(1000), "no image format that DALI reads"),
        (np.random.default_rng(0).bytes(1000), "no image format that DALI reads"),
        (encoded(picture(60, 80).convert("P"), "GIF"), "no image format that DALI reads"),
        (GOOD[:2], "broken header"),
        (GOOD[:100], "broken header"),
        (GOOD[:-2], "it has no end-of-image marker"),
        (GOOD[: len(GOOD) // 2], "it has no end-of-image marker"),
        # The end marker of the thumbnail is not the image's.
        (with_thumbnail(GOOD)[:-20], "it has no end-of-image marker"),
        (claiming(0, 80), "header"),
        (claiming(60, 0), "header"),
        (claiming(32_000, 32_000), f"32000x32000 pixels, more than {MAX_PIXELS:,}"),
        (png_claiming(60_000, 50_000), f"50000x60000 pixels, more than {MAX_PIXELS:,}"),
        (encoded(Image.fromarray(np.zeros((60, 80), np.float32)), "TIFF"), "allowed are uint8 and uint16"),
    ],
)
def test_what_dali_would_not_survive_is_refused(data: bytes, cause: str) -> None:
    refusal = check(data)
    assert isinstance(refusal, str)
    assert cause in refusal


def test_a_scan_bomb_is_refused() -> None:
    progressive = encoded(picture(60, 80), "JPEG", progressive=True)
    last_scan = progressive[progressive.rindex(b"\xff\xda") : -2]
    assert check(progressive[:-2] + 10 * last_scan + b"\xff\xd9") == (60, 80)
    refusal = check(progressive[:-2] + MAX_SCANS * last_scan + b"\xff\xd9")
    assert isinstance(refusal, str)
    assert "scans, more than 100" in refusal


def test_every_cut_of_a_jpeg_is_refused() -> None:
    image = jpeg(40, 40)
    for end in range(len(image) - 1):
        assert isinstance(check(image[:end]), str), end


def test_whatever_passes_at_a_flipped_bit_is_decodable_by_size() -> None:
    # The gate may let damaged entropy data pass; a header it lets pass must have a size that can be cropped.
    rng = np.random.default_rng(1)
    for _ in range(300):
        data = bytearray(GOOD)
        place = int(rng.integers(0, 700))
        data[place] ^= 1 << int(rng.integers(0, 8))
        result = check(bytes(data))
        assert isinstance(result, str) or (result[0] > 0 and result[1] > 0)


def test_it_takes_views_into_a_larger_buffer() -> None:
    buffer = np.frombuffer(b"x" * 10 + GOOD + b"y" * 10, np.uint8)
    assert gate(buffer[10:-10]) == (60, 80)
