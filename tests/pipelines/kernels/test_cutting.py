"""JPEGs with restart intervals, cut as bytes: what is left has the same pixels, by Pillow's decoder."""

from __future__ import annotations

import ctypes
import io
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making import encoded, picture
from PIL import Image

from gpuloader.images.header import image_header
from gpuloader.images.traits import SEEKABLE
from gpuloader.pipelines.kernels.cutting import cut_jpegs

SAMPLINGS = {"4:4:4": 0x11, "4:2:2": 0x21, "4:2:0": 0x22, "4:4:0": 0x12, "4:1:1": 0x41}
PERTURB = -6  # of mallopt(3): which byte fills new memory, so that all of it is taken
FRAME, RESTART_INTERVAL, SCAN = b"\xff\xc0", b"\xff\xdd", b"\xff\xda"


def restarting(height: int, width: int, mcus: int, mode: str = "RGB", sampling: str = "4:2:0", **options: Any) -> bytes:  # noqa: ANN401
    """A JPEG with an interval of that many MCUs; 4:4:0 and 4:1:1, which Pillow does not write, are others renamed."""
    written = {"4:4:0": "4:2:2", "4:1:1": "4:2:0"}.get(sampling, sampling)
    if sampling == "4:4:0":  # one row of MCUs becomes one, of twice the height and half the width
        height, width = height // 2, width * 2
    elif sampling == "4:1:1":
        height, width = height * 2, width // 2
    image = picture(height, width).convert(mode)
    data = bytearray(encoded(image, "JPEG", quality=90, subsampling=written, restart_marker_blocks=mcus, **options))
    if written != sampling:
        frame = data.index(FRAME)
        height, width = (2 * height, width // 2) if sampling == "4:4:0" else (height // 2, 2 * width)
        data[frame + 5 : frame + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
        data[frame + 11] = SAMPLINGS[sampling]
    return bytes(data)


def cut(data: bytes, window: tuple[int, int, int, int]) -> tuple[bytes, int, int]:
    """What is left for a window (top, left, bottom, right), and where it begins in the image."""
    file = np.frombuffer(data, np.uint8).copy()
    [[size, top, left]] = cut_jpegs([file], np.array([window])).tolist()
    return file[:size].tobytes(), top, left


def is_seekable(data: bytes) -> bool:
    """What the index says."""
    return bool(image_header(lambda count, offset: data[offset : offset + count])[2] & SEEKABLE)


def pixels(data: bytes) -> np.ndarray[Any, Any]:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


def windows(height: int, width: int, rng: random.Random) -> list[tuple[int, int, int, int]]:
    """Of 1 to 3 pixels at every edge and corner, and of any size in between."""
    found = []
    for rows, columns in [(1, 1), (2, 3), (3, 2), *((rng.randint(1, height), rng.randint(1, width)) for _ in range(4))]:
        for top in (0, height - rows, rng.randint(0, height - rows)):
            for left in (0, width - columns, rng.randint(0, width - columns)):
                found.append((top, left, top + rows, left + columns))
    return found


@pytest.mark.parametrize("mcus", [1, 2, 3])
@pytest.mark.parametrize(
    ("mode", "sampling"), [*(("RGB", sampling) for sampling in SAMPLINGS), ("CMYK", "4:4:4"), ("L", "4:4:4")]
)
def test_the_pixels_of_the_window_are_the_same(mode: str, sampling: str, mcus: int) -> None:
    rng, cuts = random.Random(f"{mode} {sampling} {mcus}"), 0
    across, down = (8, 8) if mode == "L" else (8 * (SAMPLINGS[sampling] >> 4), 8 * (SAMPLINGS[sampling] & 15))
    # Widths of 1 to 4 pixels in the last MCU, where decoders interpolate chroma of few columns in other ways.
    for last in (across, 1, 2, 3, 4):
        even = sampling in ("4:4:0", "4:1:1")  # made of others with half of a side
        height, width = 2 * down + 6, across * (3 * mcus - 1) + (last + last % 2 if even else last)
        data = restarting(height, width, mcus, mode, sampling)
        expected = pixels(data)
        assert is_seekable(data)
        for top, left, bottom, right in windows(height, width, rng):
            smaller, y, x = cut(data, (top, left, bottom, right))
            found = pixels(smaller)[top - y : bottom - y, left - x : right - x]
            assert np.array_equal(found, expected[top:bottom, left:right]), (last, top, left, bottom, right)
            cuts += len(smaller) < len(data)
    assert cuts > 50


def test_the_sampling_factors_of_gray_images_mean_nothing() -> None:
    data = bytearray(restarting(62, 92, 2, "L"))  # intervals of 16 x 8 pixels
    data[data.index(FRAME) + 11] = SAMPLINGS["4:2:0"]
    smaller, top, left = cut(bytes(data), (20, 36, 26, 44))
    assert (top, left) == (16, 32)
    assert np.array_equal(pixels(smaller), pixels(bytes(data))[16:32, 32:48])


def test_what_is_left_is_what_the_window_touches_with_a_margin() -> None:
    data = restarting(160, 320, 2)  # intervals of 32 x 16 pixels
    smaller, top, left = cut(data, (52, 100, 60, 124))
    assert (top, left, pixels(smaller).shape) == (48, 96, (16, 32, 3))
    smaller, top, left = cut(data, (51, 99, 61, 125))  # the margin of four pixels is in the next ones
    assert (top, left, pixels(smaller).shape) == (32, 64, (48, 96, 3))
    assert cut(data, (0, 0, 160, 320)) == (data, 0, 0)  # all is needed


def test_metadata_goes_except_what_decides_colours() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = restarting(64, 64, 1, exif=exif, comment=b"a comment", icc_profile=b"p" * 500)
    smaller, *_ = cut(data, (0, 0, 8, 8))
    assert (b"Exif" in data, b"ICC_PROFILE" in data, b"a comment" in data, b"JFIF" in data) == (True, True, True, True)
    assert (b"Exif" in smaller, b"ICC_PROFILE" in smaller, b"a comment" in smaller) == (False, False, False)
    assert b"JFIF" in smaller
    assert b"Adobe" in cut(restarting(64, 64, 1, "CMYK", "4:4:4"), (0, 0, 8, 8))[0]


GOOD = restarting(64, 96, 2)
HEADER = GOOD[: GOOD.index(SCAN) + 14]
MARKERS = [at for at in range(len(GOOD)) if GOOD[at] == 0xFF and 0xD0 <= GOOD[at + 1] <= 0xD7 and at > GOOD.index(SCAN)]


def changed(at: int, *values: int) -> bytes:
    return GOOD[:at] + bytes(values) + GOOD[at + len(values) :]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(GOOD[:2], id="an end in the header"),
        pytest.param(GOOD[: GOOD.index(SCAN) + 6], id="an end in the scan's header"),
        pytest.param(GOOD[: MARKERS[1]], id="an end in the coded bytes"),
        pytest.param(GOOD[: MARKERS[3] + 1], id="an end within a marker"),
        pytest.param(encoded(picture(64, 96), "PNG"), id="another format"),
        pytest.param(encoded(picture(64, 96), "JPEG"), id="no intervals"),
        pytest.param(encoded(picture(64, 96), "JPEG", restart_marker_blocks=4), id="intervals across rows"),
        pytest.param(encoded(picture(64, 96), "JPEG", progressive=True, restart_marker_blocks=2), id="progressive"),
        pytest.param(changed(MARKERS[0], 0xFF, 0xD1), id="another marker than the next"),
        pytest.param(GOOD[: MARKERS[0]] + GOOD[MARKERS[0] + 2 :], id="a marker is missing"),
        pytest.param(GOOD[: MARKERS[0]] + b"\xff" + GOOD[MARKERS[0] :], id="a fill byte"),
        pytest.param(changed(MARKERS[0], 0xFF, 0xD9), id="an end marker"),
        pytest.param(changed(GOOD.index(FRAME) + 4, 12), id="12 bits"),
        pytest.param(changed(GOOD.index(FRAME) + 5, 0, 0), id="a height that follows later"),
        pytest.param(changed(GOOD.index(FRAME) + 5, 0xFF, 0xDD), id="a height that libjpeg-turbo refuses"),
        pytest.param(changed(GOOD.index(FRAME) + 11, 0x52), id="a factor of 5"),
        pytest.param(changed(GOOD.index(FRAME) + 1, 0xC3), id="lossless"),
        pytest.param(changed(GOOD.index(RESTART_INTERVAL) + 4, 0, 0), id="an interval of 0"),
        pytest.param(changed(GOOD.index(SCAN) + 4, 1), id="a scan of one component"),
        pytest.param(GOOD[: GOOD.index(FRAME) + 19] + GOOD[GOOD.index(FRAME) :], id="two frames"),
    ],
)
def test_what_is_irregular_stays_as_it_is(data: bytes) -> None:
    assert cut(data, (17, 0, 24, 8)) == (data, 0, 0)
    assert is_seekable(data) == data.startswith(HEADER)  # the index does not see the coded bytes


def test_the_index_and_the_cut_have_the_same_rule_for_headers() -> None:
    rng, found = random.Random(0), []
    sides = range(GOOD.index(FRAME) + 5, GOOD.index(FRAME) + 9)  # a smaller image may need all of its intervals
    places = [at for at in range(2, len(HEADER)) if at not in sides]
    starts = [at for at in places if at < len(HEADER) - 1 and HEADER[at] == 0xFF]  # of segments, and some in tables
    for _ in range(4000):
        data = bytearray(GOOD)
        at = rng.choice(starts) + rng.randrange(6) if rng.random() < 0.5 else rng.choice(places)
        if at in places:
            data[at] = rng.choice((0, 1, 2, 3, 0x11, 0x44, 0xFF, 0xC1, 0xDD, 0xDA, 0xE5, rng.randrange(256)))
        found.append(is_seekable(bytes(data)))
        assert found[-1] == (cut(bytes(data), (0, 0, 1, 1))[0] != data), (at, data[at])
    assert 1000 < sum(found) < 3500


@pytest.mark.parametrize("window", [(0, 0, 0, 8), (-1, 0, 8, 8), (0, 0, 65, 8), (0, 90, 8, 97), (9, 9, 8, 8)])
def test_windows_outside_of_the_image_cut_nothing(window: tuple[int, int, int, int]) -> None:
    assert cut(GOOD, window) == (GOOD, 0, 0)


def test_what_a_header_claims_takes_no_memory() -> None:
    data = np.frombuffer(changed(GOOD.index(FRAME) + 5, 0xFF, 0xDC, 0xFF, 0xC0), np.uint8)  # 8 million
    fill_memory = ctypes.CDLL(None).mallopt
    fill_memory(PERTURB, 1)
    try:
        peak_bytes()
        before = peak_bytes()
        assert cut_jpegs([data], np.array([[0, 0, 65500, 65400]])).tolist() == [[len(data), 0, 0]]
        assert peak_bytes() - before < 10 << 20
    finally:
        fill_memory(PERTURB, 0)


def peak_bytes() -> int:
    """The most memory that this process had since this was called last."""
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    Path("/proc/self/clear_refs").write_text("5")
    assert peak is not None
    return int(peak[1]) << 10


def test_damage_reaches_no_other_memory() -> None:
    rng = random.Random(0)
    fences = np.full(64, 7, np.uint8)
    for _ in range(3000):
        data = bytearray(GOOD)
        for _ in range(rng.choice((1, 1, 2, 5))):
            data[rng.randrange(len(data))] = rng.choice((0, 0xFF, 0xD0, 0xD9, rng.randrange(256)))
        memory = np.concatenate([fences, np.frombuffer(bytes(data[: rng.randint(1, len(data))]), np.uint8), fences])
        top, left = rng.randrange(64), rng.randrange(96)
        window = [[top, left, rng.randint(top, 64), rng.randint(left, 96)]]
        [[size, *_]] = cut_jpegs([memory[64:-64]], np.array(window)).tolist()
        assert size <= len(memory) - 128
        assert (memory[:64] == 7).all()
        assert (memory[-64:] == 7).all()
