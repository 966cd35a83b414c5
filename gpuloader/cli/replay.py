"""`gpuloader replay`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuloader.base.text import counted
from gpuloader.cli.options import AsJson, Cpu, Functions, ShardsOrLoader, chosen_device, loader_of
from gpuloader.cli.printing import at_byte, finish, say
from gpuloader.cli.signatures import from_tool

if TYPE_CHECKING:
    from gpuloader.loading.explaining import ExplainedSample
    from gpuloader.tools.replay import ReplayResult


@from_tool("gpuloader.tools.replay.replay", "epoch", "step", "state", "ranks", "rank", "keys")
def replay(
    context: typer.Context,
    shards: ShardsOrLoader,
    run: Callable[..., Any],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A picture to write: .png or .jpg.")] = None,
    functions: Functions = None,
    cpu: Cpu = False,
    as_json: AsJson = False,
) -> None:
    """Says which samples a step of a run had, how each was cut and changed, and draws them.

    With `--keys` it writes a file that `Sampling(leave_out=...)` and `Sampling(subset=...)` read.

    Example: gpuloader replay train.yaml --epoch 3 --step 1207 --ranks 8 -o step.png --keys keys.txt

    Example: gpuloader replay train.yaml --state state.json
    """
    loader = loader_of(context)
    loader["device_id"] = chosen_device(cpu, loader.get("device_id"))
    result = run(loader, picture=output)
    finish(result.all_samples if as_json else result, as_json, _print)


def _print(result: ReplayResult) -> None:
    global_batch = result.ranks * result.batch_size
    place = f"epoch {result.epoch}, after {counted(result.delivered, 'sample')}"
    size = f"{counted(result.ranks, 'rank')} x batch size {result.batch_size} = a global batch of {global_batch:,}"
    say(f"{place}: {size}")
    for rank, samples in result.samples.items():
        for sample in samples:
            say(f"rank {rank}  {_describe(sample)}")


def _describe(sample: ExplainedSample) -> str:
    label = "" if sample.label is None else f"  class {sample.label}"
    top, left, bottom, right = (round(side) for side in sample.views[0].window)
    window = f"  rows {top} to {bottom}, columns {left} to {right}"
    about = "" if sample.valid else "  padding"
    if sample.cause is not None:
        about = f"  replaces {sample.planned_key}: {sample.cause}"
    return f"{sample.key}{label}{window}  {sample.shard}{at_byte(sample.offset)}{about}"
