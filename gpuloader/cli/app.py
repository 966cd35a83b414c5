"""`gpuloader`: the commands."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from gpuloader.errors import GPULoaderError

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help="TAR shards in, training batches out.")


def main() -> None:
    """Runs a command. A mistake of the user's is one message and exit status 1, never a traceback."""
    try:
        app()
    except GPULoaderError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the picture goes.")] = Path("demo.png"),
    cpu: Annotated[bool, typer.Option("--cpu", help="Use the CPU even where there is a GPU.")] = False,
    seed: Annotated[int, typer.Option(help="Draws the pictures, their order and the net.")] = 0,
) -> None:
    """Makes pictures, trains a small net on them through GPULoader, and writes a picture of what it saw.

    Example: gpuloader demo --output demo.png
    """
    from gpuloader.demo import run_demo

    with tempfile.TemporaryDirectory(prefix="gpuloader-demo-") as folder:
        result = run_demo(Path(folder), output, None if cpu else "auto", seed)
    print(f"device              {result.device}")
    print(f"test accuracy       {result.accuracy:.1%} of {result.evaluated} pictures, each evaluated once")
    print(f"training            {result.train_images_per_second:.0f} images/s")
    print(f"waiting for data    {result.waiting_share:.0%} of the training time")
    print(f"training images     {output}")


@app.command()
def index(
    shards: Annotated[list[str], typer.Argument(help="Shards, folders, globs or brace patterns.")],
) -> None:
    """Makes the index of each shard that lacks one, and says what is in them.

    Example: gpuloader index 'shards/train-{0000..0147}.tar'
    """
    from gpuloader.shards import ShardSet, resolve_shards

    shard_set = ShardSet.open(resolve_shards(shards), progress=True)
    for shard, shard_index in shard_set.indexes:
        print(f"{shard}: {len(shard_index):,} samples")
        for item in shard_index.left_out:
            print(f"  left out: {item.name!r} at byte {item.offset}: {item.why}")
        if more := shard_index.left_out_count - len(shard_index.left_out):
            print(f"  left out: {more:,} more")
    print(f"{len(shard_set):,} samples in {len(shard_set.indexes):,} shards")


@app.command()
def presets(name: Annotated[str | None, typer.Argument(help="Prints this one's YAML.")] = None) -> None:
    """Lists the recipes that come with the library, or prints one, to start one's own from.

    Example: gpuloader presets imagenet_train > mine.yaml
    """
    from gpuloader.recipe import preset_names, preset_text

    if name is not None:
        print(preset_text(name), end="")
        return
    for each in preset_names():
        print(f"{each:<24}{preset_text(each).splitlines()[0].removeprefix('# ')}")
