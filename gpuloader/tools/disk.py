"""Measures how fast images can be read at random places, as shuffling does."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

from gpuloader.base.regular_file import open_regular
from gpuloader.shards import Folder, LocalShard

_SECONDS = 2.0
_READ_BYTES = 128 << 10  # about as many as an image has
_MOST_READS = 2000


def measure_disk(shards: Sequence[LocalShard], seconds: float = _SECONDS) -> tuple[float, int]:
    """Returns the reads of one thread in a second, and the mean bytes of a read: whole files, or parts of tars.

    It reads for about `seconds`, and first drops each file from the page cache. If there are folders and tars, only
    folders are read. The figures are upper bounds: pages that others use stay cached, and disks and servers have their
    own caches.
    """
    draw = random.Random(0)
    folders = [shard for shard in shards if isinstance(shard, Folder)]
    tars = [shard for shard in shards if isinstance(shard, Path)]
    sizes: list[int] = []
    taken, ends = 0.0, time.perf_counter() + seconds
    while not sizes or (len(sizes) < _MOST_READS and time.perf_counter() < ends):
        if folders:
            folder = draw.choice(folders)
            path = folder.path / folder.listing.name(draw.randrange(len(folder.listing)))
        else:
            path = draw.choice(tars)
        size, of_this = _read_once(path, draw, whole=bool(folders))
        sizes.append(size)
        taken += of_this
    return len(sizes) / taken, sum(sizes) // len(sizes)


def _read_once(path: Path, draw: random.Random, whole: bool) -> tuple[int, float]:
    """Reads a file, or a part of it at a random place; returns the bytes and the seconds that it took.

    The time includes opening only for a whole file, because a loader keeps tars open.
    """
    begun = time.perf_counter()
    fd = open_regular(path)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        size = os.fstat(fd).st_size
        wanted = size if whole else min(_READ_BYTES, size)
        begun = begun if whole else time.perf_counter()
        read = os.pread(fd, wanted, draw.randrange(size - wanted + 1))
        return len(read), time.perf_counter() - begun
    finally:
        os.close(fd)
