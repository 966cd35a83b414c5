"""The check of speed. It reports figures; a row fails only if its measurement fails."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpuloader.helpers.cores import available_cores
from gpuloader.helpers.units import counted
from gpuloader.loading.loader import GPULoader, run_of
from gpuloader.loading.options import Decoder
from gpuloader.loading.probing import find_decoding
from gpuloader.loading.run import Run
from gpuloader.pipelines.stock import stock_batches
from gpuloader.tools.bench import bench, run_graph
from gpuloader.tools.measuring import Batches, fitting_batch_size, load_epochs, measure
from gpuloader.tools.verify.comparing import ALONE, REPLACE
from gpuloader.tools.verify.result import Looks, Outcome, Subject

_OPTIONS: Mapping[str, Any] = {"label_from": None, "on_error": REPLACE, "world": ALONE}
_STAGES_SHARE, _THREADS_SHARE, _STEPS_SHARE = 0.25, 0.5, 0.25  # of the seconds
_STOCK_HW_LOAD = 0.65  # DALI's default: engines and the other decoders, both of regions


def speed(subject: Subject) -> Looks:
    """Images in a second of the loader, of the decoder alone and of stock DALI; how long a step takes; the engines."""
    result = bench(subject.tar, None, subject.device_id, seconds=_STAGES_SHARE * subject.seconds, **_OPTIONS)
    for figures in result.devices:
        for stage in figures.stages:
            if stage.stage in ("gate", "decode", "loader"):
                found = _describe_rate(stage.images_per_second, stage.cpu_seconds_per_1000)
                yield f"{figures.device}, {stage.title}", partial(Outcome, found)
        yield f"{figures.device}, limit", partial(Outcome, figures.limit)
    with _loader(subject) as loader:
        run = run_of(loader)
    systems: dict[str, Callable[[GPULoader], Batches]] = {"the loader": load_epochs}
    if not run.decoded:
        systems["the decoder alone"] = lambda loader: run_graph(run_of(loader), "decode")
    if reason := why_no_stock(run):
        yield f"{run.device}, stock DALI", partial(Outcome, f"not measured: {reason}")
    else:
        systems["stock DALI"] = lambda loader: _run_stock(run_of(loader))
    counts = thread_counts(available_cores())
    seconds = _THREADS_SHARE * subject.seconds / len(counts) / len(systems)
    for threads in counts:
        for name, work in systems.items():
            yield f"{run.device}, {counted(threads, 'thread')}, {name}", partial(_rate, subject, threads, work, seconds)
    yield f"{run.device}, a step", partial(_steps, subject, _STEPS_SHARE * subject.seconds)
    if not run.decoded:
        yield f"{run.device}, JPEG engines", partial(Outcome, describe_engines(run.decoder, run.device_id))


def thread_counts(cores: int) -> list[int]:
    """The powers of two up to the number of cores, and that number: of 6 it is 1, 2, 4, 6."""
    return sorted({1 << power for power in range(cores.bit_length())} | {cores})


def describe_steps(seconds: Sequence[float], batch_size: int) -> str:
    """The 99th percentile, which is the longest of less than 100 steps, and the median."""
    p99, median = 1000 * np.percentile(seconds, [99, 50], method="inverted_cdf")
    measured = f"{counted(len(seconds), 'step')} of {counted(batch_size, 'image')}"
    return f"p99 {p99:.3g} ms, median {median:.3g} ms, of {measured}"


def describe_engines(decoder: Decoder, device_id: int | None) -> str:
    """Which share of the JPEGs a GPU's engines are offered; DALI does not tell how many they decode."""
    if device_id is None:
        return "none: the CPU decodes"
    if not decoder.hw_load:
        return "hw_decoder_load 0, chosen by the trial: they decode no image"
    return f"hw_decoder_load {decoder.hw_load:g}, chosen by the trial; how many images they decode is unknown"


def _loader(subject: Subject, num_threads: int | None = None) -> GPULoader:
    batch_size = fitting_batch_size(None, subject.samples)
    decoder = Decoder(num_threads=num_threads)
    return GPULoader(subject.tar, batch_size, subject.device_id, last_batch="pad", decoder=decoder, **_OPTIONS)


def why_no_stock(run: Run) -> str:
    """Why stock DALI is not measured; empty if it is."""
    if run.decoded:
        return "the images are decoded already"
    if not all(isinstance(shard, Path) for shard in run.shards.shards):
        return "it reads no shards on stores"
    if run.device_id is not None and not find_decoding(run.device_id).region(_STOCK_HW_LOAD):
        return "it decodes regions, which fails on this GPU and may end the process"
    return ""


def _rate(subject: Subject, threads: int, work: Callable[[GPULoader], Batches], seconds: float) -> Outcome:
    with _loader(subject, threads) as loader, closing(work(loader)) as batches:
        cost = measure(batches, seconds)
    return Outcome(_describe_rate(1000 / cost.seconds, cost.cpu_seconds))


def _describe_rate(images_per_second: float, cpu_seconds_per_1000: float) -> str:
    return f"{images_per_second:,.0f} images/s, {cpu_seconds_per_1000:.3f} CPU s per 1,000"


def _steps(subject: Subject, seconds: float) -> Outcome:
    with _loader(subject) as loader, closing(load_epochs(loader)) as batches:
        measure(batches, 0)  # warms up
        taken: list[float] = []
        ends = time.perf_counter() + seconds
        while not taken or time.perf_counter() < ends:
            started = time.perf_counter()
            next(batches)
            taken.append(time.perf_counter() - started)
        return Outcome(describe_steps(taken, run_of(loader).plan.batch_size))


def _run_stock(run: Run) -> Batches:
    """Stock DALI on the same shards, with index files of its own format. Waits for each batch as `load_epochs` does."""
    with tempfile.TemporaryDirectory() as folder:
        files: dict[Path, Path] = {}
        for number, shard in enumerate(run.shards.shards):
            ids = run.shards.samples_of(number)
            if isinstance(shard, Path) and ids:
                names = ("image_offset", "image_size")
                places = zip(*(run.shards.index.column(name, ids.start, ids.stop).tolist() for name in names))
                lines = [f"jpg {offset} {size} {number}.jpg" for number, (offset, size) in enumerate(places)]
                files[shard] = Path(folder) / f"{len(files)}.idx"
                files[shard].write_text("\n".join([f"v1.2 {len(ids)}", *lines, ""]))
        images = stock_batches([*files], [*files.values()], run.plan.batch_size, run.num_threads, run.device_id)
        for batch in images:
            float(batch[..., ::56, ::56].sum())
            yield len(batch)
