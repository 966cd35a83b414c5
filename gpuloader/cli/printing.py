"""Prints the commands' results: lines for people, or JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import typer

from gpuloader.base.text import printable

FOUND_SOMETHING_WRONG = 3


def say(line: str = "") -> None:
    """Prints one line. Line ends and control characters in it are escaped."""
    print(printable(line))


def say_rows(rows: Iterable[Sequence[Any]], *columns: str) -> None:
    """Prints a line for each row; a column is the format of its values, such as "<34" or ">12,.0f"."""
    for row in rows:
        say("".join(map(format, row, columns)))


def at_byte(offset: int) -> str:
    """Returns the place in a tar as text, or an empty text for a file in a folder."""
    return f" at byte {offset}" if offset else ""


def finish(result: Any, as_json: bool, print_text: Callable[[Any], None], wrong: bool = False) -> None:  # noqa: ANN401
    """Prints a result as JSON or as text; if it is `wrong`, the command exits with 3."""
    print_json(result) if as_json else print_text(result)
    if wrong:
        raise typer.Exit(FOUND_SOMETHING_WRONG)


def print_json(result: Any) -> None:  # noqa: ANN401
    """Prints one JSON document, with the fields of results by name."""
    text = json.dumps(result, indent=2, default=_as_json_value)
    print(text.replace("\x7f", r"\u007f"))  # the only control character that JSON's texts may contain


def _as_json_value(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if hasattr(value, "tolist"):  # a numpy value
        return value.tolist()
    if callable(value):  # own code in a recipe
        return getattr(value, "__qualname__", repr(value))
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
