"""The index of a shard on a store: the same as that of the same shard on a disk, however it is come by."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from making import jpeg, write_samples, write_shard
from serving import ENDLESS_BYTES, Server
from synthetic import with_columns

from gpuloader.errors import IndexFileError, ShardChangedError
from gpuloader.shards import Index, ShardSet, open_index, resolve_shards
from gpuloader.shards.remote import RemoteShard, ShardCache, open_remote
from gpuloader.shards.scan import scan

pytestmark = pytest.mark.slow(kept=4, of="remote indexes")

ROOM = 10**9
LARGE_BYTES = 2_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def opened(server: Server, folder: Path, *names: str) -> list[Index]:
    shards = [RemoteShard(f"{server.url}/{name}") for name in names]
    return [index for _, index in open_remote(shards, ShardCache(folder, ROOM))]


def large_shard(path: Path) -> Path:
    """A shard of 42 MB; in its last image, the size stands far behind the beginning."""
    image = jpeg(64, 48)
    long_comment = image[:2] + (b"\xff\xfe\xff\xff" + bytes(65533)) * 3 + image[2:]
    samples = [{"__key__": str(i), "jpg": image + bytes(LARGE_BYTES), "cls": b"%d" % i} for i in range(20)]
    return write_shard(path, [*samples, {"__key__": "far", "jpg": long_comment + bytes(LARGE_BYTES), "cls": b"7"}])


def test_it_is_that_of_the_same_shard_on_a_disk(server: Server, shards: list[Path], folder: Path) -> None:
    indexes = opened(server, folder, *(shard.name for shard in shards))
    for index, shard in zip(indexes, shards, strict=True):
        assert index.digest() == scan(shard).digest()
        assert index.left_out == scan(shard).left_out
    urls = [f"{server.url}/{shard.name}" for shard in shards]
    remote = ShardSet.open(resolve_shards(urls), cache=folder)
    mixed = ShardSet.open(resolve_shards([shards[0], urls[1]]), cache=folder)
    assert remote.fingerprint == mixed.fingerprint == ShardSet.open(shards).fingerprint


def test_it_is_kept_for_the_next_time(server: Server, folder: Path) -> None:
    first = opened(server, folder, "train-0000.tar")[0]
    sent = server.sent_bytes.total()
    shutil.copytree(folder, folder.parent / "elsewhere")
    assert opened(server, folder, "train-0000.tar")[0].digest() == first.digest()
    for file in folder.glob("*.tar"):
        file.unlink()
    assert opened(server, folder, "train-0000.tar")[0].digest() == first.digest()
    assert server.sent_bytes.total() == sent
    for file in (folder.parent / "elsewhere").glob("*.gpuidx"):
        file.write_bytes(b"damaged")
    assert opened(server, folder.parent / "elsewhere", "train-0000.tar")[0].digest() == first.digest()
    assert server.sent_bytes.total() == sent  # the shard is there still


def test_large_members_are_not_downloaded_to_index_them(server: Server, folder: Path) -> None:
    shard = large_shard(server.folder / "large.tar")
    [index] = opened(server, folder, "large.tar")
    assert index.digest() == scan(shard).digest()
    assert index.column("height")[-1] == 64
    assert server.sent_bytes["large.tar"] < shard.stat().st_size / 16
    assert not list(folder.glob("*.tar"))


@pytest.mark.parametrize("ranges", ["ignored", "refused"])
def test_without_ranges_a_shard_is_downloaded_to_index_it(server: Server, folder: Path, ranges: str) -> None:
    shard = large_shard(server.folder / "large.tar")
    server.ranges = ranges
    [index] = opened(server, folder, "large.tar")
    assert index.digest() == scan(shard).digest()
    assert server.sent_bytes["large.tar"] >= shard.stat().st_size


def test_small_members_are_downloaded_to_index_them(server: Server, folder: Path, tmp_path: Path) -> None:
    [shard] = write_samples(tmp_path / "many", 300, shards=1, sizes=[(160, 160)])
    shutil.copy(shard, server.folder / "many.tar")
    assert shard.stat().st_size > 2 * 2**20
    [index] = opened(server, folder, "many.tar")
    assert index.digest() == scan(shard).digest()
    assert len(list(folder.glob("*.tar"))) == 1
    assert server.sent_bytes["many.tar"] < 2 * shard.stat().st_size


def test_one_beside_the_shard_is_used(server: Server, folder: Path) -> None:
    expected = open_index(server.folder / "train-0000.tar")  # which leaves it there
    os.utime(server.folder / "train-0000.tar", ns=(1, 1))  # a store keeps no times
    for _ in range(2):
        assert opened(server, folder, "train-0000.tar")[0].digest() == expected.digest()
    assert server.sent_bytes["train-0000.tar"] == 0
    assert server.asked["GET", "train-0000.tar.gpuidx"] == 1


def test_one_beside_the_shard_that_is_of_other_content_is_an_error_once_that_comes(
    server: Server, folder: Path
) -> None:
    shard = server.folder / "train-0000.tar"
    index = scan(shard)
    with_columns(index, label=index.column("label") + 1).save(Path(f"{shard}.gpuidx"))
    shard_set = ShardSet.open([RemoteShard(f"{server.url}/{shard.name}")], cache=folder)
    for _ in range(2):  # also when it is asked again
        with pytest.raises(IndexFileError, match=r"train-0000\.tar\.gpuidx belongs to another shard: delete it on"):
            shard_set.read_component(0, "cls")
    assert {path.name for path in folder.iterdir()} == {"lock"}


def test_a_shard_that_is_not_what_was_read_of_it_before_is_an_error(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    shard = large_shard(server.folder / "large.tar")
    urls = [RemoteShard(f"{server.url}/large.tar")]
    indexed = ShardSet.open(urls, cache=folder)  # by parts
    stat, data = shard.stat(), bytearray(shard.read_bytes())
    place = indexed.column("image_offset").item(2) - 512
    data[place:] = bytes(len(data) - place)  # the archive ends before the third sample
    shard.write_bytes(data)
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # of the same size and tag
    for _ in range(2):  # also when it is asked again, and its index is gone
        with pytest.raises(IndexFileError, match=r"/large\.tar does not match its index\. If the store has an index "):
            indexed.read_component(0, "cls")
        assert not [path for path in folder.iterdir() if path.name != "lock"]
    again = ShardSet.open(urls, cache=folder)
    assert len(again) == 2
    assert again.read_component(0, "cls") == b"0"  # it is in the cache now
    with pytest.raises(IndexFileError):
        indexed.read_component(0, "cls")
    assert again.read_component(0, "cls") == b"0"


@pytest.mark.parametrize("suffix", [".gpuidx", ".sha256"])
def test_what_lies_beside_a_shard_is_not_read_without_end(server: Server, folder: Path, suffix: str) -> None:
    shard = server.folder / "train-0000.tar"
    name = f"{shard.name}{suffix}"
    (server.folder / name).write_bytes(b"a" * 64)
    server.fault(name, "endless")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpuloader.shards.remote.indexes.MOST_GIVEN_BYTES", 1 << 20)
        assert opened(server, folder, shard.name)[0].digest() == scan(shard).digest()
    assert server.sent_bytes[name] < ENDLESS_BYTES / 2


def test_a_shard_that_changes_while_it_is_scanned_is_an_error(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = large_shard(server.folder / "large.tar"), RemoteShard.read

    def change_and_read(shard: RemoteShard, *arguments: Any) -> bytes | None:  # noqa: ANN401
        os.utime(path, ns=(1, 1))
        return read(shard, *arguments)

    monkeypatch.setattr(RemoteShard, "read", change_and_read)
    with pytest.raises(ShardChangedError):
        opened(server, folder, "large.tar")
    assert not list(folder.glob("*.gpuidx"))
