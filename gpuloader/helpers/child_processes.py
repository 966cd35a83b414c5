"""Python processes that work for this one, over pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress

_STDERR_SHOWN_BYTES = 1000


def start_python(*arguments: str, is_ready: Callable[[subprocess.Popen[bytes]], bool]) -> subprocess.Popen[bytes] | str:
    """A process of `python ARGUMENTS` with pipes to its stdin and stdout; or the end of what it wrote to stderr.

    It imports from where this process does. An interrupt from the terminal does not reach it: that is its parent's.

    Args:
        is_ready: waits until it says that it is ready; False where it ended before.
    """
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            bufsize=0,  # so that whatever reads after `is_ready` misses nothing
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
        return stderr.read().decode(errors="replace")[-_STDERR_SHOWN_BYTES:]


def end(process: subprocess.Popen[bytes]) -> None:
    """Kills a process of `start_python`, with what it forked. It may have ended before."""
    if process.returncode is None:  # else its number may be another's by now
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
