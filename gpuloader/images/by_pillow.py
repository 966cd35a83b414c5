"""Decodes the formats that DALI never gets, TIFF, BMP, PNM and JPEG 2000, with Pillow in a separate process.

Damaged files may crash a decoder, corrupt its memory, or show what it decoded before. This is the parent's side;
`gpuloader.images.pillow_process` is the process, and describes the protocol.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import LoaderError
from gpuloader.helpers.child_processes import end, start_python
from gpuloader.helpers.forking import at_fork
from gpuloader.helpers.pipes import write_all
from gpuloader.images.limits import Admitted, Refused, check_size

MOST_WAITING_SECONDS = 600
_READ_BYTES = 1 << 20
_PROCESS = "gpuloader.images.pillow_process"
_KINDS = {1: 5, 3: 6}  # of PNM, by the number of channels

_Answer: TypeAlias = tuple[dict[str, Any], bytearray]


def decode_by_pillow(encoded: NDArray[np.uint8], max_pixels: int) -> Admitted:
    """Decodes a file, (bytes,): returns a PNM of its pixels, (bytes,), and their (height, width).

    They are gray or RGB, 8 bits each, as stored: an alpha channel is dropped, and EXIF rotation is not applied. Threads
    take turns. The answer depends only on the file, and so do the limits on memory and time.

    Raises:
        Refused: it cannot be decoded, or has more pixels.
        LoaderError: the process does not start, is killed, or does not answer.
    """
    said, file = server.decode(encoded, max_pixels)
    if "error" in said:
        raise LoaderError(said["error"])
    if "cause" in said:
        raise Refused(said["cause"])
    height, width = said["size"]
    check_size(height, width, max_pixels)
    return np.frombuffer(file, np.uint8), (height, width)


class _Server:
    """The process that decodes, seen from its parent."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.process: subprocess.Popen[bytes] | None = None

    def decode(self, encoded: NDArray[np.uint8], max_pixels: int) -> _Answer:
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
            raise LoaderError("the process that decodes with Pillow was ended twice: check whether memory is full")
        return answer

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

    def _ask(self, encoded: NDArray[np.uint8], max_pixels: int) -> _Answer | None:
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
    try:
        return start_python("-m", _PROCESS, is_ready=lambda process: _answer(process) is not None)
    except ChildProcessError as error:
        raise LoaderError("the process that decodes with Pillow did not start:", *str(error).splitlines()) from None


def _answer(process: subprocess.Popen[bytes]) -> _Answer | None:
    """Reads an answer: its line, and the PNM of the pixels after it; None if the process ended."""
    assert process.stdout is not None
    pipe, poll = process.stdout.fileno(), select.poll()
    poll.register(pipe, select.POLLIN)

    def some() -> bytes:
        if not poll.poll(1000 * MOST_WAITING_SECONDS):
            raise LoaderError(f"the process that decodes with Pillow did not answer for {MOST_WAITING_SECONDS} seconds")
        return os.read(pipe, _READ_BYTES)

    line = b""
    while b"\n" not in line:
        if not (data := some()):
            return None
        line += data
    line, _, data = line.partition(b"\n")
    said = json.loads(line)
    head, channels = b"", said.get("channels", 0)
    height, width = said.get("size", (0, 0))
    if channels:
        head = b"P%d\n%d %d\n255\n" % (_KINDS[channels], width, height)
    file = bytearray(len(head) + height * width * channels)
    filled = len(head) + len(data)
    file[:filled] = head + data
    while filled < len(file):
        if not (data := some()):
            return None
        file[filled : filled + len(data)] = data
        filled += len(data)
    return said, file


server = _Server()  # one in each process
atexit.register(server.close)
at_fork(server, _Server.leave_to_the_parent)
