"""A recipe's parts as plain values, as in YAML and JSON."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from gpuloader.recipe.model import Transform


def as_plain_values(value: object, brief: bool = False) -> Any:  # noqa: ANN401
    """A transform as {its name: its parameters}, another part as {its keys: their values}; tuples are lists.

    Args:
        brief: leave out what is at its default; a transform without parameters is its name alone.
    """
    if isinstance(value, (list, tuple)):
        return [as_plain_values(each, brief) for each in value]
    if isinstance(value, dict):
        return {key: as_plain_values(each, brief) for key, each in value.items()}
    if not hasattr(value, "__dataclass_fields__"):
        return value
    values = set_values(value) if brief else {field.name: getattr(value, field.name) for field in fields(value)}  # type: ignore[arg-type]
    content = {name: as_plain_values(each, brief) for name, each in values.items()}
    if isinstance(value, Transform):
        name = type(value).__name__
        return {name: content} if content else name
    return content


def set_values(part: Any) -> dict[str, Any]:  # noqa: ANN401
    """The parameters of a part that are not at their default."""
    values = ((field, getattr(part, field.name)) for field in fields(part))
    return {field.name: value for field, value in values if value != field.default}
