"""Index files that are forged, checksum and all: `IndexFileError`, or an index that points into its shard alone."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hostile import mutated_bytes, mutated_json
from making import write_samples

from gpuloader import GPULoader, IndexFileError
from gpuloader.shards import ShardIndex, index_file, open_index
from gpuloader.shards.scan import scan
from gpuloader.tools.check import check_shards

COLUMNS = {  # in the order of the file, with what it is for each of
    **dict.fromkeys(("image_offset", "image_size", "height", "width", "label", "key_end", "component_end"), "samples"),
    **dict.fromkeys(("component_extension", "component_offset", "component_size"), "components"),
    "key_bytes": "key_bytes",
}


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shard of 6 samples of three components each, and its index beside it."""
    [shard] = write_samples(tmp_path_factory.mktemp("forged"), 6, shards=1)
    open_index(shard)
    return shard


@pytest.fixture(scope="module")
def body(shard: Path) -> bytes:
    """The index file without its checksum."""
    return index_file(shard).read_bytes()[:-32]


def header_end(body: bytes) -> int:
    return 16 + int.from_bytes(body[8:16], "little")


def with_header(body: bytes, header: str) -> bytes:
    data = header.encode()
    data += b" " * (-len(data) % 8)
    return body[:8] + len(data).to_bytes(8, "little") + data + body[header_end(body) :]


def with_checksum(body: bytes) -> bytes:
    return body + hashlib.blake2b(body, digest_size=32).digest()


def use(index: ShardIndex) -> None:
    """All that the library asks an index; it may not reach outside the shard."""
    keys = index.all_keys()
    assert [index.key(row) for row in range(len(index))] == keys
    places = [index.component(row, extension) for row in range(len(index)) for extension in index.extensions]
    places += zip(index.image_offset.tolist(), index.image_size.tolist(), strict=True)
    assert all(place is None or 0 <= place[0] <= place[0] + place[1] <= index.shard_bytes for place in places)
    assert index.decoded().shape == index.label.shape == index.height.shape == (len(keys),)
    assert all(len(index.rows_without(extension)) <= len(keys) for extension in ("jpg", "npy", *index.extensions))
    assert len(index.digest()) == 32
    assert len(index.left_out) <= index.left_out_count
    ShardIndex.parse(index.to_bytes(), "again")


def refused(bodies: Iterator[bytes]) -> tuple[int, int]:
    """(how many, how many of them are no index); any error but IndexFileError goes on."""
    count, said = 0, []
    for body in bodies:
        count += 1
        try:
            use(ShardIndex.parse(with_checksum(body), "a.gpuidx"))
        except IndexFileError as error:
            said.append(str(error))
    assert all(each.startswith("a.gpuidx ") and len(each) < 500 for each in said)
    return count, len(said)


def test_headers_with_hostile_values(body: bytes) -> None:
    header = json.loads(body[16 : header_end(body)])
    header["left_out"], header["left_out_count"] = [["a.txt", 512, "its key has no image"]], 1
    assert refused(iter([with_header(body, json.dumps(header))])) == (1, 0)
    count, wrong = refused(with_header(body, text) for text in mutated_json(header))
    assert count > 600
    assert wrong > 0.9 * count  # what is left changes names, numbers left out and the like


def test_columns_with_hostile_values(body: bytes) -> None:
    header, rng = json.loads(body[16 : header_end(body)]), random.Random(0)

    def forged() -> Iterator[bytes]:
        position = header_end(body)
        for name, counted in COLUMNS.items():
            dtype = {"height": "<i4", "width": "<i4", "component_extension": "<i4", "key_bytes": "u1"}.get(name, "<i8")
            limits = np.iinfo(dtype)
            values = (-1, 0, 1, 2, 3, 511, 2**31 - 1, 2**31, 2**62, limits.max - 1, limits.max, limits.min)
            for value in (value for value in values if limits.min <= value <= limits.max):
                for _ in range(12):
                    column = np.frombuffer(body, dtype, header[counted], position).copy()
                    column[rng.choice((0, len(column) - 1, rng.randrange(len(column)), slice(None)))] = value
                    yield body[:position] + column.tobytes() + body[position + column.nbytes :]
            position += -(-np.dtype(dtype).itemsize * header[counted] // 8) * 8

    count, wrong = refused(forged())
    assert count > 1000
    assert wrong > 0.5 * count  # any label is a label, and any byte may stand in a key


def test_bytes_changed_at_random(body: bytes) -> None:
    count, wrong = refused(changed for changed in mutated_bytes(body, 3000) if changed[:8] == body[:8])
    assert count > 1500
    assert wrong > 0.5 * count


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"key_end": lambda ends: ends[::-1]}, "its keys do not follow each other"),
        ({"key_end": lambda ends: ends * 0 + ends[-1]}, "its keys do not follow"),  # an empty key
        ({"key_end": lambda ends: ends - 1}, "its keys do not follow"),  # a byte that is in no key
        ({"component_end": lambda ends: ends + 1}, "its samples' components do not follow each other"),
        ({"component_end": lambda ends: ends - 2**62}, "its samples' components do not follow"),
        ({"component_extension": lambda numbers: numbers + 1}, "a component has an unknown extension"),
        ({"component_extension": lambda numbers: numbers - 1}, "a component has an unknown extension"),
        ({"height": lambda heights: -heights}, "an image has no possible height and width"),
        ({"width": lambda widths: widths * 0}, "an image has no possible height and width"),
    ],
)
def test_columns_that_contradict_each_other(
    shard: Path, changes: dict[str, Callable[[np.ndarray], np.ndarray]], says: str
) -> None:
    index = scan(shard)
    changed = replace(index, **{name: change(getattr(index, name)) for name, change in changes.items()})
    with pytest.raises(IndexFileError, match=f"a.gpuidx is damaged: {says}"):
        ShardIndex.parse(changed.to_bytes(), "a.gpuidx")


FORGED = ['{"a": ' * 5000, "9" * 5000, "NaN", "[]", '{"samples": -1}']


@pytest.mark.parametrize("header", FORGED, ids=lambda header: header[:9])
def test_the_shard_is_scanned_again(tmp_path: Path, header: str) -> None:
    [shard] = write_samples(tmp_path, 2, shards=1)
    open_index(shard)
    body = index_file(shard).read_bytes()[:-32]
    forged = with_checksum(with_header(body, header))
    index_file(shard).write_bytes(forged)
    assert check_shards([shard], device_id=None).samples == 2
    index_file(shard).write_bytes(forged)
    with GPULoader(shard, 2, None, preset="imagenet_eval") as loader:
        assert len(loader) == 1
    assert ShardIndex.load(index_file(shard), shard).digest() == scan(shard).digest()


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_folder(path: Path) -> None:
    path.mkdir()


def make_huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: it takes no room on the disk


@pytest.mark.parametrize("make", [make_pipe, make_folder, make_huge])
def test_what_cannot_be_an_index_is_not_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    [shard] = write_samples(tmp_path, 2, shards=1)
    make(tmp_path / "train-0000.tar.gpuidx")
    assert open_index(shard).digest() == scan(shard).digest()


def test_no_index_of_a_scan_is_too_large_to_be_read(tmp_path: Path) -> None:
    """Members that are nothing but name, each byte of which is six in the header."""
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(1200):
            tar.addfile(tarfile.TarInfo(os.fsdecode(b"%d.jpg" % number + b"\xff" * (90 if number % 2 else 3000))))
            tar.addfile(tarfile.TarInfo(os.fsdecode(b".%d" % number + b"\xff" * 3000)))
        tar.addfile(tarfile.TarInfo("a.jpg"), io.BytesIO())
    open_index(tmp_path / "a.tar")
    assert len(ShardIndex.load(index_file(tmp_path / "a.tar"), tmp_path / "a.tar")) == 1
