"""Measures the host's side of loading: plan, reading, gate, draws, labels and feeding DALI. Nothing is decoded.

On a GPU, this is what is left for the CPU. The shards should fit into the page cache; a first pass brings them there.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from facts import machine
from nvidia.dali import Pipeline, fn, types
from nvidia.dali.tensors import TensorCPU

from gpuloader import GPULoader
from gpuloader.loading.reader import EncodedBatch, ReadAhead, Reader
from gpuloader.loading.run import Run
from gpuloader.plan import Cursor, Draws
from gpuloader.shards import Arena

_HOLD_SECONDS = 0.003  # less than the 5 ms after which Python takes its lock from a thread
_ARENAS = 5  # as many as a loader has, so that no batch is still in a processor's caches
_DTYPES = {"int32": types.INT32, "float32": types.FLOAT, "float64": types.FLOAT64}


def main() -> None:
    """Measures, prints two tables, and writes the JSON if told where to."""
    parser = argparse.ArgumentParser(prog="scripts/bench/host", description=__doc__)
    parser.add_argument("--shards", nargs="+", type=Path, required=True)
    parser.add_argument("--preset", default="imagenet_train")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--batches", type=int, default=40, help="in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="a JSON file")
    arguments = parser.parse_args()
    with GPULoader(sorted(arguments.shards), arguments.batch, "cpu", preset=arguments.preset) as loader:
        run = loader.run
        cursors = list(islice(_cursors(run), arguments.batches))
        count_images(run, cursors)  # into the page cache
        stages = [measure_stages(run, cursors) for _ in range(arguments.rounds)]
        speeds = [measure_speeds(run, len(cursors)) for _ in range(arguments.rounds)]
    result = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "machine": machine(),
        "preset": arguments.preset,
        "batch": arguments.batch,
        "image_bytes": int(np.mean(np.concatenate([index.image_size for _, index in run.shards.indexes]))),
        "cpu_us_per_image": {name: [each[name] for each in stages] for name in stages[0]},
        "images_per_second": {name: [each[name] for each in speeds] for name in speeds[0]},
    }
    sys.stdout.write(table(result))
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def table(result: Mapping[str, Any]) -> str:
    """Markdown: medians over the rounds, with the lowest and the highest."""
    lines = [f"{result['preset']}, batches of {result['batch']} images of {result['image_bytes']:,} bytes", ""]
    lines += ["| CPU time, us an image | median | range |", "|---|---|---|"]
    for name, values in result["cpu_us_per_image"].items():
        lines.append(f"| {name} | {median(values):.1f} | {min(values):.1f} to {max(values):.1f} |")
    lines += ["", "| images/s | median | range |", "|---|---|---|"]
    for name, values in result["images_per_second"].items():
        lines.append(f"| {name} | {median(values):,.0f} | {min(values):,.0f} to {max(values):,.0f} |")
    return "\n".join(lines) + "\n"


def _cursors(run: Run) -> Iterator[Cursor]:
    cursor = Cursor()
    while True:
        yield cursor
        cursor = run.plan.at_step(run.plan.after(cursor))


def count_images(run: Run, cursors: Sequence[Cursor]) -> int:
    """The images of some steps, after reading them."""
    return sum(len(run.shards.read_images(run.plan.batch(cursor).ids, Arena())) for cursor in cursors)


def measure_stages(run: Run, cursors: Sequence[Cursor]) -> dict[str, float]:
    """CPU microseconds by image: each stage on its own, and all of them in a loader that has seen each image or not."""
    arenas = [Arena() for _ in range(_ARENAS)]
    planned = [run.plan.batch(cursor) for cursor in cursors]
    images = sum(len(each.ids) for each in planned)
    batches = [Reader(run).read(cursor, Arena()) for cursor in cursors[:_ARENAS]]
    fed = sum(len(batch.ids) for batch in batches)
    sizes = np.full((2, run.plan.batch_size), 500)
    feed = _feed(run, batches[0])

    def read() -> None:
        for number, each in enumerate(planned):
            run.shards.read_images(each.ids, arenas[number % _ARENAS])

    def gate() -> None:
        for batch in batches:
            for image in batch.images:
                run.admit(image)

    def draw() -> None:
        for each in planned:
            run.recipe.arrays(Draws(run.plan.seed, 0, each.drawn_for), *sizes[:, : len(each.ids)])

    def all_of_it(reader: Reader) -> Callable[[], None]:
        def work() -> None:
            for number, cursor in enumerate(cursors):
                reader.read(cursor, arenas[number % _ARENAS])

        return work

    return {
        "plan": _cpu_us(lambda: [run.plan.batch(cursor) for cursor in cursors], images),
        "reading": _cpu_us(read, images),
        "gate": _cpu_us(gate, fed),
        "draws": _cpu_us(draw, images),
        "feeding": _cpu_us(lambda: [feed(batch) for batch in batches], fed),
        "all but feeding": _cpu_us(all_of_it(Reader(run)), images),
    }


def _cpu_us(work: Callable[[], Any], images: int) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e6 / images


def _feed(run: Run, first: EncodedBatch) -> Callable[[EncodedBatch], None]:
    """A function that gives a batch to DALI as the loader does, to a graph that only has its inputs."""
    arrays = list(first.arrays.values())
    pipeline = Pipeline(run.plan.batch_size, num_threads=1, device_id=None, prefetch_queue_depth=1)
    given: list[EncodedBatch] = []
    with pipeline:
        image, *drawn = fn.external_source(
            source=lambda: ([TensorCPU(image) for image in given[0].images], *given[0].arrays.values()),
            num_outputs=1 + len(arrays),
            dtype=[types.UINT8, *(_DTYPES[array.dtype.name] for array in arrays)],
            ndim=[first.images[0].ndim, *(array.ndim - 1 for array in arrays)],
            no_copy=True,
        )
        pipeline.set_outputs(image[:1], *drawn)  # all of an image would be copied

    def feed(batch: EncodedBatch) -> None:
        given[:] = [batch]
        pipeline.run()

    feed(first)  # which builds the graph
    return feed


def measure_speeds(run: Run, steps: int) -> dict[str, float]:
    """Images by second, read ahead in a thread and given to DALI; alone, and beside a loop that holds Python's lock."""
    speeds = {"alone": _speed(run, steps)}
    with _holding() as held:
        began = time.perf_counter()
        speed = _speed(run, steps)
        share = len(held) * _HOLD_SECONDS / (time.perf_counter() - began)
    return {**speeds, "with Python's lock held half of the time": speed, "the lock was held, %": 100 * share}


def _speed(run: Run, steps: int) -> float:
    feed = _feed(run, Reader(run).read(Cursor(), Arena()))
    began, images = time.perf_counter(), 0
    with closing(ReadAhead(Reader(run), run.plan, Cursor(), depth=run.decoder.prefetch + 1)) as batches:
        for _ in range(steps):
            feed(batch := batches.next())
            batches.release(batch)
            images += len(batch.ids)
        return images / (time.perf_counter() - began)


@contextmanager
def _holding() -> Iterator[list[None]]:
    """A thread that holds Python's lock, and sleeps as long, in turns; a list with an entry for each turn."""
    held: list[None] = []
    end = threading.Event()

    def hold() -> None:
        while not end.is_set():
            until = time.perf_counter() + _HOLD_SECONDS
            while time.perf_counter() < until:
                pass
            held.append(None)
            time.sleep(_HOLD_SECONDS)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield held
    finally:
        end.set()
        thread.join()


if __name__ == "__main__":
    main()
