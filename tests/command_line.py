"""The command line, run as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys

_OF_ROOT = "-dac_override,-dac_read_search"
_MODES_HOLD = ["setpriv", f"--bounding-set={_OF_ROOT}", f"--inh-caps={_OF_ROOT}"]


def run(*arguments: object, modes_hold: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
    """`gpuloader ARGUMENTS` in a process of its own, warnings being errors, with more variables in its environment.

    With `modes_hold`, what the modes of files forbid is forbidden to root as well.
    """
    command = [sys.executable, "-W", "error", "-c", "from gpuloader.cli import main; main()", *map(str, arguments)]
    return subprocess.run(
        [*(_MODES_HOLD if modes_hold and os.geteuid() == 0 else []), *command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        timeout=120,
    )
