"""Damage in JPEGs with restart intervals, which are cut: whole loaders on the CPU, compared with Pillow's pixels."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaders import loader
from making import encoded, picture, write_shard
from numpy.typing import NDArray
from PIL import Image

from gpuloader import BadImages
from gpuloader.images.gate import admit_each
from gpuloader.pipelines import find_undecodable
from gpuloader.plan import Draws
from gpuloader.recipe import load_preset

HEIGHT, WIDTH, SIZE = 96, 192, 32
CENTRE = {"raw_uint8": {"Resize": {"size": [HEIGHT, WIDTH]}, "CenterCrop": {"size": SIZE}}}  # nothing is resized
TOP, LEFT = (HEIGHT - SIZE) // 2, (WIDTH - SIZE) // 2
# Six rows of six intervals of 16 x 32 pixels; the crop and its margin touch the two in the middle of four rows.
JPEG = encoded(picture(HEIGHT, WIDTH), "JPEG", restart_marker_blocks=2)
FIRST, ABOVE, BESIDE, INSIDE, LAST_INSIDE, BEHIND, LAST = 0, 2, 12, 14, 27, 28, 35

Damage = Callable[[bytes], bytes]


def parts(jpeg: bytes) -> list[bytes]:
    """The header, and then each interval with the marker behind it."""
    start = jpeg.index(b"\xff\xda")
    start += 2 + int.from_bytes(jpeg[start + 2 : start + 4], "big")
    return [jpeg[:start], *re.findall(rb".*?\xff[\xd0-\xd9]", jpeg[start:], re.DOTALL)]


HEADER, *INTERVALS = parts(JPEG)
MARKER = slice(-2, None)


def damaged(number: int, damage: Damage) -> bytes:
    return b"".join([HEADER, *INTERVALS[:number], damage(INTERVALS[number]), *INTERVALS[number + 1 :]])


def scrambled(interval: bytes) -> bytes:
    return bytes(0x55 ^ byte if byte < 0x55 else byte for byte in interval[:-2]) + interval[MARKER]


def half(interval: bytes) -> bytes:
    return interval[: len(interval) // 2].rstrip(b"\xff") + interval[MARKER]


def emptied(interval: bytes) -> bytes:
    return interval[MARKER]


def longer(interval: bytes) -> bytes:
    return interval[:-2] + interval


def with_a_start_of_image(interval: bytes) -> bytes:
    """A marker that libjpeg-turbo refuses; nvImageCodec then decodes the whole file with another decoder."""
    return interval[:9] + b"\xff\xd8" + interval[11:]


def removed(interval: bytes) -> bytes:  # with its marker, so that the next marker is a wrong one
    return b""


def pixels(jpeg: bytes) -> NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(jpeg)))[TOP : TOP + SIZE, LEFT : LEFT + SIZE]


def delivered(folder: Path, *jpegs: bytes) -> tuple[list[NDArray[np.uint8]], list[bool]]:
    """The crops of the images, and whether they are good."""
    tar = write_shard(folder / "a.tar", [{"__key__": f"{i}", "jpg": jpeg} for i, jpeg in enumerate(jpegs)])
    options: dict[str, Any] = {"label_from": None, "output": "dict", "on_error": BadImages(replace=True, max_share=1)}
    with loader(tar, len(jpegs), preset=CENTRE, shuffle=False, **options) as batches:
        [batch] = batches
    return list(batch["image"].numpy().transpose(0, 2, 3, 1)), batch["valid"].tolist()


def is_bad_uncut(jpeg: bytes) -> bool:
    [(name, changes)] = CENTRE.items()
    preset = load_preset(name, changes)
    files, sizes, _ = admit_each([jpeg], preset.max_pixels)
    return bool(
        find_undecodable(preset.whole_graph, files, preset.draw(Draws(0, 0, np.zeros(1, np.int64)), sizes), None)
    )


@pytest.mark.parametrize(
    ("damage", "numbers"),
    [
        *((damage, (FIRST, ABOVE, BESIDE, BEHIND, LAST)) for damage in (scrambled, half, longer)),
        *((damage, (BEHIND, LAST)) for damage in (with_a_start_of_image, removed)),
    ],
)
def test_damage_that_a_crop_does_not_touch_is_not_seen(
    tmp_path: Path, damage: Damage, numbers: tuple[int, ...]
) -> None:
    jpegs = [damaged(number, damage) + b"\xff\xd9" for number in numbers]  # the gate refuses a file without an end
    images, good = delivered(tmp_path, *jpegs)
    assert all(good)
    assert all(np.array_equal(image, pixels(JPEG)) for image in images)


@pytest.mark.parametrize("damage", [scrambled, half, emptied, longer])
def test_damage_that_a_crop_touches_has_the_pixels_of_the_whole_file(tmp_path: Path, damage: Damage) -> None:
    jpegs = [damaged(number, damage) for number in (INSIDE, LAST_INSIDE)]
    images, good = delivered(tmp_path, *jpegs)
    assert good == [not is_bad_uncut(jpeg) for jpeg in jpegs] == [True, True]
    for image, jpeg in zip(images, jpegs, strict=True):
        assert np.array_equal(image, pixels(jpeg))
        assert np.array_equal(image, pixels(JPEG)) == (damage is longer)  # decoders skip what is too much


def test_a_marker_that_is_lost_before_the_end_of_the_crop_leaves_the_file_to_the_decoder(tmp_path: Path) -> None:
    jpegs = [damaged(number, removed) for number in (FIRST, BESIDE, INSIDE)]
    images, good = delivered(tmp_path, *jpegs)
    assert good == [not is_bad_uncut(jpeg) for jpeg in jpegs] == [True, True, True]
    assert all(np.array_equal(image, pixels(jpeg)) for image, jpeg in zip(images, jpegs, strict=True))


def test_a_header_that_cannot_be_decoded_is_bad_whatever_the_crop_touches(tmp_path: Path) -> None:
    codes = JPEG.index(b"\xff\xc4") + 5
    jpeg = JPEG[:codes] + bytes([255]) + JPEG[codes + 1 :]  # 255 Huffman codes of one bit
    assert delivered(tmp_path, jpeg, JPEG)[1] == [False, True]
    assert is_bad_uncut(jpeg)
