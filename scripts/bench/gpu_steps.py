"""Runs all that needs a GPU, the most important first. Each step is a process with a time limit of its own.

So a crash or a hang loses only that step. A step writes its output to RESULTS/STEP.txt, or .json for those of `verify`,
and its messages to RESULTS/STEP.log. After each
step, RESULTS/steps.json has all of them so far: if the run is cut, what it found is there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_VERIFY = ("python3", "-c", "from gpuloader.cli import main; main()", "verify")
_SYSTEMS = [
    "gpuloader",
    "gpuloader-seekable",
    "stock-dali",
    "floors-read",
    "floors-decode",
    "floors-decode-resize",
    "floors-resident",
]
_LEAST_SECONDS = 20.0  # a process needs as much to import torch and DALI, and to start a GPU
_KILL_AFTER_SECONDS = 10
_SHOWN_LINES = 25


class Step(NamedTuple):
    """A process to run.

    Attributes:
        output: the file in the results that gets its standard output.
        most_seconds: its time limit.
        command: its arguments.
    """

    output: str
    most_seconds: float
    command: Sequence[str]


@dataclass
class Done:
    """How a step ended, as in steps.json.

    Attributes:
        step: the file of its output.
        status: 0 is well; 124 is the time limit, 128 + n signal n; None was not run, because no time was left.
        seconds: how long it ran.
    """

    step: str
    status: int | None = None
    seconds: float = 0.0


def main() -> int:
    """Runs the steps; returns 1 if one failed or was not run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="of all steps; without it, only their own limits"
    )
    parser.add_argument("results", type=Path, help="a folder for their outputs")
    parser.add_argument("shards", nargs="+", type=Path)
    arguments = parser.parse_args()
    results = arguments.results.resolve()
    results.mkdir(parents=True, exist_ok=True)
    shards = [str(shard.resolve()) for shard in arguments.shards]
    os.chdir(ROOT)
    done = run(all_steps(results, shards), results, 60 * arguments.minutes)
    for each in done:
        if each.status is None:
            sys.stdout.write(f"not run: {each.step}\n")
        elif each.status:
            sys.stdout.write(f"failed: {each.step} (status {each.status})\n")
    return int(any(each.status != 0 for each in done))


def all_steps(results: Path, shards: Sequence[str]) -> list[Step]:
    """What is to be known first comes first: whether the GPU decodes and delivers what it should."""

    def verify(check: str) -> Step:
        return Step(f"verify-{check}.json", 300, [*_VERIFY, *shards, "--check", check, "--json"])

    def test(name: str) -> Step:
        command = ["env", "GPULOADER_REQUIRE_GPU=1", "python3", "-m", "pytest", "-q", f"tests/gpu/{name}.py"]
        return Step(f"{name}.txt", 600, command)

    first = ["test_decoding_gpu", "test_loader_gpu"]
    others = sorted(path.stem for path in (ROOT / "tests/gpu").glob("test_*.py") if path.stem not in first)
    work, bench = ["--work", ".bench", "--output", str(results / "benchmark")], "scripts/bench"
    settings = ["--repeat", "6", "--batch", "256", "--rounds", "3", "--systems", *_SYSTEMS]
    return [
        *map(verify, ["formats", "repeats", "recipes"]),
        *map(test, first),
        *map(verify, ["cuts", "operations", "forms", "bad-images"]),
        *map(test, others),
        Step("benchmark.txt", 1800, ["python3", f"{bench}/orchestrator.py", "--shards", *shards, *settings, *work]),
        Step("training.txt", 1800, ["python3", f"{bench}/training.py", "--shards", *shards]),
        Step(
            "sweep.txt",
            1800,
            ["python3", f"{bench}/sweeping.py", "--shards", *shards, "--output", str(results / "sweep.json")],
        ),
    ]


def run(steps: Sequence[Step], results: Path, seconds: float) -> list[Done]:
    """Runs the steps within so many seconds; one gets at most half of the time that is left, so that others follow."""
    ends, done = time.monotonic() + seconds, [Done(step.output) for step in steps]
    for step, outcome in zip(steps, done, strict=True):
        limit = min(step.most_seconds, (ends - time.monotonic()) / 2)
        if limit >= min(step.most_seconds, _LEAST_SECONDS):
            sys.stderr.write(f"== {step.output}\n")
            outcome.status, outcome.seconds = _run(step, results, limit)
        (results / "steps.json").write_text(json.dumps([asdict(each) for each in done], indent=1) + "\n")
    return done


def _run(step: Step, results: Path, limit: float) -> tuple[int, float]:
    """A step's status and seconds. Ctrl-C lets pytest say what it found so far; a step that ignores it is killed."""
    output = results / step.output
    log, started = output.with_suffix(".log"), time.monotonic()
    with output.open("wb") as out, log.open("wb") as messages:
        timed = ["timeout", "--signal=INT", f"--kill-after={_KILL_AFTER_SECONDS}", f"{limit:.1f}", *step.command]
        status = subprocess.run(timed, stdout=out, stderr=messages, check=False).returncode
    for file in (output, log):
        with file.open(errors="replace") as text:
            sys.stdout.writelines(deque(text, _SHOWN_LINES))
    return (128 - status if status < 0 else status), round(time.monotonic() - started, 1)


if __name__ == "__main__":
    sys.exit(main())
