"""Files that are there whole or not at all, whoever else writes them and whenever this process ends."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


class OtherWriterError(FileNotFoundError):
    """Another process took what this one was writing for a leftover."""


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write. It has a hidden name until it is complete and on the disk, and then replaces what is there.

    Raises:
        OtherWriterError: another process writes the same file.
    """
    with _hidden(path) as file:
        yield file
        _to_disk(file)
        try:
            Path(file.name).replace(path)
        except FileNotFoundError:
            raise OtherWriterError(f"another process writes {path} as well: let one of them end first") from None


def write_once(path: Path, content: bytes) -> bytes:
    """Writes a file that is not there yet, and says what is in it then: the first of several writers wins."""
    if not path.exists():
        with _hidden(path) as file:
            file.write(content)
            _to_disk(file)
            with suppress(FileExistsError):
                os.link(file.name, path)
            Path(file.name).unlink()
    return path.read_bytes()


def remove_leftovers(paths: Iterable[Path]) -> None:
    """Removes what those who were killed while they wrote these files have left."""
    ours = set(paths)
    for folder in {path.parent for path in ours}:
        for leftover in folder.glob(".*.tmp"):
            name = leftover.name[1:].removesuffix(".tmp").rpartition(".")[0]
            if folder / name in ours:
                leftover.unlink(missing_ok=True)


@contextmanager
def _hidden(path: Path) -> Iterator[IO[bytes]]:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp", delete=False) as file:
        try:
            yield file
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fchmod(file.fileno(), 0o644)
    os.fsync(file.fileno())
