"""Index files that are forged, checksum and all: `IndexFileError`, or an index that points into its shard alone."""

from __future__ import annotations

import io
import json
import os
import random
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from forging import Parts, parts_of, sealed, with_column
from hostile import mutated_bytes, mutated_json
from making import write_samples
from synthetic import saved_index

from gpuloader import GPULoader
from gpuloader.errors import IndexFileError
from gpuloader.shards import Index, index_file, open_index, resolve_shards
from gpuloader.shards.index import write_index
from gpuloader.shards.scan import scan
from gpuloader.tools.check import check_shards


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shard of 6 samples of three components each, and its index beside it."""
    [shard] = write_samples(tmp_path_factory.mktemp("forged"), 6, shards=1)
    open_index(shard)
    return shard


@pytest.fixture(scope="module")
def parts(shard: Path) -> Parts:
    """The content of the index file."""
    return parts_of(index_file(shard).read_bytes())


def use(index: Index) -> None:
    """All that the library asks an index; it may not reach outside the shard."""
    keys = list(index.each_key())
    assert [index.key(row) for row in range(len(index))] == keys
    places = [index.component(row, extension) for row in range(len(index)) for extension in index.extensions]
    places += zip(index.column("image_offset").tolist(), index.column("image_size").tolist(), strict=True)
    assert all(place is None or 0 <= place[0] <= place[0] + place[1] <= index.shard_bytes[0] for place in places)
    assert index.image_extensions().shape == index.column("label").shape == index.column("height").shape == (len(keys),)
    assert all(len(index.rows_without(extension)) <= len(keys) for extension in ("jpg", "npy", *index.extensions))
    assert len(index.digest()) == 32
    assert len(index.left_out) <= index.left_out_count[0]
    assert all(0 <= number < len(index.folders()) for number in index.column("folder").tolist())
    index.largest_image(10**6)
    Index.parse_one(index.to_bytes(), "again")


def refused(files: Iterator[Parts]) -> tuple[int, int]:
    """(how many, how many of them are no index); any error but IndexFileError goes on."""
    count, said = 0, []
    for parts in files:
        count += 1
        try:
            use(Index.parse_one(sealed(parts), "a.gpuidx"))
        except IndexFileError as error:
            said.append(str(error))
    assert all(each.startswith("a.gpuidx ") and len(each) < 500 for each in said)
    return count, len(said)


def test_headers_with_hostile_values(parts: Parts) -> None:
    header = json.loads(parts.header)
    header["left_out"] = [["a.txt", 512, "its key has no image", 0]]
    header["hidden"] = [3, ".x/a.jpg", 0]
    table = np.frombuffer(parts.table, "<i8").copy()
    table[3] = 1  # left_out_count
    listing = parts._replace(table=table.tobytes())
    assert refused(iter([listing._replace(header=json.dumps(header).encode())])) == (1, 0)
    count, wrong = refused(listing._replace(header=text.encode()) for text in mutated_json(header))
    assert count > 600
    assert wrong > 0.85 * count  # what is left changes names, numbers left out and the like


def test_columns_with_hostile_values(parts: Parts) -> None:
    header, rng = json.loads(parts.header), random.Random(0)

    def forged() -> Iterator[Parts]:
        for area, kinds in (("table", Index.HEAD), ("columns", Index.COLUMNS)):
            content, position = getattr(parts, area), 0
            for dtype, counted in kinds.values():
                kind = np.dtype("<i8" if dtype == "|V16" else dtype)
                limits = np.iinfo(kind)
                values = (-1, 0, 1, 2, 3, 9, 511, 2**31 - 1, 2**31, 2**62, limits.max - 1, limits.max, limits.min)
                length = np.dtype(dtype).itemsize * header["counts"][counted] // kind.itemsize
                if not length:
                    continue
                for value in (value for value in values if limits.min <= value <= limits.max):
                    for _ in range(12):
                        column = np.frombuffer(content, kind, length, position).copy()
                        column[rng.choice((0, len(column) - 1, rng.randrange(len(column)), slice(None)))] = value
                        changed = content[:position] + column.tobytes() + content[position + column.nbytes :]
                        yield parts._replace(**{area: changed})
                position += -(-kind.itemsize * length // 8) * 8

    count, wrong = refused(forged())
    assert count > 1000
    assert wrong > 0.4 * count  # any label is a label, any byte may stand in a key, and any time is a time


def test_bytes_changed_at_random(shard: Path, parts: Parts) -> None:
    """Right digests around any bytes, and any bytes with the digests that were there."""
    whole = index_file(shard).read_bytes()
    for data in mutated_bytes(whole, 1000):
        if data != whole:
            with pytest.raises(IndexFileError):
                Index.parse_one(data, "a.gpuidx")
    for area in ("header", "table", "columns"):
        count, wrong = refused(
            parts._replace(**{area: changed}) for changed in mutated_bytes(getattr(parts, area), 1000)
        )
        assert count == 1000
        assert wrong > 0.3 * count


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"key_end": lambda ends: ends[::-1]}, "its keys do not follow each other"),
        ({"key_end": lambda ends: ends * 0 + ends[-1]}, "its keys do not follow"),  # an empty key
        ({"key_end": lambda ends: ends - 1}, "its keys do not follow"),  # a byte that is in no key
        ({"component_end": lambda ends: ends + 1}, "its samples' components do not follow each other"),
        ({"component_end": lambda ends: ends - 2**62}, "its samples' components do not follow"),
        (
            {"component_extension": lambda numbers: numbers + 1},
            "its column component_extension has an impossible number",
        ),
        (
            {"component_extension": lambda numbers: numbers - 1},
            "its column component_extension has an impossible number",
        ),
        ({"folder": lambda numbers: numbers + 1}, "its column folder has an impossible number"),
        ({"height": lambda heights: -heights}, "an image has no possible height and width"),
        ({"width": lambda widths: widths * 0}, "an image has no possible height and width"),
        ({"orientation": lambda orientations: orientations + 9}, "its column orientation has an impossible number"),
        ({"traits": lambda traits: traits + 32}, "its column traits has an impossible number"),
        ({"label": lambda labels: labels + 1}, "a label is not one of those that its header says"),
    ],
)
def test_columns_that_contradict_each_other(
    shard: Path, changes: dict[str, Callable[[np.ndarray], np.ndarray]], says: str
) -> None:
    [(name, change)] = changes.items()
    with pytest.raises(IndexFileError, match=f"a.gpuidx is damaged: {says}"):
        Index.parse_one(with_column(index_file(shard).read_bytes(), name, change), "a.gpuidx")


def use_of_many(index: Index) -> None:
    """All that the library asks the index of several shards."""
    keys = list(index.each_key())
    assert [index.key(row) for row in range(len(index))] == keys
    largest = int(index.shard_bytes.max())
    places = [place for row in range(len(index)) for place in index.components(row)]
    assert all(0 <= offset <= offset + size <= largest for _, offset, size in places)
    rows = np.arange(len(index))
    for name in ("image_offset", "image_size", "height", "width", "orientation", "traits", "label"):
        assert index.at(name, rows).tolist() == index.column(name).tolist()
    assert index.image_extensions().shape == (len(keys),)
    assert all(len(index.rows_without(extension)) <= len(keys) for extension in ("jpg", "npy", *index.extensions))
    assert len(index.digest()) == 32
    assert index.data_digest_of_shards(0, len(index.sample_end)).samples == len(index)
    index.data_digest_of(0, len(index))


def test_the_index_of_several_shards_with_hostile_values(shard: Path) -> None:
    file = io.BytesIO()
    write_index(file, [scan(shard)] * 3, [scan(shard)] * 3, ["a.tar", "b.tar", "c.tar"])
    whole = parts_of(file.getvalue())
    use_of_many(Index.parse(sealed(whole), "a.gpuidx"))
    said = []
    for area in ("header", "table", "columns"):
        for changed in mutated_bytes(getattr(whole, area), 500):
            try:
                use_of_many(Index.parse(sealed(whole._replace(**{area: changed})), "a.gpuidx"))
            except IndexFileError as error:
                said.append(str(error))
    assert len(said) > 300
    assert all(each.startswith("a.gpuidx ") and len(each) < 500 for each in said)


FORGED = [b'{"a": ' * 5000, b"9" * 5000, b"NaN", b"[]", b'{"counts": {"samples": -1}}']


@pytest.mark.slow(kept=1)
@pytest.mark.parametrize("header", FORGED, ids=lambda header: header[:9].decode())
def test_the_shard_is_scanned_again(tmp_path: Path, header: bytes) -> None:
    [shard] = write_samples(tmp_path, 2, shards=1)
    open_index(shard)
    forged = sealed(parts_of(index_file(shard).read_bytes())._replace(header=header))
    index_file(shard).write_bytes(forged)
    assert check_shards([shard], device_id=None).samples == 2
    index_file(shard).write_bytes(forged)
    with GPULoader(shard, 2, None, preset="imagenet_eval") as loader:
        assert len(loader) == 1
    assert saved_index(shard).digest() == scan(shard).digest()


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


def test_a_head_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    """The file is as long as its head says, but takes no room on the disk."""
    [shard] = write_samples(tmp_path, 2, shards=1)
    open_index(shard)
    whole = index_file(shard).read_bytes()
    start = whole[:8] + (10 << 30).to_bytes(8, "little") + whole[16:56]

    def read(count: int, offset: int) -> bytes:
        assert count <= 2 << 30
        return start[offset : offset + count]

    message = "is damaged: a head of 53,687,091,200 bytes, more than 2,147,483,648"
    with pytest.raises(IndexFileError, match=message):
        Index(read, 60 << 30, "an index")
    with (tmp_path / "all.gpuset").open("wb") as file:
        file.write(start)
        file.truncate(60 << 30)
    with pytest.raises(IndexFileError, match=rf"{message}\. Run `gpuloader index --merge` again"):
        resolve_shards(tmp_path)


def test_no_index_of_a_scan_is_too_large_to_be_read(tmp_path: Path) -> None:
    """Members that are nothing but name, each byte of which is six in the header."""
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(1200):
            tar.addfile(tarfile.TarInfo(os.fsdecode(b"%d.jpg" % number + b"\xff" * (90 if number % 2 else 3000))))
            tar.addfile(tarfile.TarInfo(os.fsdecode(b".%d" % number + b"\xff" * 3000)))
        tar.addfile(tarfile.TarInfo("a.jpg"), io.BytesIO())
    open_index(tmp_path / "a.tar")
    assert len(saved_index(tmp_path / "a.tar")) == 1
