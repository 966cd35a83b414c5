"""`gpuloader check`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuloader.cli.options import AsJson, Cpu, ShardsOrLoader, chosen_device, loader_of
from gpuloader.cli.printing import FOUND_SOMETHING_WRONG, at_byte, print_json, say
from gpuloader.helpers.text import counted

if TYPE_CHECKING:
    from gpuloader.tools.check import CheckResult


def check(
    context: typer.Context,
    shards: ShardsOrLoader,
    quarantine: Annotated[
        Path | None, typer.Option(help="Write the bad samples to this file, for on_error=BadImages(known=...).")
    ] = None,
    cpu: Cpu = False,
    as_json: AsJson = False,
) -> None:
    """Decodes every image as training would, and lists what is wrong with the shards; if anything is, exits with 3.

    Of a loader's YAML, it also parses all that its fields name, and compares boxes and masks with their images.

    Example: gpuloader check shards/train/ --quarantine bad.jsonl

    Example: gpuloader check train.yaml
    """
    loader = loader_of(context, shards, preset="imagenet_train", fields=())
    from gpuloader.tools.check import check_shards

    result = check_shards(
        loader["tar"],
        fields=loader["fields"],
        preset=loader["preset"],
        quarantine=quarantine,
        cache=loader.get("cache"),
        device_id=chosen_device(cpu, loader.get("device_id")),
        progress=True,
    )
    print_json(result) if as_json else _print(result)
    if not result.all_well:
        raise typer.Exit(FOUND_SOMETHING_WRONG)


def _print(result: CheckResult) -> None:
    for bad in result.bad:
        say(f"{bad.shard}: bad: {bad.key!r}{at_byte(bad.offset)}: {bad.cause}")
    for broken in result.broken:
        before = counted(broken.samples, "sample")
        say(f"{broken.shard}: broken: {broken.problem} at byte {broken.offset}; before it, {before}")
    for stray in result.stray:
        say(f"{stray.shard}: left out: {stray.name!r}{at_byte(stray.offset)}: {stray.why}")
    for lacking in result.lacking:
        more = f", and {lacking.samples - 1:,} more" if lacking.samples > 1 else ""
        say(f"{lacking.shard}: lacks .{lacking.extension}, which others have: {lacking.key!r}{more}")
    for each in result.wrong:
        say(f"{each.shard}: {each.problem}: {each.key!r}{at_byte(each.offset)}: {each.said}")
    if result.jpegs:
        say(f"seekable: {result.seekable:,} of {counted(result.jpegs, 'JPEG')}")
    counts = {
        "bad samples": len(result.bad),
        "broken shards": len(result.broken),
        "members left out": result.stray_count,
        **{f"samples without .{lacking.extension}": lacking.samples for lacking in result.lacking},
        **{
            f"samples with {problem}": count
            for problem, count in Counter(each.problem for each in result.wrong).items()
        },
    }
    wrong = ", ".join(f"{what} {count:,}" for what, count in counts.items() if count)
    say(f"{counted(result.samples, 'sample')} in {counted(result.shards, 'shard')}: {wrong or 'all is well'}")
