"""The check of memory."""

from __future__ import annotations

import ctypes
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gpuloader.helpers.text import format_bytes
from gpuloader.tools.verify.comparing import PLAIN, few_samples, load
from gpuloader.tools.verify.result import Looks, Outcome, Subject

_LOADERS = 12
_COMPARED = 4  # the least of that many is compared, as memory comes and goes
_MOST_GROWTH_BYTES = 128 << 20


def memory(subject: Subject) -> Looks:
    """What loaders that were closed leave behind."""
    options: dict[str, Any] = {"preset": PLAIN, "sampling": few_samples(subject)}
    taken = []
    for _ in range(_LOADERS):
        load(subject.tar, subject.device_id, **options)
        taken.append(_taken_bytes(subject))
    growth = max(0, min(taken[-_COMPARED:]) - min(taken[:_COMPARED]))
    allowed = f"up to {format_bytes(_MOST_GROWTH_BYTES)}"
    found = f"{format_bytes(growth)} more at the end"
    yield f"{_LOADERS} loaders", partial(Outcome, found, allowed, growth <= _MOST_GROWTH_BYTES)


def _taken_bytes(subject: Subject) -> int:
    """On the GPU, by all processes; or of this process, without what the C library keeps."""
    if subject.device_id is None:
        ctypes.CDLL(None).malloc_trim(0)
        resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
        return resident_pages * os.sysconf("SC_PAGE_SIZE")
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(subject.device_id)
    return total - free
