"""The options that several commands have."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any, Literal

import typer

from gpuloader.errors import PresetError


def complete_preset(begun: str) -> list[str]:
    """Returns the presets whose names begin with this text, for the shell."""
    from gpuloader.recipe import preset_names

    return [name for name in preset_names() if name.startswith(begun)]


def imported(path: str, what: str) -> Any:  # noqa: ANN401
    """Imports MODULE:NAME from an installed module, or from one in this folder."""
    module, _, name = path.partition(":")
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise PresetError(f"{path}: {error}; allowed is MODULE:NAME of {what}") from None
    except Exception as error:
        raise PresetError(f"{path}: importing {module} fails: {type(error).__name__}: {error}") from error


def with_functions(preset: Any, functions: list[str] | None) -> Any:  # noqa: ANN401
    """Returns a loader's `preset` with these functions as its own code, each MODULE:NAME."""
    from gpuloader.recipe import load_preset

    return load_preset(preset, None, [imported(each, "a function") for each in functions]) if functions else preset


def label_source(text: str) -> str | None:
    """Returns a loader's `label_from`; the command line has "none" for Python's None."""
    return None if text == "none" else text


def loader_of(context: typer.Context, *names: str) -> dict[str, Any]:
    """Returns a loader's arguments: from its YAML file, or `tar` alone, and from these options of the command.

    Options on the command line override the file.
    """
    from gpuloader.tools.loader_file import read_loader

    options = {name: context.params[name] for name in names}
    if "label_from" in options:
        options["label_from"] = label_source(options["label_from"])
    sources = {name: context.get_parameter_source(name) for name in names}
    written = {name: options[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"}
    loader = {**options, **read_loader(context.params["shards"]), **written}
    if functions := context.params.get("functions"):
        loader["preset"] = with_functions(loader.get("preset", "imagenet_train"), functions)
    return loader


def chosen_device(cpu: bool, device_id: int | None = None) -> int | Literal["auto"] | None:
    """Returns a loader's `device_id`, from the options --cpu and --device-id."""
    return None if cpu else "auto" if device_id is None else device_id


ShardsOrLoader = Annotated[
    list[str],
    typer.Argument(help="Shards, folders of them or of pictures, patterns, URLs; or a loader's arguments, FILE.yaml."),
]
Shards = Annotated[
    list[str], typer.Argument(help="Shards, folders of them or of pictures, globs or brace patterns; or URLs.")
]
Preset = Annotated[
    str, typer.Option("--preset", "-p", help="A preset's name, or a YAML file.", autocompletion=complete_preset)
]
Functions = Annotated[
    list[str] | None,
    typer.Option("--functions", help="A function that the recipe names as own code, MODULE:NAME; may be repeated."),
]
LabelFrom = Annotated[
    str, typer.Option(help="Where labels are: cls, json:NAME, folder, folder:top, none, auto or default.")
]
Shuffle = Annotated[str | None, typer.Option(help="none, full, block or shards; the default depends on the recipe.")]
Quarantine = Annotated[str | None, typer.Option(help="A file of known bad images.")]
DeviceId = Annotated[int | None, typer.Option(help="The GPU's number; by default the first GPU, if there is one.")]
Cpu = Annotated[bool, typer.Option("--cpu", help="Use the CPU even if there is a GPU.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
