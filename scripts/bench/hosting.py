"""Measures the host's side of loading, which a GPU leaves to the CPU: plan, reading, gate, draws, labels, feeding DALI.

Nothing is decoded. The shards must fit into the page cache; a pass before the rounds brings them there.
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
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from facts import machine
from nvidia.dali import Pipeline, fn
from nvidia.dali.tensors import TensorCPU

from gpuloader import GPULoader
from gpuloader.helpers.read_ahead import ReadAhead
from gpuloader.loading.loader import run_of
from gpuloader.loading.reader import EncodedBatch, Reader, admit_for
from gpuloader.loading.run import Run
from gpuloader.pipelines.inputs import make_inputs
from gpuloader.plan import Cursor
from gpuloader.shards import Arena

_HOLD_SECONDS = 0.003  # half a step of 256 images at 40,000 images/s; Python takes its lock away after 5 ms
_ARENAS = 5  # as many as a loader has, because a processor's caches hold fewer


def main(command_line: Sequence[str] | None = None) -> None:
    """Measures, prints two tables, and writes the JSON if told where to."""
    parser = argparse.ArgumentParser(prog="scripts/bench/host", description=__doc__)
    parser.add_argument("--shards", nargs="+", type=Path, required=True)
    parser.add_argument("--preset", default="imagenet_train")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--batches", type=int, default=100, help="in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="a JSON file")
    arguments = parser.parse_args(command_line)
    with GPULoader(sorted(arguments.shards), arguments.batch, "cpu", preset=arguments.preset) as loader:
        run = run_of(loader)
        cursors = [Cursor()]
        while len(cursors) < arguments.batches:
            cursors.append(run.plan.at_step(run.plan.after(cursors[-1])))
        for cursor in cursors:
            Reader(run).read(cursor, Arena())
        stages = [measure_stages(run, cursors) for _ in range(arguments.rounds)]
        speeds = [measure_speeds(run, len(cursors)) for _ in range(arguments.rounds)]
    result = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "machine": machine(),
        "preset": arguments.preset,
        "batch": arguments.batch,
        "image_bytes": int(np.mean(run.shards.column("image_size"))),
        "cpu_us_per_image": {name: [each[name] for each in stages] for name in stages[0]},
        "images_per_second": {name: [each[name] for each in speeds] for name in speeds[0]},
    }
    sys.stdout.write(table(result))
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


def table(result: Mapping[str, Any]) -> str:
    """Markdown: medians over the rounds, with the lowest and the highest."""
    lines = [f"{result['preset']}, batches of {result['batch']} images of {result['image_bytes']:,} bytes"]
    for title, key, digits in (("CPU time, us an image", "cpu_us_per_image", 1), ("images/s", "images_per_second", 0)):
        lines += ["", f"| {title} | median | range |", "|---|---|---|"]
        for name, values in result[key].items():
            middle, lowest, highest = (f"{value:,.{digits}f}" for value in (median(values), min(values), max(values)))
            lines.append(f"| {name} | {middle} | {lowest} to {highest} |")
    return "\n".join(lines) + "\n"


def measure_stages(run: Run, cursors: Sequence[Cursor]) -> dict[str, float]:
    """CPU microseconds by image: of stages on their own, of all that the reading thread does, and of feeding."""
    reader, first = Reader(run), Arena()
    planned = [run.plan.batch(cursor) for cursor in cursors]
    arenas = [Arena() for _ in range(_ARENAS)]
    into = [arenas[number % _ARENAS] for number in range(len(cursors))]
    for cursor, arena in zip(cursors, into):
        batch = reader.read(cursor, arena)  # and the arenas have their sizes
    encoded = run.shards.read_images(planned[0].ids, first)
    sizes = np.full((run.plan.batch_size, 2), 500)
    feed = _feed(run, batch)

    def draw() -> None:
        for each in planned:
            run.recipe.draw(each.draws, sizes[: len(each.ids)])

    images = sum(len(each.ids) for each in planned)
    works: dict[str, tuple[Callable[[], object], int]] = {
        "plan": (lambda: [run.plan.batch(cursor) for cursor in cursors], images),
        "reading": (lambda: [run.shards.read_images(each.ids, arena) for each, arena in zip(planned, into)], images),
        "gate, in the first epoch": (lambda: [admit_for(run, image) for image in encoded], len(encoded)),
        "draws": (draw, images),
        "the reading thread, after the first epoch": (lambda: list(map(reader.read, cursors, into)), images),
        "feeding": (lambda: [feed(batch) for _ in cursors], len(cursors) * len(batch.ids)),
    }
    return {name: _cpu_us(work) / count for name, (work, count) in works.items()}


def _cpu_us(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e6


def _feed(run: Run, first: EncodedBatch) -> Callable[[EncodedBatch], None]:
    """A function that gives a batch to DALI as the loader does, to a graph that only has its inputs."""
    given: list[Any] = []
    pipeline = Pipeline(run.plan.batch_size, num_threads=1, device_id=None, prefetch_queue_depth=1)
    with pipeline:
        image, *inputs = fn.external_source(lambda: given, num_outputs=1 + len(_inputs(run, first)), no_copy=True)
        pipeline.set_outputs(image[:1], *inputs)  # all of an image would be copied

    def feed(batch: EncodedBatch) -> None:
        given[:] = [[TensorCPU(image) for image in batch.images], *_inputs(run, batch)]
        pipeline.run()

    feed(first)  # which builds the graph
    return feed


def _inputs(run: Run, batch: EncodedBatch) -> list[np.ndarray]:
    """What the CPU's graph takes beside the images."""
    return make_inputs(run.recipe.each_view, batch.drawn, "cpu", whole=run.decoded).values()


def measure_speeds(run: Run, steps: int) -> dict[str, float]:
    """Images by second, read ahead in a thread and given to DALI; alone, and beside a loop that holds Python's lock."""
    speeds = {"alone": _speed(run, steps)}
    with _holding() as held:
        began = time.perf_counter()
        speed = _speed(run, steps)
        share = len(held) * _HOLD_SECONDS / (time.perf_counter() - began)
    return {**speeds, "Python's lock is held half of the time": speed, "% of the time that it was held": 100 * share}


def _speed(run: Run, steps: int) -> float:
    feed = _feed(run, Reader(run).read(Cursor(), Arena()))
    began, images = time.perf_counter(), 0
    reader = Reader(run)
    with closing(ReadAhead(reader.calls(Cursor()), run.decoder.prefetch + 1, "gpuloader-reader")) as batches:
        for _ in range(steps):
            feed(batch := batches.next())
            reader.arenas.append(batch.arena)
            images += len(batch.ids)
        return images / (time.perf_counter() - began)


@contextmanager
def _holding() -> Iterator[list[None]]:
    """A thread that holds Python's lock and sleeps, as long, in turns; gives a list with an entry for each turn."""
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
