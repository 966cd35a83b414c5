"""`Index`: what a scan finds, against WebDataset and `tarfile`, and the file that keeps it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import packing
import pytest
from forging import digest
from making import SIZES, jpeg, tar_by_command, write_shard

from gpuloader.errors import ShardChangedError
from gpuloader.shards import Index
from gpuloader.shards.index import BAD_LABEL, NO_LABEL
from gpuloader.shards.scan import scan

JPEG = jpeg(20, 30)


def shard_of(path: Path, names: list[str], content: bytes = JPEG) -> Path:
    """A tar of files by these names, in this order; each holds the content and its number."""
    with tarfile.open(path, "w") as tar:
        for number, name in enumerate(names):
            info = tarfile.TarInfo(name)
            info.size = len(content) + 4
            tar.addfile(info, io.BytesIO(content + number.to_bytes(4, "big")))
    return path


def samples_of(shard: Path) -> list[tuple[str, dict[str, bytes]]]:
    """(key, {extension: bytes}) by our index."""
    index, content = scan(shard), shard.read_bytes()
    samples = []
    for row in range(len(index)):
        places = {extension: index.component(row, extension) for extension in index.extensions}
        parts = {name: content[place[0] : place[0] + place[1]] for name, place in places.items() if place is not None}
        samples.append((index.key(row), parts))
    return samples


def samples_of_webdataset(shard: Path) -> list[tuple[str, dict[str, bytes]]]:
    return [(sample.pop("__key__"), sample) for sample in packing.samples_of([shard])]


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


# What is in a shard.


@pytest.mark.parametrize("tar_format", ["gnu", "posix", "ustar", "v7"])
def test_samples_of_tars_by_the_tar_command_are_those_of_webdataset(tmp_path: Path, tar_format: str) -> None:
    folder = tmp_path / "folder"
    names = (
        *("plain.jpg", "plain.cls", "UPPER.JPG", "UPPER.Cls", "photo.jpeg", "photo.json", "two words.png"),
        *("v1.0/a.jpg", "v1.0/a.cls", "many.dots.in.the.name.jpg", "many.cls", "twice.jpg", "twice.png"),
        *("class a/deep/er/b.jpg", "class a/deep/er/b.seg.png", "class b/b.jpg", "x.left.png", "x.jpg", "ü/é.webp"),
    )
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(JPEG + bytes([number]))
    shard = tar_by_command(folder, tmp_path / "a.tar", f"--format={tar_format}", "--sort=name")
    expected = [
        (key, parts)
        for key, parts in samples_of_webdataset(shard)
        if parts.keys() & {"jpg", "jpeg", "png", "webp"}  # those with an image: not many.dots.in.the.name.jpg
    ]
    assert samples_of(shard) == expected
    assert {key for key, _ in expected} >= {"./v1.0/a", "./UPPER", "./photo", "./class a/deep/er/b", "./x", "./ü/é"}


def test_a_sample_is_joined_wherever_its_members_stand(tmp_path: Path) -> None:
    shard = shard_of(tmp_path / "a.tar", ["a.jpg", "b.cls", "b.jpg", "c.jpg", "a.cls", "a.json", "c.cls"])
    assert [(key, set(parts)) for key, parts in samples_of(shard)] == [
        ("a", {"jpg", "cls", "json"}),
        ("b", {"jpg", "cls"}),
        ("c", {"jpg", "cls"}),
    ]
    with tarfile.open(shard) as tar:  # and each part is the right one
        for key, parts in samples_of(shard):
            for extension, data in parts.items():
                file = tar.extractfile(f"{key}.{extension}")
                assert file is not None
                assert data == file.read()


@pytest.mark.parametrize(
    ("names", "image"),
    [
        (["a.png", "a.jpg"], "jpg"),
        (["a.jp2", "a.ppm", "a.tiff", "a.webp"], "webp"),
        (["a.seg.png", "a.tif"], "tif"),  # .seg.png is another extension than .png
        (["a.JPEG", "a.bmp"], "jpeg"),
        (["a.png", "a.jpe", "a.jfif"], "jfif"),
        (["a.jpe", "a.jpeg"], "jpeg"),
    ],
)
def test_of_several_images_the_first_by_extension_is_taken(tmp_path: Path, names: list[str], image: str) -> None:
    index = scan(shard_of(tmp_path / "a.tar", names))
    assert (int(index.column("image_offset")[0]), int(index.column("image_size")[0])) == index.component(0, image)


def test_places_and_sizes_are_right(shards: list[Path]) -> None:
    for number, shard in enumerate(shards):
        index = scan(shard)
        with tarfile.open(shard) as tar:
            images = [info for info in tar if info.name.endswith(".jpg")]
        assert index.column("image_offset").tolist() == [info.offset_data for info in images]
        assert index.column("image_size").tolist() == [info.size for info in images]
        expected = [SIZES[i % len(SIZES)] for i in range(number * 20, number * 20 + 20)]
        assert list(zip(index.column("height").tolist(), index.column("width").tolist(), strict=True)) == expected
        assert index.column("label").tolist() == [i % 10 for i in range(20)]
        assert (index.shard_bytes[0], index.shard_mtime_ns[0]) == (shard.stat().st_size, shard.stat().st_mtime_ns)


@pytest.mark.parametrize(
    "content", [b"", b"x", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\xff" * 80], ids=repr
)
def test_an_image_that_is_none_is_kept_without_a_size(tmp_path: Path, content: bytes) -> None:
    index = scan(write_shard(tmp_path / "a.tar", [{"__key__": "a", "jpg": content}, {"__key__": "b", "jpg": JPEG}]))
    assert index.column("image_size").tolist() == [len(content), len(JPEG)]
    assert index.column("height").tolist() == [0, 20]
    assert index.column("width").tolist() == [0, 30]


@pytest.mark.parametrize(
    ("cls", "label"),
    [
        (b"3", 3),
        (b"+7", 7),
        (b"\t-12\r\n", -12),
        (b"9" * 18, 10**18 - 1),
        (b"9" * 19, BAD_LABEL),  # more than int64 is sure to hold
        (b"", BAD_LABEL),
        (b"dog", BAD_LABEL),
        (b"3.0", BAD_LABEL),
        (b"1_000", BAD_LABEL),
        ("٣".encode(), BAD_LABEL),  # a digit, but none of ASCII
        (b"\xef\xbb\xbf3", BAD_LABEL),  # a byte order mark
        (b"3" + b" " * 5000, BAD_LABEL),
        (None, NO_LABEL),
    ],
)
def test_labels_are_integers_in_ascii(tmp_path: Path, cls: bytes | None, label: int) -> None:
    sample = {"__key__": "a", "jpg": JPEG} | ({} if cls is None else {"cls": cls})
    assert scan(write_shard(tmp_path / "a.tar", [sample])).column("label").tolist() == [label]


@pytest.mark.parametrize(
    ("names", "keys", "left_out"),
    [
        (["a.jpg", "a.jpg"], ["a"], {"a.jpg": "has a .jpg already"}),
        (["a.jpg", "b.jpg", "a.JPG"], ["a", "b"], {"a.JPG": "has a .jpg already"}),
        (["a.jpg", "v1.0/README"], ["a"], {"v1.0/README": "no extension"}),  # the dot is the folder's
        (["a.jpg", ".hidden.jpg"], ["a"], {".hidden.jpg": "begins with a dot"}),
        (["x/a.jpg", "x/._a.jpg"], ["x/a"], {"x/._a.jpg": "begins with a dot"}),  # macOS writes these
        (["a.jpg", "b.cls", "b.json"], ["a"], {"b.cls": "no image", "b.json": "no image"}),
        (["a.jpg", "b."], ["a"], {"b.": "no image"}),
        (["a.jpg"], ["a"], {}),
    ],
)
def test_what_is_in_no_sample_is_said_with_its_reason(
    tmp_path: Path, names: list[str], keys: list[str], left_out: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    shard = shard_of(tmp_path / "a.tar", names)
    index = scan(shard)
    assert [index.key(row) for row in range(len(index))] == keys
    assert [item.name for item in index.left_out] == list(left_out)
    assert all(left_out[item.name] in item.why for item in index.left_out)
    with tarfile.open(shard) as tar:
        offsets = {info.offset_data for info in tar}
    assert {item.offset for item in index.left_out} <= offsets
    assert index.left_out_count == len(left_out)
    assert len(logged(caplog)) == bool(left_out)  # one warning for the shard, however many
    assert all(str(shard) in text and index.left_out[0].why in text for text in logged(caplog))


@pytest.mark.parametrize(("kind", "why"), [(tarfile.SYMTYPE, "symbolic link"), (tarfile.FIFOTYPE, "pipe")])
def test_what_is_no_file_is_left_out_whatever_its_name(tmp_path: Path, kind: bytes, why: str) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        info = tarfile.TarInfo("b.jpg")
        info.type, info.linkname = kind, "a.jpg"
        tar.addfile(info)
    (item,) = scan(tmp_path / "a.tar").left_out
    assert item.name == "b.jpg"
    assert why in item.why


def test_folders_are_left_out_in_silence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "folder" / "a.jpg").mkdir(parents=True)
    index = scan(tar_by_command(tmp_path / "folder", tmp_path / "a.tar"))
    assert (len(index), index.left_out_count) == (0, 0)
    assert logged(caplog) == []


def test_of_many_members_left_out_the_first_thousand_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    index = scan(shard_of(tmp_path / "a.tar", [f".{number}" for number in range(1500)], content=b""))
    assert [item.name for item in index.left_out] == [f".{number}" for number in range(1000)]
    assert index.left_out_count == 1500


def test_a_shard_that_is_written_to_meanwhile_is_an_error(tmp_path: Path) -> None:
    shard = shard_of(tmp_path / "a.tar", [f"{number}.jpg" for number in range(5000)], content=b"")
    touch = "import os, sys\nfor i in range(10**8): os.utime(sys.argv[1], ns=(i, i)); i or print('begun', flush=True)"
    with subprocess.Popen([sys.executable, "-c", touch, shard], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            with pytest.raises(ShardChangedError, match=r"a\.tar was written to while it was being indexed"):
                scan(shard)
        finally:
            process.kill()


# The file that keeps an index.


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """(index file, shard), the index having all that one can have."""
    shard = shard_of(
        tmp_path / "a.tar", ["ü.jpg", "ü.cls", ".hidden", "b.png", "c.jpg", "c.json", "c.jpg", "d.cls", ".x/e.jpg"]
    )
    path = tmp_path / "a.index"
    scan(shard).save(path)
    return path, shard


def load(path: Path, shard: Path) -> Index:
    stat = shard.stat()
    return Index.read(path, stat.st_size, stat.st_mtime_ns)


def assert_equal(one: Index, other: Index) -> None:
    assert (one.facts, one.left_out) == (other.facts, other.left_out)
    for name in Index.COLUMNS:
        assert one.column(name).dtype == other.column(name).dtype
        assert one.column(name).tolist() == other.column(name).tolist()


def test_a_saved_index_comes_back_as_it_was(saved: tuple[Path, Path]) -> None:
    path, shard = saved
    assert_equal(load(path, shard), scan(shard))
    assert path.stat().st_mode & 0o777 == 0o644
    assert sorted(other.name for other in path.parent.iterdir()) == ["a.index", "a.tar"]


def test_the_format_is_the_one_described(saved: tuple[Path, Path]) -> None:
    """Reads the file by the modules' texts alone."""
    path, shard = saved
    data = path.read_bytes()
    assert data[:8] == b"GPULIDX\x06"
    head_at, json_bytes = (int.from_bytes(data[at : at + 8], "little") for at in (8, 16))
    blocks, head = data[56:head_at], data[head_at:]
    assert data[24:56] == digest(data[:24] + head)
    assert head[-32:] == digest(blocks)  # there is one block
    header = json.loads(head[:json_bytes])
    assert header["counts"] == {
        **{"shards": 1, "samples": 3, "components": 5, "key_bytes": 4, "folder_names": 0, "folders": 1},
        **{"turned": 0, "seekable": 0, "jpegs": 2, "decoded": 0, "too_large": 0, "unlabelled": 2, "misfits": 1},
        **{"above_8_bits": 0, "alpha": 0, "profile": 0, "frames": 0},
    }
    columns = {}
    at_table = head[-(-json_bytes // 8) * 8 : -32]
    for area, listed in (
        (at_table, "shard_bytes:<i8:1 shard_mtime_ns:<i8:1 sample_end:<i8:1 left_out_count:<i8:1 data_digest:|V16:1"),
        (blocks, "image_offset:<i8:3 image_size:<i8:3 height:<i4:3 width:<i4:3 orientation:|u1:3 traits:|u1:3 "
            "label:<i8:3 key_end:<i8:3 component_end:<i8:3 folder:<i4:3 component_extension:<i4:5 "
            "component_offset:<i8:5 component_size:<i8:5 key_bytes:|u1:4"),
    ):  # fmt: skip
        position = 0
        for name, kind, rows in (each.split(":") for each in listed.split()):
            columns[name] = np.frombuffer(area, kind, int(rows), position).tolist()
            position += -(-np.dtype(kind).itemsize * int(rows) // 8) * 8
        assert position == len(area)
    index = scan(shard)
    (data_digest,) = columns.pop("data_digest")
    assert f"{int.from_bytes(data_digest, 'little'):032x}" == header["data_digest"] == index.facts["data_digest"]
    assert columns.pop("sample_end") == [3]
    table = {name: getattr(index, name).tolist() for name in ("shard_bytes", "shard_mtime_ns", "left_out_count")}
    assert columns == {**table, **{name: index.column(name).tolist() for name in columns if name not in table}}
    assert bytes(columns["key_bytes"]) == "übc".encode()
    assert [(name, shard) for name, _, _, shard in header["left_out"]] == [(".hidden", 0), ("c.jpg", 0), ("d.cls", 0)]
    assert header["hidden"] == [1, ".x/e.jpg", 0]
    assert header["names"] == []


def test_what_is_asked_of_all_samples_stands_in_the_file(tmp_path: Path) -> None:
    rng, labels = np.random.default_rng(0), [b"7", b"-3", b"x", None, b"12"]
    sizes = [(int(height), int(width)) for height, width in rng.integers(1, 300, (40, 2))]
    samples = [
        {"__key__": f"{i % 3}/{i}", "jpg": jpeg(*size)} | ({} if labels[i % 5] is None else {"cls": labels[i % 5]})
        for i, size in enumerate(sizes)
    ]
    shards = [write_shard(tmp_path / f"{i}.tar", samples[10 * i : 10 * i + 10]) for i in range(4)]
    index = Index.joined([scan(shard) for shard in shards])
    assert dict(zip(index.extensions, index.facts["having"], strict=True)) == {"jpg": 40, "cls": 32}
    assert [index.counts[name] for name in ("unlabelled", "misfits", "jpegs", "turned")] == [8, 8, 40, 0]
    assert index.facts["labels"] == [-3, 12]
    assert [index.folders()[number] for number in index.column("folder")] == [f"{i % 3}" for i in range(40)]
    areas = [height * width for height, width in sizes]
    for most in (0, *areas, *(area - 1 for area in areas), 10**9):
        height, width = index.largest_image(most)
        assert height * width == max((area for area in areas if area <= most), default=0)
    assert index.digest(2) == scan(shards[2]).digest()


def test_digests_are_those_of_the_content(tmp_path: Path) -> None:
    def digest(**changed: bytes | str) -> bytes:
        samples = [{"__key__": "a", "jpg": JPEG, "cls": b"1"}, {"__key__": "b", "jpg": JPEG, "cls": b"2", **changed}]
        return scan(write_shard(tmp_path / "a.tar", samples)).digest()

    same = digest()
    os.utime(tmp_path / "a.tar", ns=(5, 5))
    assert scan(tmp_path / "a.tar").digest() == same == digest()
    assert len({same, digest(cls=b"3"), digest(__key__="c"), digest(jpg=jpeg(30, 20)), digest(txt=b"")}) == 5
