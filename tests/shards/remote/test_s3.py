"""Shards on S3, on a server of moto's that speaks its protocol."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lifecycles import loader, records
from making import write_samples

from gpuloader import Cache
from gpuloader.errors import ShardNotFoundError
from gpuloader.shards import open_index, resolve_shards
from gpuloader.shards.remote import requests

pytestmark = pytest.mark.slow(kept=7, of="s3")

SECRET = "hunter2"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    from moto.server import ThreadedMotoServer  # here, because it imports for seconds what no other test needs

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A file system with a bucket of four shards in a folder; credentials come from the environment, as S3's do."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    requests.file_system.cache_clear()
    files = requests.file_system("s3", os.getpid())
    files.mkdir("bucket")
    for shard in write_samples(tmp_path / "local", 40, shards=4):
        files.put_file(str(shard), f"bucket/data/{shard.name}")
    files.pipe("bucket/data/notes.txt", b"")
    files.pipe("bucket/data/deep/train-0009.tar", b"")
    yield files
    files.rm("bucket", recursive=True)
    requests.file_system.cache_clear()


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


@pytest.mark.parametrize("size", [0, 1 << 20], ids=["empty", "too large"])
def test_files_beside_a_shard_that_cannot_be_right_are_passed_over(
    bucket: Any,  # noqa: ANN401
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
) -> None:
    monkeypatch.setattr("gpuloader.shards.remote.indexes.MOST_GIVEN_BYTES", 1 << 19)
    for suffix in (".gpuidx", ".sha256"):
        bucket.pipe(f"bucket/data/train-0000.tar{suffix}", b"a" * size)
    with loader("s3://bucket/data/train-0000.tar", cache=Cache(tmp_path / "cache")) as batches:
        assert sum(len(batch["label"]) for batch in batches) == 10
