"""What happens to a file while it is in use, by names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(512))


def overwrite(path: Path) -> None:
    """In place, and as long as before."""
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.write(content[::-1])


def replace_by_another(path: Path) -> None:
    path.with_name("other").write_bytes(b"x")
    path.with_name("other").replace(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: os.truncate(path, 4096),
    "emptied": lambda path: path.write_bytes(b""),
    "overwritten": overwrite,
    "grown": grow,
    "touched": lambda path: os.utime(path, ns=(0, path.stat().st_mtime_ns + 1)),
    "removed": Path.unlink,
    "replaced": replace_by_another,
}
