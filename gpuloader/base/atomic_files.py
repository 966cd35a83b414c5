"""Writes files completely or not at all, even if others write them or this process is killed; adds members to tars.

A file that is being written is hidden, and its writer holds a lock on it (flock), which ends with its process. When a
process first writes in a folder, it removes the unlocked files of killed writers. Some file systems lock for one
machine only, so a hidden name has the machine, and files of other machines are removed a day later.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import tarfile


_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MACHINE = _BOOT.read_text()[:8] if _BOOT.exists() else os.urandom(4).hex()  # after a restart it is another one
_HIDDEN = re.compile(r"\..+\.([0-9a-f]{8})-\w{8}\.tmp")
_DAY_SECONDS = 24 * 3600


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file for writing. Its name is hidden until it is complete and on the disk; then it replaces the old one.

    If several write the same file, the last one wins.

    Raises:
        OSError: the file cannot be written. It names `path`, also for a full disk.
    """
    with _hidden(path) as file:
        yield file
        _to_disk(file)
        Path(file.name).replace(path)


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


def remove_leftovers(folder: Path) -> None:
    """Removes the files of killed writers from a folder: those that no process has locked. Without locks, all stay."""
    for path in folder.glob(".*.tmp"):
        if (name := _HIDDEN.fullmatch(path.name)) and path.is_file():
            with suppress(OSError), path.open("r+b") as file:  # it is in use, another user's, or there are no locks
                if name[1] == _MACHINE or time.time() - os.fstat(file.fileno()).st_mtime > _DAY_SECONDS:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()


def write_sample(tar: tarfile.TarFile, key: str, components: Mapping[str, bytes]) -> None:
    """Adds the members KEY.EXTENSION, sorted. The bytes depend on nothing else: times, users and modes are fixed."""
    for extension, data in sorted(components.items()):
        member = tar.tarinfo(f"{key}.{extension}")
        member.size, member.mode = len(data), 0o444
        tar.addfile(member, BytesIO(data))


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Names the file in an error of the operating system; Python does not, for example for a full disk."""
    try:
        yield
    except OSError as error:
        is_named = error.filename is not None and not _HIDDEN.fullmatch(Path(os.fsdecode(error.filename)).name)
        if error.errno is None or is_named:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


_look_once = cache(remove_leftovers)


@contextmanager
def _hidden(path: Path) -> Iterator[IO[bytes]]:
    _look_once(path.parent.absolute())
    with naming(path), _locked(path) as file:
        try:
            yield file
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _locked(path: Path) -> IO[bytes]:
    """Makes a hidden file, and locks it where there are locks."""
    while True:
        prefix = f".{path.name}.{_MACHINE}-"
        file = tempfile.NamedTemporaryFile(dir=path.parent, prefix=prefix, suffix=".tmp", delete=False)  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process has locked it to remove it; waiting might never end
            file.close()
            continue
        except OSError:  # there are no locks
            return file
        if os.path.lexists(file.name):
            return file
        file.close()  # before it was locked, another process removed it


def _to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fchmod(file.fileno(), 0o644)
    os.fsync(file.fileno())
