"""Measures what each stage of loading costs on your shards and machine, and finds the one that limits.

The stages are measured one after the other, each with all stages before it, through the library's own reader and graph.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, closing
from datetime import datetime, timezone
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

import gpuloader.targets  # noqa: F401 - it registers the fields that YAML names
from gpuloader.base.child_processes import cpu_seconds
from gpuloader.base.progress import progress_bar
from gpuloader.base.read_ahead import ReadAhead
from gpuloader.base.text import counted
from gpuloader.errors import BadImageError, ConfigError, LoaderError
from gpuloader.images.mipmaps import are_made, mipmap_sizes
from gpuloader.loading.decoding_loop import build_pipeline, find_bad_rows
from gpuloader.loading.loader import GPULoader, run_of
from gpuloader.loading.mipmaps import USUAL_SCALE, USUAL_SIDES, draw_by_index
from gpuloader.loading.reader import EncodedPart, Reader
from gpuloader.loading.run import Run
from gpuloader.loading.run_batches import largest_decoded
from gpuloader.loading.selection import Sources
from gpuloader.pipelines import Feed, LastStep, PipelineRunner, UndecodableError, batch_error
from gpuloader.plan import Cursor
from gpuloader.recipe import choose_mipmaps, load_preset
from gpuloader.shards import Arena
from gpuloader.tools.bench_result import (
    BenchResult,
    DataFacts,
    DeviceFigures,
    MipmapFacts,
    StageFigures,
    check_plotting,
    draw_plot,
)
from gpuloader.tools.limits import TITLES, Cost, StageName, cpu_shares, what_limits
from gpuloader.tools.machine import Machine, this_machine

__all__ = ["bench"]

_PAGE_CACHE_SHARE = 0.8  # of the memory; the rest is for programs

_LARGEST_BATCH = 128
_WARM_UP_BATCHES = 3
_WARM_UP_SHARE = 0.2
_DRAWN = 1000

Batches: TypeAlias = Generator[int, None, None]
"""Runs a stage batch by batch, and yields the number of images in each batch."""


def bench(
    tar: Sources,
    batch_size: int | None = None,
    device_id: int | Literal["auto"] | None = "auto",
    *,
    seconds: float = 20.0,
    plot: str | Path | None = None,
    progress: bool = False,
    **arguments: Any,  # noqa: ANN401 - those of GPULoader
) -> BenchResult:
    """Measures each stage of loading for a short time, and names the stage that limits the loader.

    Args:
        tar: as for `GPULoader`.
        batch_size: images in a batch; by default 128, or the largest power of two that the samples fill.
        device_id: the GPU to measure in addition to the CPU; "auto" for the first, if there is one; None for none.
        seconds: how long to measure on each device, without starting and warming up.
        plot: a picture of the figures to write, .png, .svg or .pdf; needs matplotlib.
        progress: show the progress on stderr.
        arguments: further arguments of `GPULoader`. By default the last batch is padded, and data without labels is
            measured without them.

    Raises:
        ConfigError: an argument is invalid, the batch is larger than the number of samples, or matplotlib is not
            installed.
        BadImageError: an image is bad; name the bad images in `on_error=BadImages(known=...)`.
    """
    if not seconds > 0:
        raise ConfigError(f"seconds={seconds!r}: allowed is a number above 0")
    if plot is not None:
        check_plotting(Path(plot))
    arguments = _with_output({"preset": "imagenet_train", "last_batch": "pad", "label_from": "auto", **arguments})
    machine = this_machine()
    devices: list[int | Literal["auto"] | None] = [None]
    if device_id is not None and (machine.gpus or device_id != "auto"):
        devices.append(device_id)
    samples = _count_samples(tar, arguments)
    if batch_size is None:
        batch_size = min(_LARGEST_BATCH, 1 << (samples.bit_length() - 1))
    elif isinstance(batch_size, int) and batch_size > samples:
        raise ConfigError(f"batch_size={batch_size}: the shards have {counted(samples, 'sample')}; give at most that")
    with ExitStack() as stack:
        # All of them first, so that an invalid argument is reported before anything is measured.
        loaders = [stack.enter_context(GPULoader(tar, batch_size, each, **arguments)) for each in devices]
        data, mipmaps = _data(run_of(loaders[0]), machine), find_mipmaps(run_of(loaders[0]))
        measured = [_measure_device(loader, data, machine, seconds, progress) for loader in loaders]
    result = BenchResult(
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=machine,
        data=data,
        copies=mipmaps,
        settings={"tar": tar, "batch_size": batch_size, **arguments, "seconds": seconds},
        devices=tuple(measured),
    )
    if plot is not None:
        draw_plot(result, Path(plot))
    return result


def _with_output(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the `output` that images of different sizes or replacements need to arguments of `GPULoader`."""
    recipe = load_preset(arguments.get("preset", "imagenet_train"))
    in_tuple = recipe.batch == "dense" and (recipe.random or "on_error" not in arguments)
    return {**({} if in_tuple else {"output": "dict"}), **arguments}


def _count_samples(tar: Sources, arguments: Mapping[str, Any]) -> int:
    """Counts the samples of an epoch on one rank, for any arguments of `GPULoader`."""
    with GPULoader(tar, 2, None, **{**arguments, "last_batch": "pad"}) as loader:  # 2: some recipes mix pairs
        return max(1, loader.num_samples // loader.world.world_size)


def _measure_device(
    loader: GPULoader, data: DataFacts, machine: Machine, seconds: float, progress: bool
) -> DeviceFigures:
    on_gpu = loader.device.type == "cuda"
    run = run_of(loader)
    cursors = _first_steps(run, seconds / len(TITLES))
    stages: dict[StageName, Callable[[], Batches]] = {
        "read": lambda: _read(run, cycle(cursors)),
        "gate": lambda: _gate(run, cycle(cursors)),
        "decode": lambda: _run_graph(run, "decode"),
        "resize": lambda: _run_graph(run, "resize"),
        "pixels": lambda: _run_graph(run, "all"),
        "loader": lambda: _load_epochs(loader),
    }
    if data.decoded:
        del stages["decode"]
    if not on_gpu and all(view.in_one_pass for view in loader.preset.each_view):
        del stages["pixels"]
    costs: dict[StageName, Cost] = {}
    with progress_bar(progress) as bar:
        task = bar.add_task(f"measuring, {loader.device}", total=len(stages))
        for stage, work in stages.items():
            with closing(work()) as batches:
                costs[stage] = _measure(batches, seconds / len(stages), lambda: loader.stats().own_code_seconds)
            bar.advance(task)
    shares = cpu_shares(costs)
    return DeviceFigures(
        device=str(loader.device),
        num_threads=run.num_threads,
        stages=tuple(
            StageFigures(stage, TITLES[stage], 1000 / cost.seconds, cost.cpu_seconds, shares[stage])
            for stage, cost in costs.items()
        ),
        limit=what_limits(costs, on_gpu),
    )


def _measure(batches: Batches, seconds: float, own_code_seconds: Callable[[], float]) -> Cost:
    """Measures the cost of a stage for at least this long and one batch, after warming up."""
    started, done = time.perf_counter(), 0
    while done < _WARM_UP_BATCHES or time.perf_counter() - started < _WARM_UP_SHARE * seconds:
        next(batches)
        if done == 0:  # the first batch may have built the graph
            started = time.perf_counter()
        done += 1
    images, cpu_started, own_started, started = 0, cpu_seconds(), own_code_seconds(), time.perf_counter()
    for count in batches:
        images += count
        if time.perf_counter() - started >= seconds:
            break
    spent = time.perf_counter() - started, cpu_seconds() - cpu_started, own_code_seconds() - own_started
    return Cost(*(each / images * 1000 for each in spent))


def _first_steps(run: Run, seconds: float) -> list[Cursor]:
    """Reads steps of an epoch into the page cache for this many seconds, and returns their cursors."""
    cursors, cursor, ends = [], Cursor(), time.perf_counter() + seconds
    reader, arena = Reader(run), Arena()
    for _ in range(run.plan.steps_left(cursor)):
        planned = run.plan.batch(cursor)
        run.shards.read_images(planned.ids, arena, sides=reader.choose_mipmaps(planned))
        cursors.append(cursor)
        cursor = run.plan.after(cursor)
        if time.perf_counter() > ends:
            break
    return cursors


def _read(run: Run, cursors: Iterable[Cursor]) -> Batches:
    reader, arena = Reader(run), Arena()
    for cursor in cursors:
        planned = run.plan.batch(cursor)
        yield len(run.shards.read_images(planned.ids, arena, sides=reader.choose_mipmaps(planned)))


def _gate(run: Run, cursors: Iterable[Cursor]) -> Batches:
    reader = Reader(run)
    for cursor in cursors:
        step = reader.open(cursor)
        for number in range(len(step.parts)):
            reader.arenas.append(reader.read(step, number).arena)
        yield len(step.rows)


def _run_graph(run: Run, last_step: LastStep) -> Batches:
    """Runs the graph without the loader around it, up to its last step."""
    reader = Reader(run)
    batches = ReadAhead(reader.calls(Cursor()), run.decoder.prefetch + 1, "gpuloader-reader")
    feed: Feed[EncodedPart] = Feed(run.decoder.hw_load, run.plan.batch_size)
    feed.restart(batches.take)
    largest = partial(largest_decoded, run)
    running = PipelineRunner(
        partial(
            build_pipeline, run.recipe.before_own_code, feed, run.decoder, run.decoding_device_id, largest, last_step
        )
    )
    with closing(batches):
        while running.begun or feed.begin():
            try:
                outputs = running.next()
            except UndecodableError as error:
                raise _bad_image(run, feed.in_flight[0], str(error)) from None
            except StopIteration:
                break
            del outputs
            part = feed.pop()
            reader.arenas.append(part.arena)
            yield len(part.images)
    raise feed.failure or LoaderError("there was nothing to decode")


def _load_epochs(loader: GPULoader) -> Batches:
    """Runs the loader itself, epoch after epoch, and waits for each batch."""
    before = loader.stats().samples
    while True:
        for _ in loader:
            if loader.device.type == "cuda":
                torch.cuda.current_stream(loader.device).synchronize()
            now = loader.stats().samples
            yield now - before
            before = now


def _bad_image(run: Run, part: EncodedPart, message: str) -> Exception:
    recipe, device_id = run.recipe.before_own_code, run.decoding_device_id
    for row, cause in find_bad_rows(recipe, run.decoder, device_id, part.images, part.params, message).items():
        return BadImageError(*run.shards.locate(int(part.batch.ids[part.rows][row])), cause)
    return batch_error(message)


def _data(run: Run, machine: Machine) -> DataFacts:
    shard_bytes = int(run.shards.index.shard_bytes.sum())
    node_bytes = round(shard_bytes * run.plan.share_of(run.world.node))
    images = len(run.shards)
    jpegs, seekable = (run.shards.index.counts[name] for name in ("jpegs", "seekable"))
    return DataFacts(
        shards=len(run.shards.shards),
        images=images,
        shard_bytes=shard_bytes,
        node_bytes=node_bytes,
        image_bytes=int(run.shards.index.column("image_size").sum()) // images,
        decoded=run.decoded,
        jpegs=jpegs,
        seekable=seekable,
        fits_in_memory=node_bytes < _PAGE_CACHE_SHARE * machine.memory_bytes,
    )


def find_mipmaps(run: Run) -> MipmapFacts | None:
    """Estimates what mipmaps save or would save; None if the recipe would use none."""
    recipe = run.recipe
    stored, given = run.shards.mipmap_sides, recipe.mipmap_scale
    if run.decoded or recipe.mipmaps == "off" or recipe.refuses_mipmaps:
        return None
    sides, scale = stored or USUAL_SIDES, given or USUAL_SCALE
    chosen, pixels, cursor = [], np.zeros(2), Cursor()
    for _ in range(min(run.plan.steps_left(cursor), -(-_DRAWN // run.plan.batch_size))):
        planned = run.plan.batch(cursor)
        params, sizes = draw_by_index(recipe, run.shards, planned.ids, planned.draws, planned.shape)
        there = run.shards.mipmaps_of(planned.ids) if stored else np.stack([are_made(sizes, sides)] * len(sides), 1)
        pictures, taken = np.maximum(sizes, 1), choose_mipmaps(params, sizes, sides, there, scale)
        regions = [each.region for each in (params, params.in_files(pictures, mipmap_sizes(pictures, taken)))]
        pixels += [(region[:, 2:] - region[:, :2]).prod(1).sum() for region in regions]
        chosen.append(taken > 0)
        cursor = run.plan.after(cursor)
    draws = float(np.concatenate(chosen).mean())
    if not draws and not (stored and given):
        return None
    packed = [] if stored else [f"`gpuloader pack --mipmaps {','.join(map(str, sides))}`"]
    needs = packed + ([] if given else [f"`mipmaps: {scale:g}` in the recipe"])
    return MipmapFacts(" and ".join(needs), draws, float(pixels[1] / pixels[0]))
