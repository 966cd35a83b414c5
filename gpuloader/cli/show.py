"""`gpuloader show`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuloader.base.text import counted
from gpuloader.cli.options import AsJson, Cpu, Functions, LabelFrom, Preset, ShardsOrLoader, chosen_device, loader_of
from gpuloader.cli.printing import finish, say
from gpuloader.cli.signatures import from_tool
from gpuloader.errors import ConfigError, kind_of

if TYPE_CHECKING:
    from gpuloader.tools.show import ShowResult

Changes = Annotated[
    list[str] | None, typer.Option("--set", help="Replaces a value of the recipe: RandomResizedCrop.size=160.")
]


@from_tool("gpuloader.tools.show.show", "versions", "columns", "seed")
def show(
    context: typer.Context,
    shards: ShardsOrLoader,
    run: Callable[..., Any],
    preset: Preset = "imagenet_train",
    functions: Functions = None,
    changes: Changes = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the picture: .png or .jpg.")] = Path(
        "grid.png"
    ),
    count: Annotated[int, typer.Option(help="How many samples, chosen at random from all of the data.")] = 8,
    ids: Annotated[list[int] | None, typer.Option("--id", help="A sample by its number; may be repeated.")] = None,
    keys: Annotated[list[str] | None, typer.Option("--key", help="A sample by its key; may be repeated.")] = None,
    label_from: LabelFrom = "default",
    cpu: Cpu = False,
    serve: Annotated[bool, typer.Option("--serve", help="Serve a page to browse samples, on this machine.")] = False,
    port: Annotated[int, typer.Option(help="The page's port; 0 takes a free one.")] = 8765,
    as_json: AsJson = False,
) -> None:
    """Draws samples beside what training gets from them in several epochs, or serves a page to browse them.

    A sample begins with its original. A coloured frame marks a version, and its window in the original.

    It also draws boxes, masks and key points: those that `pack` writes, or the fields in a loader's YAML.

    Example: gpuloader show shards/train/ --preset imagenet_randaugment -o grid.png

    Example: gpuloader show shards/train/ --preset mine.yaml --serve

    Example: gpuloader show train.yaml
    """
    loader = loader_of(context, "preset", "seed", "label_from")
    common: dict[str, Any] = {name: loader.get(name) for name in ("preset", "seed", "label_from", "fields")}
    common |= {"overrides": parse_changes(changes or []), "device_id": chosen_device(cpu, loader.get("device_id"))}
    if serve:
        from gpuloader.tools.serve import serve as serve_page

        serve_page(
            loader["tar"], port=port, ready=lambda url: print(f"{url}    (Ctrl-C ends it)", flush=True), **common
        )
        return
    samples: list[int | str] | int = [*(ids or []), *(keys or [])] or count
    finish(run(loader["tar"], output, samples=samples, **common), as_json, _print)


def _print(shown: ShowResult) -> None:
    say(f"{shown.picture}: {counted(len(shown.samples), 'sample')}")
    if shown.mix_left_out:
        say("the recipe's MixUp and CutMix are left out")
    for name, cause in shown.targets_left_out.items():
        say(f"{name} not drawn: {cause}")
    for sample in shown.samples:
        if sample.id in shown.bad:
            say(f"{kind_of(shown.bad[sample.id])}: {sample.key} in {sample.shard}: {shown.bad[sample.id]}")


def parse_changes(changes: Sequence[str]) -> dict[str, Any]:
    """Parses `KEY=VALUE` and `TRANSFORM.PARAMETER=VALUE`, with values as in YAML, for `Compose.load`."""
    from gpuloader.recipe.strict_yaml import load_yaml

    overrides: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise ConfigError(f"--set {change}: allowed is KEY=VALUE, such as RandomResizedCrop.size=160")
        value = load_yaml(f"value: {text}", f"--set {change}")["value"]
        key, dot, parameter = name.partition(".")
        if dot:
            overrides.setdefault(key, {})[parameter] = value
        else:
            overrides[key] = value
    return overrides
