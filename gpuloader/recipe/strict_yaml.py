"""YAML without surprises: no tags, no aliases, plain keys, none twice, one mapping, of a believable size."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from gpuloader.errors import PresetError

MAX_YAML_CHARACTERS = 1 << 20


class _StrictLoader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            raise yaml.constructor.ConstructorError(None, None, "aliases are not allowed", event.start_mark)
        if getattr(event, "tag", None) is not None:
            raise yaml.constructor.ConstructorError(None, None, "tags are not allowed", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a plain word", key_node.start_mark)
            key = self.construct_object(key_node)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is there twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_yaml(text: str | bytes, where: str) -> dict[str, Any]:
    """The mapping in a YAML text; `where` names it in errors.

    Raises:
        PresetError: it is not YAML, not a mapping, or has a key twice, an alias or a tag.
    """
    if len(text) > MAX_YAML_CHARACTERS:
        raise PresetError(f"{where}: {len(text)} characters: a preset has at most {MAX_YAML_CHARACTERS}")
    try:
        content = yaml.load(text, _StrictLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: the 32nd of a month, and the like
        raise PresetError(f"{where} cannot be read as YAML: {error}") from None
    if not isinstance(content, dict):
        raise PresetError(f"{where}: found {content!r}, allowed is a mapping of keys to values")
    return content
