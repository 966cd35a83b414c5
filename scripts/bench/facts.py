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

_PIXEL_BOUNDS = (0, 50_000, 100_000, 200_000, 400_000, 800_000, 1_600_000, 3_200_000, 6_400_000, 12_800_000)
_BYTE_BOUNDS = (0, 1 << 12, 1 << 14, 1 << 15, 1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 20, 1 << 21, 1 << 22)


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
    """How many images there are and how large: bounds, and how many lie from each bound to the next."""
    opened = ShardSet.open(shards)
    pixels = opened.column("height").astype(np.int64) * opened.column("width")
    sizes = opened.column("image_size")
    return {
        "shards": len(shards),
        "images": len(sizes),
        "bytes": int(sizes.sum()),
        "pixels": int(pixels.sum()),
        "pixels_histogram": _histogram(pixels, _PIXEL_BOUNDS),
        "bytes_histogram": _histogram(sizes, _BYTE_BOUNDS),
    }


def _histogram(values: np.ndarray[Any, Any], bounds: tuple[int, ...]) -> dict[str, int]:
    """Of images between bounds; the last bound has all above it."""
    counts, _ = np.histogram(values, [*bounds, np.inf])
    return {f"from {bound}": int(count) for bound, count in zip(bounds, counts, strict=True) if count}


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
