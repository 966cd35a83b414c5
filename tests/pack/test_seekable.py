"""`pack --seekable`: the same pictures as JPEGs that can be cut, and the same batches from them."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making import encoded, picture
from PIL import Image

from gpuloader import GPULoader
from gpuloader.errors import ConfigError, StateError
from gpuloader.pack import pack
from gpuloader.pack.seekable import choose_interval, find_version, make_seekable
from gpuloader.pipelines.kernels.cutting import cut_jpegs
from gpuloader.tools.info import describe_shards

needs_jpegtran = pytest.mark.needs_program("jpegtran")


def write_jpegtran(folder: Path, commands: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program that is called jpegtran."""
    (folder / "jpegtran").write_text(f"#!/bin/sh\n{commands}\n")
    (folder / "jpegtran").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


@pytest.fixture
def asked_again() -> Iterator[None]:
    """The version is asked for, whatever was found before, and again after the test."""
    find_version.cache_clear()
    yield
    find_version.cache_clear()


def made_seekable(jpeg: bytes) -> bytes:
    with Image.open(io.BytesIO(jpeg)) as image:
        image.load()
        return make_seekable(jpeg, image)


def is_cut(jpeg: bytes) -> bool:
    """Whether a window in the corner leaves out a part of the file."""
    [[size, *_]] = cut_jpegs([np.frombuffer(jpeg, np.uint8).copy()], np.array([[0, 0, 1, 1]])).tolist()
    return bool(size < len(jpeg))


@pytest.mark.parametrize(
    ("width", "horizontal_factor", "mcus"),
    [
        (500, 2, 4),  # 32 in a row
        (500, 1, 7),  # 63: 3, 7 and 9 divide it
        (640, 2, 5),  # 40
        (3648, 2, 6),  # 228
        (496, 2, 31),  # a whole row, because nothing else divides it
        (8, 2, 1),
    ],
)
def test_an_interval_divides_the_row(width: int, horizontal_factor: int, mcus: int) -> None:
    assert choose_interval(width, horizontal_factor) == mcus


@needs_jpegtran
@pytest.mark.parametrize(
    ("mode", "options"), [("RGB", {}), ("RGB", {"subsampling": "4:4:4", "progressive": True}), ("L", {}), ("CMYK", {})]
)
def test_the_pixels_and_the_metadata_stay(mode: str, options: dict[str, Any]) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    jpeg = encoded(picture(120, 200).convert(mode), "JPEG", exif=exif, icc_profile=b"p" * 300, **options)
    found = made_seekable(jpeg)
    assert is_cut(found)
    assert not is_cut(jpeg)
    with Image.open(io.BytesIO(jpeg)) as before, Image.open(io.BytesIO(found)) as after:
        assert (after.mode, after.info["icc_profile"], dict(after.getexif())) == (mode, b"p" * 300, {0x0112: 6})
        assert np.array_equal(np.asarray(before), np.asarray(after))
        assert "progressive" not in after.info


@needs_jpegtran
def test_what_could_lose_anything_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jpeg = encoded(picture(120, 200), "JPEG")
    film = jpeg + b"the film of a motion photo"
    assert made_seekable(film) == film
    # A program that makes another picture, one that warns, and one that fails.
    other = tmp_path / "other.jpg"
    other.write_bytes(encoded(picture(120, 200, seed=1), "JPEG"))
    for command in (f"cat {other}", f"cat {other}; echo odd >&2", "exit 2"):
        write_jpegtran(tmp_path, f"cat > /dev/null; {command}", monkeypatch)
        assert made_seekable(jpeg) == jpeg


@needs_jpegtran
def test_packed_shards_give_the_same_batches(tmp_path: Path) -> None:
    source = tmp_path / "photos"
    for number in range(24):
        folder = source / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image = picture(90 + 7 * number, 300 - 5 * number, seed=number)
        image.save(folder / f"{number:02}.jpg", quality=90, subsampling=number % 3, progressive=number % 5 == 0)
    plain = pack(source, tmp_path / "plain", workers=1)
    cut = pack(source, tmp_path / "cut", workers=1, seekable=True)
    again = pack(source, tmp_path / "again", workers=2, seekable=True)
    assert [describe_shards(each.destination).seekable for each in (plain, cut, again)] == [0, 24, 24]
    assert [(tmp_path / "cut" / name).read_bytes() for name in cut.shards] == [
        (tmp_path / "again" / name).read_bytes() for name in again.shards
    ]
    for preset in ("imagenet_train", "dino"):
        options: dict[str, Any] = {"preset": preset, "seed": 3, "last_batch": "partial"}
        with (
            GPULoader(plain.destination, 8, "cpu", **options) as expected,
            GPULoader(cut.destination, 8, "cpu", **options) as found,
        ):
            state = expected.state_dict()
            for (images, labels), (cut_images, cut_labels) in zip(expected, found, strict=True):
                views = zip(images, cut_images) if isinstance(images, (list, tuple)) else [(images, cut_images)]
                assert all(bool((view == cut_view).all()) for view, cut_view in views)
                assert labels.tolist() == cut_labels.tolist()
            found.load_state_dict(state)  # it is the same data


@needs_jpegtran
@pytest.mark.usefixtures("asked_again")
def test_another_version_does_not_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = [(picture(40, 60, seed=number), number % 2) for number in range(4)]
    pack(pictures, tmp_path / "packed", seekable=True)
    version = find_version()
    find_version.cache_clear()
    write_jpegtran(tmp_path, "echo libjpeg-turbo version 0.0.1 >&2", monkeypatch)
    with pytest.raises(StateError, match=rf"seekable was '{version}', is '0\.0\.1'"):
        pack(pictures, tmp_path / "packed", seekable=True)


@pytest.mark.usefixtures("asked_again")
def test_a_downsized_picture_has_intervals_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jpegtran(tmp_path, "echo libjpeg-turbo version 2 >&2", monkeypatch)  # it is asked for nothing else
    source = tmp_path / "photos" / "a"
    source.mkdir(parents=True)
    for number, mode in enumerate(("RGB", "L")):
        picture(300, 400).convert(mode).save(source / f"{number}.jpg")
    packed = pack(tmp_path / "photos", tmp_path / "packed", max_size=200, seekable=True, workers=1)
    data = (packed.destination / packed.shards[0]).read_bytes()
    assert data.count(b"\xff\xdd\x00\x04") == 2


@pytest.mark.usefixtures("asked_again")
def test_without_the_program_it_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jpegtran(tmp_path, "", monkeypatch)
    for path, said in ((tmp_path, "says '', not libjpeg-turbo's"), ("/no/such/folder", "No such file or directory")):
        monkeypatch.setenv("PATH", str(path))
        with pytest.raises(ConfigError, match=said) as caught:
            pack([(picture(8, 8), 0)], tmp_path / "packed", seekable=True)
        assert "apt install libjpeg-turbo-progs" in str(caught.value)
