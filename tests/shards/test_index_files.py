"""Where indexes are kept, and making those that are missing."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from full import full_disk
from making import unpack, write_samples, write_shard
from synthetic import saved_index, with_columns
from warm import Program, warm

from gpuloader.errors import ConfigError, TarError
from gpuloader.shards import Folder, index_file, keep_beside, open_index, open_indexes, open_set
from gpuloader.shards.scan import scan


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """A shard of five samples in a folder of its own."""
    return write_samples(tmp_path / "shards", 5, shards=1)[0]


@pytest.fixture
def read_only(shard: Path) -> Iterator[Path]:
    """The same in a folder that nobody may write to."""
    shard.parent.chmod(0o555)
    yield shard
    shard.parent.chmod(0o755)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def cache_folder() -> Path:
    return Path(os.environ["XDG_CACHE_HOME"]) / "gpuloader"


def test_an_index_is_kept_beside_its_shard(shard: Path) -> None:
    index = open_index(shard)
    assert names_in(shard.parent) == ["train-0000.tar", "train-0000.tar.gpuidx"]
    assert index_file(shard) == shard.parent / "train-0000.tar.gpuidx"
    assert index.digest() == saved_index(shard).digest() == scan(shard).digest()


def test_an_index_is_kept_in_the_cache_where_the_folder_has_no_write_bit(read_only: Path) -> None:
    index = open_index(read_only)
    assert names_in(read_only.parent) == ["train-0000.tar"]
    assert index_file(read_only).parent == cache_folder()
    assert index.digest() == saved_index(read_only).digest() == scan(read_only).digest()


def test_a_file_in_the_cache_is_that_of_one_shard_however_it_is_named(
    read_only: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(read_only.parent)
    (tmp_path / "link").symlink_to(read_only.parent)
    assert index_file(read_only) == index_file(Path(read_only.name)) == index_file(tmp_path / "link" / read_only.name)
    other = write_samples(tmp_path / "other", 5, shards=1)[0]
    other.parent.chmod(0o555)
    assert index_file(read_only) != index_file(other)


def test_an_index_file_that_is_right_is_used_and_left_as_it_is(shard: Path) -> None:
    with_columns(scan(shard), label=scan(shard).column("label") + 100).save(index_file(shard))
    before = index_file(shard).stat()
    assert open_index(shard).column("label").tolist() == [100, 101, 102, 103, 104]
    assert open_set(open_indexes([shard])).column("label").tolist() == [100, 101, 102, 103, 104]
    assert index_file(shard).stat() == before


def test_an_index_that_cannot_be_saved_is_named_with_its_file(shard: Path, caplog: pytest.LogCaptureFixture) -> None:
    with full_disk():
        assert len(open_index(shard)) == 5
    [message] = caplog.messages
    assert str(shard) in message
    assert f"'{index_file(shard)}'" in message


def make_older(path: Path) -> None:
    os.utime(path.with_suffix(""), ns=(1, 1))  # the shard


def rewrite(path: Path) -> None:
    write_samples(path.parent, 7, shards=1)


@pytest.mark.parametrize("change", [make_older, rewrite])
def test_an_index_file_of_another_shard_is_made_again(shard: Path, change: Callable[[Path], None]) -> None:
    open_index(shard)
    change(index_file(shard))
    assert open_index(shard).digest() == scan(shard).digest()
    assert saved_index(shard).digest() == scan(shard).digest()
    assert names_in(shard.parent) == ["train-0000.tar", "train-0000.tar.gpuidx"]


@pytest.fixture
def folder(shard: Path, tmp_path: Path) -> Iterator[Path]:
    """The same samples as files in a folder, which has no index yet."""
    yield unpack([shard], tmp_path / "in" / "photos")
    index_file(Folder(tmp_path / "in" / "photos")).unlink(missing_ok=True)


def test_the_index_of_a_folder_is_in_the_cache_until_it_should_be_beside_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_cache = index_file(Folder(folder))
    open_index(Folder(folder))
    assert (in_cache.parent, in_cache.exists(), names_in(folder.parent)) == (cache_folder(), True, ["photos"])
    monkeypatch.chdir(folder)
    keep_beside(Folder(Path()))
    beside = folder.parent / "photos.gpuidx"
    assert names_in(folder.parent) == ["photos", "photos.gpuidx"]
    assert beside.read_bytes() == in_cache.read_bytes()
    in_cache.unlink()
    before = beside.stat().st_mtime_ns
    assert len(open_index(Folder(folder))) == 5
    assert beside.stat().st_mtime_ns == before


def test_an_index_beside_a_folder_stays_there_when_it_is_made_again(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep_beside(Folder(folder))
    beside, in_cache = index_file(Folder(folder)), sorted(cache_folder().iterdir())
    for file in folder.glob("000001.*"):
        file.unlink()
    assert len(open_index(Folder(folder))) == 4
    assert f"{folder} changed since it was indexed: it is indexed again" in caplog.text
    assert index_file(Folder(folder)) == beside
    assert len(saved_index(Folder(folder))) == 4
    assert sorted(cache_folder().iterdir()) == in_cache


def test_the_index_of_a_folder_in_a_read_only_one_stays_in_the_cache(folder: Path) -> None:
    folder.parent.chmod(0o555)
    keep_beside(Folder(folder))
    assert names_in(folder.parent) == ["photos"]
    assert len(saved_index(Folder(folder))) == 5
    folder.parent.chmod(0o755)


def test_an_index_that_cannot_be_beside_its_folder_is_an_error(folder: Path) -> None:
    (folder.parent / "photos.gpuidx").mkdir()
    assert index_file(Folder(folder)).parent == cache_folder()
    with pytest.raises(ConfigError, match=r"photos\.gpuidx: .* cannot be written there"):
        keep_beside(Folder(folder))


def test_many_indexes_come_in_the_order_of_their_shards(tmp_path: Path) -> None:
    for number in range(30):
        write_shard(tmp_path / f"{number}.tar", [{"__key__": f"{number}-{i}", "jpg": b""} for i in range(number)])
    paths = [tmp_path / f"{number}.tar" for number in (*range(29, -1, -2), *range(0, 29, 2))]
    counts = [*range(29, -1, -2), *range(0, 29, 2)]
    for _ in ("none is there", "all are there"):
        assert [index.counts["samples"] for index in open_indexes(paths)] == counts
        for path in paths[::3]:  # and then some are
            index_file(path).unlink()
    assert [index.counts["samples"] for index in open_indexes(paths)] == counts


def test_a_shard_that_is_no_tar_is_an_error_that_names_it(tmp_path: Path) -> None:
    shards = write_samples(tmp_path, 20, shards=10)
    shards[7].write_bytes(b"x" * 5000)
    with pytest.raises(TarError, match=r"train-0007\.tar: not a tar file"):
        open_indexes(shards)
    assert not index_file(shards[7]).exists()
    assert not [name for name in names_in(tmp_path) if name.startswith(".")]


def test_processes_that_start_at_once_all_end_with_right_indexes(tmp_path: Path) -> None:
    shards = write_samples(tmp_path, 60, shards=20)
    work = (
        "import sys; from pathlib import Path; from gpuloader.shards import open_indexes\n"
        "shards = [Path(name) for name in sys.argv[1:]]\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "print(*[index.loaded().digest().hex() for index in open_indexes(shards)])"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    processes = [Program(work, *shards, text=True, **pipes) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    expected = [scan(shard).digest() for shard in shards]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        output, _ = process.communicate(timeout=300)
        assert output.split() == [digest.hex() for digest in expected]
    assert [saved_index(shard).digest() for shard in shards] == expected
    assert names_in(tmp_path) == sorted(f"{shard.name}{end}" for shard in shards for end in ("", ".gpuidx"))


def test_an_index_that_cannot_be_written_whole_is_used_and_leaves_nothing_behind(shard: Path) -> None:
    work = (
        "import resource, sys; from pathlib import Path; from gpuloader.shards import open_index\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"  # as a full disk: writing more fails
        "print(open_index(Path(sys.argv[1])).digest().hex())"
    )
    result = warm().run(work, shard)
    assert result.stdout.strip() == scan(shard).digest().hex()
    assert "cannot be saved, so it will be made again next time" in result.stderr
    assert names_in(shard.parent) == ["train-0000.tar"]


def test_a_cache_that_cannot_be_used_is_no_error(
    read_only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert open_index(read_only).digest() == scan(read_only).digest()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"the index of {read_only} cannot be saved" in record.getMessage()


def test_an_index_that_came_with_a_read_only_folder_is_used(tmp_path: Path) -> None:
    [shard] = write_samples(tmp_path / "shared", 4, shards=1)
    marked = with_columns(scan(shard), label=scan(shard).column("label") + 100)
    marked.save(index_file(shard))
    shard.parent.chmod(0o555)
    assert open_index(shard).digest() == marked.digest()
    assert not index_file(shard).exists()
