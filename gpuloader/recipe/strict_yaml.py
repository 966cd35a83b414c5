"""Reads strict YAML: one mapping of limited size, with plain keys, and no duplicate keys, tags or aliases."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from gpuloader.errors import GPULoaderError, PresetError
from gpuloader.recipe.part import Where

MAX_YAML_CHARACTERS = 1 << 18  # a hundred times the longest recipe
_MAX_DEPTH = 64
_MAX_PLAIN_CHARACTERS = 1_000  # of a value without quotes: the time to read a number grows with its length squared


class StrictLoader(yaml.SafeLoader):
    """A loader that refuses tags, aliases, duplicate keys, long numbers and deep nesting."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            raise _error("aliases are not allowed", event)
        if getattr(event, "tag", None) is not None:
            raise _error("tags are not allowed", event)
        is_plain = self.check_event(yaml.ScalarEvent) and event.style is None
        if is_plain and len(event.value) > _MAX_PLAIN_CHARACTERS:
            raise _error(f"a value of {len(event.value)} characters: quote it, or write a shorter one", event)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _error(f"nested more than {_MAX_DEPTH} deep", event)
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


def _error(problem: str, at: Any) -> yaml.YAMLError:  # noqa: ANN401 - an event or a node
    return yaml.constructor.ConstructorError(None, None, problem, at.start_mark)


def load_yaml(text: str | bytes, where: str, error_type: type[GPULoaderError] = PresetError) -> dict[str, Any]:
    """Reads the mapping in a YAML text; `where` names it in errors.

    Raises:
        PresetError: or another `error_type`. The text is not YAML, not a mapping or too large, or has a duplicate key,
            an alias or a tag.
    """
    if len(text) > MAX_YAML_CHARACTERS:
        raise error_type(f"{where}: more than {MAX_YAML_CHARACTERS} characters; no recipe needs as many")
    try:
        content = yaml.load(text, StrictLoader)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # ValueError: the 32nd of a month
        problem, *place = (str(error) or type(error).__name__).splitlines()
        raise error_type(f"{where} cannot be read as YAML: {problem}", *place) from None
    if not isinstance(content, dict):
        raise error_type(Where(where).found(content, ": allowed is a mapping of keys to values"))
    return content
