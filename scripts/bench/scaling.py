"""Measures what the number of samples costs: indexes, opening them, the first batch, the order, the memory.

The shards are real tars of tiny JPEGs in a temporary folder. Larger numbers measure only the plan, which is arithmetic:
an order has no table, so 10^12 samples need no more memory than ten.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from facts import machine
from PIL import Image
from processes import peak_rss_bytes

from gpuloader.plan import AllSamples, Draws, Plan, Stream

_PER_SHARD = 10_000
_BATCH = 128
_PLANNED_BATCHES = 50
_CROP_DRAWS = 22


def main() -> None:
    """Measures, prints a table, and writes the JSON if told where to."""
    parser = argparse.ArgumentParser(prog="scripts/bench/scale", description=__doc__)
    parser.add_argument("--samples", type=int, nargs="+", default=[10**4, 10**5, 10**6], help="in real shards")
    parser.add_argument("--planned", type=int, nargs="+", default=[10**9, 10**12], help="in the plan alone")
    parser.add_argument("--output", type=Path, help="a JSON file")
    parser.add_argument("--step", choices=_STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        sys.stdout.write(json.dumps(_STEPS[arguments.step](arguments.folder)) + "\n")
        return
    rows = [measure(samples) for samples in arguments.samples]
    rows += [{"samples": samples, **planning(samples)} for samples in arguments.planned]
    sys.stdout.write(table(rows))
    if arguments.output:
        arguments.output.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


def measure(samples: int) -> dict[str, Any]:
    """One number of samples in real shards; each step in a process of its own, so that memory is its own."""
    with tempfile.TemporaryDirectory() as folder:
        write_shards(Path(folder), samples)
        steps: dict[str, Any] = {"samples": samples}
        for step in _STEPS:
            command = [sys.executable, __file__, "--step", step, "--folder", folder]
            steps |= json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return steps | planning(samples)


def planning(samples: int) -> dict[str, float]:
    """CPU time of the order and of a training crop's draws, by sample, over batches spread across an epoch."""
    plan = Plan(AllSamples(samples), _BATCH)
    cursors = [plan.at(0, int(step)) for step in np.linspace(0, plan.steps - 1, _PLANNED_BATCHES)]
    count = len(cursors) * _BATCH
    order_seconds, batches = _cpu(lambda: [plan.batch(cursor).ids for cursor in cursors])
    draws_seconds, _ = _cpu(lambda: [Draws(0, 0, ids).uniform(Stream.CROP, _CROP_DRAWS) for ids in batches])
    return {"order_seconds_per_sample": order_seconds / count, "draws_seconds_per_sample": draws_seconds / count}


def write_shards(folder: Path, samples: int) -> None:
    """Shards of one tiny JPEG under many keys, written block by block: webdataset's writer takes ten times as long."""
    file = io.BytesIO()
    Image.fromarray(np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)).save(file, "JPEG", quality=50)
    image = file.getvalue()
    for first in range(0, samples, _PER_SHARD):
        with (folder / f"tiny-{first // _PER_SHARD:06d}.tar").open("wb") as shard:
            for number in range(first, min(first + _PER_SHARD, samples)):
                shard.write(_member(f"{number:09d}.jpg", image) + _member(f"{number:09d}.cls", b"%d" % (number % 10)))
            shard.write(bytes(2 * tarfile.BLOCKSIZE))


def _member(name: str, data: bytes) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    return entry.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def _build(folder: str) -> dict[str, float]:
    """Makes the indexes and leaves them beside the shards."""
    from gpuloader.shards import open_indexes, resolve_shards

    shards = resolve_shards(folder)
    rss_bytes = peak_rss_bytes()
    (cpu_seconds, seconds), _ = _cpu_and_wall(lambda: open_indexes(shards))
    return {
        "index_build_seconds": seconds,
        "index_build_cpu_seconds": cpu_seconds,
        "index_build_rss_bytes": peak_rss_bytes() - rss_bytes,
    }


def _load(folder: str) -> dict[str, float]:
    """Opens the indexes that are there."""
    from gpuloader.shards import ShardSet, resolve_shards

    shards = resolve_shards(folder)
    rss_bytes = peak_rss_bytes()
    (_, seconds), _ = _cpu_and_wall(lambda: len(ShardSet.open(shards)))
    index_bytes = sum(file.stat().st_size for file in Path(folder).glob("*.gpuidx"))
    return {
        "index_load_seconds": seconds,
        "index_load_rss_bytes": peak_rss_bytes() - rss_bytes,
        "index_file_bytes": index_bytes,
    }


def _first_batch(folder: str) -> dict[str, float]:
    """From the import of the library to the first batch."""
    started = time.perf_counter()
    from gpuloader import GPULoader

    with GPULoader(folder, _BATCH, None) as loader:
        next(iter(loader))
    return {"first_batch_seconds": time.perf_counter() - started, "loader_rss_bytes": peak_rss_bytes()}


_STEPS: dict[str, Callable[[str], dict[str, float]]] = {"build": _build, "load": _load, "first-batch": _first_batch}


def _cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    work()  # once beforehand: caches are warm in a run
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def _cpu_and_wall(work: Callable[[], Any]) -> tuple[tuple[float, float], Any]:
    cpu, wall = time.process_time(), time.perf_counter()
    result = work()
    return (time.process_time() - cpu, time.perf_counter() - wall), result


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown; cells that belong to real shards alone are empty for the plan's numbers."""
    columns = {
        "index_build_seconds": ("indexing", 1, " s", 2),
        "index_build_rss_bytes": ("its memory", 1e-6, " MB", 0),
        "index_load_seconds": ("opening", 1, " s", 3),
        "index_load_rss_bytes": ("its memory", 1e-6, " MB", 0),
        "index_file_bytes": ("index files", 1e-6, " MB", 1),
        "first_batch_seconds": ("first batch", 1, " s", 2),
        "loader_rss_bytes": ("memory in all", 1e-6, " MB", 0),
        "order_seconds_per_sample": ("order, a sample", 1e6, " us", 2),
        "draws_seconds_per_sample": ("draws, a sample", 1e6, " us", 2),
    }
    lines = [f"| samples | {' | '.join(title for title, *_ in columns.values())} |", "|---" * (len(columns) + 1) + "|"]
    for row in rows:
        cells = [
            f"{row[key] * factor:,.{digits}f}{unit}" if key in row else ""
            for key, (_, factor, unit, digits) in columns.items()
        ]
        lines.append(f"| {row['samples']:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
