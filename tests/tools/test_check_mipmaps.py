"""`check` and `info` on shards with smaller copies: copies that are bad, and counts."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import command_line
import numpy as np
import pytest
from bad_images import turned
from making import encoded, jpeg, picture, saved, unpack, write_shard
from PIL import Image
from warm import warm

from gpuloader.pack import pack
from gpuloader.shards import ShardSet
from gpuloader.tools.check import Fault, check_shards
from gpuloader.tools.info import describe_shards

Sample = dict[str, bytes | str]

HEIGHT, WIDTH = 100, 151


@pytest.fixture(autouse=True)
def _decoding_begins_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(warm().python))


def mipmap_of(seed: int, height: int, width: int, **options: object) -> bytes:
    small = picture(HEIGHT, WIDTH, seed).resize((width, height), Image.Resampling.LANCZOS)
    return encoded(small, "JPEG", subsampling="4:4:4", **options)


def with_mipmaps(key: int, **changed: bytes) -> Sample:
    """A picture of its own for each key, with copies that fit it unless they are `changed`."""
    mipmaps = {"mip64": mipmap_of(key, 64, 96), "mip24": mipmap_of(key, 24, 36)}
    return {"__key__": f"{key:03d}", "jpg": jpeg(HEIGHT, WIDTH, key), "cls": b"0", **mipmaps, **changed}


def damaged(jpeg: bytes) -> bytes:
    """The same size, but a table of Huffman codes that is impossible."""
    data = bytearray(jpeg)
    table = data.index(b"\xff\xc4")
    data[table + 5 : table + 21] = bytes([255] * 16)
    return bytes(data)


def test_what_pack_writes_is_well(tmp_path: Path) -> None:
    images = [
        encoded(picture(HEIGHT, WIDTH), "PNG"),
        encoded(picture(HEIGHT, WIDTH, 1).convert("L"), "PNG"),
        encoded(Image.fromarray(np.asarray(picture(HEIGHT, WIDTH, 2).convert("L"), np.uint16) * 257), "PNG"),
        encoded(picture(HEIGHT, WIDTH, 3).convert("CMYK"), "JPEG"),
        encoded(picture(WIDTH, HEIGHT, 4), "JPEG", exif=turned(6)),
        encoded(picture(HEIGHT, WIDTH, 5), "WEBP"),
        encoded(Image.fromarray(np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)), "PNG"),
        jpeg(40, 60),  # without copies, which it does not lack
    ]
    packed = pack([(image, 0) for image in images], tmp_path / "packed", mipmaps=(64, 24), workers=1)
    assert packed.with_copies == 7
    assert check_shards(packed.destination).faults == ()


@pytest.mark.parametrize(
    ("copy", "cause"),
    [
        (damaged(mipmap_of(1, 64, 96)), "DALI's decoder fails on it"),
        (mipmap_of(1, 64, 97), "its header says 97x64 pixels, where its picture needs 96x64"),
        (mipmap_of(1, 24, 36), "its header says 36x24 pixels, where its picture needs 96x64"),
        (mipmap_of(2, 64, 96), "it is of another picture: at 32x32 pixels they are 74 levels apart"),
        (mipmap_of(1, 64, 96)[:-2], "a JPEG that is cut: it has no end-of-image marker"),
        (b"", "the file is empty"),
        (saved(picture(64, 96, 1)), "no image format that DALI reads"),
        (b"no image", "no image format that DALI reads, or a broken header"),
    ],
)
def test_a_bad_mipmap_is_named_with_its_place(tmp_path: Path, copy: bytes, cause: str) -> None:
    tar = write_shard(tmp_path / "a.tar", [with_mipmaps(0), with_mipmaps(1, mip64=copy), with_mipmaps(2)])
    result = check_shards(tar, quarantine=tmp_path / "bad.jsonl")
    [fault] = result.faults
    assert (fault.kind, fault.shard, fault.key, fault.sample) == ("bad copy", str(tar), "001", 1)
    assert fault.cause.startswith(f"the .mip64 component beside it: {cause}")
    assert tar.read_bytes()[fault.offset :].startswith(copy)
    assert ShardSet.open([tar]).index.component(1, "mip64") == (fault.offset, len(copy))
    assert (tmp_path / "bad.jsonl").read_text() == ""  # the picture is good


@pytest.mark.parametrize(
    ("levels", "well"),
    [(7, True), (9, False)],  # brighter everywhere
)
def test_a_mipmap_may_be_a_few_levels_from_its_picture(tmp_path: Path, levels: int, well: bool) -> None:
    flat, copy = (Image.new("RGB", size, (value,) * 3) for size, value in (((151, 100), 100), ((96, 64), 100 + levels)))
    sample: Sample = {"__key__": "a", "png": encoded(flat, "PNG"), "mip64": encoded(copy, "JPEG", quality=100)}
    assert check_shards(write_shard(tmp_path / "a.tar", [sample])).all_well == well


def test_a_bad_picture_is_bad_and_its_mipmaps_are_looked_at_alone(tmp_path: Path) -> None:
    broken = with_mipmaps(1, jpg=damaged(jpeg(HEIGHT, WIDTH, 1)), mip24=b"no image")
    tar = write_shard(tmp_path / "a.tar", [with_mipmaps(0), broken, with_mipmaps(2)])
    result = check_shards(tar, quarantine=tmp_path / "bad.jsonl")
    [bad], [copy] = result.of("bad"), result.of("bad copy")
    assert (bad.key, bad.cause) == ("001", "DALI's decoder fails on it")
    assert copy.key == "001"
    assert copy.cause.startswith("the .mip24 component beside it: no image format")
    assert len(result.faults) == 2
    [line] = (tmp_path / "bad.jsonl").read_text().splitlines()
    assert json.loads(line)["key"] == "001"


def test_the_last_sample_of_a_cut_shard_needs_no_mipmaps(tmp_path: Path) -> None:
    small: Sample = {"__key__": "002", "jpg": jpeg(40, 60), "cls": b"0"}
    whole = write_shard(tmp_path / "a.tar", [with_mipmaps(0), with_mipmaps(1), small, with_mipmaps(3)])
    data = whole.read_bytes()
    (tmp_path / "cut.tar").write_bytes(data[: data.index(b"003.jpg") + 100])  # within a header
    result = check_shards(tmp_path / "cut.tar")
    assert (result.samples, {fault.kind for fault in result.faults}) == (3, {"broken", "left out"})


def test_mipmaps_in_a_folder_are_as_in_its_tar(tmp_path: Path) -> None:
    tar = write_shard(tmp_path / "a.tar", [with_mipmaps(0), with_mipmaps(1, mip64=b"no image"), with_mipmaps(2)])
    folder = unpack([tar], tmp_path / "photos")
    [expected], [found] = check_shards(tar).faults, check_shards(folder).faults
    assert found == Fault("bad copy", str(folder / "001.jpg"), "./001", 0, expected.cause, sample=1)
    one, other = describe_shards(tar), describe_shards(folder)
    assert (one.with_copies, one.copy_bytes) == (other.with_copies, other.copy_bytes)


def test_info_counts_pictures_with_mipmaps_and_their_bytes(tmp_path: Path) -> None:
    rows = [with_mipmaps(0), {"__key__": "1", "jpg": jpeg(40, 60), "cls": b"0"}, with_mipmaps(2)]
    tars = [write_shard(tmp_path / "a.tar", rows[:2]), write_shard(tmp_path / "b.tar", rows[2:])]
    info = describe_shards(tars)
    expected = sum(len(row[name]) for row in (rows[0], rows[2]) for name in ("mip64", "mip24"))
    assert (info.samples, info.with_copies, info.copy_bytes) == (3, 2, expected)
    assert info.components["mip64"] == 2
    said = command_line.run("info", *tars).stdout
    assert f"copies      2 pictures have smaller copies, {expected / 1000:.3g} kB\n" in said

    plain = write_shard(tmp_path / "plain.tar", [{"__key__": "a", "jpg": jpeg(40, 60), "mipmap": b"", "mip0": b"?"}])
    assert (describe_shards(plain).with_copies, describe_shards(plain).copy_bytes) == (0, 0)
    assert "copies" not in command_line.run("info", plain).stdout


def test_turned_mipmaps_are_compared_as_stored(tmp_path: Path) -> None:
    file = io.BytesIO()
    picture(HEIGHT, WIDTH, 1).save(file, "JPEG", exif=turned(8))
    sample = with_mipmaps(1, jpg=file.getvalue(), mip64=mipmap_of(1, 64, 96, exif=turned(8)))
    assert check_shards(write_shard(tmp_path / "a.tar", [sample])).all_well
