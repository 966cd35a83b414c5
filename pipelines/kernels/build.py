"""Compiles the kernels into a shared library beside them: python pipelines/kernels/build.py

If CC is set, it is the compiler, with CFLAGS. Otherwise it is Zig's, which is a Python package: pip install ziglang. It
needs nothing else on the machine, and can build for other machines. Installing gpuloader runs this through setup.py.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
LIBRARY = FOLDER / "kernels.so"
VARIANTS = {"x86_64": ("baseline", "v3", "v4"), "aarch64": ("baseline",)}
# No contraction and no fast math, so that every variant computes the same bits.
_FLAGS = ["-std=gnu11", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno"]
_FLAGS += ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-psabi"]


def compute_digest() -> str:
    """Computes a digest of the C files; empty if the package was installed without them."""
    sources = sorted([*FOLDER.glob("*.c"), *FOLDER.glob("*.h")])
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest() if sources else ""


def is_current(library: Path = LIBRARY) -> bool:
    """Returns whether the library exists and was built from the current C files."""
    return library.exists() and compute_digest().encode() in library.read_bytes()


def build(library: Path = LIBRARY, machine: str = "") -> None:
    """Compiles kernels.c for each variant, all at the same time, and links them.

    Args:
        library: the file to make; an existing one is replaced.
        machine: "x86_64" or "aarch64", only with Zig; "" means this machine.
    """
    machine = machine or platform.machine()
    if machine not in VARIANTS:
        raise SystemExit(f"gpuloader's kernels support {' and '.join(VARIANTS)}, not {machine}")
    compiler = _find_compiler(machine)
    print(f"compiling the kernels: {shlex.join(compiler)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        # Zig waits forever if it cannot write to the home folder, so its cache is elsewhere.
        environment = {"ZIG_GLOBAL_CACHE_DIR": f"{folder}/zig", **os.environ}
        objects = {variant: f"{folder}/{variant}.o" for variant in VARIANTS[machine]}
        defined = {variant: [f"-DVARIANT={variant}"] for variant in objects}
        defined["baseline"].append(f'-DSOURCES="{compute_digest()}"')
        compiling = [
            [*compiler, *_FLAGS, *defined[variant], *_choose_instructions(variant), "-c", "kernels.c", "-o", path]
            for variant, path in objects.items()
        ]
        _run_all(compiling, environment)
        new_library = library.with_suffix(f".{os.getpid()}")  # a process may be using the existing library
        _run_all([[*compiler, "-shared", *objects.values(), "-lm", "-o", str(new_library.resolve())]], environment)
        new_library.replace(library)


def _find_compiler(machine: str) -> list[str]:
    if "CC" in os.environ:
        return [*shlex.split(os.environ["CC"]), *shlex.split(os.environ.get("CFLAGS", ""))]
    return [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu.2.28", "-s"]


def _choose_instructions(variant: str) -> list[str]:
    if variant == "baseline":
        return []
    name = f"-march=x86-64-{variant}" if "CC" in os.environ else f"-mcpu=x86_64_{variant}"
    return [name, *(["-mprefer-vector-width=512"] if variant == "v4" else [])]


def _run_all(commands: Iterable[Sequence[str]], environment: Mapping[str, str]) -> None:
    try:
        running = [subprocess.Popen(command, cwd=FOLDER, env=environment) for command in commands]
    except OSError as error:
        raise SystemExit(
            f"{error}: CC names the compiler of the kernels; without CC, ziglang from PyPI is used"
        ) from error
    statuses = [process.wait() for process in running]
    if any(statuses):
        raise SystemExit("the kernels cannot be compiled; see the compiler's messages above")


if __name__ == "__main__":
    build()
