"""`doctor`: finds problems for a loader in the packages, the machine and the environment.

`python -m torch.utils.collect_env` prints the rest: the driver, the GPUs and all packages.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from gpuloader.base.cores import cgroup_limits, usable_cores
from gpuloader.base.text import counted
from gpuloader.base.versions import decoder_versions
from gpuloader.errors import ConfigError, DataError, InstallationError
from gpuloader.loading.installation import NEEDS_DOCSTRINGS
from gpuloader.loading.ranks import environment_rank
from gpuloader.loading.world import World
from gpuloader.shards import Folder, LocalShard, Tar, resolve_shards
from gpuloader.shards.remote import RemoteShard
from gpuloader.tools.disk import measure_disk

_NVIDIA_PCI = "0x10de"
_SLOW_READS_PER_SECOND = 500.0
_STORE_BYTES = 8 << 20
_LAUNCHERS = (
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPI", "PMI_RANK", "PMI_SIZE"),
)


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: of what was checked.
        found: what was found.
        status: "ok"; "warning" if training works, but slowly or not as meant; "failure" if it does not work.
        advice: what to do; empty if the status is ok.
    """

    name: str
    found: str
    status: Literal["ok", "warning", "failure"] = "ok"
    advice: str = ""


def examine(tar: Tar | None = None) -> tuple[Finding, ...]:
    """Checks everything; with shards, also the disk or the store that they are on, which takes some seconds.

    Raises:
        DataError: no shards were found.
    """
    shards = [] if tar is None else resolve_shards(tar)
    local = [shard for shard in shards if not isinstance(shard, RemoteShard)]
    remote = [shard for shard in shards if isinstance(shard, RemoteShard)]
    torch, torch_error = _import("torch")
    dali, dali_error = _import("nvidia.dali")
    flavours = dali_flavours([dist.metadata["Name"] or "" for dist in importlib.metadata.distributions()])
    # DALI's requirements allow many versions of its decoders.
    decoders = [f"{name} {version}" for name, version in decoder_versions().items() if name != "DALI"]
    findings = [_torch(torch, torch_error), _dali(dali, dali_error, flavours), Finding("decoders", ", ".join(decoders))]
    if torch is not None and torch.version.cuda and len(flavours) == 1:
        findings.append(cuda_versions(torch.version.cuda, flavours[0]))
    findings += [cores(len(os.sched_getaffinity(0)), os.cpu_count() or 1, cgroup_limits()[0]), _kernels(), processes()]
    if local:
        findings.append(_disk(local))
    return (*findings, *map(store, remote[:1]))


# --- torch and DALI


def _import(name: str) -> tuple[Any, str]:
    """Returns the module, or None and the reason why it cannot be imported."""
    try:
        return importlib.import_module(name), ""
    except Exception as error:  # noqa: BLE001 - a broken package may raise anything
        return None, f"{type(error).__name__}: {error}".partition("\n")[0]


def _torch(torch: ModuleType | None, error: str) -> Finding:
    if torch is None:
        return Finding("torch", f"cannot be imported: {error}", "failure", "pip install 'torch>=2.4,<3'")
    found = f"{torch.__version__}, {f'CUDA {torch.version.cuda}' if torch.version.cuda else 'without CUDA'}"
    try:
        torch.cuda.init()
    except (AssertionError, RuntimeError) as reason:  # without CUDA, and what the driver says
        if not _has_nvidia():
            return Finding("torch", f"{found}; no NVIDIA GPU: loaders run on the CPU")
        advice = (
            "loaders run on the CPU: install torch for CUDA, as pytorch.org says, and a driver that runs it; a "
            "container needs --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility. CUDA_VISIBLE_DEVICES may hide "
            "GPUs"
        )
        return Finding("torch", f"{found}, cannot use the NVIDIA GPU: {reason}".partition("\n")[0], "warning", advice)
    gpus = (torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
    return Finding("torch", f"{found}, sees {', '.join(gpus)}")


def _has_nvidia() -> bool:
    """Returns whether there is an NVIDIA device, or a driver, which WSL2 has without a device."""
    vendors = (path.read_text().strip() for path in Path("/sys/bus/pci/devices").glob("*/vendor"))
    return shutil.which("nvidia-smi") is not None or _NVIDIA_PCI in vendors


def dali_flavours(distributions: Sequence[str]) -> list[str]:
    """Returns the CUDA versions of the installed distributions of DALI: nvidia-dali-cuda120 is for "12.0"."""
    names = (re.fullmatch(r"nvidia[-_.]dali[-_.]cuda(\d+)(\d)", name.lower()) for name in sorted(set(distributions)))
    return [f"{match[1]}.{match[2]}" for match in names if match]


def _dali(dali: ModuleType | None, error: str, flavours: Sequence[str]) -> Finding:
    if dali is None:
        install = "pip install 'gpuloader[cuda12]', or 'gpuloader[cuda13]' if torch is for CUDA 13"
        advice = NEEDS_DOCSTRINGS if sys.flags.optimize > 1 else install
        return Finding("DALI", f"cannot be imported: {error}", "failure", advice)
    found = f"{dali.__version__}, for CUDA {' and '.join(flavours) or 'unknown'}"
    if len(flavours) > 1:
        advice = "they overwrite each other's files: uninstall all of them, then install one"
        return Finding("DALI", found, "failure", advice)
    return Finding("DALI", found)


def cuda_versions(torch: str, dali: str) -> Finding:
    """Checks that torch and DALI are for the same CUDA: each brings its own libraries into the process."""
    of_torch, of_dali = (version.partition(".")[0] for version in (torch, dali))
    if of_torch == of_dali:
        return Finding("CUDA versions", f"torch {torch}, DALI {dali}")
    # nvImageCodec's wheels for both versions install one folder, so uninstalling one later would break the other.
    advice = (
        f"this needs a driver for the newer CUDA, and was not tested on a GPU. Use DALI for torch's CUDA: pip "
        f"uninstall nvidia-dali-cuda{of_dali}0 nvidia-nvimgcodec-cu{of_dali}; pip install nvidia-dali-cuda{of_torch}0"
    )
    return Finding("CUDA versions", f"torch {torch}, DALI {dali}", "warning", advice)


# --- the machine


def cores(affinity: int, built_in: int, quota: float | None) -> Finding:
    """Checks the cores that the process may use; the quota is the control group's, as a number of cores."""
    if quota is None or quota >= affinity:
        return Finding("cores", f"{affinity} of {built_in}")
    usable = usable_cores(affinity, quota)
    advice = (
        f"GPULoader uses {counted(usable, 'thread')}, but other libraries use one for each of the {affinity} cores: "
        f"set OMP_NUM_THREADS={usable}, or raise the quota"
    )
    return Finding("cores", f"{affinity} of {built_in}, but a quota of {quota:.3g} cores' time", "warning", advice)


def _kernels() -> Finding:
    library, reason = _import("gpuloader.pipelines.kernels.library")
    if library is None:
        return Finding("kernels", f"not checked: {reason}", "warning", "make DALI importable first")
    try:
        library.load()
    except InstallationError as error:
        found, advice = str(error).split("\n", 1)
        return Finding("kernels", found, "failure", advice)
    variants = ", ".join(library.runnable_variants())
    return Finding("kernels", f"compiled for {platform.machine()}; this processor runs {variants}")


# --- the environment


def processes() -> Finding:
    """Checks that launchers' variables tell loaders the rank of this process and the number of processes."""
    for launcher, rank, size in _LAUNCHERS:
        count = os.environ.get(size, "")
        if "RANK" not in os.environ and rank in os.environ and count.isdigit() and int(count) > 1:
            advice = (
                f"each process assumes that it is rank 0 of 1, unless it calls torch.distributed.init_process_group "
                f"first: launch with torchrun, or set RANK=${rank} and WORLD_SIZE=${size} in each"
            )
            return Finding("processes", f"{launcher} runs {count} processes, but RANK is not set", "warning", advice)
    try:
        world = World(*environment_rank())
    except ConfigError as error:
        return Finding("processes", str(error), "failure", "launch them with torchrun, or set what it sets")
    return Finding("processes", f"rank {world.rank} of {world.world_size}")


# --- the shards


def _disk(shards: Sequence[LocalShard]) -> Finding:
    per_second, read_bytes = measure_disk(shards)
    found = f"{per_second:,.0f} reads of {read_bytes / 1e3:.0f} kB a second at random places, by one thread"
    if per_second >= _SLOW_READS_PER_SECOND:
        return Finding("disk", found)
    advice = 'pass shuffle="block", which reads runs of neighbours, or use a local disk'
    if any(isinstance(shard, Folder) for shard in shards):
        advice = "make shards of the small files (`gpuloader pack`), or use a local disk"
    return Finding("disk", found, "warning", advice)


def store(shard: RemoteShard) -> Finding:
    """Checks that a store answers, and measures how fast it sends the beginning of a shard over one connection."""
    try:
        version = shard.version(lambda: True)  # also imports what requests need, and connects
        begun = time.perf_counter()
        shard.read(version, 0, 1, lambda: True)
        answered = time.perf_counter()
        content = shard.read(version, 0, min(version.size_bytes, _STORE_BYTES), lambda: True)
    except DataError as error:
        return Finding("store", str(error), "failure", "check the URL, the network, and that you may read there")
    sent = time.perf_counter()
    found = f"answers after {(answered - begun) * 1e3:,.0f} ms"
    if content is None:
        return Finding("store", found, "warning", "it sends no parts of files, so broken downloads begin again")
    return Finding("store", f"{found}, sends {len(content) / (sent - answered) / 1e6:,.1f} MB/s over one connection")
