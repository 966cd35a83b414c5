"""Runs scripts/train_imagenet.py as a rank that something happens to: python struck.py RANK STEP WHAT ARGUMENT...

WHAT is the name of a signal that the rank gets in that step of the optimiser; `half`, to be killed when half of the
checkpoint after that step is written; or `nothing`. torchvision can be imported meanwhile.
"""

import importlib
import os
import runpy
import signal
import sys
from io import BytesIO
from pathlib import Path
from typing import IO, Any

TESTS = Path(__file__).resolve().parents[1] / "support"
SCRIPT = TESTS.parents[1] / "scripts" / "train_imagenet.py"


def strike(number: int) -> None:
    """Sends a signal to this process."""
    os.kill(os.getpid(), number)


def signal_in_step(step: int, number: int) -> None:
    """The signal comes while the optimiser takes that step, counted from 1."""
    import torch

    taken = 0
    original = torch.optim.SGD.step

    def struck(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        nonlocal taken
        taken += 1
        if taken == step:
            strike(number)
        return original(*args, **kwargs)

    torch.optim.SGD.step = struck


def kill_in_save(step: int) -> None:
    """The process dies when half of the checkpoint is written."""
    import torch

    original = torch.save

    def struck(state: dict[str, Any], file: IO[bytes]) -> None:
        whole = BytesIO()
        original(state, whole)
        if state["step"] == step:
            file.write(whole.getvalue()[: len(whole.getvalue()) // 2])
            file.flush()
            strike(signal.SIGKILL)
        file.write(whole.getvalue())

    torch.save = struck


if __name__ == "__main__":
    rank, step, what = sys.argv[1:4]
    sys.path.insert(0, str(TESTS))
    if 'model="resnet18"' in sys.argv:
        importlib.import_module("oracle")
    if os.environ.get("RANK", "0") == rank and what == "half":
        kill_in_save(int(step))
    elif os.environ.get("RANK", "0") == rank and what != "nothing":
        signal_in_step(int(step), signal.Signals[what])
    sys.argv = [str(SCRIPT), *sys.argv[4:]]
    runpy.run_path(str(SCRIPT), run_name="__main__")
