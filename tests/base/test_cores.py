"""How many cores a process may use: affinity and control groups."""

from __future__ import annotations

import os

import pytest

from gpuloader.base.cores import available_cores, cgroup_limits, limits_of, usable_cores

NO_LIMIT_V1 = "9223372036854771712"


def quota(group: str, quota_us: str, period_us: str = "100000") -> dict[str, str]:
    return {f"{group}cpu.cfs_quota_us": quota_us, f"{group}cpu.cfs_period_us": period_us}


@pytest.mark.parametrize(
    ("memberships", "files", "expected"),
    [
        ("", {}, (None, None)),
        # Version 2, as a container with a namespace of its own sees it.
        ("0::/\n", {"cpu.max": "max 100000\n", "memory.max": "max\n"}, (None, None)),
        ("0::/\n", {"cpu.max": "200000 100000\n", "memory.max": "1073741824\n"}, (2.0, 1 << 30)),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, (0.5, None)),
        # The smallest of a group and those above it holds; those above may say more, less or nothing.
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000", "a/cpu.max": "300000 100000"}, (1.5, None)),
        ("0::/a/b\n", {"a/b/memory.max": "5000", "a/memory.max": "max", "memory.max": "4000"}, (None, 4000)),
        # Version 1: a hierarchy for each controller; several of them may share one, under links of each name.
        (
            "4:memory:/job\n3:cpu,cpuacct:/job\n2:cpuset:/\n",
            {**quota("cpu/job/", "250000\n", "100000\n"), "memory/job/memory.limit_in_bytes": "8000000000\n"},
            (2.5, 8_000_000_000),
        ),
        # A container that sees only its own group, mounted as the uppermost.
        (
            "4:memory:/docker/0a1b\n3:cpuacct,cpu:/docker/0a1b\n",
            {**quota("cpu/", "400000"), "memory/memory.limit_in_bytes": NO_LIMIT_V1},
            (4.0, None),
        ),
        ("3:cpu:/\n", quota("cpu/", "-1"), (None, None)),
        # Both versions side by side: controllers are in one of them.
        ("2:cpu:/\n1:name=systemd:/user.slice\n0::/user.slice\n", quota("cpu/", "100000"), (1.0, None)),
        ("0::/a:b\n", {"a:b/cpu.max": "100000 100000"}, (1.0, None)),
        # A controller is not a part of another one's name.
        ("3:cpuacct:/\n", quota("cpu/", "100000"), (None, None)),
    ],
)
def test_the_smallest_limit_of_the_groups_holds(
    memberships: str, files: dict[str, str], expected: tuple[float | None, int | None]
) -> None:
    assert limits_of(memberships, {f"/sys/fs/cgroup/{path}": text for path, text in files.items()}.get) == expected


@pytest.mark.parametrize(
    ("affinity", "quota", "expected"), [(8, None, 8), (8, 2.0, 2), (8, 1.5, 2), (8, 0.1, 1), (2, 64.0, 2), (1, 1.0, 1)]
)
def test_a_quota_bounds_the_cores_of_the_affinity(affinity: int, quota: float | None, expected: int) -> None:
    assert usable_cores(affinity, quota) == expected


def test_this_process_has_no_more_cores_than_its_affinity() -> None:
    everything = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(everything)})
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, everything)
    assert available_cores() == usable_cores(len(everything), cgroup_limits()[0])
