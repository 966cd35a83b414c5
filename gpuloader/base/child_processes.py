"""Runs Python processes that work for this one: they take requests and give answers over pipes."""

from __future__ import annotations

import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from gpuloader.base.signals import deferred_signals

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_STDERR_SHOWN_BYTES = 1000
_READ_BYTES = 1 << 20
_MOST_ENDING_SECONDS = 60


class ChildProcess:
    """A Python process that writes lines of JSON, and may let bytes follow a line.

    It imports from where this process does. Ctrl-C in the terminal does not reach it: its parent handles that.

    Args:
        work: what it does, for errors.
        failure: the class of the errors.
        arguments: of `python`.

    Attributes:
        process: the process; None if none is running.
        end: how the last one ended, such as "SIGSEGV" or "exit status 1".
        errors: the end of what the last one wrote to stderr.
        lock: for threads that take turns.
    """

    def __init__(self, work: str, failure: type[Exception], *arguments: str) -> None:
        self._work, self._failure, self._arguments = work, failure, arguments
        self.process: subprocess.Popen[bytes] | None = None
        self.end = self.errors = ""
        self.lock = Lock()
        self._answers: int = -1
        self._received = b""

    def ask(self, request: object, *data: bytes | NDArray[np.uint8], most_seconds: float | None = None) -> Any:  # noqa: ANN401
        """Sends a line of JSON with the bytes after it, and returns the answer's line; None if the process ended.

        If no process is running, it starts one, and waits for the line that says it is ready, or {"error": text}.

        Raises:
            Exception: of the given class: the process ends before it is ready, says that it cannot work, or does not
                answer in time.
        """
        if self.process is None:
            self.start()
            if (ready := self.answer(most_seconds)) is None:
                raise self._failure(f"the process that {self._work} did not start:", *self.errors.splitlines())
            if "error" in ready:
                raise self._failure(*ready["error"].splitlines())
        assert self.process is not None
        assert self.process.stdin is not None
        try:
            for part in (json.dumps(request).encode() + b"\n", *data):
                write_all(self.process.stdin.fileno(), part)
        except BrokenPipeError:
            self._note_end()
            return None
        return self.answer(most_seconds)

    def start(self) -> None:
        # A file, because a pipe that nobody reads fills up, and then the process hangs.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        with deferred_signals():
            self.process = subprocess.Popen(
                [sys.executable, *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )
        assert self.process.stdout is not None
        self._answers, self._received = self.process.stdout.fileno(), b""

    def answer(self, most_seconds: float | None = None) -> Any:  # noqa: ANN401
        """Returns the value of the next line; None if the process ended before.

        Raises:
            Exception: of the given class: no line came for this long.
        """
        while b"\n" not in self._received:
            self._wait(most_seconds)
            if not (data := os.read(self._answers, _READ_BYTES)):
                self._note_end()
                return None
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)

    def fill(self, target: memoryview, most_seconds: float | None = None) -> bool:
        """Reads the bytes after a line into `target`; False if the process ended before. Raises as `answer` does."""
        filled = len(self._received)
        target[:filled], self._received = self._received, b""
        while filled < len(target):
            self._wait(most_seconds)
            if not (count := os.readv(self._answers, [target[filled:]])):
                self._note_end()
                return False
            filled += count
        return True

    def close(self) -> None:
        """Kills the process, with what it forked. It may have ended before."""
        process, self.process = self.process, None
        if process is None:
            return
        if process.returncode is None:  # otherwise its number may belong to another process by now
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        status = process.returncode
        self.end = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        with self._stderr:
            self._stderr.seek(0)
            self.errors = self._stderr.read().decode(errors="replace")[-_STDERR_SHOWN_BYTES:]

    def leave_to_the_parent(self) -> None:
        """Forgets the parent's process in a forked child, which starts its own; the parent ends the other."""
        process, self.process, self.lock = self.process, None, Lock()
        if process is not None:
            process.returncode = 0  # otherwise Python waits for it, and warns
            for pipe in (process.stdin, process.stdout, self._stderr):
                assert pipe is not None
                pipe.close()

    def _wait(self, most_seconds: float | None) -> None:
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        if not poll.poll(None if most_seconds is None else 1000 * most_seconds):
            raise self._failure(f"the process that {self._work} did not answer for {most_seconds} seconds")

    def _note_end(self) -> None:
        assert self.process is not None
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_MOST_ENDING_SECONDS)
        self.close()


def cpu_seconds() -> float:
    """Returns the CPU time of this process, of its children that have ended, and of those of `multiprocessing`."""
    children = [Path(f"/proc/{child.pid}/stat") for child in multiprocessing.active_children()]
    ticks = sum(int(each) for child in children for each in child.read_text().rpartition(")")[2].split()[11:13])
    return time.process_time() + sum(os.times()[2:4]) + ticks / os.sysconf("SC_CLK_TCK")


def write_all(fd: int, data: bytes | NDArray[np.uint8]) -> None:
    """Writes all bytes to a pipe or file, which may take fewer at a time."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
