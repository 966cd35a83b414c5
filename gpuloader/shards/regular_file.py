"""Reading files that others may have written: only regular ones, and none that is larger than it can be."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file of at most that many bytes.

    Raises:
        OSError: it cannot be opened, is a pipe, device or folder, or is larger; nothing of it was read then.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # else opening a pipe waits for a writer
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if found.st_size > most_bytes:
            raise OSError(errno.EFBIG, f"{found.st_size} bytes, where at most {most_bytes} are read", str(path))
        return file.read(found.st_size)
