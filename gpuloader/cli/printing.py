"""What commands print: lines for people, and results as JSON, for machines."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from gpuloader.helpers.printable import printable

FOUND_SOMETHING_WRONG = 3


def say(line: str = "") -> None:
    """Prints a line. Whatever is in it, it stays one, and a terminal obeys nothing of it."""
    print(printable(line))


def print_json(result: Any) -> None:  # noqa: ANN401
    """One JSON document: a result's fields under their names."""
    content = asdict(result) if is_dataclass(result) and not isinstance(result, type) else result
    text = json.dumps(content, indent=2, default=_as_json_value)
    print(text.replace("\x7f", r"\u007f"))  # the only control character that JSON's texts may have


def _as_json_value(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # numpy's
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON")
