"""Measures the start: from the beginning of a process to its first batch of 32, with nothing prepared; and the imports.

Each process gets copies of the shards in a new folder, which are in the page cache, and an empty folder for caches.
If a system must make something from the shards first, it does so. The rows of presets are this library's, with torch
and DALI imported before it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

from facts import gpu_name, machine
from peers import PRESETS, SYSTEMS, NotInstalledError, in_words, python_of, reason

_HERE = Path(__file__).resolve().parent
_COLUMNS = (("imports",), ("batch",), ("batch", "imports"))
BATCH = 32


def main(command_line: Sequence[str] | None = None) -> None:
    """Measures, prints a table, and writes the JSON if told where to."""
    parser = argparse.ArgumentParser(prog="scripts/bench/start", description=__doc__)
    parser.add_argument("--shards", nargs="+", type=Path, required=True)
    parser.add_argument("--systems", nargs="*", choices=SYSTEMS, default=_peers(), metavar="NAME")
    parser.add_argument("--presets", nargs="*", choices=PRESETS, default=PRESETS, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=7, help="processes of each; one more before does not count")
    parser.add_argument("--work", type=Path, default=Path(".bench"), help="environments")
    parser.add_argument("--output", type=Path, help="a JSON file")
    arguments = parser.parse_args(command_line)
    rows = [_of_system(name, arguments.work.resolve()) for name in arguments.systems]
    rows += [_of_preset(name) for name in arguments.presets]
    for number in range(arguments.rounds + 1):
        for row in rows:
            if row["command"]:
                measure(row, arguments.shards, counts=number > 0)
    for row in rows:
        del row["command"]
    sys.stdout.write(table(rows))
    if arguments.output:
        date = datetime.now(timezone.utc).date().isoformat()
        result = {"date": date, "machine": machine(), "batch": BATCH, "rows": rows}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def _peers() -> list[str]:
    """The systems that train on this machine, without the floors, on shards as they are."""
    able = {name: system for name, system in SYSTEMS.items() if "train" in system.recipes}
    on_shards = {name: system for name, system in able.items() if not (system.plain or system.folder)}
    return [name for name, system in on_shards.items() if not system.title.startswith("floor: ")]


def _of_system(name: str, work: Path) -> dict[str, Any]:
    """A row to be filled, with the command of a process; or with the reason why there is none."""
    system = SYSTEMS[name]
    try:
        command = _command(python_of(system.environment, work), system.module, system.variant)
    except NotInstalledError as why:
        return {"title": system.title, "reason": f"not installed: {why}", "command": [], "rounds": []}
    return {"title": system.title, "reason": "", "command": command, "rounds": []}


def _of_preset(name: str) -> dict[str, Any]:
    command = _command(Path(sys.executable), "presets", name)
    return {"title": f"gpuloader, `{name}`, behind torch and DALI", "reason": "", "command": command, "rounds": []}


def _command(python: Path, module: str, variant: str) -> list[str]:
    command = [str(python), "-m", f"systems.{module}", "--start", "--batch", str(BATCH)]
    command += ["--device", "cpu" if gpu_name() is None else "cuda"]
    return [*command, "--variant", variant] if variant else command


def measure(row: dict[str, Any], shards: Sequence[Path], counts: bool) -> None:
    """One process, whose figures the row gets; or why there are none, and then it has no command any more."""
    with tempfile.TemporaryDirectory() as folder:
        (cache := Path(folder) / "cache").mkdir()
        copies = [shutil.copy(shard, f"{folder}/{number:06d}.tar") for number, shard in enumerate(shards)]
        done = subprocess.run(
            [*row["command"], "--shards", *copies, "--work", str(cache)],
            capture_output=True,
            text=True,
            check=False,
            cwd=_HERE,
            env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        )
    if done.returncode:
        row |= {"reason": reason(done.stderr), "command": [], "rounds": []}
    elif counts:
        row["rounds"].append(json.loads(done.stdout.splitlines()[-1]))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: medians over the rounds, of CPU time and, in brackets, of the time that passed."""
    lines = ["| system | its imports | first batch | behind the imports |", "|---|---|---|---|"]
    for row in rows:
        cells = (
            [_cell(row["rounds"], *names) for names in _COLUMNS] if row["rounds"] else [in_words(row["reason"]), "", ""]
        )
        lines.append(f"| {row['title']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(rounds: Sequence[dict[str, float]], until: str, since: str = "") -> str:
    """The median from a point to another."""
    passed = [
        median(one[f"{until}_{unit}"] - (one[f"{since}_{unit}"] if since else 0) for one in rounds)
        for unit in ("cpu_seconds", "seconds")
    ]
    return f"{passed[0]:.2f} s ({passed[1]:.2f} s)"


if __name__ == "__main__":
    main()
