"""`gpuloader check`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from gpuloader.base.text import counted
from gpuloader.cli.options import AsJson, Cpu, ShardsOrLoader, chosen_device, loader_of
from gpuloader.cli.printing import at_byte, finish, say
from gpuloader.cli.signatures import from_tool
from gpuloader.images.traits import describe_reduced

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
    """Decodes every image as training does, and lists the faults of the shards. Exits with 3 if there are any.

    A line is SHARD: FAULT: KEY: CAUSE. Training fails on a "bad" sample; "broken" is a damaged tar.

    A member that is "left out" belongs to no sample; "lacks .EXT" counts samples without a component that others have.

    With a loader's YAML, it also parses the fields, and compares boxes and masks with their images.

    Example: gpuloader check shards/train/ --quarantine bad.jsonl

    Example: gpuloader check train.yaml
    """
    loader = loader_of(context)
    checked = {name: loader[name] for name in ("preset", "fields", "cache") if name in loader}
    result = run(loader["tar"], device_id=chosen_device(cpu, loader.get("device_id")), progress=True, **checked)
    finish(result, as_json, _print, wrong=not result.all_well)


def _print(result: CheckResult) -> None:
    counts: Counter[str] = Counter()
    for fault in result.faults:
        counts[fault.kind] += fault.samples
        where = f"{fault.key!r}{at_byte(fault.offset)}: " if fault.key else ""
        say(f"{fault.shard}: {fault.kind}: {where}{fault.cause}")
    if result.left_out_count:
        counts["left out"] = result.left_out_count  # also those that are not listed
    if reduced := describe_reduced(result.reduced):
        say(f"delivered as RGB of 8 bits: {reduced}")
    wrong = ", ".join(f"{kind} {count:,}" for kind, count in counts.items())
    say(f"{counted(result.samples, 'sample')} in {counted(result.shards, 'shard')}: {wrong or 'all is well'}")
