"""Finds `jpegtran` of libjpeg-turbo, which rewrites JPEGs without decoding them."""

from __future__ import annotations

import re
import subprocess
from functools import cache

from gpuloader.errors import ConfigError

PROGRAM = "jpegtran"
HOW_TO_INSTALL = "apt install libjpeg-turbo-progs, or conda install libjpeg-turbo"
_VERSION = re.compile(r"libjpeg-turbo version (\S+)")


@cache
def find_version() -> str:
    """Finds the version of `jpegtran`, by which results differ.

    Raises:
        ConfigError: there is none, or it is not that of libjpeg-turbo.
    """
    try:
        done = subprocess.run([PROGRAM, "-version"], check=False, stdin=subprocess.DEVNULL, capture_output=True)
    except OSError as error:
        raise ConfigError(f"seekable: {PROGRAM} cannot be run ({error.strerror}): {HOW_TO_INSTALL}") from None
    said = done.stderr.decode(errors="replace")
    if not (version := _VERSION.search(said)):
        raise ConfigError(f"seekable: {PROGRAM} says {said[:100]!r}, not libjpeg-turbo's: {HOW_TO_INSTALL}")
    return version[1]
