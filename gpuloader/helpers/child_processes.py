"""Starts Python processes that work for this one, over pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress

_STDERR_SHOWN_BYTES = 1000


def start_python(*arguments: str, is_ready: Callable[[subprocess.Popen[bytes]], bool]) -> subprocess.Popen[bytes]:
    """Starts `python ARGUMENTS` with pipes to its stdin and stdout.

    It imports from where this process does. Ctrl-C in the terminal does not reach it: its parent handles that.

    Args:
        is_ready: waits until the process says that it is ready; returns False if it ended before.

    Raises:
        ChildProcessError: it ended before it was ready; the message is the end of its stderr.
    """
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            bufsize=0,  # so that a reader after `is_ready` misses nothing
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
        try:
            ready = is_ready(process)
        except BaseException:
            end(process)
            raise
        if ready:
            return process
        end(process)
        stderr.seek(0)
        raise ChildProcessError(stderr.read().decode(errors="replace")[-_STDERR_SHOWN_BYTES:])


def end(process: subprocess.Popen[bytes]) -> None:
    """Kills a process of `start_python`, with what it forked. It may have ended before."""
    if process.returncode is None:  # otherwise its number may belong to another process by now
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
