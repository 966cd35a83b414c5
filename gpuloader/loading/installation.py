"""Checks that DALI is installed, so that a missing DALI raises one clear error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib.util import find_spec

from gpuloader.base.versions import DALI_BUILDS, installed_versions
from gpuloader.errors import InstallationError

NEEDS_DOCSTRINGS = "`python -OO` and PYTHONOPTIMIZE=2 remove docstrings, which DALI needs: use -O, or neither"


@cache
def check_dali(find: Callable[[Iterable[str]], Iterable[str]] = installed_versions) -> None:
    """Checks that DALI can be imported, and that only one build of it is installed.

    Args:
        find: returns the installed distributions among the given ones.

    Raises:
        InstallationError: no build is installed, or two are, or Python removes docstrings.
    """
    builds = list(find(DALI_BUILDS))
    either = "pip install 'gpuloader[cuda12]', or 'gpuloader[cuda13]' if torch is for CUDA 13"
    if len(builds) > 1:
        raise InstallationError(
            f"{' and '.join(builds)} are both installed, but they overwrite each other's files",
            f"pip uninstall {' '.join(builds)}, then {either}",
        )
    can_be_found = find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None
    if not builds and not can_be_found:  # builds with other names are allowed
        raise InstallationError("DALI is not installed", either)
    if sys.flags.optimize > 1:
        raise InstallationError("DALI cannot be imported", NEEDS_DOCSTRINGS)
