"""`gpuloader pack`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuloader.base.text import counted
from gpuloader.cli.options import AsJson
from gpuloader.cli.printing import finish, say
from gpuloader.cli.signatures import from_tool
from gpuloader.images.traits import describe_reduced

if TYPE_CHECKING:
    from gpuloader.pack import PackResult


@from_tool(
    "gpuloader.pack.packing.pack",
    *("source", "destination", "samples_per_shard", "shard_bytes", "seed", "shuffle", "val_share", "prefix"),
    *("max_size", "quality", "decoded", "seekable", "mipmaps", "classes", "images", "tars_are_classes"),
    *("workers", "ray"),
)
def pack(
    run: Callable[..., Any],
    part: Annotated[
        str, typer.Option(metavar="I/N", help="Write the I-th of N parts of the shards; I starts at 0.")
    ] = "0/1",
    as_json: AsJson = False,
) -> None:
    """Packs pictures with labels, boxes or masks into WebDataset shards. If it is killed, run it again: it resumes.

    Several sources may go to one folder, each with its own --prefix.

    It prints each bad picture or object, then the samples and shards in the folder. Exits with 3 if any was bad.

    Example: gpuloader pack imagenet/train shards/train/ --shard-bytes 256MiB
    """
    index, _, parts = part.partition("/")
    if not (index.isdecimal() and parts.isdecimal()):
        raise typer.BadParameter(f"--part {part!r}: allowed is i/n, such as 7/8 for the last of eight parts")
    result = run(part=(int(index), int(parts)), progress=True)
    finish(result, as_json, _print, wrong=bool(result.left_out))


def _print(result: PackResult) -> None:
    for picture in result.left_out:
        say(f"left out: {picture.name!r}{picture.object and f', {picture.object}'}: {picture.why}")
    if result.passed_over:
        say(f"skipped, because they belong to no sample: {result.passed_over:,}")
    total = len(result.shards) + len(result.missing)
    shards = f"{len(result.shards):,} of {counted(total, 'shard')}"
    say(f"{counted(result.samples, 'sample')} in {shards}, {result.bytes:,} bytes")
    if len(result.splits) > 1:
        say(", ".join(f"{samples:,} {name}" for name, samples in result.splits.items()))
    if result.with_copies or result.too_small:
        small = f"; too small for them: {result.too_small:,}" if result.too_small else ""
        say(f"of what this call wrote, {counted(result.with_copies, 'picture')} with smaller copies{small}")
    if result.with_copies:
        say("to load the copies, add the line `oversampling: 1.5` to the recipe. To make a recipe of a preset:")
        say('(gpuloader presets imagenet_train; echo "oversampling: 1.5") > recipe.yaml')
    if reduced := describe_reduced(result.reduced):
        say(f"of what this call wrote, loaders deliver RGB of 8 bits: {reduced}")
    if result.missing:
        say(f"still missing: {', '.join(result.missing[:5])}{' ...' if len(result.missing) > 5 else ''}")
