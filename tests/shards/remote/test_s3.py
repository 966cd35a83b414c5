"""Shards on S3, on a server of moto's that speaks its protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lifecycles import loader, records
from making import write_samples

from gpuloader import Cache
from gpuloader.errors import ConfigError, ShardNotFoundError
from gpuloader.shards import open_index, resolve_shards
from gpuloader.tools.index import index_shards

pytestmark = pytest.mark.slow(kept=3, of="s3")


@pytest.fixture
def bucket(s3: Any, tmp_path: Path) -> Iterator[Any]:  # noqa: ANN401
    """A file system with a bucket of four shards in a folder."""
    for shard in write_samples(tmp_path / "local", 40, shards=4):
        s3.put_file(str(shard), f"bucket/data/{shard.name}")
    s3.pipe("bucket/data/notes.txt", b"")
    s3.pipe("bucket/data/deep/train-0009.tar", b"")
    yield s3
    s3.rm("bucket/data", recursive=True)


@pytest.mark.parametrize(
    "tar",
    [
        "s3://bucket/data/train-{0000..0003}.tar",
        "s3://bucket/data/",
        "s3://bucket/data/train-*.tar",
        "s3://bucket/data/train-000?.tar",
        [f"s3://bucket/data/train-{number:04d}.tar" for number in range(4)],
    ],
    ids=str,
)
def test_each_form_gives_its_shards_in_order(bucket: Any, tar: Any) -> None:  # noqa: ANN401
    assert list(map(str, resolve_shards(tar))) == [f"s3://bucket/data/train-{number:04d}.tar" for number in range(4)]


def test_a_folder_has_one_split(bucket: Any) -> None:  # noqa: ANN401
    told = r"s3://bucket/data has the splits train, val: give s3://bucket/data/train-\*\.tar for one of them"
    bucket.cp_file("bucket/data/train-0000.tar", "bucket/data/val-0000.tar")
    with pytest.raises(ConfigError, match=told):
        resolve_shards("s3://bucket/data/")
    with pytest.raises(ConfigError, match=told):
        index_shards(["s3://bucket/data/"], merge=True)
    with pytest.raises(ConfigError, match=told):
        index_shards(["s3://bucket/data/*.tar"], merge=True)
    assert not bucket.exists("bucket/data/all.gpuset")
    index_shards(["s3://bucket/data/"])
    assert len(resolve_shards("s3://bucket/data/*.tar")) == len(resolve_shards("s3://bucket/data/", mixed=True)) == 5
    assert len(resolve_shards("s3://bucket/data/train-*.tar")) == 4


@pytest.mark.parametrize("given", ["indexes", "no indexes"])
def test_batches_are_those_of_the_same_shards_on_a_disk(bucket: Any, tmp_path: Path, given: str) -> None:  # noqa: ANN401
    shards = sorted((tmp_path / "local").glob("*.tar"))
    if given == "indexes":
        for shard in shards:
            open_index(shard)
            bucket.put_file(f"{shard}.gpuidx", f"bucket/data/{shard.name}.gpuidx")
    size = max(shard.stat().st_size for shard in shards)
    with (
        loader(shards) as local,
        loader("s3://bucket/data/", cache=Cache(tmp_path / "cache", max_bytes=2 * size)) as far,
    ):
        assert [records(batch) for batch in far] == [records(batch) for batch in local]
        assert far.state_dict() == local.state_dict()


@pytest.mark.parametrize(
    ("tar", "says"),
    [
        ("s3://bucket/nothing.tar", "no such object: s3://bucket/nothing.tar"),
        ("s3://elsewhere/a.tar", "no such object: s3://elsewhere/a.tar"),
        ("s3://bucket/nothing/", "no \\*.tar in the folder s3://bucket/nothing/: check the URL"),
        ("s3://bucket/val-*.tar", "no object matches s3://bucket/val-\\*.tar: check the URL"),
        ("s3://bucket/data", "s3://bucket/data is a folder: end its URL with a slash"),
    ],
    ids=str,
)
def test_what_is_not_there_is_said(bucket: Any, tmp_path: Path, tar: str, says: str) -> None:  # noqa: ANN401
    with pytest.raises(ShardNotFoundError, match=says):
        loader(tar, cache=Cache(tmp_path / "cache"))
