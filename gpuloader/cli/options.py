"""The options that several commands have."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer


def complete_preset(begun: str) -> list[str]:
    """Returns the presets whose names begin with this text, for the shell."""
    from gpuloader.recipe import preset_names

    return [name for name in preset_names() if name.startswith(begun)]


def label_source(text: str) -> str | None:
    """Returns a loader's `label_from`; the command line has "none" for Python's None."""
    return None if text == "none" else text


def loader_of(context: typer.Context, *names: str) -> dict[str, Any]:
    """Returns a loader's arguments: those in its YAML file, or `tar`, and these options of the command.

    What the user writes on the command line replaces what is in the file.
    """
    from gpuloader.tools.loader_file import read_loader

    options = {name: context.params[name] for name in names}
    if "label_from" in options:
        options["label_from"] = label_source(options["label_from"])
    sources = {name: context.get_parameter_source(name) for name in names}
    written = {name: options[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"}
    return {**options, **read_loader(context.params["shards"]), **written}


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
LabelFrom = Annotated[
    str, typer.Option(help="Where labels are: cls, json:NAME, folder, folder:top, none, auto or default.")
]
Shuffle = Annotated[str | None, typer.Option(help="none, full, block or shards; the default depends on the recipe.")]
Quarantine = Annotated[str | None, typer.Option(help="A file of known bad images.")]
DeviceId = Annotated[int | None, typer.Option(help="The GPU; by default the first one, if there is one.")]
Cpu = Annotated[bool, typer.Option("--cpu", help="Use the CPU even if there is a GPU.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
