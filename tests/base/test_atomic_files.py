"""Files that are there completely or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from full import full_disk

from gpuloader.base import atomic_files
from gpuloader.base.atomic_files import atomic_file, remove_leftovers, write_once


def write_half(path: Path, error: type[BaseException]) -> None:
    with atomic_file(path) as file:
        file.write(b"ne")
        raise error


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("before", [{}, {"a": b"old"}], ids=["none", "one"])
def test_a_file_is_there_when_it_is_whole(tmp_path: Path, before: dict[str, bytes]) -> None:
    for name, content in before.items():
        (tmp_path / name).write_bytes(content)
    with atomic_file(tmp_path / "a") as file:
        file.write(b"ne")
        file.flush()
        assert {name: found for name, found in contents(tmp_path).items() if name[0] != "."} == before
        file.write(b"w")
    assert contents(tmp_path) == {"a": b"new"}
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_one_that_was_not_written_to_the_end_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(error):
        write_half(tmp_path / "a", error)
    assert contents(tmp_path) == {"a": b"old"}


def fill(path: Path) -> None:
    with full_disk(), atomic_file(path) as file:
        file.write(bytes(100_000))


def fill_once(path: Path) -> None:
    with full_disk():
        write_once(path, bytes(100))


def read_another(path: Path) -> None:
    with atomic_file(path) as file:
        file.write((path.parent / "other").read_bytes())


@pytest.mark.parametrize(
    ("write", "name", "error", "named"),
    [
        (fill, "a", errno.EFBIG, "a"),
        (fill, "new", errno.EFBIG, "new"),
        (fill_once, "new", errno.EFBIG, "new"),
        (fill, "folder/a", errno.ENOENT, "folder/a"),  # not the hidden name
        (read_another, "a", errno.ENOENT, "other"),  # it is another file that fails
    ],
)
def test_an_error_names_the_file_and_leaves_what_was_there(
    tmp_path: Path, write: Callable[[Path], None], name: str, error: int, named: str
) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(OSError, match=re.escape(f"'{tmp_path / named}'")) as raised:
        write(tmp_path / name)
    assert (raised.value.errno, raised.value.filename) == (error, str(tmp_path / named))
    assert contents(tmp_path) == {"a": b"old"}


def begun(path: Path) -> subprocess.Popen[bytes]:
    """A process that writes half a file, and waits for a line."""
    work = (
        "import sys; from pathlib import Path\n"
        "from gpuloader.base.atomic_files import atomic_file as new\n"
        "with new(Path(sys.argv[1])) as file: file.write(b'th'); print(flush=True); input(); file.write(b'eirs')"
    )
    process = subprocess.Popen([sys.executable, "-c", work, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"\n"
    return process


@pytest.mark.parametrize("name", ["a", "b"])
def test_what_a_killed_writer_left_is_removed_by_the_next_one(tmp_path: Path, name: str) -> None:
    with begun(tmp_path / "a") as process:
        assert len(contents(tmp_path)) == 1
        process.kill()
    assert len(contents(tmp_path)) == 1
    with atomic_file(tmp_path / name) as file:
        file.write(b"ours")
    assert contents(tmp_path) == {name: b"ours"}


def test_what_a_living_writer_has_is_left_alone(tmp_path: Path) -> None:
    with begun(tmp_path / "a") as process:
        with atomic_file(tmp_path / "a") as file:
            file.write(b"ours")
        remove_leftovers(tmp_path)
        assert contents(tmp_path)["a"] == b"ours"
        process.communicate(b"\n")
    assert contents(tmp_path) == {"a": b"theirs"}


HERE, ELSEWHERE = atomic_files._MACHINE, "0123abcd"


@pytest.mark.parametrize(
    ("name", "days", "removed"),
    [
        (f".a.{HERE}-x1y2z3_4.tmp", 0, True),
        (f".b.tar.{HERE}-x1y2z3_4.tmp", 0, True),
        (f".a.{ELSEWHERE}-x1y2z3_4.tmp", 0.9, False),  # its writer may live, and its lock may count there alone
        (f".a.{ELSEWHERE}-x1y2z3_4.tmp", 1.1, True),
        (f"a.{HERE}-x1y2z3_4.tmp", 2, False),  # not hidden
        (f".a.{HERE}-x1y2z3_4", 2, False),
        (".a.x1y2z3_4.tmp", 2, False),  # another program's
        (".a.tmp", 2, False),
        ("a", 2, False),
    ],
)
def test_leftovers_are_those_of_writers_that_are_gone(tmp_path: Path, name: str, days: float, removed: bool) -> None:
    (tmp_path / name).touch()
    changed = time.time() - days * 24 * 3600
    os.utime(tmp_path / name, (changed, changed))
    remove_leftovers(tmp_path)
    assert contents(tmp_path) == ({} if removed else {name: b""})


def test_where_there_are_no_locks_files_are_written_and_leftovers_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    left = f".a.{HERE}-x1y2z3_4.tmp"
    (tmp_path / left).touch()
    monkeypatch.setattr("fcntl.flock", refuse)
    with atomic_file(tmp_path / "a") as file:
        file.write(b"ours")
    remove_leftovers(tmp_path)
    assert contents(tmp_path) == {"a": b"ours", left: b""}


def test_a_file_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, made = fcntl.flock, []

    def late(file: IO[bytes], kind: int) -> None:
        made.extend(tmp_path.iterdir())
        if len(made) == 1:
            made[0].unlink()  # by another process
        lock(file, kind)

    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", late)
        with atomic_file(tmp_path / "a") as file:
            file.write(b"ours")
    assert len(made) == 2
    assert contents(tmp_path) == {"a": b"ours"}


def test_a_file_that_another_process_has_locked_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, others = fcntl.flock, []

    def second(file: IO[bytes], kind: int) -> None:
        if not others:
            others.append(Path(file.name).open("rb"))  # noqa: SIM115 - as another process has it
            lock(others[0], fcntl.LOCK_EX)
        lock(file, kind)

    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", second)
        with atomic_file(tmp_path / "a") as file:
            file.write(b"ours")
    with others[0]:
        assert (tmp_path / "a").read_bytes() == b"ours"
    remove_leftovers(tmp_path)
    assert contents(tmp_path) == {"a": b"ours"}


def test_the_first_of_two_writers_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", lambda _: False)  # both looked before either wrote
        assert write_once(tmp_path / "a", b"first") == b"first"
        assert write_once(tmp_path / "a", b"second") == b"first"
    assert contents(tmp_path) == {"a": b"first"}
