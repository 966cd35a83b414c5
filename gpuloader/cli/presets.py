"""`gpuloader presets`."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuloader.cli.options import complete_preset, imported
from gpuloader.cli.printing import say_rows


def presets(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A preset's name, a YAML file, or MODULE:NAME of a Compose or a torchvision transform.",
            autocompletion=complete_preset,
        ),
    ] = None,
) -> None:
    """Lists the recipes that come with the library, or prints one as YAML, as a start for your own.

    Example: gpuloader presets imagenet_train > mine.yaml

    Example: gpuloader presets train:transform > mine.yaml
    """
    from gpuloader.recipe import Recipe, load_preset, preset_names, preset_text, recipe_from_torchvision, recipe_yaml

    if recipe is None:
        say_rows(((each, preset_text(each).splitlines()[0].removeprefix("# ")) for each in preset_names()), "<24", "")
    elif ":" in recipe:
        found = imported(recipe, "a Compose or a torchvision transform")
        print(recipe_yaml(found if isinstance(found, Recipe) else recipe_from_torchvision(found)), end="")
    elif recipe.endswith((".yaml", ".yml")):
        print(recipe_yaml(load_preset(recipe)), end="")
    else:
        print(preset_text(recipe), end="")
