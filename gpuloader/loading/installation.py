"""Whether DALI is installed, once: said in one sentence before its import fails somewhere else."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from gpuloader.errors import InstallationError

_EXTRAS = {"nvidia-dali-cuda120": "cuda12", "nvidia-dali-cuda130": "cuda13"}


@cache
def check_dali(version_of: Callable[[str], str] = version) -> None:
    """Checks that DALI can be imported, and that no two builds of it have overwritten each other.

    Args:
        version_of: tells the version of a distribution, or raises PackageNotFoundError.

    Raises:
        InstallationError: there is none, or there are two.
    """
    builds = [name for name in _EXTRAS if _is_installed(name, version_of)]
    either = "pip install 'gpuloader[cuda12]', or 'gpuloader[cuda13]' if torch is for CUDA 13"
    if len(builds) > 1:
        raise InstallationError(
            f"{' and '.join(builds)} are both installed, and overwrite each other's files",
            f"pip uninstall {' '.join(builds)}, then {either}",
        )
    if not builds and not _can_be_found("nvidia.dali"):  # builds of other names are fine
        raise InstallationError("DALI is not installed", either)


def _is_installed(name: str, version_of: Callable[[str], str]) -> bool:
    try:
        return bool(version_of(name))
    except PackageNotFoundError:
        return False


def _can_be_found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of its parent
        return False
