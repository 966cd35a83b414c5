"""What all processes of a machine share: files in the user's cache folder, written once and then mapped.

A file is named by what it comes from, so it is never out of date. It is removed once no loader used it for 90 days. An
array is a NumPy file behind 64 bytes: the BLAKE2b of it, which is compared when it is opened.

Unlike an index, a mapped array is not compared with its file before each use, because NumPy uses it directly. Who cuts
the file makes the kernel end each process that reads beyond its new end. This library never does: it writes files under
another name first, and removes whole files, which those who mapped them keep.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import logging
import math
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import platformdirs
from numpy.typing import NDArray

from gpuloader.errors import IndexFileError
from gpuloader.helpers.atomic_files import atomic_file
from gpuloader.helpers.progress import say_if_long
from gpuloader.helpers.regular_file import open_regular

MOST_PRIVATE = 1_000_000
"""The most numbers that an array has in the memory of each process; larger ones are shared."""

_DIGEST_BYTES = 64  # so that the numbers begin at a multiple of 64 bytes, as in a NumPy file
_SECONDS_KEPT = 90 * 24 * 3600
_log = logging.getLogger("gpuloader")

_Scalar = TypeVar("_Scalar", bound=np.generic)
_Opened = TypeVar("_Opened")


def kept(what: str, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """Returns the array that `make` makes, read-only, from its file if there is one. Of processes that start together,
    one makes it.

    Args:
        what: says what it comes from; it must change if the array does.
        make: must not call `kept`.
    """
    digest = hashlib.blake2b(what.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    made: list[NDArray[Any]] = []

    def write(file: IO[bytes]) -> None:
        made.append(make())
        _write(file, made[0])

    try:
        return open_kept(cache_folder() / f"kept-{digest}.npy", _map, write)
    except (OSError, ValueError) as error:
        _log.warning("what was found in the index is found again at each start, as it cannot be kept: %s", error)
        return made[0] if made else make()


def shared(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    """Returns the array; if it has more than a million numbers, an equal one, read-only, that processes share."""
    if array.size <= MOST_PRIVATE:
        return array
    digest = hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=32).hexdigest()
    return kept(f"{array.dtype.str} {array.shape} {digest}", lambda: array)


def cache_folder() -> Path:
    """Returns the folder of the user's cache that has what this library writes."""
    return platformdirs.user_cache_path("gpuloader")


def open_kept(path: Path, opened: Callable[[Path], _Opened], write: Callable[[IO[bytes]], None]) -> _Opened:
    """Opens a file of the cache folder, KIND-NAME; writes it if it is not there or damaged, one process at a time.

    Raises:
        OSError: it cannot be read or written.
    """
    with suppress(FileNotFoundError, ValueError, IndexFileError):
        return _use(path, opened)
    with _cache_lock():
        with suppress(FileNotFoundError, ValueError, IndexFileError):  # another process wrote it
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
    """Holds the lock of the cache folder; where there are no locks, several processes may write the same file."""
    said = say_if_long("the index of these shards is prepared in %s, once on this machine", cache_folder())
    with said, ExitStack() as stack:
        with suppress(OSError):
            cache_folder().mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((cache_folder() / "set.lock").open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            stack.callback(fcntl.flock, lock, fcntl.LOCK_UN)  # a child that was forked since then has it open, too
        yield


def _remove_unused(path: Path) -> None:
    """Removes files of its kind that no loader used for 90 days."""
    for old in path.parent.glob(f"{path.name.partition('-')[0]}-*"):
        with suppress(OSError):  # another process removed it, or it is another user's
            if time.time() - old.stat().st_atime > _SECONDS_KEPT:
                old.unlink()


def _write(file: IO[bytes], array: NDArray[Any]) -> None:
    head, array = io.BytesIO(), np.asarray(array, order="C")
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(array))
    parts = (head.getvalue(), array.reshape(-1).view(np.uint8).data)
    digest = hashlib.blake2b(parts[0], digest_size=_DIGEST_BYTES)
    digest.update(parts[1])
    for part in (digest.digest(), *parts):
        file.write(part)


def _map(path: Path) -> NDArray[Any]:
    """Maps a file; raises OSError or ValueError if it is not there or damaged."""
    with io.FileIO(open_regular(path)) as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if hashlib.blake2b(memoryview(data)[_DIGEST_BYTES:], digest_size=_DIGEST_BYTES).digest() != data[:_DIGEST_BYTES]:
        raise ValueError(f"{path} is damaged")
    data.seek(_DIGEST_BYTES)
    np.lib.format.read_magic(data)
    shape, _, dtype = np.lib.format.read_array_header_1_0(data)
    return np.frombuffer(data, dtype, math.prod(shape), data.tell()).reshape(shape)
