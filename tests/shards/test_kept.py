"""Arrays in the cache folder: written once, mapped by all, made again when they are damaged."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from making import jpeg, write_shard
from numpy.typing import NDArray
from synthetic import synthetic_index

from gpuloader.shards import ShardSet, make_labels
from gpuloader.shards.index import SetIndex
from gpuloader.shards.index_files import map_set
from gpuloader.shards.kept import _cache_lock, kept, shared


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder; arrays of any size are shared."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("gpuloader.shards.kept.MOST_PRIVATE", 0)
    return tmp_path / "cache" / "gpuloader"


def never() -> NDArray[np.int64]:
    raise AssertionError


@pytest.mark.parametrize(
    "array",
    [
        np.arange(7),
        np.zeros(0, np.int64),
        np.array(5),
        np.linspace(0, 1, 12).reshape(3, 4)[:, ::2],
        np.array([1, 2], ">u2"),
    ],
    ids=str,
)
def test_what_is_kept_is_mapped_read_only_and_made_once(array: NDArray[np.generic], cache: Path) -> None:
    for make in (lambda: array, never):
        found = kept("a question", make)
        assert (found.dtype, found.shape, found.tolist()) == (array.dtype, array.shape, array.tolist())
        assert not found.flags.owndata
        assert not found.flags.writeable
    [file] = cache.glob("kept-*.npy")
    assert (file.stat().st_size - 64) >= array.nbytes
    os.utime(file, (0, file.stat().st_mtime))
    kept("a question", never)
    assert file.stat().st_atime > time.time() - 3600
    assert kept("another question", lambda: np.array([8])).tolist() == [8]


def test_only_large_arrays_are_shared(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuloader.shards.kept.MOST_PRIVATE", 10)
    small, large = np.arange(10), np.arange(11)
    assert shared(small) is small
    assert list(cache.glob("*")) == []
    assert shared(large).tolist() == large.tolist()
    assert shared(large + 1).tolist() == (large + 1).tolist()
    assert shared(large.astype(np.float64)).dtype == np.float64
    assert len(list(cache.glob("kept-*.npy"))) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"x" * 64),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: path.unlink(),
    ],
)
def test_a_file_that_is_damaged_or_gone_is_made_again(damage: Callable[[Path], None], cache: Path) -> None:
    kept("a", lambda: np.arange(5))
    [file] = cache.glob("kept-*.npy")
    damage(file)
    assert kept("a", lambda: np.arange(6)).tolist() == list(range(6))
    assert kept("a", never).tolist() == list(range(6))


@pytest.mark.parametrize(
    ("refused", "number", "is_kept"),
    [
        ("fcntl.flock", errno.ENOLCK, True),  # a file system without locks
        ("os.utime", errno.EROFS, True),
        ("mmap.mmap", errno.ENODEV, False),
        ("os.fsync", errno.ENOSPC, False),
        ("pathlib.Path.mkdir", errno.EACCES, False),
    ],
)
def test_what_the_cache_folder_refuses(
    refused: str, number: int, is_kept: bool, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(refused, refuse)
    index = synthetic_index([b"1234567"], 1)
    for make in (lambda: np.arange(5), never if is_kept else lambda: np.arange(5)):
        assert kept("a", make).tolist() == list(range(5))
        with nullcontext() if is_kept else pytest.raises(OSError, match=re.escape(os.strerror(number))):
            assert len(map_set("a", lambda file: file.write(index))) == 1
    assert list(cache.glob(".*")) == []


def test_only_a_regular_file_is_opened(cache: Path) -> None:
    kept("a", lambda: np.arange(5))
    [file] = cache.glob("kept-*.npy")
    file.unlink()
    os.mkfifo(file)
    assert kept("a", lambda: np.arange(6)).tolist() == list(range(6))


@pytest.mark.parametrize("kind", ["kept", "set"])
def test_what_was_not_used_for_long_is_removed(kind: str, cache: Path) -> None:
    cache.mkdir(parents=True)
    for name, days, stays in (
        (f"{kind}-a", 89, True),
        (f"{kind}-b", 91, False),
        ("0123.gpuidx", 91, True),
    ):
        (cache / name).touch()
        os.utime(cache / name, (time.time() - days * 24 * 3600, time.time()))
        if kind == "kept":
            kept(name, lambda: np.arange(5))
        else:
            map_set(name, lambda file: file.write(synthetic_index([b"1234567"], 1)))
        assert (cache / name).exists() == stays


def test_of_those_that_begin_at_once_one_makes_it() -> None:
    """Threads wait for each other as processes do."""
    made = []

    def make() -> NDArray[np.int64]:
        made.append(time.sleep(0.1))
        return np.arange(9)

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: kept("a question", make).tolist(), range(4)))
    assert (found, len(made)) == ([list(range(9))] * 4, 1)


def test_a_fork_does_not_hold_the_lock(cache: Path) -> None:
    with _cache_lock():
        fds = [int(fd.name) for fd in Path("/proc/self/fd").iterdir() if fd.resolve() == cache / "set.lock"]
        child = list(map(os.dup, fds))
    with (cache / "set.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert len(child) == 1
    os.close(child[0])


def test_what_a_mapped_index_says_of_all_samples_is_found_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.gpuidx"
    path.write_bytes(synthetic_index([b"%07d" % number for number in range(60_000)], 10))

    def facts(index: SetIndex) -> list[object]:
        shards = ShardSet([Path(f"{number}.tar") for number in range(10)], index)
        return [shards.seekable, shards.largest_image(20), shards.largest_image(19), shards.count_turned()]

    expected = [False, (4, 5), (0, 0), 0]
    assert facts(SetIndex.parse(path.read_bytes(), "in memory")) == expected
    assert list(cache.glob("*")) == []
    assert facts(SetIndex.map(path)) == expected
    monkeypatch.setattr(SetIndex, "column", never)
    assert facts(SetIndex.map(path)) == expected


@pytest.mark.parametrize("place", ["folder", "folder:top", "cls"])
def test_labels_of_a_mapped_index_are_those_in_memory(
    place: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [
        {"__key__": f"{top}/{name}/{i}", "jpg": jpeg(8, 8), "cls": b"%d" % i}
        for i, (top, name) in enumerate(["az", "bz", "bä", "ay", "bä"])
    ]
    shard = write_shard(tmp_path / "a.tar", samples)

    def labels() -> tuple[list[int], object, str | None]:
        found = make_labels(ShardSet.open([shard]), place)
        assert found is not None
        return found.of(np.arange(5)).tolist(), found.classes, found.digest

    in_memory = labels()
    assert in_memory[0] == {"folder": [1, 1, 2, 0, 2], "folder:top": [0, 1, 1, 0, 1], "cls": [0, 1, 2, 3, 4]}[place]
    assert list(cache.glob("kept-*.npy")) == []
    monkeypatch.setattr("gpuloader.shards.index_files.MOST_COPIED_BYTES", 0)
    assert labels() == labels() == in_memory
    assert len(list(cache.glob("kept-*.npy"))) >= 3
