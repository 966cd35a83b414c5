"""Measures what each stage of loading costs on your shards and machine, and finds the one that limits.

The stages are measured one after the other, each with all stages before it: the loader's chain, cut behind a link.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack, closing
from datetime import datetime, timezone
from itertools import cycle
from math import inf
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

import gpuloader.targets  # noqa: F401 - it registers the fields that YAML names
from gpuloader.base.child_processes import cpu_seconds
from gpuloader.base.progress import progress_bar
from gpuloader.base.text import counted
from gpuloader.chain.batch import Batch
from gpuloader.chain.decode import Decode
from gpuloader.chain.link import Link, Over, Wanted, cut
from gpuloader.chain.own import Own
from gpuloader.errors import ConfigError
from gpuloader.images.mipmaps import are_made, mipmap_sizes
from gpuloader.loading.drawing import Choose
from gpuloader.loading.loader import GPULoader, run_of
from gpuloader.loading.loader_chain import make_chain
from gpuloader.loading.mipmaps import USUAL_SCALE, USUAL_SIDES, draw_by_index
from gpuloader.loading.opening import Split
from gpuloader.loading.reading import Read
from gpuloader.loading.run import Run
from gpuloader.loading.selection import Sources
from gpuloader.pipelines import LastStep
from gpuloader.plan import Cursor
from gpuloader.recipe import choose_mipmaps, load_preset
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
_MOST_READ = 100_000  # images into the page cache
_DRAWN = 1000
_CUTS: Mapping[StageName, tuple[type[Over], LastStep]] = {  # behind which link, and where the first graph ends
    "gate": (Split, "all"),
    "decode": (Decode, "decode"),
    "resize": (Decode, "resize"),
    "pixels": (Decode, "all"),
    "own code": (Own, "all"),
}

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
        measured = [_measure_device(loader, seconds, progress) for loader in loaders]
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


def _measure_device(loader: GPULoader, seconds: float, progress: bool) -> DeviceFigures:
    stages, costs = _stages(loader, seconds), dict[StageName, Cost]()
    with progress_bar(progress) as bar:
        task = bar.add_task(f"measuring, {loader.device}", total=len(stages))
        for stage, batches in stages.items():
            with closing(batches):
                costs[stage] = _measure(batches, seconds / len(stages))
            bar.advance(task)
    shares = cpu_shares(costs)
    return DeviceFigures(
        device=str(loader.device),
        num_threads=run_of(loader).num_threads,
        stages=tuple(
            StageFigures(stage, TITLES[stage], 1000 / cost.seconds, cost.cpu_seconds, shares[stage])
            for stage, cost in costs.items()
        ),
        limit=what_limits(costs, loader.device.type == "cuda"),
    )


def _stages(loader: GPULoader, seconds: float) -> dict[StageName, Batches]:
    """Returns the stages of a loader, which start when they are first pulled."""
    run = run_of(loader)
    steps = _first_steps(run, seconds / len(TITLES))
    stages: dict[StageName, Batches] = {"read": _read(run, steps)}
    for stage, (behind, last_step) in _CUTS.items():
        if (link := cut(make_chain(run, set(), last_step).end, behind)) is not None:
            stages[stage] = _pull(link, len(steps) if stage == "gate" else inf)
    if run.decoded:
        del stages["decode"]
    if run.decoding_device_id is None and all(view.in_one_pass for view in run.recipe.graphs[0].views):
        del stages["pixels"]
    return {**stages, "loader": _load_epochs(loader)}


def _measure(batches: Batches, seconds: float) -> Cost:
    """Measures the cost of a stage for at least this long and one batch, after warming up."""
    started, done = time.perf_counter(), 0
    while done < _WARM_UP_BATCHES or time.perf_counter() - started < _WARM_UP_SHARE * seconds:
        next(batches)
        if done == 0:  # the first batch may have built the graph
            started = time.perf_counter()
        done += 1
    images, cpu_started, started = 0, cpu_seconds(), time.perf_counter()
    for count in batches:
        images += count
        if time.perf_counter() - started >= seconds:
            break
    spent = time.perf_counter() - started, cpu_seconds() - cpu_started
    return Cost(*(each / images * 1000 for each in spent))


def _first_steps(run: Run, seconds: float) -> list[Batch]:
    """Reads steps of an epoch into the page cache for this many seconds, and returns them without images."""
    steps, cursor, ends = list[Batch](), Cursor(), time.perf_counter() + seconds
    choose, read = Choose(run), Read(run, Wanted())
    for _ in range(min(run.plan.steps_left(cursor), -(-_MOST_READ // run.plan.batch_size))):
        steps.append(choose(run.plan.batch(cursor)))
        read(steps[-1])
        cursor = run.plan.after(cursor)
        if time.perf_counter() > ends:
            break
    return steps


def _read(run: Run, steps: Iterable[Batch]) -> Batches:
    read = Read(run, Wanted())
    for step in cycle(steps):
        yield len(read(step))


def _pull(link: Link, steps: float) -> Batches:
    """Runs a chain over the first steps, again and again."""
    try:
        while True:
            link.seek(Cursor())
            left = steps
            while left and (batch := link.next()) is not None:
                yield len(batch)
                left -= batch.rows.stop == batch.step.count
    finally:
        link.close()


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
