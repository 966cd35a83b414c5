"""Strict YAML: one mapping of a limited size, with plain keys, no duplicate keys, no tags and no aliases."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, ValuesView
from typing import Any

import yaml

from gpuloader.errors import GPULoaderError, PresetError, describe

# A hundred times what the longest recipe has.
MAX_YAML_CHARACTERS = 1 << 18
_MAX_VALUES = 10_000
_MAX_DEPTH = 64


class StrictLoader(yaml.SafeLoader):
    """Refuses tags, aliases, duplicate keys and deep nesting; values may be as many and as long as the text holds."""

    most_values: float = math.inf
    most_value_characters: float = math.inf

    def __init__(self, text: str | bytes) -> None:
        super().__init__(text)
        self._values = self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            raise _error("aliases are not allowed", event)
        if getattr(event, "tag", None) is not None:
            raise _error("tags are not allowed", event)
        self._values += 1
        self._depth += 1
        if self._values > self.most_values or self._depth > _MAX_DEPTH:
            raise _error(f"more than {self.most_values} values, or nested more than {_MAX_DEPTH} deep", event)
        if self.check_event(yaml.ScalarEvent) and len(event.value) > (most := self.most_value_characters):
            raise _error(f"a value of {len(event.value)} characters: allowed are up to {most}", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _error("a key must be a plain word", key_node)
            key = self.construct_object(key_node)
            if key in seen:
                raise _error(f"the key {key!r} occurs twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)


class _RecipeLoader(StrictLoader):
    most_values = _MAX_VALUES
    most_value_characters = 1_000


def _error(problem: str, at: Any) -> yaml.YAMLError:  # noqa: ANN401 - an event or a node
    return yaml.constructor.ConstructorError(None, None, problem, at.start_mark)


def load_yaml(
    text: str | bytes,
    where: str,
    loader: type[StrictLoader] = _RecipeLoader,
    error_type: type[GPULoaderError] = PresetError,
) -> dict[str, Any]:
    """Reads the mapping in a YAML text; `where` names it in errors.

    Raises:
        PresetError: or another `error_type`. It is not YAML, not a mapping, has a key twice, an alias or a tag, or is
            larger than any recipe.
    """
    if len(text) > MAX_YAML_CHARACTERS:
        raise error_type(f"{where}: more than {MAX_YAML_CHARACTERS} characters; no recipe needs as many")
    try:
        content = yaml.load(text, loader)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # ValueError: the 32nd of a month
        problem, *place = (str(error) or type(error).__name__).splitlines()
        if problem == "mapping values are not allowed here":
            problem += ": a name with values below it ends with a colon, and they are indented further"
        raise error_type(f"{where} cannot be read as YAML: {problem}", *place) from None
    if not isinstance(content, dict):
        raise error_type(f"{where}: found {describe(content)}, allowed is a mapping of keys to values")
    return content


def check_values(content: object, where: str) -> None:
    """Raises PresetError if a mapping has more values, or is nested deeper, than a text may be."""
    level, count = [content], 0
    for _ in range(_MAX_DEPTH):
        count += len(level)
        inner = (each.values() if isinstance(each, Mapping) else each for each in level)
        level = [value for values in inner if isinstance(values, (ValuesView, list, tuple)) for value in values]
        if not level and count <= _MAX_VALUES:
            return
        if count > _MAX_VALUES:
            break
    raise PresetError(
        f"{where}: more than {_MAX_VALUES} values, or nested more than {_MAX_DEPTH} deep; no recipe needs as many"
    )
