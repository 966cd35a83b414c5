"""What a figure depends on besides the systems: the machine and the images."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpuloader.shards import ShardSet


def machine() -> dict[str, Any]:
    """The processor, the memory, the kernel, and the GPU if there is one."""
    models = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = next(int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if line.startswith("MemTotal"))
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory,
        "system": f"{platform.system()} {platform.release()}",
        "gpu": gpu_name(),
    }


def gpu_name() -> str | None:
    """The first GPU's name; None where there is none."""
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "--id=0"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def images(shards: Sequence[Path]) -> dict[str, Any]:
    """How many images there are, and their bytes and pixels."""
    opened = ShardSet.open(shards)
    pixels = opened.index.column("height").astype(np.int64) * opened.index.column("width")
    sizes = opened.index.column("image_size")
    return {
        "shards": len(shards),
        "images": len(sizes),
        "bytes": int(sizes.sum()),
        "pixels": int(pixels.sum()),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
