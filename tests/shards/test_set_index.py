"""`Index`: the samples of many shards as one, in memory or mapped; what happens to a file that is mapped."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from changing import CHANGES
from forging import BLOCK_BYTES
from making import jpeg, write_shard
from synthetic import synthetic_index
from warm import warm

from gpuloader.errors import IndexFileError
from gpuloader.shards import ShardSet, open_index, open_indexes, open_set
from gpuloader.shards.index import Index, write_index

KEYS = [b"%07d" % number for number in range(60_000)]


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Indexes of any size are mapped; the cache folder is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("gpuloader.shards.index_files.MOST_COPIED_BYTES", 0)


@pytest.fixture
def mixed(tmp_path: Path) -> list[Path]:
    """Shards that differ in their extensions, with one that has no samples and one with members left out."""
    return [
        write_shard(tmp_path / "0.tar", [{"__key__": f"a{i}", "jpg": jpeg(20, 30), "cls": b"1"} for i in range(3)]),
        write_shard(tmp_path / "1.tar", []),
        write_shard(tmp_path / "2.tar", [{"__key__": "b", "json": b"{}", "png": b"x", "cls": b"2"}, {"__key__": "c"}]),
        write_shard(
            tmp_path / "3.tar", [{"__key__": "ü", "txt": b"", "jpg": jpeg(8, 9)}, {"__key__": "d", "txt": b""}]
        ),
    ]


def set_files() -> list[Path]:
    return sorted((Path(os.environ["XDG_CACHE_HOME"]) / "gpuloader").glob("set-*.gpuidx"))


# One index of many.


def test_it_has_the_samples_of_the_shards_in_order(mixed: list[Path]) -> None:
    indexes = [open_index(shard) for shard in mixed]
    merged = Index.joined(indexes)
    assert merged.extensions == ("cls", "jpg", "json", "png", "txt")
    assert merged.sample_end.tolist() == [3, 3, 4, 5]
    assert merged.shard_bytes.tolist() == [shard.stat().st_size for shard in mixed]
    assert merged.shard_mtime_ns.tolist() == [shard.stat().st_mtime_ns for shard in mixed]
    assert merged.left_out_count.tolist() == [0, 0, 0, 1]
    assert [(item.name, item.shard) for item in merged.left_out] == [("d.txt", 3)]
    digests = [index.data_digest_of_shards(0, 1) for index in indexes]
    assert [merged.data_digest_of_shards(number, number + 1) for number in range(4)] == digests
    assert [merged.digest(number) for number in range(4)] == [index.digest() for index in indexes]
    rows = [(index, row) for index in indexes for row in range(len(index))]
    assert len(merged) == len(rows) == 5
    for sample, (index, row) in enumerate(rows):
        assert merged.key(sample) == index.key(row)
        assert merged.components(sample) == index.components(row)
        for name in ("image_offset", "image_size", "height", "width", "orientation", "traits", "label"):
            assert merged.column(name)[sample] == merged.at(name, np.array([sample]))[0] == index.column(name)[row]
    assert merged.rows_without("cls").tolist() == [4]
    assert merged.rows_without("txt").tolist() == [0, 1, 2, 3]


def test_hidden_pictures_are_counted_over_all_shards_and_the_first_is_named(tmp_path: Path) -> None:
    members = [["a"], ["./.x/1", "./.x/2", "b"], ["__MACOSX/1", "../c"]]
    shards = [
        write_shard(tmp_path / f"{number}.tar", [{"__key__": key, "jpg": jpeg(8, 9)} for key in keys])
        for number, keys in enumerate(members)
    ]
    merged = Index.joined([open_index(shard) for shard in shards])
    assert [merged.key(row) for row in range(len(merged))] == ["a", "b", "../c"]
    assert merged.facts["hidden"] == [3, "./.x/1.jpg", 1]
    assert merged.left_out_count.tolist() == [0, 0, 0]
    assert open_index(shards[0]).facts["hidden"] == []


def test_a_merged_index_names_its_shards_and_comes_back(mixed: list[Path], tmp_path: Path) -> None:
    opened = open_indexes(mixed)
    with (tmp_path / "all.gpuidx").open("w+b") as file:
        write_index(file, opened, (each.loaded() for each in opened), [p.name for p in mixed])
    read = Index.map(tmp_path / "all.gpuidx")
    assert read.names == ["0.tar", "1.tar", "2.tar", "3.tar"]
    assert list(read.each_key()) == ["a0", "a1", "a2", "b", "ü"]
    assert read.digest() == open_set(opened).digest()


# Mapping.


@pytest.mark.usefixtures("mapped")
def test_a_mapped_index_is_that_in_memory(mixed: list[Path]) -> None:
    opened = ShardSet.open(mixed)
    in_memory = Index.joined([open_index(shard) for shard in mixed])
    (file,) = set_files()
    assert file.stat().st_size == in_memory.file_bytes
    for name in Index.COLUMNS:
        column = opened.index.column(name)
        assert column.tolist() == in_memory.column(name).tolist()
        assert not column.flags.owndata  # the pages of the file, which all processes share
        assert not column.flags.writeable
    before = file.stat()
    again = ShardSet.open(mixed)
    assert (set_files(), file.stat().st_ino, file.stat().st_mtime_ns) == ([file], before.st_ino, before.st_mtime_ns)
    assert again.fingerprint == opened.fingerprint


@pytest.mark.usefixtures("mapped")
def test_without_a_cache_folder_the_index_is_in_memory(
    shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(ShardSet.open(shards)) == 40
    assert "each process has the index of all shards in its own memory" in caplog.text


# Files that change while they are mapped.


CHANGE = """
import os, sys, time
from pathlib import Path
import numpy as np
from changing import CHANGES
from gpuloader.shards.index import Index
path = Path(sys.argv[1])
index = Index.map(path)
index.column("label")
print("opened", flush=True)
CHANGES[sys.argv[2]](path)
for use in (lambda: index.column("label"), lambda: index.key(59_999), lambda: index.at("height", np.arange(60_000))):
    try:
        print(use())
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.parametrize("change", ["cut", "emptied", "overwritten", "grown"])
def test_a_mapped_file_that_is_changed_is_an_error_and_no_signal(tmp_path: Path, change: str) -> None:
    path = tmp_path / "a.gpuidx"
    path.write_bytes(synthetic_index(KEYS, 10))
    os.utime(path, ns=(0, 0))
    result = warm().run(CHANGE, path, change)
    assert result.returncode == 0, result.stderr
    opened, *errors = result.stdout.splitlines()
    assert opened == "opened"
    assert len(errors) == 3
    assert all("IndexFileError" in error and "was cut or overwritten while it was in use" in error for error in errors)


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_a_mapped_file_that_loses_its_name_is_used_on(tmp_path: Path, change: str) -> None:
    path = tmp_path / "a.gpuidx"
    path.write_bytes(synthetic_index(KEYS, 10))
    index = Index.map(path)
    CHANGES[change](path)
    assert index.key(59_999) == "0059999"
    assert index.column("label").tolist() == list(range(60_000))


# Damage.


def test_a_block_is_checked_when_it_is_first_used(tmp_path: Path) -> None:
    """Of a file of several blocks, only what is damaged cannot be used, and it is never used."""
    path = tmp_path / "a.gpuidx"
    data = synthetic_index(KEYS, 10)
    head_at = int.from_bytes(data[8:16], "little")
    assert head_at - 56 > 3 * BLOCK_BYTES
    path.write_bytes(data[: head_at - 1] + b"?" + data[head_at:])  # in the last key
    index = Index.map(path)
    assert index.column("image_offset").tolist() == list(range(60_000))
    assert index.at("height", np.array([0, 59_999])).tolist() == [4, 4]
    for use in (lambda: index.key(59_999), lambda: list(index.each_key())):
        with pytest.raises(IndexFileError, match=r"a\.gpuidx is damaged: the digest of block \d is wrong"):
            use()


@pytest.mark.usefixtures("mapped")
def test_a_damaged_file_of_the_cache_is_removed_and_made_again(shards: list[Path]) -> None:
    expected = list(ShardSet.open(shards).index.each_key())
    (file,) = set_files()
    content = file.read_bytes()
    head_at = int.from_bytes(content[8:16], "little")
    file.write_bytes(content[: head_at - 20] + bytes(20) + content[head_at:])
    with pytest.raises(IndexFileError, match="It was removed: make the loader again"):
        list(ShardSet.open(shards).index.each_key())
    assert set_files() == []
    assert list(ShardSet.open(shards).index.each_key()) == expected
    file.write_bytes(b"x" + content[1:])  # a head is checked at once
    assert list(ShardSet.open(shards).index.each_key()) == expected


# What the set holds in memory.


def test_accepted_sizes_take_a_bit_a_sample(tmp_path: Path) -> None:
    index = Index.parse(synthetic_index(KEYS, 10), "synthetic")
    accepted = ShardSet([Path(f"{number}.tar") for number in range(10)], index).accepted
    assert accepted.of(np.array([0, 7, 59_999])).tolist() == [[0, 0]] * 3
    for sample in range(0, 60_000, 7):
        accepted.note(sample, (4, 5))
    ids = np.arange(60_000)
    assert accepted.of(ids).tolist() == [[4, 5] if sample % 7 == 0 else [0, 0] for sample in range(60_000)]
    [marks] = [value for value in vars(accepted).values() if isinstance(value, dict)]  # by the copies' sides
    held = sum(each.nbytes for each in marks.values())
    assert held == 60_000 / 8
    accepted.note(6001, (70, 80))  # another size than the index's: not noted
    assert accepted.of(np.array([6000, 6001, 6002, 6006])).tolist() == [[0, 0], [0, 0], [0, 0], [4, 5]]
    accepted.forget(1)  # samples 6000 to 11,999
    assert accepted.of(ids[6000:12_000]).any() == False  # noqa: E712
    assert accepted.of(np.array([5999, 12_005])).tolist() == [[4, 5], [4, 5]]
