"""A recipe as a table in HTML: what a notebook shows of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import yaml


def recipe_html(recipe: Mapping[str, Any]) -> str:
    """Writes a recipe as a table, a row for each transform. It sets no colours: the page's own, light or dark, apply.

    Args:
        recipe: its plain values, without defaults. Arguments are written as in YAML.
    """
    rows = "\n".join(f"<tr>{_cell(tag, name)}{_cell(tag, value)}</tr>" for tag, name, value in _rows(recipe))
    return f"<table>\n{rows}\n</table>"


def _rows(recipe: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yields the tag of a row's cells and their texts."""
    transforms = "views" if isinstance(recipe.get("views"), list) else "transforms"
    if transforms == "views":
        first = 0
        for view in recipe["views"]:
            last = first + view.get("count", 1) - 1
            yield "th", f"view {first}" if last == first else f"views {first} to {last}", "arguments"
            yield from map(_transform, view["transforms"])
            first = last + 1
    else:
        yield "th", "transform", "arguments"
        yield from map(_transform, recipe["transforms"])
    if others := {key: value for key, value in recipe.items() if key != transforms}:
        yield "th", "key", "value"
        yield from (("td", key, _yaml(value)) for key, value in others.items())


def _transform(transform: str | Mapping[str, Any]) -> tuple[str, str, str]:
    if isinstance(transform, str):
        return "td", transform, ""
    [(name, arguments)] = transform.items()
    return "td", name, _yaml(arguments)


def _yaml(value: object) -> str:
    text = yaml.safe_dump(value, sort_keys=False, default_flow_style=True, width=float("inf")).removesuffix("...\n")
    return text.strip()[1:-1] if isinstance(value, Mapping) else text.strip()


def _cell(tag: str, text: str) -> str:
    return f'<{tag} style="text-align: left">{escape(text)}</{tag}>'
