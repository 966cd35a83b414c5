"""Reads files that others may have written: only regular files, and only up to a maximum size."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

Read: TypeAlias = Callable[[int, int], bytes]
"""Reads like `os.pread`: (count, offset) -> that many bytes of a file or a part of one, fewer at its end."""

_OTHER_KINDS = {stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}


def open_regular(path: Path) -> int:
    """Opens a regular file for reading, and returns its descriptor.

    Raises:
        OSError: it cannot be opened, or is a pipe, socket, device or folder.
    """
    check_regular(path)  # first, because opening some devices has side effects
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # otherwise opening a pipe waits for a writer
    try:
        _check_regular(os.fstat(fd), path)
    except OSError:
        os.close(fd)
        raise
    return fd


def check_regular(path: Path) -> None:
    """Checks that a path leads to a regular file.

    Raises:
        OSError: it leads nowhere, or to a pipe, socket, device or folder.
    """
    try:
        _check_regular(path.stat(), path)
    except ValueError:
        raise OSError(errno.EINVAL, "a path cannot have a null byte in it", str(path)) from None


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Reads a regular file of at most `most_bytes` bytes.

    Raises:
        OSError: it cannot be opened, is a pipe, device or folder, or is larger; then nothing was read.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > most_bytes:
            raise OSError(errno.EFBIG, f"{size_bytes} bytes, more than the {most_bytes} allowed", str(path))
        return file.read(size_bytes)


def _check_regular(status: os.stat_result, path: Path) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, f"not a regular file but a {_OTHER_KINDS.get(kind, 'device')}", str(path))
