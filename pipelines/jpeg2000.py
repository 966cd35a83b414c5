"""Translates JPEG 2000 to PNM in a separate process: damaged files may crash the decoder or corrupt its memory.

This is the parent's side. `gpuloader.helpers.jpeg2000_process` is the process, and describes the protocol.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import LoaderError
from gpuloader.helpers import jpeg2000_process
from gpuloader.helpers.child_processes import end, start_python
from gpuloader.helpers.forking import at_fork
from gpuloader.helpers.pipes import write_all

MOST_WAITING_SECONDS = 600
_READ_BYTES = 1 << 20
_BOX, _CODE_STREAM = b"\0\0\0\x0c", b"\xff\x4f\xff\x51"
_BOX_NAME = b"jP  "


def is_jpeg2000(encoded: NDArray[np.uint8]) -> bool:
    """Whether a file, (bytes,), begins as a JP2 or a bare code stream (ITU-T T.800, annexes A and I)."""
    head = encoded[:8].tobytes()
    return head[:4] == _CODE_STREAM or (head[:4] == _BOX and head[4:] == _BOX_NAME)


def translate(encoded: NDArray[np.uint8], max_pixels: int) -> bytearray | tuple[int, int] | str:
    """Translates a JPEG 2000 file, (bytes,), to PNM of 8 or 16 bits; returns (height, width) if it is too large, or the
    cause if it cannot be decoded.

    Threads take turns. The answer depends only on the file, and so do the limits on memory and time.

    Raises:
        LoaderError: the process does not start, is killed, or does not answer.
    """
    return server.translate(encoded, max_pixels)


class _Server:
    """The process that translates, seen from its parent."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.process: subprocess.Popen[bytes] | None = None

    def translate(self, encoded: NDArray[np.uint8], max_pixels: int) -> bytearray | tuple[int, int] | str:
        with self._lock:
            try:
                answer = self._ask(encoded, max_pixels)
                if answer is None:  # the process ended since the last image
                    self.close()
                    answer = self._ask(encoded, max_pixels)
            except BaseException:
                self.close()  # otherwise its late answer would be taken for that of the next image
                raise
        if answer is None:
            self.close()
            raise LoaderError("the process that decodes JPEG 2000 was ended twice: check whether memory is full")
        said, content = answer
        if "error" in said:
            raise LoaderError(said["error"])
        if "size" in said:
            return said["size"][0], said["size"][1]
        return said.get("cause", content)

    def close(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            end(process)

    def leave_to_the_parent(self) -> None:
        """Forgets the parent's process in a forked child, which starts its own; the parent ends the other."""
        process, self.process, self._lock = self.process, None, Lock()
        if process is not None:
            process.returncode = 0  # otherwise Python waits for it, and warns
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()

    def _ask(self, encoded: NDArray[np.uint8], max_pixels: int) -> tuple[dict[str, Any], bytearray] | None:
        """Sends an image and returns the answer; None if the process ended."""
        process = self.process = self.process or _begin()
        assert process.stdin is not None
        try:
            write_all(process.stdin.fileno(), json.dumps([len(encoded), max_pixels]).encode() + b"\n")
            write_all(process.stdin.fileno(), encoded)
        except BrokenPipeError:
            return None
        return _answer(process)


def _begin() -> subprocess.Popen[bytes]:
    process = start_python("-m", jpeg2000_process.__name__, is_ready=lambda process: _answer(process) is not None)
    if isinstance(process, str):
        raise LoaderError("the process that decodes JPEG 2000 did not start:", *process.splitlines())
    return process


def _answer(process: subprocess.Popen[bytes]) -> tuple[dict[str, Any], bytearray] | None:
    """Reads the line of an answer and the content after it; None if the process ended."""
    assert process.stdout is not None
    file, poll = process.stdout.fileno(), select.poll()
    poll.register(file, select.POLLIN)

    def some() -> bytes:
        if not poll.poll(1000 * MOST_WAITING_SECONDS):
            raise LoaderError(f"the process that decodes JPEG 2000 did not answer for {MOST_WAITING_SECONDS} seconds")
        return os.read(file, _READ_BYTES)

    line = b""
    while b"\n" not in line:
        if not (data := some()):
            return None
        line += data
    line, _, data = line.partition(b"\n")
    said = json.loads(line)
    content = bytearray(said.get("pnm", 0))
    content[: len(data)] = data
    filled = len(data)
    while filled < len(content):
        if not (data := some()):
            return None
        content[filled : filled + len(data)] = data
        filled += len(data)
    return said, content


server = _Server()  # one in each process
atexit.register(server.close)
at_fork(server, _Server.leave_to_the_parent)
