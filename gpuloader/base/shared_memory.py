"""`SharedMemory`: bytes that a process and its child both see, and that grow."""

from __future__ import annotations

import mmap
import os
from multiprocessing import reduction
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ROUNDED_UP_BYTES = 1 << 20


class SharedMemory:
    """Memory that a process or its child may enlarge, in turns. It has no name, and ends with the processes.

    Unlike `multiprocessing.shared_memory` it does not need /dev/shm, of which containers often have 64 MB.
    """

    def __init__(self) -> None:
        self._fd = os.memfd_create("gpuloader")
        self._mapped = np.empty(0, np.uint8)

    def bytes(self, size_bytes: int) -> NDArray[np.uint8]:
        """Returns at least this many bytes of the memory, enlarged if needed; earlier arrays share them."""
        if len(self._mapped) < size_bytes:
            there = os.fstat(self._fd).st_size
            if there < size_bytes:
                there = -(-size_bytes * 5 // 4 // _ROUNDED_UP_BYTES) * _ROUNDED_UP_BYTES
                os.ftruncate(self._fd, there)
            self._mapped = np.frombuffer(mmap.mmap(self._fd, there), np.uint8)
        return self._mapped

    def close(self) -> None:
        """Releases the memory when no array of it is left. It may be called twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        self._mapped = np.empty(0, np.uint8)

    def __getstate__(self) -> Any:  # noqa: ANN401 - while a process is started by another way than fork
        return reduction.DupFd(self._fd)

    def __setstate__(self, given: Any) -> None:  # noqa: ANN401
        self._fd, self._mapped = given.detach(), np.empty(0, np.uint8)
