"""`pack(mipmaps=)`: smaller copies beside the pictures, against Pillow, and readers that know nothing of them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from annotating import write_coco, write_voc
from bad_images import turned
from making import encoded, jpeg, picture, saved, unpack, write_shard
from packing import samples_of
from PIL import Image

from gpuloader import GPULoader
from gpuloader.errors import ConfigError, PackError
from gpuloader.pack import pack
from gpuloader.pack.options import Options
from gpuloader.pack.pictures import render
from gpuloader.pipelines.kernels.cutting import cut_jpegs

HEIGHT, WIDTH = 100, 151
SIDES = (64, 24)
SIZES = {"mip64": (96, 64), "mip24": (36, 24)}  # (width, height): 64 * 151 / 100 is 96.64, 24 * 151 / 100 is 36.24
MIPMAPS = Options(mipmaps=SIDES)


def opened(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def by_pillow(image: Image.Image, **options: Any) -> dict[str, bytes]:  # noqa: ANN401 - Pillow's
    """The copies of a picture; 96 pixels are 12 blocks, of which an interval has 6, and 36 are 5 blocks."""
    large = image.resize(SIZES["mip64"], Image.Resampling.LANCZOS)
    small = large.resize(SIZES["mip24"], Image.Resampling.LANCZOS)
    options = {"format": "JPEG", "quality": 90, "subsampling": "4:4:4", **options}
    files = {"mip64": io.BytesIO(), "mip24": io.BytesIO()}
    large.save(files["mip64"], restart_marker_blocks=6, **options)
    small.save(files["mip24"], restart_marker_blocks=5, **options)
    return {name: file.getvalue() for name, file in files.items()}


def distance(found: Image.Image, expected: Image.Image) -> float:
    return float(np.abs(np.asarray(found, int) - np.asarray(expected, int)).mean())


# --- the copies of a picture


@pytest.mark.parametrize("quality", [None, 60])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_mipmaps_are_pillows(mode: str, quality: int | None) -> None:
    image = picture(HEIGHT, WIDTH).convert(mode)
    data = encoded(image, "PNG")
    rendered = render(data, None, Options(mipmaps=SIDES, quality=quality))
    assert rendered[:3] == ("png", data, by_pillow(image, quality=quality or 90))


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "TIFF", "BMP"])
@pytest.mark.parametrize("orientation", [1, 6, 8])
def test_mipmaps_of_any_format_are_as_stored_and_keep_the_tag(image_format: str, orientation: int) -> None:
    options = {"quality": 95} if image_format in ("JPEG", "WEBP") else {}
    tag = {} if image_format == "BMP" else {"exif": turned(orientation)}
    data = encoded(picture(HEIGHT, WIDTH), image_format, **tag, **options)
    mipmaps = render(data, None, MIPMAPS).mipmaps
    assert mipmaps is not None
    assert set(mipmaps) == set(SIZES)
    for extension, size in SIZES.items():
        copy = opened(mipmaps[extension])
        assert (copy.format, copy.size) == ("JPEG", size)
        assert distance(copy, picture(HEIGHT, WIDTH).resize(size, Image.Resampling.LANCZOS)) < 6
        assert copy.getexif().get(0x0112, 1) == (orientation if tag else 1)


def test_mipmaps_have_all_of_the_colour_and_can_be_cut() -> None:
    mipmaps = render(jpeg(HEIGHT, WIDTH), None, MIPMAPS).mipmaps
    assert mipmaps is not None
    for copy in mipmaps.values():
        assert [layer[1:3] for layer in opened(copy).layer] == [(1, 1)] * 3
        [[size, *_]] = cut_jpegs([np.frombuffer(copy, np.uint8).copy()], np.array([[0, 0, 1, 1]])).tolist()
        assert size < len(copy)


@pytest.mark.parametrize(
    ("height", "width", "sides"),
    [
        (80, 200, ["mip64", "mip24"]),
        (200, 80, ["mip64", "mip24"]),
        (79, 200, []),  # 1.25 times 64 is 80
        (200, 79, []),
        (30, 30, []),  # the largest copy decides
    ],
)
def test_small_pictures_have_no_mipmaps(height: int, width: int, sides: list[str]) -> None:
    extension, data, mipmaps, _ = render(jpeg(height, width), None, MIPMAPS)
    assert (extension, data) == ("jpg", jpeg(height, width))
    assert list(mipmaps or {}) == sides


@pytest.mark.parametrize(
    ("max_size", "sides"),
    [
        (90, ["mip64", "mip24"]),
        (70, []),  # it is too small then
        (1000, ["mip64", "mip24"]),
    ],
)
def test_mipmaps_are_of_the_downsized_picture(max_size: int, sides: list[str]) -> None:
    _, data, mipmaps, _ = render(
        encoded(picture(HEIGHT, WIDTH), "PNG"), None, Options(max_size=max_size, mipmaps=SIDES)
    )
    assert mipmaps is not None
    assert list(mipmaps) == sides
    width, height = opened(data).size
    for extension, copy in mipmaps.items():
        side = int(extension.removeprefix("mip"))
        assert opened(copy).size == (side * width // height, side)
        assert distance(opened(copy), picture(HEIGHT, WIDTH).resize(opened(copy).size, Image.Resampling.LANCZOS)) < 6


@pytest.mark.needs_program("jpegtran")
def test_seekable_pictures_have_the_same_mipmaps(tmp_path: Path) -> None:
    source = [(jpeg(HEIGHT, WIDTH, seed), 0) for seed in range(3)]
    plain = pack(source, tmp_path / "plain", mipmaps=SIDES, workers=1)
    seekable = pack(source, tmp_path / "seekable", mipmaps=SIDES, seekable=True, workers=1)
    pairs = list(zip(*(samples_of(each.destination) for each in (plain, seekable)), strict=True))
    assert len(pairs) == 3
    for without, cut in pairs:
        assert {name for name in without if without[name] != cut[name]} == {"jpg"}


# --- copies in the source


def shard_with_mipmaps(path: Path) -> Path:
    """Two pictures with copies that are of nothing that is packed here: one is of another size, one not asked for."""
    stale = {"mip64": jpeg(9, 9), "mip32": b"of another tool"}
    sizes = {"large": (HEIGHT, WIDTH), "small": (40, 60)}
    return write_shard(
        path, [{"__key__": key, "jpg": jpeg(*size), "cls": b"0", **stale} for key, size in sizes.items()]
    )


@pytest.mark.parametrize(
    ("options", "large", "small"),
    [
        ({}, {"mip64", "mip32"}, {"mip64", "mip32"}),  # all members are copied
        ({"mipmaps": SIDES}, {"mip64", "mip24"}, set()),
        ({"max_size": 50}, set(), {"mip64", "mip32"}),  # only the large one changes
        ({"max_size": 90, "mipmaps": SIDES}, {"mip64", "mip24"}, set()),
        ({"decoded": 500}, set(), set()),
    ],
)
def test_mipmaps_of_the_source_stay_only_with_their_picture(
    tmp_path: Path, options: dict[str, Any], large: set[str], small: set[str]
) -> None:
    pack(shard_with_mipmaps(tmp_path / "a.tar"), tmp_path / "packed", shuffle=False, workers=1, **options)
    samples = samples_of(tmp_path / "packed")
    image = "npy" if "decoded" in options else "jpg"
    assert [set(sample) - {"__key__", "cls", image} for sample in samples] == [large, small]
    if "mipmaps" in options:
        assert opened(samples[0]["mip64"]).size == SIZES["mip64"]


@pytest.mark.needs_program("jpegtran")
def test_a_lossless_rewrite_keeps_the_mipmaps_of_the_source(tmp_path: Path) -> None:
    """The pixels stay, so the copies are still of them."""
    pack(shard_with_mipmaps(tmp_path / "a.tar"), tmp_path / "packed", seekable=True, workers=1)
    for sample in samples_of(tmp_path / "packed"):
        assert (sample["mip64"], sample["mip32"]) == (jpeg(9, 9), b"of another tool")


def test_decoded_pictures_cannot_have_mipmaps(tmp_path: Path) -> None:
    tar = write_shard(tmp_path / "a.tar", [{"__key__": "a", "npy": saved(picture(HEIGHT, WIDTH)), "cls": b"0"}])
    with pytest.raises(PackError, match=r"a in .*a\.tar is decoded, as \.npy, and can have no mipmaps: leave mipmaps"):
        pack(tar, tmp_path / "packed", mipmaps=SIDES, workers=1)
    with pytest.raises(ConfigError, match="mipmaps and decoded were both given"):
        pack(tar, tmp_path / "packed", mipmaps=SIDES, decoded=64, workers=1)


# --- packing as a whole: tests/pack/test_pack.py has copies in its shards, too


def test_the_result_counts_pictures_with_mipmaps(tmp_path: Path) -> None:
    source = [(jpeg(*size), 0) for size in [(HEIGHT, WIDTH), (80, 80), (40, 60), (9, 300)]] + [(b"no picture", 0)]
    first = pack(source, tmp_path / "packed", mipmaps=SIDES, workers=1)
    assert (first.samples, first.with_copies, first.too_small) == (4, 2, 2)
    again = pack(source, tmp_path / "packed", mipmaps="24, 64", workers=1)  # the same copies
    assert (again.samples, again.written, again.with_copies, again.too_small) == (4, 0, 0, 0)
    plain = pack(source, tmp_path / "plain", workers=1)
    assert (plain.samples, plain.with_copies, plain.too_small) == (4, 0, 0)


@pytest.mark.parametrize("kind", ["coco", "voc"])
def test_pictures_with_boxes_have_mipmaps_and_keep_their_boxes(tmp_path: Path, kind: str) -> None:
    source = write_coco(tmp_path) if kind == "coco" else write_voc(tmp_path, {"a": [], "b.c": [], "d": []})
    plain = pack(source, tmp_path / "plain", shuffle=False, workers=1)
    packed = pack(source, tmp_path / "packed", shuffle=False, workers=1, mipmaps="4")
    assert packed.with_copies == packed.samples == 3
    for without, sample in zip(samples_of(plain.destination), samples_of(packed.destination), strict=True):
        assert min(opened(sample.pop("mip4")).size) == 4
        assert sample == without


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, {}),
        ({"decoded": 20}, {}),
        ({"max_size": 20}, {"subsampling": "4:4:4"}),
        ({"mipmaps": "8,16"}, {"mipmaps": [16, 8]}),
    ],
)
def test_a_manifest_names_mipmaps_and_subsampling_only_if_there_are_any(
    tmp_path: Path, options: dict[str, Any], named: dict[str, Any]
) -> None:
    pack([(jpeg(24, 32, 0), 0)], tmp_path, workers=1, **options)
    manifest = json.loads((tmp_path / "pack-train.json").read_text())
    assert {name: manifest[name] for name in ("mipmaps", "subsampling") if name in manifest} == named


# --- readers that know nothing of copies


def test_readers_leave_mipmaps_alone(tmp_path: Path) -> None:
    source = [(jpeg(HEIGHT - 8 * seed, WIDTH, seed), seed % 3) for seed in range(6)]  # the last three get no copies
    plain = pack(source, tmp_path / "plain", samples_per_shard=3, workers=1)
    packed = pack(source, tmp_path / "packed", samples_per_shard=3, workers=1, mipmaps=SIDES)
    assert packed.with_copies == 3
    folder = unpack([packed.destination / name for name in packed.shards], tmp_path / "files")

    decode = webdataset.autodecode.Decoder([webdataset.imagehandler("pil")])
    read = [decode(sample) for sample in samples_of(packed.destination)]
    assert sorted((each["jpg"].size, each["cls"]) for each in read) == sorted(
        (opened(jpg).size, n) for jpg, n in source
    )

    options: dict[str, Any] = {"seed": 3, "preset": "imagenet_train", "output": "dict"}
    with (
        GPULoader(plain.destination, 6, None, **options) as expected,
        GPULoader(packed.destination, 6, None, **options) as found,
    ):
        state = expected.state_dict()
        for one, other in zip(expected, found, strict=True):
            assert one["key"] == other["key"]
            assert bool((one["image"] == other["image"]).all())
        found.load_state_dict(state)  # it is the same data
    options |= {"preset": "imagenet_eval", "shuffle": "none"}  # the keys of both are in other orders
    with GPULoader(packed.destination, 6, None, **options) as tars, GPULoader(folder, 6, None, **options) as files:
        [expected], [found] = tars, files
        rows = {key: row for row, key in enumerate(expected["key"])}
        keys = [key.removeprefix("./") for key in found["key"]]
        assert sorted(rows) == sorted(keys)
        for key, image, label in zip(keys, found["image"], found["label"], strict=True):
            assert bool((image == expected["image"][rows[key]]).all())
            assert label == expected["label"][rows[key]]
