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
from typing import IO

import numpy as np
import pytest
from numpy.typing import NDArray
from synthetic import synthetic_index

from gpuloader.shards.index_files import map_set
from gpuloader.shards.shared_arrays import _cache_lock, shared


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder; arrays of more than four numbers are shared."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("gpuloader.shards.shared_arrays.MOST_PRIVATE", 4)
    return tmp_path / "cache" / "gpuloader"


@pytest.mark.parametrize(
    "array", [np.arange(7), np.linspace(0, 1, 24).reshape(3, 8)[:, ::2], np.array([1, 2, 3, 4, 5], ">u2")], ids=str
)
def test_what_is_shared_is_mapped_read_only_and_written_once(array: NDArray[np.generic], cache: Path) -> None:
    for _ in range(2):
        found = shared(array)
        assert (found.dtype, found.shape, found.tolist()) == (array.dtype, array.shape, array.tolist())
        assert not found.flags.owndata
        assert not found.flags.writeable
    [file] = cache.glob("kept-*.npy")
    before = file.stat()
    os.utime(file, (0, before.st_mtime))
    shared(array)
    assert file.stat().st_atime > time.time() - 3600
    assert file.stat().st_ino == before.st_ino
    small = np.arange(4)
    assert shared(small) is small
    assert list(cache.glob("kept-*.npy")) == [file]


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"x" * 64),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"),
        lambda path: path.unlink(),
        make_pipe,
    ],
)
def test_a_file_that_is_damaged_or_gone_is_made_again(damage: Callable[[Path], None], cache: Path) -> None:
    shared(np.arange(5))
    [file] = cache.glob("kept-*.npy")
    damage(file)
    assert shared(np.arange(5)).tolist() == list(range(5))


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
    for _ in range(2):
        assert shared(np.arange(5)).tolist() == list(range(5))
        with nullcontext() if is_kept else pytest.raises(OSError, match=re.escape(os.strerror(number))):
            assert len(map_set("a", lambda file: file.write(index))) == 1
    assert list(cache.glob(".*")) == []


@pytest.mark.parametrize("kind", ["kept", "set"])
def test_what_was_not_used_for_long_is_removed(kind: str, cache: Path) -> None:
    cache.mkdir(parents=True)
    for days, stays in ((89, True), (91, False)):
        file = cache / f"{kind}-a"
        for each in (file, cache / "0123.gpuidx"):
            each.touch()
            os.utime(each, (time.time() - days * 24 * 3600, time.time()))
        if kind == "kept":
            shared(np.arange(days))
        else:
            map_set(str(days), lambda file: file.write(synthetic_index([b"1234567"], 1)))
        assert file.exists() == stays
        assert (cache / "0123.gpuidx").exists()


def test_of_those_that_begin_at_once_one_makes_it() -> None:
    """Threads wait for each other as processes do."""
    made = []

    def write(file: IO[bytes]) -> None:
        made.append(time.sleep(0.1))
        file.write(synthetic_index([b"1234567"], 1))

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: len(map_set("a", write)), range(4)))
    assert (found, len(made)) == ([1] * 4, 1)


def test_a_fork_does_not_hold_the_lock(cache: Path) -> None:
    with _cache_lock():
        fds = [int(fd.name) for fd in Path("/proc/self/fd").iterdir() if fd.resolve() == cache / "set.lock"]
        child = list(map(os.dup, fds))
    with (cache / "set.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert len(child) == 1
    os.close(child[0])
