"""The quarantine's file."""

import json
import os
import re
from pathlib import Path

import pytest
from full import full_disk
from making import write_samples

from gpuloader.errors import ConfigError, DataError
from gpuloader.shards import ShardSet, read_quarantine, write_quarantine

BAD = {19: "cut", 3: "empty"}


@pytest.fixture
def shards(tmp_path: Path) -> ShardSet:
    return ShardSet.open(write_samples(tmp_path / "shards", 20))


def test_what_is_written_is_read_again_in_the_order_of_the_samples(shards: ShardSet, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    write_quarantine(file, shards, BAD)
    assert list(read_quarantine(file, shards).items()) == [(3, "empty"), (19, "cut")]
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"shard": "train-0000.tar", "key": "000003", "offset": shards.locate(3).offset, "cause": "empty"},
        {"shard": "train-0001.tar", "key": "000019", "offset": shards.locate(19).offset, "cause": "cut"},
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"bad.jsonl", "shards"}


def test_a_link_to_it_stays_one(shards: ShardSet, tmp_path: Path) -> None:
    link = tmp_path / "link.jsonl"
    link.symlink_to(tmp_path / "bad.jsonl")
    for _ in range(2):
        write_quarantine(link, shards, BAD)
        assert link.is_symlink()
        assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == 2


def test_it_names_the_same_samples_where_the_shards_lie_elsewhere(shards: ShardSet, tmp_path: Path) -> None:
    write_quarantine(tmp_path / "bad.jsonl", shards, BAD)
    moved = ShardSet.open(sorted((tmp_path / "shards").rename(tmp_path / "moved").glob("*.tar"))[::-1])
    assert set(read_quarantine(tmp_path / "bad.jsonl", moved)) == {9, 13}  # the second shard comes first now


def test_what_is_no_file_is_not_replaced(shards: ShardSet, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(ConfigError, match="is a folder or device"):
            write_quarantine(path, shards, BAD)
    assert pipe.is_fifo()


def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_the_old_one(shards: ShardSet, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text("old")
    with full_disk(), pytest.raises(OSError, match=re.escape(f"'{file}'")):
        write_quarantine(file, shards, BAD)
    assert file.read_text() == "old"


def test_an_empty_file_names_nothing(shards: ShardSet, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").touch()
    assert read_quarantine(tmp_path / "bad.jsonl", shards) == {}


ENTRY = {"shard": "train-0000.tar", "key": "000003", "offset": 0, "cause": "cut"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "line 1: '' is not an entry of a quarantine"),
        ("{", "line 1: '{' is not an entry of a quarantine"),
        ("[]", "it needs shard (str), key (str), offset (int), cause (str)"),
        (json.dumps({**ENTRY, "offset": "3"}), "it needs shard"),
        (json.dumps(ENTRY), "no shard 'train-0000.tar' has an image with the key '000003' at byte 0"),
        (json.dumps({**ENTRY, "shard": "other.tar"}), "no shard 'other.tar'"),
    ],
)
def test_a_line_that_names_no_sample_is_an_error(shards: ShardSet, tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "bad.jsonl").write_text(line + "\n")
    with pytest.raises(DataError) as caught:
        read_quarantine(tmp_path / "bad.jsonl", shards)
    assert says in str(caught.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_an_error(shards: ShardSet, tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "bad.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.jsonl cannot be read"):
        read_quarantine(tmp_path / "bad.jsonl", shards)
