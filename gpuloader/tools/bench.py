"""Measures what each stage of loading costs on your shards and machine, and finds the one that limits.

The stages are measured one after the other, each with all stages before it: the loader's chain, cut behind a link.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
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
from gpuloader.loading.drawing import Choose, draw_by_index, in_files
from gpuloader.loading.loader import GPULoader, run_of
from gpuloader.loading.loader_chain import make_chain
from gpuloader.loading.mipmaps import USUAL_SCALE, USUAL_SIDES
from gpuloader.loading.opening import Split
from gpuloader.loading.reading import Read
from gpuloader.loading.run import Run
from gpuloader.loading.selection import Sources
from gpuloader.pipelines import LastStep
from gpuloader.plan import Cursor, PlannedBatch
from gpuloader.recipe import choose_factors, choose_mipmaps, load_preset
from gpuloader.recipe.model import Ints
from gpuloader.tools.bench_result import (
    BenchResult,
    DataFacts,
    DeviceFigures,
    SmallerFacts,
    StageFigures,
    check_plotting,
    draw_plot,
)
from gpuloader.tools.limits import TITLES, Cost, StageName, cpu_shares, what_limits
from gpuloader.tools.machine import Machine, this_machine

__all__ = ["bench"]

_PAGE_CACHE_SHARE = 0.8  # of the memory; the rest is for programs

_LARGEST_BATCH = 128
_WARM_UP_BATCHES = 2  # after the first
_WARM_UP_SHARE = 0.2
_MOST_READ = 100_000
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
    gpus = [] if device_id is None or (device_id == "auto" and not machine.gpus) else [device_id]
    samples = _count_samples(tar, arguments)
    if batch_size is None:
        batch_size = min(_LARGEST_BATCH, 1 << (samples.bit_length() - 1))
    elif isinstance(batch_size, int) and batch_size > samples:
        raise ConfigError(f"batch_size={batch_size}: the shards have {counted(samples, 'sample')}; give at most that")
    with ExitStack() as stack:
        # All of them first, so that an invalid argument is reported before anything is measured.
        loaders = [stack.enter_context(GPULoader(tar, batch_size, each, **arguments)) for each in (None, *gpus)]
        run = run_of(loaders[0])
        data, mipmaps, smaller = _data(run, machine), find_mipmaps(run), find_smaller(run)
        measured = [_measure_device(loader, seconds, progress) for loader in loaders]
    result = BenchResult(
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=machine,
        data=data,
        copies=mipmaps,
        smaller=smaller,
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
        for stage, batches in bar.track(stages.items(), description=f"measuring, {loader.device}"):
            with closing(batches):
                costs[stage] = _measure(batches, seconds / len(stages))
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
    """Returns the stages of a loader; each starts when its first batch is pulled."""
    run = run_of(loader)
    steps, read = _read_first_steps(run, seconds / len(TITLES)), Read(run, Wanted())
    stages: dict[StageName, Batches] = {"read": (len(read(step)) for step in cycle(steps))}
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
    next(batches)  # it may build the graph
    _count(batches, _WARM_UP_SHARE * seconds, least=_WARM_UP_BATCHES)
    cpu_started, started = cpu_seconds(), time.perf_counter()
    images = _count(batches, seconds)
    elapsed, cpu = time.perf_counter() - started, cpu_seconds() - cpu_started
    return Cost(1000 * elapsed / images, 1000 * cpu / images)


def _count(batches: Batches, seconds: float, least: int = 1) -> int:
    """Counts the images of the next batches, for at least this long and this many batches."""
    images, ends = 0, time.perf_counter() + seconds
    while least > 0 or time.perf_counter() < ends:
        images += next(batches)
        least -= 1
    return images


def _read_first_steps(run: Run, seconds: float) -> list[Batch]:
    """Reads steps into the page cache for this many seconds, and returns them without images."""
    steps, choose, read, ends = list[Batch](), Choose(run), Read(run, Wanted()), time.perf_counter() + seconds
    for planned in _first_planned(run, _MOST_READ):
        steps.append(choose(planned))
        read(steps[-1])
        if time.perf_counter() > ends:
            break
    return steps


def _first_planned(run: Run, images: int) -> Iterator[PlannedBatch]:
    """Yields the steps of the first epoch, up to about this many images."""
    cursor = Cursor()
    for _ in range(min(run.plan.steps_left(cursor), -(-images // run.plan.batch_size))):
        yield run.plan.batch(cursor)
        cursor = run.plan.after(cursor)


def _pull(link: Link, steps: float) -> Batches:
    """Runs a chain over its first steps again and again."""
    with closing(link):
        while True:
            link.seek(Cursor())
            left = steps
            while left:
                batch = link.next()
                assert batch is not None  # a chain goes on with the next epoch
                yield len(batch)
                left -= batch.rows.stop == batch.step.count


def _load_epochs(loader: GPULoader) -> Batches:
    """Runs the loader itself, epoch after epoch, and waits for each batch."""
    while True:
        for _ in loader:
            if loader.device.type == "cuda":
                torch.cuda.current_stream(loader.device).synchronize()
            last = loader.stats().last
            yield 0 if last is None else last.samples


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


def find_mipmaps(run: Run) -> SmallerFacts | None:
    """Estimates what mipmaps save or would save; None if the recipe would use none."""
    recipe = run.recipe
    stored, given = run.shards.mipmap_sides, recipe.min_oversampling
    if run.decoded or recipe.oversampling == "off" or recipe.refuses_oversampling:
        return None
    sides, scale = stored or USUAL_SIDES, given or USUAL_SCALE
    chosen, pixels = [], np.zeros(2)
    for planned in _first_planned(run, _DRAWN):
        params, sizes = draw_by_index(run, planned)
        there = run.shards.mipmaps_of(planned.ids) if stored else np.stack([are_made(sizes, sides)] * len(sides), 1)
        pictures, taken = np.maximum(sizes, 1), choose_mipmaps(params, sizes, sides, there, scale)
        regions = [each.region for each in (params, params.in_files(pictures, mipmap_sizes(pictures, taken)))]
        pixels += [(region[:, 2:] - region[:, :2]).prod(1).sum() for region in regions]
        chosen.append(taken > 0)
    draws = float(np.concatenate(chosen).mean())
    if not draws and not (stored and given):
        return None
    packed = [] if stored else [f"`gpuloader pack --mipmaps {','.join(map(str, sides))}`"]
    needs = packed + ([] if given else [f"`oversampling: {scale:g}` in the recipe"])
    return SmallerFacts(" and ".join(needs), draws, float(pixels[1] / pixels[0]))


def find_smaller(run: Run) -> SmallerFacts | None:
    """Estimates what decoding JPEGs at 1/2, 1/4 or 1/8 saves or would save; None if the recipe would do so for none."""
    recipe, given, jpegs = run.recipe, run.recipe.min_oversampling, run.shards.index.counts["jpegs"]
    if run.decoded or not jpegs or recipe.oversampling == "off" or recipe.refuses_oversampling:
        return None
    scale, choose, factors, pixels = given or USUAL_SCALE, Choose(run), list[Ints](), np.zeros(2)
    for planned in _first_planned(run, _DRAWN):
        batch = choose(planned)
        params = in_files(batch, batch.params)
        factors.append(choose_factors(params, scale))
        regions = [each.region for each in (params, params.decoded_at(factors[-1]))]
        pixels += [(region[:, 2:] - region[:, :2]).prod(1).sum() for region in regions]
    draws = float((np.concatenate(factors) > 1).mean()) * jpegs / len(run.shards)
    needs = "" if given else f"`oversampling: {scale:g}` in the recipe"
    return SmallerFacts(needs, draws, float(pixels[1] / pixels[0])) if draws else None
