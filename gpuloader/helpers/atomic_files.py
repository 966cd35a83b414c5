"""Writes files completely or not at all, even if others write them or this process is killed; and adds to tars."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import tarfile


class OtherWriterError(FileNotFoundError):
    """Another process took the file that this one was writing for a leftover, and removed it."""


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file for writing. Its name is hidden until it is complete and on the disk; then it replaces the old one.

    Raises:
        OtherWriterError: another process writes the same file.
    """
    with _hidden(path) as file:
        yield file
        _to_disk(file)
        try:
            Path(file.name).replace(path)
        except FileNotFoundError:
            raise OtherWriterError(f"another process is writing {path}, too: let one of them end first") from None


def write_once(path: Path, content: bytes) -> bytes:
    """Writes a file unless it exists, and returns its content: the first of several writers wins."""
    if not path.exists():
        with _hidden(path) as file:
            file.write(content)
            _to_disk(file)
            with suppress(FileExistsError):
                os.link(file.name, path)
            Path(file.name).unlink()
    return path.read_bytes()


def remove_leftovers(paths: Iterable[Path]) -> None:
    """Removes what writers of these files left behind when they were killed."""
    ours = set(paths)
    for folder in {path.parent for path in ours}:
        for leftover in folder.glob(".*.tmp"):
            name = leftover.name[1:].removesuffix(".tmp").rpartition(".")[0]
            if folder / name in ours:
                leftover.unlink(missing_ok=True)


def write_sample(tar: tarfile.TarFile, key: str, components: Mapping[str, bytes]) -> None:
    """Adds the members KEY.EXTENSION, sorted. The bytes depend on nothing else: times, users and modes are fixed."""
    for extension, data in sorted(components.items()):
        member = tar.tarinfo(f"{key}.{extension}")
        member.size, member.mode = len(data), 0o444
        tar.addfile(member, BytesIO(data))


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
