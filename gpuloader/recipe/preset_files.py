"""Recipes by name and by YAML file, values in them replaced, and what is wrong with a wrong one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gpuloader.errors import PresetError
from gpuloader.recipe import colors, crops, output, policies, timm, warps
from gpuloader.recipe.mix import Mix
from gpuloader.recipe.model import Transform
from gpuloader.recipe.plain import plain
from gpuloader.recipe.preset import Preset, View
from gpuloader.recipe.strict_yaml import load_yaml

Made = TypeVar("Made")

_FOLDER = Path(__file__).resolve().parents[1] / "configs"

TRANSFORMS: dict[str, type[Any]] = {
    name: kind
    for module in (crops, warps, colors, policies, timm, output)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Transform) and hasattr(kind, "__dataclass_fields__")
}
"""Every transform that a recipe may have, by its name."""


def preset_names() -> list[str]:
    """The names of the presets that come with the library."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def preset_text(name: str) -> str:
    """The YAML of a preset that comes with the library.

    Raises:
        PresetError: there is none of that name.
    """
    if name not in preset_names():
        raise PresetError(
            f"no preset is called {name!r}{_did_you_mean(name, preset_names())}: there are "
            f"{', '.join(preset_names())}; or give a path that ends in .yaml, or a Compose"
        )
    return (_FOLDER / f"{name}.yaml").read_text()


def preset_yaml(preset: Preset) -> str:
    """A recipe as YAML, without what is at its default; `load_preset` makes the same recipe of it."""
    return yaml.safe_dump(plain(preset, brief=True), sort_keys=False, default_flow_style=None, width=110)


def load_preset(source: str | Path | Preset, overrides: Mapping[str, Any] | None = None) -> Preset:
    """A preset by name, by path of a YAML file, or as it is.

    Args:
        overrides: values to replace: of the recipe's keys, and of its transforms by their name, such as
            `{"dtype": "float16", "RandomResizedCrop": {"size": 160}}`. All transforms of a name are meant, and None
            leaves them out.

    Raises:
        PresetError: names the file, the key, what was found, what is allowed and the nearest right name.
    """
    if not isinstance(source, (str, Path, Preset)) or not isinstance(overrides or {}, Mapping):
        raise PresetError(
            f"preset={source!r}, preset_overrides={overrides!r}: allowed are a name, a path or a Compose, and a mapping"
        )
    if isinstance(source, Preset):
        if not overrides:
            return source
        where, content = "the Compose", plain(source)
    elif isinstance(source, Path) or "/" in source or source.endswith((".yaml", ".yml")):
        path = Path(source).expanduser()
        if not path.is_file():
            raise PresetError(f"no such preset file: {source}")
        where, content = str(source), load_yaml(path.read_bytes(), str(source))
    else:
        where, content = f"{source}.yaml", load_yaml(preset_text(source), f"{source}.yaml")
    if overrides:
        where = f"{where} with preset_overrides"
        content = _replaced(content, overrides, where)
    return _preset(content, where)


def _preset(content: Mapping[str, Any], where: str) -> Preset:
    parts = dict(content)
    if "transforms" in parts:
        parts["transforms"] = _transforms(parts["transforms"], f"{where}: `transforms")
    if isinstance(parts.get("views"), list):
        parts["views"] = tuple(_view(each, f"{where}: `views[{n}]") for n, each in enumerate(parts["views"]))
    if isinstance(parts.get("mix"), Mapping):
        parts["mix"] = made(Mix, parts["mix"], f"{where}: `mix")
    return made(Preset, parts, f"{where}: `")


def _view(content: object, where: str) -> View:
    if not isinstance(content, Mapping):
        raise PresetError(f"{where}`: found {content!r}, allowed is a mapping with `transforms` and `count`")
    parts = dict(content)
    if "transforms" in parts:
        parts["transforms"] = _transforms(parts["transforms"], f"{where}.transforms")
    return made(View, parts, where)


def _transforms(content: object, where: str) -> tuple[Any, ...]:
    if not isinstance(content, list):
        raise PresetError(f"{where}`: found {content!r}, allowed is a list, such as [RandomHorizontalFlip]")
    transforms, problems = [], []
    for number, each in enumerate(content):
        try:
            transforms.append(_transform(each, f"{where}[{number}]"))
        except PresetError as error:
            problems.append(str(error))
    if problems:
        raise PresetError("\n".join(problems))
    return tuple(transforms)


def _transform(content: object, where: str) -> Any:  # noqa: ANN401
    if isinstance(content, Mapping) and len(content) == 1:
        [(name, parameters)] = content.items()
    else:
        name, parameters = content, {}
    if name not in (list(TRANSFORMS) if isinstance(name, str) else ()):
        raise PresetError(
            f"{where}`: found {content!r}{_did_you_mean(str(name), list(TRANSFORMS))}; allowed is a transform's name "
            f"or {{name: {{parameter: value}}}}, of {', '.join(TRANSFORMS)}"
        )
    if not isinstance(parameters, Mapping):
        raise PresetError(f"{where}.{name}`: found {parameters!r}, allowed is a mapping of parameters to values")
    parameters = dict(parameters)
    if "transforms" in parameters:
        parameters["transforms"] = _transforms(parameters["transforms"], f"{where}.{name}.transforms")
    return made(TRANSFORMS[name], parameters, f"{where}.{name}")


def _replaced(content: Mapping[str, Any], overrides: Mapping[str, Any], where: str) -> dict[str, Any]:
    replaced, keys = dict(content), [field.name for field in fields(Preset)]
    for key, value in overrides.items():
        if key not in keys and key not in TRANSFORMS:
            raise PresetError(
                f"{where}: `{key}` is no key of a recipe{_did_you_mean(str(key), [*keys, *TRANSFORMS])}; allowed are "
                f"{', '.join(keys)}, and the names of its transforms"
            )
        if key in TRANSFORMS:
            if value is not None and not isinstance(value, Mapping):
                raise PresetError(f"{where}: `{key}`: found {value!r}, allowed is a mapping, or None to leave it out")
            found: list[str] = []
            replaced = _with_transform(replaced, key, value, found)
            if key not in found:
                raise PresetError(f"{where}: the recipe has no {key}; it has {', '.join(dict.fromkeys(found))}")
        elif isinstance(value, Mapping) and isinstance(replaced.get(key), Mapping):
            replaced[key] = {**replaced[key], **value}
        else:
            replaced[key] = value
    return replaced


def _with_transform(content: Any, name: str, values: Mapping[str, Any] | None, found: list[str]) -> Any:  # noqa: ANN401
    """A part of a recipe with the transforms of that name changed, or left out; `found` collects the names seen."""
    if isinstance(content, str) and content in TRANSFORMS:
        content = {content: {}}
    if not isinstance(content, Mapping):
        return content
    changed = dict(content)
    for key, value in content.items():
        if key in ("transforms", "views") and isinstance(value, list):
            inner = (_with_transform(each, name, values, found) for each in value)
            changed[key] = [each for each in inner if each != {}]
        elif key in TRANSFORMS:
            found.append(key)
            inner = _with_transform(value, name, values, found)
            emptied = inner != value and inner.get("transforms") == []
            if emptied or (key == name and values is None):
                del changed[key]
            elif key == name and isinstance(inner, Mapping):
                changed[key] = {**inner, **(values or {})}
            else:
                changed[key] = inner
    return changed


def made(kind: Callable[..., Made], parameters: Mapping[str, Any], where: str) -> Made:
    """A part of a recipe; `where` names it in errors, up to a "`" that is still open.

    Raises:
        PresetError: a line for each key that is wrong, unknown or missing.
    """
    try:
        return kind(**{str(name): value for name, value in parameters.items()})
    except ValidationError as error:
        allowed = [field.name for field in fields(kind)]  # type: ignore[arg-type]
        by_key: dict[Any, list[ErrorDetails]] = {}
        for problem in error.errors():
            by_key.setdefault(problem["loc"][:1], []).append(problem)
        lines = [_explained(where, _nearest(problems), allowed) for problems in by_key.values()]
        raise PresetError("\n".join(lines)) from None


def _nearest(problems: list[ErrorDetails]) -> ErrorDetails:
    """Of what a value lacks to be of one or the other allowed type, that of the type that comes nearest."""
    return max(problems, key=lambda problem: (not problem["type"].endswith("_type"), len(problem["loc"])))


def _explained(where: str, problem: ErrorDetails, allowed: list[str]) -> str:
    name = str(problem["loc"][0]) if problem["loc"] else ""
    key = f"{where}{'' if where.endswith('`') else '.'}{name}`" if name else f"{where}`"
    key = key.removesuffix(": ``")
    found, message = problem["input"], problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "unexpected_keyword_argument":
        return f"{key} is not a key there{_did_you_mean(name, allowed)}; allowed are {', '.join(allowed)}"
    if problem["type"] == "missing":
        return f"{key} is missing" if len(problem["loc"]) == 1 else f"{key}: found {found!r}: too few numbers"
    if problem["type"] == "value_error":  # a rule on several keys, whose message says what was found
        return f"{key}: {message}"
    if problem["type"] == "literal_error":
        expected = problem["ctx"]["expected"]
        hint = _did_you_mean(str(found), re.findall(r"'([^']*)'", expected))
        return f"{key}: found {found!r}{hint}; allowed are {expected}"
    return f"{key}: found {found!r}: {message[0].lower()}{message[1:]}"


def _did_you_mean(name: str, allowed: list[str]) -> str:
    near = difflib.get_close_matches(name, allowed, n=1)
    return f" (did you mean {near[0]}?)" if near else ""
