"""A disk without room: this process may write files of few bytes only."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
"""The same for a program: its files have at most 10 bytes."""


@contextmanager
def full_disk(most_bytes: int = 10) -> Iterator[None]:
    """Lets no file grow beyond these bytes: writing more fails with EFBIG, as on a full disk with ENOSPC."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
