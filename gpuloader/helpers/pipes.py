"""Writes to another process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def write_all(fd: int, data: bytes | NDArray[np.uint8]) -> None:
    """Writes all bytes to a pipe or file, which may take fewer at a time."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
