"""Files that a tool writes once its work is done: whether they can be written is seen before it begins."""

from __future__ import annotations

import os
from pathlib import Path

from gpuloader.errors import ConfigError


def check_output(path: str | Path) -> None:
    """Looks whether a file can be written.

    Raises:
        ConfigError: there is no such folder, a folder or device in the file's place, or no right to write there.
    """
    file = Path(path)
    if not file.parent.is_dir():
        raise ConfigError(f"{file}: there is no folder {file.parent}; name a file in one that exists")
    if file.exists() and not file.is_file():
        raise ConfigError(f"{file}: a folder or device is there; name a file")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigError(f"{file} cannot be written; name a file where you may write")
