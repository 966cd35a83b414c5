"""The command line, run as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """`gpuloader ARGUMENTS` in a process of its own, warnings being errors, with more variables in its environment."""
    command = [sys.executable, "-W", "error", "-c", "from gpuloader.cli import main; main()", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}, timeout=120
    )
