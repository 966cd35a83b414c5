"""Finds the cores and the memory that this process may use, by its affinity and its control groups.

A container's share of the cores is a quota on time, which neither `os.cpu_count` nor the affinity shows. If there are
more threads than that, all of them wait at the same time.

References: the kernel's "Control Group v2", cpu.max and memory.max; its "CFS Bandwidth Control" for version 1.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import ceil
from pathlib import Path, PurePosixPath

_ROOT = "/sys/fs/cgroup"
_NO_LIMIT_BYTES = 1 << 60  # version 1 has the largest number of whole pages for "none"


def available_cores() -> int:
    """Returns the number of cores that this process may keep busy, at least one."""
    return usable_cores(len(os.sched_getaffinity(0)), cgroup_limits()[0])


def available_memory_bytes() -> int:
    """Returns the memory that this process may use: all of the machine's, or what its control groups allow."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(machine_bytes, cgroup_limits()[1] or machine_bytes)


def usable_cores(affinity: int, quota: float | None) -> int:
    """Returns the number of cores, up to `affinity`, that the quota (in cores) keeps busy, rounded up."""
    return affinity if quota is None else max(1, min(affinity, ceil(quota)))


def cgroup_limits() -> tuple[float | None, int | None]:
    """Returns how many cores, such as 1.5, and bytes of memory the control groups allow; None for no limit."""
    return limits_of(_content("/proc/self/cgroup") or "", _content)


def limits_of(memberships: str, content: Callable[[str], str | None]) -> tuple[float | None, int | None]:
    """Returns the smallest limits of a process's groups and the groups above them.

    Args:
        memberships: the text of `/proc/PID/cgroup`: lines of "number:controllers:path"; version 2 names no controllers.
        content: returns a file's text by its path, or None if it cannot be read. A container often sees its own group
            as the uppermost one, and no other.
    """
    cores: list[float] = []
    memory: list[int] = []
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        for group in (PurePosixPath(path), *PurePosixPath(path).parents):

            def read(controller: str, name: str, group: PurePosixPath = group) -> str:
                return content(str(PurePosixPath(_ROOT, controller, str(group).lstrip("/"), name))) or ""

            if not controllers:
                cores += _quota(read("", "cpu.max"))
                memory += _bytes(read("", "memory.max"))
            if "cpu" in controllers.split(","):
                cores += _quota(f"{read('cpu', 'cpu.cfs_quota_us')} {read('cpu', 'cpu.cfs_period_us')}")
            if "memory" in controllers.split(","):
                memory += _bytes(read("memory", "memory.limit_in_bytes"))
    return min(cores, default=None), min(memory, default=None)


def _quota(text: str) -> list[float]:
    """Reads the limit in "QUOTA PERIOD", in microseconds; no limit is "max" in version 2, and -1 in version 1."""
    numbers = text.split()
    return [int(numbers[0]) / int(numbers[1])] if len(numbers) == 2 and numbers[0].isdigit() else []


def _bytes(text: str) -> list[int]:
    number = text.strip()
    return [int(number)] if number.isdigit() and int(number) < _NO_LIMIT_BYTES else []


def _content(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except OSError:
        return None
