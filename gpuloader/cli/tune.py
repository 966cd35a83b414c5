"""`gpuloader tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuloader.cli.options import (
    AsJson,
    BatchSize,
    Cpu,
    LabelFrom,
    Preset,
    Quarantine,
    Shards,
    Shuffle,
    chosen_device,
    loader_arguments,
)
from gpuloader.cli.printing import print_json, say
from gpuloader.helpers.text import counted


def tune(
    shards: Shards,
    preset: Preset = "imagenet_train",
    batch_size: BatchSize = None,
    batch_sizes: Annotated[str, typer.Option(help="Other batch sizes to try: 64,256.")] = "",
    device_id: Annotated[int | None, typer.Option(help="The GPU; by default the first, if there is one.")] = None,
    cpu: Cpu = False,
    shuffle: Shuffle = None,
    label_from: LabelFrom = "default",
    quarantine: Quarantine = None,
    seconds: Annotated[float, typer.Option(help="How long it may take.")] = 120,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the arguments.")] = Path("tuned.yaml"),
    as_json: AsJson = False,
) -> None:
    """Searches for the settings that load your shards fastest on this machine, and writes them as YAML.

    Example: gpuloader tune shards/train/ --preset imagenet_train --batch-size 256 -o tuned.yaml
    """
    from gpuloader.errors import ConfigError
    from gpuloader.tools.measuring import LARGEST_BATCH
    from gpuloader.tools.tune import tune as run
    from gpuloader.tools.tune import verdict

    try:
        others = [int(each) for each in batch_sizes.split(",") if each]
    except ValueError:
        raise ConfigError(f"--batch-sizes {batch_sizes}: allowed are integers with commas between them") from None
    result = run(
        shards,
        batch_size,
        chosen_device(cpu, device_id),
        batch_sizes=others,
        seconds=seconds,
        output=output,
        progress=True,
        **loader_arguments(preset, shuffle, label_from, quarantine),
    )
    if as_json:
        print_json(result)
        return
    size = result.defaults["batch_size"]
    if batch_size is None and size < LARGEST_BATCH:
        say(f"batches of {size}, because there are fewer than {LARGEST_BATCH} images; --batch-size sets another")
    say(verdict(result))
    say(f"{output}: arguments of GPULoader, found in {counted(len(result.search.runs), 'run')}, {result.seconds:.0f} s")
