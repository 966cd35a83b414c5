"""`gpuloader bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuloader.cli.options import (
    AsJson,
    BatchSize,
    LabelFrom,
    Preset,
    Quarantine,
    Shards,
    Shuffle,
    chosen_device,
    loader_arguments,
)
from gpuloader.cli.printing import print_json, say
from gpuloader.helpers.text import counted, format_bytes

if TYPE_CHECKING:
    from gpuloader.tools.bench_result import BenchResult, DeviceFigures


def bench(
    shards: Shards,
    preset: Preset = "imagenet_train",
    batch_size: BatchSize = None,
    device_id: Annotated[int | None, typer.Option(help="The GPU to measure, in addition to the CPU.")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Measure the CPU only.")] = False,
    num_threads: Annotated[int | None, typer.Option(help="Number of threads that decode.")] = None,
    shuffle: Shuffle = None,
    label_from: LabelFrom = "auto",
    quarantine: Quarantine = None,
    seconds: Annotated[float, typer.Option(help="How long to measure on each device.")] = 20,
    plot: Annotated[Path | None, typer.Option(help="A picture of the figures to write; needs matplotlib.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measures what each stage of loading costs on your shards and machine, and names the bottleneck.

    Example: gpuloader bench shards/train/ --preset imagenet_train
    """
    from gpuloader.tools.bench import bench as run
    from gpuloader.tools.measuring import LARGEST_BATCH

    arguments = loader_arguments(preset, shuffle, label_from, quarantine)
    arguments |= {} if num_threads is None else {"decoder": {"num_threads": num_threads}}
    result = run(
        shards,
        batch_size,
        chosen_device(cpu, device_id),
        seconds=seconds,
        plot=plot,
        progress=True,
        **arguments,
    )
    if as_json:
        print_json(result)
        return
    data = result.data
    say(f"machine  {result.machine}")
    held = f"{counted(data.images, 'image')} of {format_bytes(data.image_bytes)} in {counted(data.shards, 'shard')}"
    say(f"data     {held}; {preset}")
    size = result.settings["batch_size"]
    if batch_size is None and size < LARGEST_BATCH:
        say(f"batch    {size}, because there are fewer than {LARGEST_BATCH} images; --batch-size sets another")
    for device in result.devices:
        _print_device(device, size)
    say()
    say(_caching_note(result))


def _print_device(device: DeviceFigures, batch_size: int) -> None:
    title = f"{device.device}, {counted(device.num_threads, 'thread')}, batch {batch_size}"
    say()
    say(f"{title:<34}{'images/s':>12}{'CPU s/1,000':>14}{'share':>8}")
    for figures in device.stages:
        rates = f"{figures.images_per_second:>12,.0f}{figures.cpu_seconds_per_1000:>14.3f}"
        say(f"{figures.title:<34}{rates}{figures.cpu_share:>8.0%}")
    say()
    say(device.limit)


def _caching_note(result: BenchResult) -> str:
    shards, memory = format_bytes(result.data.shard_bytes), format_bytes(result.machine.memory_bytes)
    if result.data.fits_in_memory:
        return f"The shards ({shards}) fit into memory ({memory}): after the first epoch, the page cache has them."
    return (
        f"The shards ({shards}) do not fit into memory ({memory}): every epoch also reads from the disk, which "
        f"`gpuloader doctor SHARDS` measures."
    )
