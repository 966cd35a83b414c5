"""`gpuloader info`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from gpuloader.base.text import counted, format_bytes
from gpuloader.cli.options import AsJson, LabelFrom, Preset, ShardsOrLoader, loader_of
from gpuloader.cli.printing import finish, say
from gpuloader.cli.signatures import from_tool
from gpuloader.images.traits import describe_reduced

if TYPE_CHECKING:
    from gpuloader.tools.info import Distribution, Info

_BAR = 30
_CLASSES_SHOWN = 5


@from_tool("gpuloader.tools.info.describe_shards", "batch_size", "nodes")
def info(
    context: typer.Context,
    shards: ShardsOrLoader,
    run: Callable[..., Any],
    label_from: LabelFrom = "default",
    preset: Preset = "imagenet_train",
    as_json: AsJson = False,
) -> None:
    """Describes the shards: samples, classes, sizes, formats, and the memory that a loader needs for them.

    It reads indexes and no image, and makes missing indexes. A bar is the number of samples in a class or a range.

    With a loader's YAML that has buckets, it also counts the samples of each bucket.

    Example: gpuloader info shards/train/

    Example: gpuloader info train.yaml
    """
    loader = loader_of(context, "label_from", "preset", "batch_size")
    described = ("label_from", "preset", "batch_size", "decoder", "sampling", "on_error")
    arguments = {name: loader[name] for name in described if name in loader}
    finish(run(loader["tar"], progress=True, **arguments), as_json, _print)


def _print(info: Info) -> None:
    left_out = f", {counted(info.stray_count, 'member')} left out" if info.stray_count else ""
    held = f"{counted(info.samples, 'sample')} in {counted(info.shards, 'shard')}"
    say(f"{held}, {format_bytes(info.shard_bytes)}{left_out}")
    if info.node_bytes is not None:
        say(f'a node      reads up to {format_bytes(info.node_bytes)} with shuffle="shards"')
        advice = f"; {info.node_advice}" if info.node_advice else ""
        say(f"all nodes   read {info.times_read:.2f} times the data{advice}")
    say(f"formats     {_counts(info.formats)}")
    say(f"components  {_counts(info.components)}")
    if info.jpegs:
        say(f"seekable    {info.seekable:,} of {counted(info.jpegs, 'JPEG')}")
    if info.turned:
        say(f"turned      {info.turned:,} by their EXIF orientation: upright with `orientation: apply` in a recipe")
    if reduced := describe_reduced(info.reduced):
        say(f"reduced     to RGB of 8 bits: {reduced}")
    if info.with_copies:
        have = "picture has" if info.with_copies == 1 else "pictures have"
        say(f"copies      {info.with_copies:,} {have} smaller copies, {format_bytes(info.copy_bytes)}")
    _print_classes(info)
    _print_spread("image height, pixels", info.height, "{:,.0f}".format)
    _print_spread("image width, pixels", info.width, "{:,.0f}".format)
    _print_spread("megapixels", info.megapixels, "{:.3g}".format)
    _print_spread("bytes of an image", info.image_bytes, format_bytes)
    if info.unknown_size:
        say()
        say(f"{counted(info.unknown_size, 'image')} whose height and width are not in the index")
    _print_buckets(info)
    memory = info.memory
    decoded = "unknown" if memory.decoded_bytes is None else format_bytes(memory.decoded_bytes)
    settings = f"preset {memory.preset}, batch size {memory.batch_size}, prefetch {memory.prefetch}"
    say()
    say(f"memory of a loader, estimated ({settings})")
    say(f"  index            {format_bytes(memory.index_bytes):>9}  host")
    say(f"  encoded images   {format_bytes(memory.encoded_bytes):>9}  host")
    say(f"  decoded regions  {decoded:>9}  device")
    say(f"  batches          {format_bytes(memory.output_bytes):>9}  device")
    say(f"  decoder          {format_bytes(memory.decoder_bytes):>9}  device, only on a GPU")
    machine = format_bytes(memory.machine_bytes)
    say(f"  largest part     {format_bytes(memory.worst_part_bytes):>9}  device, decoded whole; {machine} on this host")
    if info.excess:
        say(f"warning: {info.excess}")


def _print_classes(info: Info) -> None:
    say()
    if not info.classes:
        say("no sample has a label")
        return
    by_samples = sorted(info.classes, key=lambda each: -each.samples)
    without = f", {counted(info.without_label, 'sample')} without a label" if info.without_label else ""
    spread = f" of {by_samples[-1].samples:,} to {counted(by_samples[0].samples, 'sample')}"
    source = "" if info.label_from in ("cls", None) else f", labels from {info.label_from}"
    say(f"{counted(len(by_samples), 'class', 'classes')}{spread}{without}{source}")
    shown = by_samples
    if len(by_samples) > 2 * _CLASSES_SHOWN:
        shown = [*by_samples[:_CLASSES_SHOWN], *by_samples[-_CLASSES_SHOWN:]]
    for place, each in enumerate(shown):
        if place == _CLASSES_SHOWN and len(shown) < len(by_samples):
            say(f"  ... {len(by_samples) - len(shown):,} more ...")
        label = f"{each.label}" if each.name is None else f"{each.label} {each.name}"
        say(f"  {label:<20}{_bar(each.samples, by_samples[0].samples)} {each.samples:,}")


def _print_spread(title: str, spread: Distribution | None, written: Callable[[float], str]) -> None:
    if spread is None:
        return
    say()
    if spread.smallest == spread.largest:
        say(f"{title}: {written(spread.smallest)} in all")
        return
    middle = f"median {written(spread.median)}, mean {written(spread.mean)}"
    say(f"{title}: {written(spread.smallest)} to {written(spread.largest)}, {middle}")
    for lower, upper, count in zip(spread.edges, spread.edges[1:], spread.counts):
        bounds = f"{written(lower)} - {written(upper)}"
        say(f"  {bounds:<20}{_bar(count, max(spread.counts))} {count:,}")


def _print_buckets(info: Info) -> None:
    if info.buckets is None:
        return
    held = [each for each in info.buckets if each.samples]
    cropped = sum(each.samples * each.cropped for each in held) / max(1, sum(each.samples for each in held))
    say()
    used = f"{len(held)} of {counted(len(info.buckets), 'bucket')} with samples"
    sized, most = any(each.height for each in held), max((each.samples for each in held), default=0)
    say(f"{used}; of the pictures {cropped:.1%} is cropped away" if sized else f"{used}, by width / height")
    for each in held:
        lost = f"{each.samples:<11,} {each.cropped:.1%} is cropped away" if sized else f"{each.samples:,}"
        say(f"  {each.name:<20}{_bar(each.samples, most)} {lost}")


def _bar(count: int, most: int) -> str:
    return f"{'█' * -(-_BAR * count // most):<{_BAR}}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
