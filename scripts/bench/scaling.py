"""Measures what the number of samples costs: indexes, opening them, the first batch, the order, the memory.

The shards are real tars of tiny JPEGs in a temporary folder; with `--files`, folders of 1,000 single files.
With `--sets`, there are only names of shards and one merged index of them, so that it may be large. Larger numbers
measure only the plan, which is arithmetic: an order has no table, so 10^12 samples need no more memory than ten.
"""

from __future__ import annotations

import argparse
import io
import json
import os
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
from processes import anonymous_bytes, peak_rss_bytes

from gpuloader.plan import Draws, Plan, Stream, all_samples

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/support"))

_PER_SHARD, _PER_FOLDER = 10_000, 1000
_BATCH = 128
_PLANNED_BATCHES = 50
_CROP_DRAWS = 22


def main() -> None:
    """Measures, prints a table, and writes the JSON if told where to."""
    parser = argparse.ArgumentParser(prog="scripts/bench/scale", description=__doc__)
    parser.add_argument("--samples", type=int, nargs="+", default=[10**4, 10**5, 10**6], help="in real shards")
    parser.add_argument("--files", type=int, nargs="+", default=[], help="one file each, instead of shards")
    parser.add_argument("--sets", nargs="+", default=[], help="SAMPLES/SHARDS of merged indexes, instead of shards")
    parser.add_argument("--planned", type=int, nargs="+", default=[10**9, 10**12], help="in the plan alone")
    parser.add_argument("--output", type=Path, help="a JSON file")
    parser.add_argument("--step", choices=_STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        sys.stdout.write(json.dumps(_STEPS[arguments.step](arguments.folder)) + "\n")
        return
    if arguments.sets:
        rows = [_measure_set(*map(int, each.split("/"))) for each in arguments.sets]
    elif arguments.files:
        rows = [_measure(files, write_files) for files in arguments.files]
    else:
        rows = [_measure(samples, write_shards) | planning(samples) for samples in arguments.samples]
        rows += [{"samples": samples, **planning(samples)} for samples in arguments.planned]
    sys.stdout.write(table(rows))
    if arguments.output:
        arguments.output.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


def _measure(samples: int, write: Callable[[Path, int], None]) -> dict[str, Any]:
    """One number of real samples; each step in a process of its own, so that memory is its own."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        write(Path(folder), samples)
        steps: dict[str, Any] = {"samples": samples}
        for step in ("build", "load", "first-batch"):
            steps |= _run(step, folder, cache)
    return steps


def _measure_set(samples: int, shards: int) -> dict[str, Any]:
    """One merged index: a machine's first process, and one that comes later."""
    from synthetic import write_large_set

    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        names = [f"{number:07d}.tar" for number in range(shards)]
        for name in names:
            os.close(os.open(f"{folder}/{name}", os.O_CREAT))  # nobody reads it
        write_large_set(file := Path(folder, "all.gpuset"), samples, shards, names)
        first, later = _run("set", folder, cache), _run("set", folder, cache)
        row = {"samples": samples, "shards": shards, "index_file_bytes": file.stat().st_size}
    return row | {f"first_{key}": value for key, value in first.items()} | later


def _run(step: str, folder: str, cache: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--step", step, "--folder", folder]
    environment = {**os.environ, "XDG_CACHE_HOME": cache}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return dict(json.loads(done.stdout))


def planning(samples: int) -> dict[str, float]:
    """CPU time of the order and of a training crop's draws, by sample, over batches spread across an epoch."""
    plan = Plan(all_samples(samples), _BATCH)
    cursors = [plan.at(0, int(step)) for step in np.linspace(0, plan.steps - 1, _PLANNED_BATCHES)]
    count = len(cursors) * _BATCH
    order_seconds, batches = _cpu(lambda: [plan.batch(cursor).ids for cursor in cursors])
    draws_seconds, _ = _cpu(lambda: [Draws(0, 0, ids).uniform(Stream.CROP, _CROP_DRAWS) for ids in batches])
    return {"order_seconds_per_sample": order_seconds / count, "draws_seconds_per_sample": draws_seconds / count}


def write_shards(folder: Path, samples: int) -> None:
    """Shards of one tiny JPEG under many keys, written block by block: webdataset's writer takes ten times as long."""
    image = _tiny_jpeg()
    for first in range(0, samples, _PER_SHARD):
        with (folder / f"tiny-{first // _PER_SHARD:06d}.tar").open("wb") as shard:
            for number in range(first, min(first + _PER_SHARD, samples)):
                shard.write(_member(f"{number:09d}.jpg", image) + _member(f"{number:09d}.cls", b"%d" % (number % 10)))
            shard.write(bytes(2 * tarfile.BLOCKSIZE))


def write_files(root: Path, files: int) -> None:
    """As many files of one tiny JPEG, as CLASS/NUMBER.jpg."""
    image = _tiny_jpeg()
    for first in range(0, files, _PER_FOLDER):
        (folder := root / f"{first // _PER_FOLDER:06d}").mkdir()
        for number in range(first, min(first + _PER_FOLDER, files)):
            (folder / f"{number:09d}.jpg").write_bytes(image)


def _tiny_jpeg() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)).save(file, "JPEG", quality=50)
    return file.getvalue()


def _member(name: str, data: bytes) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    return entry.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def _build(folder: str) -> dict[str, float]:
    """Lists the data, and makes the indexes and leaves them where they are found again."""
    from gpuloader.shards import open_indexes, resolve_shards

    rss_bytes = peak_rss_bytes()
    (cpu_seconds, seconds), _ = _cpu_and_wall(lambda: open_indexes(resolve_shards(folder)))
    return {
        "index_build_seconds": seconds,
        "index_build_cpu_seconds": cpu_seconds,
        "index_build_rss_bytes": peak_rss_bytes() - rss_bytes,
    }


def _load(folder: str) -> dict[str, float]:
    """Lists the data, and opens the indexes that are there."""
    from gpuloader.shards import ShardSet, index_file, resolve_shards

    rss_bytes, private_bytes = peak_rss_bytes(), anonymous_bytes()
    (_, seconds), opened = _cpu_and_wall(lambda: ShardSet.open(resolve_shards(folder)))
    private_bytes = anonymous_bytes() - private_bytes
    index_bytes = sum(index_file(shard).stat().st_size for shard in opened.shards)
    return {
        "index_load_seconds": seconds,
        "index_load_rss_bytes": peak_rss_bytes() - rss_bytes,
        "index_private_bytes": private_bytes,
        "index_file_bytes": index_bytes,
    }


def _first_batch(folder: str) -> dict[str, float]:
    """From the import of the library to the first batch."""
    started = time.perf_counter()
    from gpuloader import GPULoader

    with GPULoader(folder, _BATCH, None) as loader:
        next(iter(loader))
    return {"first_batch_seconds": time.perf_counter() - started, "loader_rss_bytes": peak_rss_bytes()}


def _open_set(folder: str) -> dict[str, float]:
    """Makes a loader, and asks for its state, which needs facts of all samples."""
    from gpuloader.loading.loader import GPULoader  # all of it: `import gpuloader` imports nothing

    private_bytes = anonymous_bytes()
    (cpu_seconds, seconds), loader = _cpu_and_wall(lambda: GPULoader(folder, _BATCH, None, preset="imagenet_train"))
    loader.state_dict()
    return {
        "set_open_seconds": seconds,
        "set_open_cpu_seconds": cpu_seconds,
        "set_private_bytes": anonymous_bytes() - private_bytes,
    }


_STEPS: dict[str, Callable[[str], dict[str, float]]] = {
    "build": _build,
    "load": _load,
    "first-batch": _first_batch,
    "set": _open_set,
}


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
    """Markdown, with the columns that a row has; cells that belong to real data are empty for the plan's numbers."""
    columns = {
        "shards": ("shards", 1, "", 0),
        "index_build_seconds": ("indexing", 1, " s", 2),
        "index_build_rss_bytes": ("its memory", 1e-6, " MB", 0),
        "index_load_seconds": ("opening", 1, " s", 3),
        "index_load_rss_bytes": ("its memory", 1e-6, " MB", 0),
        "index_private_bytes": ("of which private", 1e-6, " MB", 0),
        "index_file_bytes": ("index files", 1e-6, " MB", 1),
        "first_set_open_seconds": ("a loader, first on the machine", 1, " s", 2),
        "first_set_open_cpu_seconds": ("its CPU time", 1, " s", 2),
        "set_open_seconds": ("a loader, later", 1, " s", 2),
        "set_open_cpu_seconds": ("its CPU time", 1, " s", 2),
        "set_private_bytes": ("private memory", 1e-6, " MB", 1),
        "first_batch_seconds": ("first batch", 1, " s", 2),
        "loader_rss_bytes": ("memory in all", 1e-6, " MB", 0),
        "order_seconds_per_sample": ("order, a sample", 1e6, " us", 2),
        "draws_seconds_per_sample": ("draws, a sample", 1e6, " us", 2),
    }
    columns = {key: column for key, column in columns.items() if any(key in row for row in rows)}
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
