"""Checks that a tool's output files can be written, before the tool begins its work."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gpuloader.base.text import either
from gpuloader.errors import ConfigError

PICTURES = (".png", ".jpg", ".jpeg")


def check_output(path: str | Path, suffixes: Sequence[str] = ()) -> None:
    """Checks that a file can be written; its name must end in one of the suffixes, if there are any.

    Raises:
        ConfigError: the name ends in something else, the folder is missing, the path is a folder or a device, or you
            have no right to write there.
    """
    file = Path(path)
    if suffixes and file.suffix.lower() not in suffixes:
        raise ConfigError(f"{file}: allowed is a file that ends in {either(suffixes)}")
    if not file.parent.is_dir():
        raise ConfigError(f"{file}: there is no folder {file.parent}; name a file in one that exists")
    if file.exists() and not file.is_file():
        raise ConfigError(f"{file}: this is a folder or a device; name a file")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigError(f"{file} cannot be written; name a file where you may write")
