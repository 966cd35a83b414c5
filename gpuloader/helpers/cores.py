"""What this process may use of the machine: cores by affinity and control groups, memory by control groups.

A container's share of the cores is a quota on time, which neither `os.cpu_count` nor the affinity shows: threads beyond
it wait for their turn, all at once.

References: the kernel's "Control Group v2", cpu.max and memory.max; its "CFS Bandwidth Control" for version 1.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path, PurePosixPath

_ROOT = "/sys/fs/cgroup"
_NO_LIMIT_BYTES = 1 << 60  # version 1 says "none" by the largest number of whole pages


@dataclass(frozen=True)
class Limits:
    """What the control groups of a process allow.

    Attributes:
        cores: cores' worth of time, such as 1.5; None without a limit.
        memory_bytes: None without a limit.
    """

    cores: float | None = None
    memory_bytes: int | None = None


def available_cores() -> int:
    """The cores that this process may keep busy, at least one."""
    return usable_cores(len(os.sched_getaffinity(0)), cgroup_limits().cores)


def available_memory_bytes() -> int:
    """The memory that this process may take: all of the machine's, or what its control groups allow."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(machine_bytes, cgroup_limits().memory_bytes or machine_bytes)


def usable_cores(affinity: int, quota: float | None) -> int:
    """The cores of so many that a quota, in cores' worth of time, keeps busy; a part of a core counts as one."""
    return affinity if quota is None else max(1, min(affinity, ceil(quota)))


def cgroup_limits() -> Limits:
    """The limits of this process; none where there are no control groups."""
    return limits_of(_content("/proc/self/cgroup") or "", _content)


def limits_of(memberships: str, content: Callable[[str], str | None]) -> Limits:
    """The smallest limits among a process's groups and those above them.

    Args:
        memberships: what `/proc/PID/cgroup` says, lines of "number:controllers:path"; version 2 names no controllers.
        content: of a file, by its path; None where it cannot be read. A container often sees only the uppermost group,
            as which its own is mounted.
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
    return Limits(min(cores, default=None), min(memory, default=None))


def _quota(text: str) -> list[float]:
    """ "QUOTA PERIOD" in microseconds; no limit is "max" in version 2, -1 in version 1."""
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
