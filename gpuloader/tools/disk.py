"""Measures how fast shards can be read: in a row, and at random places, as shuffling does."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from gpuloader.helpers.regular_file import open_regular
from gpuloader.shards import Folder, LocalShard

_SECONDS = 2.0
_CHUNK_BYTES = 4 << 20
_READ_BYTES = 128 << 10
_MOST_READS = 2000
_MOST_SHARDS = 64
_MOST_FILES = 4096  # of a folder


@dataclass(frozen=True)
class DiskSpeed:
    """How fast one thread reads.

    Attributes:
        bytes_per_second: when reading in a row.
        reads_per_second: of `read_bytes` each, at random places; in a folder, each opens a file and reads it.
        read_bytes: about as many as an image has; fewer if the shards are smaller. In a folder, the mean.
    """

    bytes_per_second: float
    reads_per_second: float
    read_bytes: int


def measure_disk(shards: Sequence[LocalShard], seconds: float = _SECONDS) -> DiskSpeed:
    """Reads for at most this long in each way, after dropping the shards from the page cache. Of folders and tars, only
    the folders are read.

    Pages in use by others stay in it, and a disk or server has its own caches, so the figures are upper bounds.
    """
    draw = random.Random(0)
    if folders := [shard for shard in shards if isinstance(shard, Folder)]:
        folder = draw.choice(folders)
        count = len(folder.listing)
        numbers = draw.sample(range(count), min(_MOST_FILES, count))
        files = [folder.path / folder.listing.name(number) for number in numbers]
        in_a_row, _, _ = _read_whole(sorted(files), seconds)
        return DiskSpeed(in_a_row, *_read_whole(files, seconds)[1:])
    tars = [shard for shard in shards if isinstance(shard, Path)]
    some = draw.sample(tars, min(_MOST_SHARDS, len(tars)))
    in_a_row, _, _ = _read_whole(some, seconds)
    return DiskSpeed(in_a_row, *_read_at_random(some, seconds))


def _read_whole(files: Sequence[Path], seconds: float) -> tuple[float, float, int]:
    """Reads file after file; returns bytes and files per second, and the mean bytes of a file."""
    buffer = bytearray(_CHUNK_BYTES)
    read = opened = 0
    started = time.perf_counter()
    while opened < len(files) and (opened == 0 or time.perf_counter() - started < seconds):
        with _open_uncached(files[opened]) as file:
            opened += 1
            while count := file.readinto(buffer):
                read += count
                if time.perf_counter() - started >= seconds:
                    break
    elapsed = time.perf_counter() - started
    return read / elapsed, opened / elapsed, read // opened


def _read_at_random(shards: Sequence[Path], seconds: float) -> tuple[float, int]:
    """Returns reads per second, and the size in bytes of the largest."""
    draw = random.Random(0)
    with ExitStack() as stack:
        files = [stack.enter_context(_open_uncached(shard)) for shard in shards]
        sizes = [os.fstat(file.fileno()).st_size for file in files]
        read_bytes = min(_READ_BYTES, max(sizes))
        reads, started = 0, time.perf_counter()
        while reads < _MOST_READS and time.perf_counter() - started < seconds:
            number = draw.randrange(len(files))
            os.pread(files[number].fileno(), read_bytes, draw.randrange(max(1, sizes[number] - read_bytes + 1)))
            reads += 1
        return reads / (time.perf_counter() - started), read_bytes


def _open_uncached(shard: Path) -> FileIO:
    """Opens a shard and drops it from the page cache, as far as the kernel does so."""
    file = FileIO(open_regular(shard))
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return file
