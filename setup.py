"""What pyproject.toml cannot say: the kernels are compiled, and a wheel is for one platform and all versions of Python.

GPULOADER_PLATFORM=manylinux_2_28_aarch64 builds a wheel for another machine: see scripts/wheels.
"""

from __future__ import annotations

import os
import platform
import runpy
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

KERNELS = Path("gpuloader", "pipelines", "kernels")
PLATFORM = os.environ.get("GPULOADER_PLATFORM") or f"linux_{platform.machine()}"


class BuildKernels(Command):
    """The shared library, in the folder of the build; beside its sources where the package is installed as editable."""

    user_options: ClassVar[list[tuple[str, str, str]]] = []
    editable_mode = False

    def initialize_options(self) -> None:
        self.build_lib: str | None = None  # set by finalize_options

    def finalize_options(self) -> None:
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def run(self) -> None:
        library = Path("" if self.editable_mode else str(self.build_lib), KERNELS, "kernels.so")
        library.parent.mkdir(parents=True, exist_ok=True)
        machine = next(name for name in ("x86_64", "aarch64", PLATFORM.removeprefix("linux_")) if name in PLATFORM)
        building = runpy.run_path(str(KERNELS / "build.py"))
        if not (self.editable_mode and building["is_current"](library)):
            building["build"](library.resolve(), machine)

    def get_source_files(self) -> list[str]:
        return [str(path) for path in sorted(KERNELS.glob("*.[ch]"))]


class Build(build):
    """With the kernels."""

    sub_commands: ClassVar = [*build.sub_commands, ("build_kernels", None)]


class Wheel(bdist_wheel):
    """For one platform, and all versions of Python: the kernels know nothing of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", PLATFORM


class Binary(Distribution):
    """One that is not the same on each platform."""

    def has_ext_modules(self) -> bool:
        return True


setup(
    distclass=Binary,
    cmdclass={"build": Build, "build_kernels": BuildKernels, "bdist_wheel": Wheel},
    setup_requires=[] if "CC" in os.environ else ["ziglang>=0.15,<0.18"],
)
