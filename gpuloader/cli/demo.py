"""`gpuloader demo`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from gpuloader.cli.options import Cpu, chosen_device


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the picture goes.")] = Path("demo.png"),
    cpu: Cpu = False,
    seed: Annotated[int, typer.Option(help="Draws the pictures, their order and the net.")] = 0,
) -> None:
    """Makes pictures, trains a small net on them through GPULoader, and writes a picture of what it saw.

    Example: gpuloader demo --output demo.png
    """
    from gpuloader.demo import run_demo

    with tempfile.TemporaryDirectory(prefix="gpuloader-demo-") as folder:
        result = run_demo(Path(folder), output, chosen_device(cpu), seed)
    print(f"device              {result.device}")
    print(f"test accuracy       {result.accuracy:.1%} of {result.evaluated} pictures, each evaluated once")
    print(f"training            {result.train_images_per_second:.0f} images/s")
    print(f"waiting for data    {result.waiting_share:.0%} of the training time")
    print(f"training images     {output}")
