"""Reading many places of files in one call, against Python's own reading."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from gpuloader.pipelines import read_cached

CONTENT = np.random.default_rng(0).bytes(100_000)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "a").write_bytes(CONTENT)
    fd = os.open(tmp_path / "a", os.O_RDONLY)
    yield fd
    os.close(fd)


def rows_of(file: int, places: Sequence[tuple[int, int]], memory: np.ndarray) -> np.ndarray:
    """The rows that read places (offset, size) one after the other into memory."""
    ends = np.cumsum([0, *(size for _, size in places)])
    rows = [(file, offset, size, memory.ctypes.data + end) for (offset, size), end in zip(places, ends.tolist())]
    return np.array(rows, np.int64).reshape(-1, 4)


@pytest.mark.parametrize(
    "places",
    [
        [],
        [(0, 0)],
        [(0, 1)],
        [(0, 100_000)],
        [(4096, 4096), (0, 4096)],
        [(99_999, 1), (7, 0), (50_000, 10_000), (50_001, 9_998)],
        [(5, 3)] * 1000,
    ],
    ids=range(7),
)
def test_the_bytes_are_those_of_the_file_and_no_others_are_written(file: int, places: list[tuple[int, int]]) -> None:
    expected = b"".join(os.pread(file, size, offset) for offset, size in places)
    memory = np.full(len(expected) + 8, 7, np.uint8)
    rows = rows_of(file, places, memory)
    read_cached(rows)
    assert rows[:, 2].tolist() == [0] * len(places)
    assert memory.tobytes() == expected + b"\7" * 8


def test_a_row_that_cannot_be_read_keeps_its_size(file: int) -> None:
    memory = np.zeros(100, np.uint8)
    rows = rows_of(file, [(0, 10), (99_995, 10), (200_000, 10), (-2, 10), (10, 10), (20, 10)], memory)
    rows[4, 0] = 2**31 - 1  # no open file
    read_cached(rows)
    assert rows[:, 2].tolist() == [0, 10, 10, 10, 10, 0]  # the file ends within the second one
    assert memory[50:60].tobytes() == CONTENT[20:30]


def test_what_is_not_in_the_page_cache_is_left(file: int) -> None:
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)  # only advice, so it may still be there
    memory = np.zeros(len(CONTENT), np.uint8)
    rows = rows_of(file, [(0, len(CONTENT))], memory)
    read_cached(rows)
    assert rows[0, 2] in (0, len(CONTENT))
    assert rows[0, 2] or memory.tobytes() == CONTENT


def test_another_thread_runs_while_it_reads(file: int) -> None:
    memory = np.zeros(len(CONTENT), np.uint8)
    may_run, ran = threading.Lock(), list[bool]()
    may_run.acquire()
    thread = threading.Thread(target=lambda: ran.append(may_run.acquire()))
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # so that this thread keeps Python's lock until it gives it away
    try:
        may_run.release()
        for _ in range(10_000):
            read_cached(rows_of(file, [(0, len(CONTENT))], memory))
            if ran:
                break
        seen = list(ran)
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    assert seen == [True]
