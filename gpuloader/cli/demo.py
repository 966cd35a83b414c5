"""`gpuloader demo`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuloader.cli.options import Cpu, chosen_device
from gpuloader.cli.printing import say_rows
from gpuloader.cli.signatures import from_tool


@from_tool("gpuloader.demo.run.run_demo", "seed")
def demo(
    run: Callable[..., Any],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the picture.")] = Path("demo.png"),
    keep: Annotated[
        Path | None,
        typer.Option(help="A folder to keep the pictures in: photos/ and shards/. Without it, they are removed."),
    ] = None,
    cpu: Cpu = False,
) -> None:
    """Makes pictures, trains a small net on them through GPULoader, and draws its predictions for other pictures.

    On two cores it takes one to two minutes.

    Example: gpuloader demo --keep .
    """
    from gpuloader.demo.run import PHOTOS, SHARDS

    with tempfile.TemporaryDirectory(prefix="gpuloader-demo-") as folder:
        result = run(keep or Path(folder), output, chosen_device(cpu))
    kept = {"pictures": str(keep / PHOTOS), "shards of them": str(keep / SHARDS)} if keep else {}
    say_rows({**result, "predictions": str(output), **kept}.items(), "<20", "")
