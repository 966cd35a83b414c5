"""What the commands share: results as text for people or as JSON for machines."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document in place of text.")]
Shards = Annotated[list[str], typer.Argument(help="Shards, folders, globs or brace patterns.")]


def complete_preset(begun: str) -> list[str]:
    """The presets whose names begin so, for the shell."""
    from gpuloader.recipe import preset_names

    return [name for name in preset_names() if name.startswith(begun)]


Preset = Annotated[
    str, typer.Option("--preset", "-p", help="A preset's name, or a YAML file.", autocompletion=complete_preset)
]

FOUND_SOMETHING_WRONG = 3


def print_json(result: Any) -> None:  # noqa: ANN401
    """One JSON document: a result's fields under their names."""
    content = asdict(result) if is_dataclass(result) and not isinstance(result, type) else result
    print(json.dumps(content, indent=2, default=_plain))


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # numpy's
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON")
