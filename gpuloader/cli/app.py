"""`gpuloader`: the commands."""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuloader.errors import GPULoaderError

if TYPE_CHECKING:
    from gpuloader.recipe import Preset

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
def presets(
    recipe: Annotated[
        str | None, typer.Argument(help="A preset's name, a YAML file, or MODULE:NAME of a Compose or torchvision's.")
    ] = None,
) -> None:
    """Lists the recipes that come with the library, or prints one as YAML, to start one's own from.

    Example: gpuloader presets imagenet_train > mine.yaml

    Example: gpuloader presets train:transform > mine.yaml
    """
    from gpuloader.recipe import load_preset, preset_names, preset_text, preset_yaml

    if recipe is None:
        for each in preset_names():
            print(f"{each:<24}{preset_text(each).splitlines()[0].removeprefix('# ')}")
    elif ":" in recipe:
        print(preset_yaml(_imported(recipe)), end="")
    elif recipe.endswith((".yaml", ".yml")):
        print(preset_yaml(load_preset(recipe)), end="")
    else:
        print(preset_text(recipe), end="")


def _imported(path: str) -> Preset:
    """The recipe that a Python module of the folder, or an installed one, has under a name."""
    from gpuloader.errors import PresetError
    from gpuloader.recipe import Preset, preset_from_torchvision

    module, _, name = path.partition(":")
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise PresetError(f"{path}: {error}; allowed is MODULE:NAME of a Compose, or of torchvision's") from None
    return found if isinstance(found, Preset) else preset_from_torchvision(found)
