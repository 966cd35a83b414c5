"""torchvision's transforms as a recipe, read from their attributes; torchvision itself is not imported."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from enum import Enum
from typing import Any

from pydantic import ValidationError

from gpuloader.errors import PresetError
from gpuloader.recipe.model import Transform
from gpuloader.recipe.preset import Preset
from gpuloader.recipe.preset_files import TRANSFORMS

_NOTHING_TO_DO = {"ToTensor", "PILToTensor", "ToImage", "ToPureTensor", "ToPILImage", "RGB", "Identity"}
_TO_FLOAT = {"ToTensor", "ConvertImageDtype", "ToDtype", "ConvertDtype"}
_ONLY = {"num_output_channels": 3, "expand": False}
"""Attributes that must have this value."""


def preset_from_torchvision(transform: object, **options: Any) -> Preset:  # noqa: ANN401
    """The recipe that does what torchvision's transform does; see `gpuloader.Compose.from_torchvision`."""
    problems: list[str] = []
    leaves = list(_leaves(transform))
    transforms = _translated(leaves, problems)
    if problems:
        raise PresetError(f"torchvision's transform cannot be translated: {'; '.join(problems)}")
    if not any(type(leaf).__name__ in _TO_FLOAT for leaf in leaves):
        options = {"dtype": "uint8", **options}
    try:
        return Preset(transforms, **options)
    except ValidationError as error:
        messages = (problem["msg"].removeprefix("Value error, ") for problem in error.errors())
        raise PresetError(f"torchvision's transform cannot be run as a recipe: {'; '.join(messages)}") from None


def _leaves(transform: Any) -> Iterable[Any]:  # noqa: ANN401
    """The transforms within nested `Compose`s and lists, in order."""
    if isinstance(transform, (list, tuple)) or type(transform).__name__ in ("Compose", "Sequential"):
        for inner in getattr(transform, "transforms", transform):
            yield from _leaves(inner)
    else:
        yield transform


def _translated(leaves: Iterable[Any], problems: list[str]) -> tuple[Transform, ...]:
    found = (_one(leaf, problems) for leaf in leaves if type(leaf).__name__ not in _NOTHING_TO_DO | _TO_FLOAT)
    return tuple(transform for transform in found if transform is not None)


def _one(leaf: Any, problems: list[str]) -> Transform | None:  # noqa: ANN401
    name = type(leaf).__name__
    if not type(leaf).__module__.startswith("torchvision.transforms") or name not in TRANSFORMS:
        problems.append(f"{type(leaf).__module__}.{name} has no counterpart")
        return None
    for attribute, wanted in _ONLY.items():
        if getattr(leaf, attribute, wanted) != wanted:
            problems.append(f"{name} with {attribute}={getattr(leaf, attribute)!r}: only {wanted!r} can be had")
            return None
    parameters = {}
    for field in fields(TRANSFORMS[name]):
        if field.name == "transforms":
            parameters[field.name] = _translated(_leaves(leaf.transforms), problems)
        elif hasattr(leaf, field.name):
            value = _plain(getattr(leaf, field.name), field.name)
            if value is not None:
                parameters[field.name] = value
    try:
        return TRANSFORMS[name](**parameters)
    except ValidationError as error:
        problems.extend(f"{name}: {problem['msg'].removeprefix('Value error, ')}" for problem in error.errors())
        return None


def _plain(value: Any, name: str) -> Any:  # noqa: ANN401
    """A parameter as this library writes it; None where its default says the same."""
    if isinstance(value, Enum):
        value = value.value
    if name == "value":  # of RandomErasing: v2 keeps noise as None
        return "random" if value is None else _plain(value, "")
    if name == "antialias":
        return value is not False
    if isinstance(value, dict):  # fills by the type of the input, in v2
        return _plain(next(iter(value.values()), None), name)
    if isinstance(value, (list, tuple)):
        few = len(value) == 1 or (name in ("size", "kernel_size") and value[0] == value[-1] and len(value) == 2)
        return value[0] if few and name != "resize" else tuple(value)
    return value
