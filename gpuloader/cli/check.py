"""`gpuloader check`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from gpuloader.cli.options import AsJson, Cpu, ShardsOrLoader, chosen_device, loader_of
from gpuloader.cli.printing import at_byte, finish, say
from gpuloader.cli.signatures import from_tool
from gpuloader.helpers.text import counted

if TYPE_CHECKING:
    from gpuloader.tools.check import CheckResult


@from_tool("gpuloader.tools.check.check_shards", "quarantine")
def check(
    context: typer.Context,
    shards: ShardsOrLoader,
    run: Callable[..., Any],
    cpu: Cpu = False,
    as_json: AsJson = False,
) -> None:
    """Decodes every image as training would, and lists what is wrong with the shards; if anything is, exits with 3.

    Of a loader's YAML, it also parses all that its fields name, and compares boxes and masks with their images.

    Example: gpuloader check shards/train/ --quarantine bad.jsonl

    Example: gpuloader check train.yaml
    """
    loader = loader_of(context)
    checked = {name: loader[name] for name in ("preset", "fields", "cache") if name in loader}
    result = run(loader["tar"], device_id=chosen_device(cpu, loader.get("device_id")), progress=True, **checked)
    finish(result, as_json, _print, wrong=not result.all_well)


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
