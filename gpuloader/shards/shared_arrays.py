"""Shares arrays between the processes of a machine: files in the user's cache folder, written once and then mapped.

A file is named by a digest of its source, so it is never out of date. It is removed after 90 days without use.

Unlike an index, a mapped array is not compared with its file before each use, because NumPy reads it directly. If a
program truncates the file, the kernel ends each process that reads beyond the new end. This library never truncates:
it writes files under another name first, and removes whole files, which stay mapped.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import platformdirs
from numpy.typing import NDArray

from gpuloader.base.atomic_files import atomic_file
from gpuloader.base.progress import say_if_long
from gpuloader.base.regular_file import check_regular
from gpuloader.errors import IndexFileError

MOST_PRIVATE = 1_000_000
"""The maximum numbers of an array in the memory of each process; larger arrays are shared."""

_SECONDS_KEPT = 90 * 24 * 3600
_log = logging.getLogger("gpuloader")

_Scalar = TypeVar("_Scalar", bound=np.generic)
_Opened = TypeVar("_Opened")


def shared(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    """Returns the array; an array of more than a million numbers becomes a read-only copy that processes share."""
    if array.size <= MOST_PRIVATE:
        return array
    digest = _digest(array)

    def opened(path: Path) -> NDArray[_Scalar]:
        check_regular(path)
        found = np.load(path, mmap_mode="r")
        if _digest(found) != digest:
            raise ValueError(f"{path} is damaged")
        return np.asarray(found)

    try:
        return open_kept(cache_folder() / f"kept-{digest}.npy", opened, lambda file: np.save(file, array))
    except OSError as error:
        _log.warning("each process has an array in its own memory, as it cannot be kept: %s", error)
        return array


def cache_folder() -> Path:
    """Returns this library's folder in the user's cache."""
    return platformdirs.user_cache_path("gpuloader")


def open_kept(path: Path, opened: Callable[[Path], _Opened], write: Callable[[IO[bytes]], None]) -> _Opened:
    """Opens the file KIND-NAME of the cache folder; if it is missing or damaged, one process at a time writes it.

    Raises:
        OSError: it cannot be read or written.
    """
    with suppress(FileNotFoundError, EOFError, ValueError, IndexFileError):
        return _use(path, opened)
    with _cache_lock():
        with suppress(FileNotFoundError, EOFError, ValueError, IndexFileError):  # another process wrote it
            return _use(path, opened)
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_unused(path)
        with atomic_file(path) as file:
            write(file)
        return _use(path, opened)


def _use(path: Path, opened: Callable[[Path], _Opened]) -> _Opened:
    found = opened(path)
    with suppress(OSError):  # the folder is read-only, or the file another user's
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
    return found


@contextmanager
def _cache_lock() -> Iterator[None]:
    """Holds the lock of the cache folder; without file locks, several processes may write the same file."""
    said = say_if_long("the index of these shards is prepared in %s, once on this machine", cache_folder())
    with said, ExitStack() as stack:
        with suppress(OSError):
            cache_folder().mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((cache_folder() / "set.lock").open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            stack.callback(fcntl.flock, lock, fcntl.LOCK_UN)  # a child that was forked since then has it open, too
        yield


def _remove_unused(path: Path) -> None:
    """Removes files of the same kind that were not used for 90 days."""
    for old in path.parent.glob(f"{path.name.partition('-')[0]}-*"):
        with suppress(OSError):  # another process removed it, or it is another user's
            if time.time() - old.stat().st_atime > _SECONDS_KEPT:
                old.unlink()


def _digest(array: NDArray[Any]) -> str:
    digest = hashlib.blake2b(f"{array.dtype.str} {array.shape} ".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
