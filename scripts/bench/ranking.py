"""Measures one to four processes of the loader at once on the same shards: images/s and CPU time of all together.

Each process is a rank with its share of the data, and with its share of the cores as decoding threads, at least one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from facts import machine

_HERE = Path(__file__).resolve().parent


def main() -> None:
    """Measures, prints a table, and writes the JSON if told where to."""
    parser = argparse.ArgumentParser(prog="scripts/bench/ranks", description=__doc__)
    parser.add_argument("--shards", nargs="+", type=Path, required=True)
    parser.add_argument("--most", type=int, default=4, help="processes at once, from 1 on")
    parser.add_argument("--epochs", type=int, default=4, help="the first does not count")
    parser.add_argument("--batch", type=int, default=128, help="of all processes together")
    parser.add_argument("--output", type=Path, help="a JSON file")
    arguments = parser.parse_args()
    shards = [str(shard.absolute()) for shard in arguments.shards]
    rows = [measure(shards, processes, arguments.epochs, arguments.batch) for processes in range(1, arguments.most + 1)]
    sys.stdout.write(table(rows))
    if arguments.output:
        arguments.output.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    lines = ["| processes | threads in each | images/s | CPU core-s per 1,000 images |", "|---|---|---|---|"]
    for row in rows:
        cells = f"{row['images_per_second']:,.0f} | {row['cpu_seconds_per_1000']:.3f}"
        lines.append(f"| {row['processes']} | {row['threads']} | {cells} |")
    return "\n".join(lines) + "\n"


def measure(shards: Sequence[str], processes: int, epochs: int, batch: int) -> dict[str, Any]:
    """All ranks of one world: their images, over the time from the first one's start to the last one's end."""
    threads = max(1, len(os.sched_getaffinity(0)) // processes)
    command = [sys.executable, "-m", "systems.gpuloader_", "--shards", *shards, "--recipe", "train", "--antialias"]
    command += ["--epochs", str(epochs), "--batch", str(batch // processes), "--threads", str(threads)]
    running = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_HERE,
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)},
        )
        for rank in range(processes)
    ]
    lines = [json.loads(line) for process in running for line in process.communicate()[0].splitlines()]
    if any(process.returncode for process in running):
        raise SystemExit(f"a process of {processes} failed; its message is above")
    counted = [line for line in lines if line.get("epoch", 0) > 0]
    images = sum(line["images"] for line in counted)
    started = min(line["started_at_seconds"] for line in counted)
    ended = max(line["ended_at_seconds"] for line in counted)
    return {
        "processes": processes,
        "threads": threads,
        "images": images,
        "images_per_second": images / (ended - started),
        "cpu_seconds_per_1000": 1000 * sum(line["cpu_seconds"] for line in counted) / images,
    }


if __name__ == "__main__":
    main()
