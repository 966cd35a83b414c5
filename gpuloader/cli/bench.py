"""`gpuloader bench`."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuloader.base.text import counted, format_bytes
from gpuloader.cli.options import (
    AsJson,
    Cpu,
    DeviceId,
    Functions,
    LabelFrom,
    Preset,
    Quarantine,
    Shards,
    Shuffle,
    chosen_device,
    label_source,
    with_functions,
)
from gpuloader.cli.printing import finish, say, say_rows
from gpuloader.cli.show import Changes, parse_changes
from gpuloader.cli.signatures import from_tool

if TYPE_CHECKING:
    from gpuloader.tools.bench_result import BenchResult

_COLUMNS = {"title": "<34", "images_per_second": ">12,.0f", "cpu_seconds_per_1000": ">14.3f", "cpu_share": ">8.0%"}


@from_tool("gpuloader.tools.bench.bench", "batch_size", "seconds", "plot")
def bench(
    shards: Shards,
    run: Callable[..., Any],
    preset: Preset = "imagenet_train",
    functions: Functions = None,
    changes: Changes = None,
    device_id: DeviceId = None,
    cpu: Cpu = False,
    num_threads: Annotated[int | None, typer.Option(help="Number of threads that decode.")] = None,
    shuffle: Shuffle = None,
    label_from: LabelFrom = "auto",
    quarantine: Quarantine = None,
    as_json: AsJson = False,
) -> None:
    """Measures what each stage of loading costs on your shards and machine, and names the bottleneck.

    It measures the CPU, and the GPU if there is one. Own code has a row. A line below each table says what to change.

    Each row includes the stages before it. Its share is the part of the CPU time that this stage adds.

    Example: gpuloader bench shards/train/ --preset imagenet_train
    """
    changed = {preset: parse_changes(changes)} if changes else preset
    arguments: dict[str, Any] = {"preset": with_functions(changed, functions), "label_from": label_source(label_from)}
    arguments |= {} if shuffle is None else {"shuffle": shuffle}
    arguments |= {} if quarantine is None else {"on_error": {"known": quarantine}}
    arguments |= {} if num_threads is None else {"decoder": {"num_threads": num_threads}}
    finish(run(shards, device_id=chosen_device(cpu, device_id), progress=True, **arguments), as_json, _print)


def _print(result: BenchResult) -> None:
    data, settings = result.data, result.settings
    say(f"machine  {result.machine}")
    held = f"{counted(data.images, 'image')} of {format_bytes(data.image_bytes)} in {counted(data.shards, 'shard')}"
    say(f"data     {held}; {settings['preset']}")
    uses = ("copies ", result.copies, "use a smaller copy"), ("smaller", result.smaller, "decode a smaller JPEG")
    for title, facts, use in uses:
        if facts is not None:
            needs = f"with {facts.needs}, " if facts.needs else ""
            say(f"{title}  {needs}{facts.draws:.0%} of the crops {use}: {1 - facts.pixels:.0%} fewer pixels to decode")
    for device in result.devices:
        title = f"{device.device}, {counted(device.num_threads, 'thread')}, batch {settings['batch_size']}"
        say()
        say_rows([(title, "images/s", "CPU s/1,000", "share")], "<34", ">12", ">14", ">8")
        say_rows(map(attrgetter(*_COLUMNS), device.stages), *_COLUMNS.values())
        say()
        say(device.limit)
    say()
    say(_caching_note(result))


def _caching_note(result: BenchResult) -> str:
    data, memory = result.data, format_bytes(result.machine.memory_bytes)
    shards = f"The shards ({format_bytes(data.shard_bytes)})"
    if data.node_bytes < data.shard_bytes:
        read = f"{format_bytes(data.node_bytes)} of {format_bytes(data.shard_bytes)}"
        shards = f"The shards that this node reads ({read})"
    if data.fits_in_memory:
        return f"{shards} fit into memory ({memory}): after the first epoch, the page cache has them."
    return (
        f"{shards} do not fit into memory ({memory}): every epoch also reads from the disk, which "
        f"`gpuloader doctor SHARDS` measures."
    )
