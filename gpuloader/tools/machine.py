"""Describes the machine and the versions that a measurement depends on."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from gpuloader.base.cores import available_cores, available_memory_bytes
from gpuloader.base.text import format_bytes
from gpuloader.base.versions import DALI_BUILDS, installed_versions

_PACKAGES = ("gpuloader", *DALI_BUILDS, "torch", "numpy")


@dataclass(frozen=True)
class Machine:
    """The machine on which something was measured.

    Attributes:
        cpu: the processor's name.
        cores: the cores that this process may use.
        memory_bytes: the memory that it may use, including the page cache.
        system: the kernel.
        gpus: the names of the GPUs.
        versions: of Python and of the packages that matter, by name.
    """

    cpu: str
    cores: int
    memory_bytes: int
    system: str
    gpus: tuple[str, ...]
    versions: dict[str, str]

    def __str__(self) -> str:
        gpus = ", ".join(self.gpus) or "no GPU"
        return f"{self.cpu}, {self.cores} cores, {format_bytes(self.memory_bytes)}, {gpus}"


def this_machine() -> Machine:
    """Describes the machine that runs this process."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    return Machine(
        cpu=names[0] if names else platform.machine(),
        cores=available_cores(),
        memory_bytes=available_memory_bytes(),
        system=f"{platform.system()} {platform.release()}",
        gpus=tuple(torch.cuda.get_device_name(gpu) for gpu in gpus),
        versions={"python": sys.version.split()[0], **installed_versions(_PACKAGES)},
    )
