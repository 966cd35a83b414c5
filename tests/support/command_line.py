"""The command line, run as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys

from warm import CLI, Warm, warm

_OF_ROOT = "-dac_override,-dac_read_search"
_MODES_HOLD = ("setpriv", f"--bounding-set={_OF_ROOT}", f"--inh-caps={_OF_ROOT}")


def run(
    *arguments: object, modes_hold: bool = False, cold: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`gpuloader ARGUMENTS` in a process of its own, warnings being errors, with more variables in its environment.

    With `modes_hold`, what the modes of files forbid is forbidden to root as well. `cold` is for a process that has
    imported nothing yet; one whose Python is told something by its environment is such.
    """
    env = {**os.environ, **environment}
    if not cold and not any(name.startswith("PYTHON") for name in environment):
        return (where_modes_hold() if modes_hold else warm()).run(CLI, *arguments, env=env)
    command = [sys.executable, "-W", "error", "-c", CLI, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=300)


def where_modes_hold() -> Warm:
    """Runs programs to which what the modes of files forbid is forbidden even as root."""
    return warm(*(_MODES_HOLD if os.geteuid() == 0 else ()))
