"""Files that are there completely or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuloader.helpers.atomic_files import OtherWriterError, atomic_file, remove_leftovers, write_once


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


def test_another_writer_of_the_same_file_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(OtherWriterError, match=r"another process is writing .*, too: let one of them end first"),
        atomic_file(tmp_path / "a"),
    ):
        remove_leftovers([tmp_path / "a"])  # as it does where it begins
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    ("name", "removed"),
    [
        (".a.x1y2.tmp", True),
        (".b.tar.x1y2.tmp", True),
        (".c.x1y2.tmp", False),  # of a file that is not among them
        ("a.x1y2.tmp", False),  # not hidden
        (".a.x1y2", False),
        ("a", False),
    ],
)
def test_leftovers_are_those_of_the_files_named(tmp_path: Path, name: str, removed: bool) -> None:
    (tmp_path / name).touch()
    remove_leftovers([tmp_path / "a", tmp_path / "b.tar"])
    assert contents(tmp_path) == ({} if removed else {name: b""})


def test_what_a_writer_leaves_is_a_leftover(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "a") as file:
        left = Path(file.name).name
    (tmp_path / left).touch()
    remove_leftovers([tmp_path / "a"])
    assert contents(tmp_path) == {"a": b""}


def test_the_first_of_two_writers_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", lambda _: False)  # both looked before either wrote
        assert write_once(tmp_path / "a", b"first") == b"first"
        assert write_once(tmp_path / "a", b"second") == b"first"
    assert contents(tmp_path) == {"a": b"first"}
