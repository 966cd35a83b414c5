"""What a process and its children cost, read from Linux. Standard library only: every system's environment runs it."""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def tree(root: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                children.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
    pids = [root]
    for pid in pids:
        pids.extend(children.get(pid, []))
    return pids


def tree_cpu_seconds() -> float:
    """CPU time of this process and its children so far, in nanosecond steps, those that ended included."""
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = seconds.ru_utime + seconds.ru_stime
    for pid in tree(os.getpid()):
        with suppress(OSError):
            # The kernel's clock of all CPU time of another process, see clock_getcpuclockid(3).
            total += time.clock_gettime((~pid << 3) | 2)
    return total


def peak_rss_bytes() -> int:
    """The most memory that this process alone had resident."""
    return _kibibytes(_PROC / "self/status", "VmHWM:")


def anonymous_bytes() -> int:
    """Memory resident now of this process that is no file's, and so no other process's."""
    return _kibibytes(_PROC / "self/smaps_rollup", "Anonymous:")


def tree_pss_bytes(root: int) -> int:
    """Memory resident now of a process and its children, pages that several of them share counted once."""
    total = 0
    for pid in tree(root):
        with suppress(OSError):
            total += _kibibytes(_PROC / str(pid) / "smaps_rollup", "Pss:")
    return total


def seconds_since_start() -> float:
    """The time since this process was started, in steps of 10 ms."""
    started = int(_stat(os.getpid())[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on; the second, the name, may hold anything."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _kibibytes(file: Path, key: str) -> int:
    for line in file.read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return 0
