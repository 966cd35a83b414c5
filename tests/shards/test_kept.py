"""Arrays in the cache folder: written once, mapped by all, made again when they are damaged."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from making import jpeg, write_shard
from numpy.typing import NDArray
from synthetic import synthetic_index
from warm import Program

from gpuloader.shards import ShardSet, make_labels
from gpuloader.shards.index import SetIndex
from gpuloader.shards.kept import kept, shared


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


def test_without_a_cache_folder_each_process_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert shared(np.arange(5)).tolist() == list(range(5))
    assert "it cannot be kept" in caplog.text


def test_a_file_that_was_not_used_for_long_is_removed(cache: Path) -> None:
    for name, days in (("old", 91), ("young", 89)):
        kept(name, lambda: np.arange(5))
        [file] = (file for file in cache.glob("kept-*.npy") if file.stat().st_atime > time.time() - 3600)
        os.utime(file, (time.time() - days * 24 * 3600, file.stat().st_mtime))
    kept("young", never)  # it is used now
    kept("new", lambda: np.arange(5))
    kept("new", never)
    kept("young", never)
    assert len(list(cache.glob("kept-*.npy"))) == 2


def test_of_processes_that_start_at_once_one_makes_it(tmp_path: Path) -> None:
    work = (
        "import os, sys, time; import numpy as np; from gpuloader.shards.kept import kept\n"
        "def make():\n"
        "    open(sys.argv[1], 'a').write('made '); time.sleep(0.3); return np.arange(9)\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "print(kept('a question', make).tolist())"
    )
    processes = [
        Program(work, tmp_path / "made", text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in "abc"
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert {process.communicate(timeout=300)[0] for process in processes} == {f"{list(range(9))}\n"}
    assert (tmp_path / "made").read_text() == "made "


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
