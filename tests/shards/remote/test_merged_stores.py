"""One index of many shards on a store: what is asked for at the start, and what is noticed when it does not fit."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from changing import CHANGES
from lifecycles import loader, records
from making import write_samples
from serving import Server

from gpuloader import Cache
from gpuloader.errors import ConfigError, IndexFileError, ShardChangedError, ShardNotFoundError
from gpuloader.loading.loader import run_of
from gpuloader.shards import Arena, ShardSet, merge_indexes, merged, resolve_local, resolve_shards
from gpuloader.shards.remote.store import RemoteShard
from gpuloader.tools.index import index_shards

FILE = "all.gpuset"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shards of six samples each, in two folders, and their merged index. To be read only."""
    folder = tmp_path_factory.mktemp("tree")
    for shard in write_samples(folder / "a", 24, shards=4)[2:]:
        (folder / "b").mkdir(exist_ok=True)
        shard.rename(folder / "b" / shard.name)
    with Server(folder) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("user")))
        patch.setattr(merged, "_AT_ONCE", 3)
        index_shards(urls(server), output=str(folder / FILE))
    return folder


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder of the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    return tmp_path / "user" / "gpuloader"


@pytest.fixture
def server(tmp_path: Path, tree: Path) -> Iterator[Server]:
    """Serves a copy of the tree, with its times, of which the server makes the tags."""
    with Server(Path(shutil.copytree(tree, tmp_path / "served"))) as running:
        yield running


def urls(server: Server) -> list[str]:
    return [f"{server.url}/a/train-{{0000..0001}}.tar", f"{server.url}/b/train-{{0002..0003}}.tar"]


def opened(server: Server, cache: Path, limit_bytes: int = 10**9) -> ShardSet:
    return ShardSet.open(resolve_shards(f"{server.url}/{FILE}"), cache=cache, cache_bytes=limit_bytes)


def test_no_shard_is_asked_for_before_it_is_read(server: Server, tmp_path: Path, kept: Path) -> None:
    shards = opened(server, tmp_path / "cache")
    assert server.asked == {("HEAD", FILE): 3, ("GET", FILE): 1}
    [copy] = kept.glob("set-*.gpuidx")
    assert copy.read_bytes() == (server.folder / FILE).read_bytes()

    server.asked.clear()
    opened(server, tmp_path / "cache")  # another process of the machine
    assert server.asked == {("HEAD", FILE): 1}

    server.asked.clear()
    shards.read_images(np.array([7, 8]), Arena())
    name = "a/train-0001.tar"
    assert server.asked == {("HEAD", name): 2, ("GET", name): 1, ("GET", f"{name}.sha256"): 1}


def test_batches_states_and_digests_are_those_of_the_shards_one_by_one(server: Server, tmp_path: Path) -> None:
    for shuffle in ("full", "shards"):
        with (
            loader(sorted(server.folder.glob("*/*.tar")), 5, shuffle=shuffle) as local,
            loader(urls(server), 5, shuffle=shuffle, cache=Cache(tmp_path / "one")) as one_by_one,
            loader(f"{server.url}/{FILE}", 5, shuffle=shuffle, cache=Cache(tmp_path / "cache")) as together,
        ):
            expected = [records(batch) for batch in local]
            assert [records(batch) for batch in together] == expected
            assert run_of(together).shards.fingerprint == run_of(local).shards.fingerprint
            for begun, resumed in ((together, one_by_one), (one_by_one, together)):
                batches = iter(begun)
                next(batches), next(batches)
                resumed.load_state_dict(state := begun.state_dict())
                assert resumed.state_dict() == state
                assert [records(batch) for batch in resumed] == [records(batch) for batch in batches]


# What does not fit.


@pytest.mark.parametrize(
    ("change", "error"), [("touched", ShardChangedError), ("cut", ShardChangedError), ("removed", ShardNotFoundError)]
)
def test_a_shard_that_changed_is_named_when_it_is_downloaded(
    server: Server, tmp_path: Path, change: str, error: type[Exception]
) -> None:
    CHANGES[change](server.folder / "b" / "train-0002.tar")
    shards = opened(server, tmp_path / "cache")
    shards.read_images(np.array([0]), Arena())
    with pytest.raises(error, match=r"b/train-0002\.tar"):
        shards.read_images(np.array([12]), Arena())


def test_other_content_of_the_same_version_is_an_error(server: Server, tmp_path: Path) -> None:
    path = server.folder / "b" / "train-0002.tar"
    stat = path.stat()
    with tarfile.open(path) as tar:
        offset = tar.getmember("000012.cls").offset_data
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"7")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    shards = opened(server, tmp_path / "cache")
    with pytest.raises(IndexFileError, match=r"train-0002\.tar does not match"):
        shards.read_images(np.array([12]), Arena())


@pytest.mark.parametrize(
    "name",
    [
        *(
            "50%.tar",
            "100%25.tar",
            "%e9.tar",
            "caf%C3%A9/x.tar",
            "a%2fb.tar",
            "é/日本.tar",
            "a b/c d.tar",
            "a;v=1/x;2.tar",
        ),
        *("..a/x.tar", "a../x.tar", "a..b/x..tar", ".hidden/x.tar", "x.tar.", "a=1/b+c&d/x@y:z.tar", "%2525.tar"),
    ],
)
def test_odd_names_below_the_folder_are_names(name: str) -> None:
    assert merged._check_names(RemoteShard(f"https://host/a/{FILE}"), [name]) == []


def test_names_in_place_of_a_host_are_refused(server: Server) -> None:
    """The URL has no path, so that what follows its last slash would be a host."""
    index_there = opened(server, server.folder / "cache").index
    with pytest.raises(IndexFileError, match="not below its folder"):
        merged._check_names(RemoteShard(f"https://host{FILE}"), index_there.names)


def test_an_index_of_a_folder_is_of_one_split(server: Server, tmp_path: Path) -> None:
    shutil.copy(server.folder / "a" / "train-0000.tar", server.folder / "b" / "val-0000.tar")
    both = [*urls(server), f"{server.url}/b/val-0000.tar"]
    told = "has the splits train, val: name the shards of one of them, in braces or a list"  # HTTP cannot list
    with pytest.raises(ConfigError, match=told):
        index_shards(both, output=str(tmp_path / "all.gpuset"))
    index_shards(both, output=str(server.folder / "some.gpuset"))
    assert len(resolve_shards(f"{server.url}/some.gpuset")) == 5
    (server.folder / "some.gpuset").rename(server.folder / "all.gpuset")
    with pytest.raises(ConfigError, match=told):
        resolve_shards(f"{server.url}/all.gpuset")


def test_the_file_of_a_disk_is_none_of_a_store(server: Server, tmp_path: Path) -> None:
    with pytest.raises(IndexFileError, match="shards on a store: upload it"):
        resolve_shards(server.folder)
    merge_indexes(resolve_local(str(server.folder / "*/*.tar")), server.folder / FILE)
    with pytest.raises(IndexFileError, match=r"all\.gpuset is the index of shards on a disk: merge their URLs\. Run"):
        resolve_shards(f"{server.url}/{FILE}")
    with pytest.raises(ShardNotFoundError, match=r"no such object: .*/none\.gpuset"):
        resolve_shards(f"{server.url}/none.gpuset")


def test_a_file_that_cannot_be_kept_is_an_error(server: Server, tmp_path: Path, kept: Path) -> None:
    """It may be larger than the memory."""
    kept.parent.touch()
    with pytest.raises(ConfigError, match=rf"{FILE} cannot be kept as {kept}/.* \(.*\): make room"):
        opened(server, tmp_path / "cache")


# The command.


def test_what_cannot_be_merged_is_refused(server: Server, tmp_path: Path) -> None:
    shard = str(server.folder / "a" / "train-0000.tar")
    for shards, output, says in (
        (urls(server), None, rf"{server.url}/{FILE}: http:// cannot be written to: name a file by --output, and put"),
        (urls(server), "x.tar", r"x\.tar: name it \*\.gpuset"),
        ([*urls(server), shard], "x.gpuset", r"train-0000\.tar is on a disk"),
        ([shard, *urls(server)], "x.gpuset", r"is on a store, but only local"),
        ([shard], "s3://bucket/x.gpuset", r"train-0000\.tar is on a disk"),
        (urls(server), "s3://bucket/x.gpuset", r"a/train-0000\.tar is not below s3://bucket/"),
        (["s3://a/x.tar", "s3://b/x.tar"], None, r"s3://a/x\.tar is not below s3://: write"),
    ):
        with pytest.raises(ConfigError, match=says):
            index_shards(shards, merge=True, output=output)


@pytest.mark.slow(kept=3, of="s3")
@pytest.mark.parametrize("output", [None, "s3://bucket/data/some.gpuset"])
def test_the_command_writes_it_beside_the_shards(
    s3: Any,  # noqa: ANN401
    tmp_path: Path,
    output: str | None,
) -> None:
    local = write_samples(tmp_path / "local", 12, shards=2)
    for shard in local:
        s3.put_file(str(shard), f"bucket/data/{shard.name}")
    rows, written, unsaved = index_shards(["s3://bucket/data/"], merge=True, output=output)
    place = output or f"s3://bucket/data/{FILE}"
    assert ([row["samples"] for row in rows], str(written), unsaved) == ([6, 6], place, [])
    with loader(local) as near, loader(place, cache=Cache(tmp_path / "cache")) as far:
        assert [records(batch) for batch in far] == [records(batch) for batch in near]
    assert len(resolve_shards("s3://bucket/data/")) == 2
    s3.put_file(str(write_samples(tmp_path / "new", 4, shards=1)[0]), "bucket/data/train-0001.tar")
    with (
        pytest.raises(ShardChangedError, match=r"train-0001\.tar has .*when s3://bucket/data/.* was made\. Run"),
        loader(place, cache=Cache(tmp_path / "other"), shuffle="none") as far,
    ):
        list(far)
    index_shards(["s3://bucket/data/"], merge=True, output=output)
    with loader(place, cache=Cache(tmp_path / "other"), shuffle="none") as far:
        assert sum(len(batch["label"]) for batch in far) == 10
    s3.rm("bucket/data", recursive=True)
