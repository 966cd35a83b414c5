"""The shared library of the CPU's kernels, built by setup.py: loads it, and chooses functions for this processor."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from gpuloader.errors import InstallationError
from gpuloader.pipelines.kernels.build import LIBRARY, compute_digest

_CPUINFO = Path("/proc/cpuinfo")
# The features that each psABI level of x86-64 adds to the baseline, by their names in /proc/cpuinfo.
_V3 = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


def list_variants(cpuinfo: str, machine: str) -> Sequence[str]:
    """Lists the variants that a processor can run, the fastest first.

    Args:
        cpuinfo: the text of /proc/cpuinfo.
        machine: the value of `platform.machine`.

    Example:
        >>> list_variants("processor : 0\\nflags : fpu sse sse2\\n", "x86_64")
        ('baseline',)
    """
    flags = set(cpuinfo.partition("\nflags")[2].partition("\n")[0].split())
    levels = (("v4", _V4), ("v3", _V3)) if machine == "x86_64" else ()
    return (*(name for name, needed in levels if needed <= flags), "baseline")


@cache
def load() -> ctypes.CDLL:
    """Loads the library, once in a process.

    Raises:
        InstallationError: it is missing, cannot be loaded, or was not built from the sources beside it.
    """
    build_it = "In a source checkout, build it: pip install -e ."
    try:
        library = ctypes.CDLL(str(LIBRARY))
        built_from = ctypes.c_char_p.in_dll(library, "sources").value or b""
    except (OSError, ValueError) as error:
        raise InstallationError(
            f"The CPU's kernels cannot be loaded: {error}.", f"Reinstall gpuloader. {build_it}"
        ) from error
    digest = compute_digest()
    if digest and digest != built_from.decode():
        raise InstallationError(
            f"The C files in {LIBRARY.parent} have changed since {LIBRARY.name} was built.", build_it
        )
    return library


@cache
def runnable_variants() -> Sequence[str]:
    """Lists the variants that this processor can run, the fastest first."""
    with _CPUINFO.open() as file:
        return list_variants(file.read(8192), platform.machine())  # a machine may have hundreds of cores; one is enough


@cache
def address_of(name: str, variant: str | None = None) -> int:
    """Returns the address of a function of kernels.c in a variant; by default the fastest one."""
    variant = variant or runnable_variants()[0]
    return ctypes.cast(getattr(load(), f"{name}_{variant}"), ctypes.c_void_p).value or 0
