"""Checks and converts values that users give."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np
import orjson


def is_integer(value: object, least: int | None = None, end: int | None = None) -> TypeGuard[int]:
    """Returns whether `value` is an integer, not a bool, in [least, end). None means unbounded."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return (least is None or least <= value) and (end is None or value < end)


def as_python_integer(value: Any) -> Any:  # noqa: ANN401
    """Converts Numpy's integers to Python's, so that they can be compared and saved as JSON."""
    return value.item() if isinstance(value, np.integer) else value


def as_python_number(value: object) -> object:
    """Converts Numpy's numbers and bools to Python's."""
    return value.item() if isinstance(value, np.generic) else value


def innermost(content: Any, path: str) -> tuple[Any, str]:  # noqa: ANN401
    """Follows a path such as "a.b" into JSON; returns the last value that it leads into, and the rest of the path.

    The key "a.b" takes precedence over b in a.
    """
    first, dot, rest = path.partition(".")
    if isinstance(content, dict) and path not in content and dot and first in content:
        return innermost(content[first], rest)
    return content, path


def parse_json(content: bytes) -> Any:  # noqa: ANN401
    """Parses JSON as `json.loads` does, but faster; integers of more than 64 bits become floats.

    Raises:
        ValueError, RecursionError: `content` is not JSON, or too deep; the error is that of `json.loads`.
    """
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return json.loads(content)  # which takes NaN, and an encoding other than UTF-8


def as_tuple(entries: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns the values of a mapping as a tuple."""
    return tuple(entries.values())
