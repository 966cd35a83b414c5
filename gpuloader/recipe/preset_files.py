"""Loads recipes by name or by YAML file, replaces values in them, and explains wrong ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeGuard

import yaml

from gpuloader.errors import PresetError, describe
from gpuloader.helpers.text import did_you_mean, either
from gpuloader.recipe import colors, crops, detection, output, policies, timm, warps
from gpuloader.recipe.mix import Mix
from gpuloader.recipe.model import Transform
from gpuloader.recipe.part import (
    NOT_NEEDED,
    OF_THE_LOADER,
    as_plain_values,
    first_lines,
    key_name,
    make_part,
    not_needed,
)
from gpuloader.recipe.recipe import Recipe, View
from gpuloader.recipe.strict_yaml import MAX_YAML_CHARACTERS, check_values, load_yaml

PresetName: TypeAlias = (
    Literal["a1", "a1_eval", "a2", "a3", "cifar10", "cifar100", "cifar100_eval", "cifar10_eval"]
    | Literal["clip_eval", "clip_train", "deit", "deit3", "deit3_eval", "deit_eval", "detection"]
    | Literal["detection_eval", "detection_multiscale", "detr", "detr_eval", "dino", "imagenet_eval"]
    | Literal["imagenet_randaugment", "imagenet_train", "imagenet_train_jitter", "moco_v2", "raw_uint8"]
    | Literal["resnet50_v1", "resnet50_v2", "resnet50_v2_eval", "segmentation", "segmentation_eval"]
    | Literal["simclr", "ssd", "ssd_eval", "ssdlite", "ssdlite_eval", "yolo", "yolo_eval"]
)
"""A file of configs/presets, written here for editors to complete; a test compares them."""
AnyPreset: TypeAlias = PresetName | str | Path | Recipe | Mapping[str, Any]
"""What `load_preset` takes."""

_FOLDER = Path(__file__).resolve().parents[1] / "configs" / "presets"

TRANSFORMS: dict[str, type[Any]] = {
    name: kind
    for module in (crops, detection, warps, colors, policies, timm, output)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Transform) and hasattr(kind, "__dataclass_fields__")
}
"""Every transform that a recipe may have, by its name."""


def preset_names() -> list[str]:
    """Lists the names of the presets that come with the library."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def preset_text(name: str) -> str:
    """Reads the YAML of a preset that comes with the library.

    Raises:
        PresetError: no preset has this name.
    """
    if name not in preset_names():
        raise PresetError(
            f"no preset is called {name!r}{did_you_mean(name, preset_names())}: the presets are "
            f"{', '.join(preset_names())}; or give a path that ends in .yaml, or a Compose"
        )
    return (_FOLDER / f"{name}.yaml").read_text()


def preset_yaml(preset: Recipe) -> str:
    """Writes a recipe as YAML, without the values at their default; `load_preset` reads it back."""
    return yaml.safe_dump(as_plain_values(preset, brief=True), sort_keys=False, default_flow_style=None, width=110)


def load_preset(source: AnyPreset, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Returns the recipe that an argument `preset` stands for, wherever the library takes one.

    It is a name, the path of a YAML file, a Recipe, or a mapping of a recipe's keys, such as `{"transforms": [...],
    "dtype": "float16"}`; `{name: overrides}` gives both arguments.

    Args:
        overrides: values to replace: of the recipe's keys, and of its transforms by their name, such as
            `{"dtype": "float16", "RandomResizedCrop": {"size": 160}}`. An override applies to all transforms of that
            name; None leaves them out.

    Raises:
        PresetError: names the file, the key, what was found, what is allowed and the nearest right name.
    """
    if is_recipe_mapping(source):
        return load_preset(_preset(source, "preset"), overrides)
    if isinstance(source, Mapping) and len(source) == 1:
        [(name, values)] = source.items()
        return load_preset(load_preset(name, values), overrides)
    if not isinstance(source, (str, Path, Recipe)) or not isinstance({} if overrides is None else overrides, Mapping):
        from_torch = type(source).__module__.startswith(("torch.", "torchvision."))
        hint = "; Compose.from_torchvision(...) translates torchvision's" if from_torch else ""
        found = " ".join(describe(source, 1000).split())
        given = f", overrides={describe(overrides)}" if overrides is not None else ""
        raise PresetError(
            f"preset={found:.80}{given}: allowed are a name, a path, a Compose or a mapping of a recipe's keys, with "
            f"a mapping of the values to replace{hint}"
        )
    if isinstance(source, Recipe):
        if not overrides:
            return source
        where, content = "the Compose", as_plain_values(source)
    elif isinstance(source, Path) or "/" in source or source.endswith((".yaml", ".yml")):
        where, content = str(source), load_yaml(_text(source), str(source))
    else:
        where, content = f"{source}.yaml", load_yaml(preset_text(source), f"{source}.yaml")
    if overrides:
        where = f"{where} with overrides"
        check_values(overrides, where)
        content = _replace(content, overrides, where)
    return _preset(content, where)


def is_recipe_mapping(source: object) -> TypeGuard[Mapping[str, Any]]:
    """Returns whether it is a mapping of a recipe's keys, as in YAML, and not `{name: overrides}`."""
    return isinstance(source, Mapping) and ("transforms" in source or "views" in source)


def _text(source: str | Path) -> bytes:
    """Reads the bytes of a file, up to one more than a recipe may have."""
    try:
        path = Path(source).expanduser()
        if not path.is_file():
            raise PresetError(f"no such preset file: {source}")
        with path.open("rb") as file:
            return file.read(MAX_YAML_CHARACTERS + 1)
    except (OSError, RuntimeError) as error:  # RuntimeError: no such home folder
        raise PresetError(f"the preset file {source} cannot be read: {error}") from None


def _preset(content: Mapping[str, Any], where: str) -> Recipe:
    check_values(content, where)
    parts = dict(content)
    if parts.get("mix", {}) is None:
        its_keys = [field.name for field in fields(Mix) if field.name in parts]
        _check_indented({"mix": None, **{key: parts[key] for key in its_keys}}, f"{where}: `mix")
    if "transforms" in parts:
        parts["transforms"] = _transforms(parts["transforms"], f"{where}: `transforms")
    if isinstance(parts.get("views"), (list, tuple)):
        parts["views"] = tuple(_view(each, f"{where}: `views[{n}]") for n, each in enumerate(parts["views"]))
    if isinstance(parts.get("mix"), Mapping):
        parts["mix"] = make_part(Mix, parts["mix"], f"{where}: `mix")
    return make_part(Recipe, parts, f"{where}: `")


def _view(content: object, where: str) -> View:
    if isinstance(content, View):
        return content
    if not isinstance(content, Mapping):
        raise PresetError(f"{where}`: found {describe(content)}, allowed is a mapping with `transforms` and `count`")
    parts = dict(content)
    if "transforms" in parts:
        parts["transforms"] = _transforms(parts["transforms"], f"{where}.transforms")
    return make_part(View, parts, where)


def _transforms(content: object, where: str) -> tuple[Any, ...]:
    if not isinstance(content, (list, tuple)):
        dash = "; in YAML each transform begins with a dash" if isinstance(content, Mapping) else ""
        raise PresetError(
            f"{where}`: found {describe(content)}, allowed is a list, such as [RandomHorizontalFlip]{dash}"
        )
    transforms, problems = [], []
    for number, each in enumerate(content):
        try:
            transforms.append(_transform(each, f"{where}[{number}]"))
        except PresetError as error:
            problems += str(error).splitlines()
    if problems:
        raise PresetError(*first_lines(problems))
    return tuple(transforms)


def _transform(content: object, where: str) -> Any:  # noqa: ANN401
    if isinstance(content, Transform):
        return content
    if isinstance(content, Mapping) and next(iter(content), None) in TRANSFORMS:
        _check_indented(content, f"{where}.{next(iter(content))}")
    if isinstance(content, Mapping) and len(content) == 1:
        [(name, parameters)] = content.items()
    else:
        name, parameters = content, {}
    if isinstance(name, str) and name in NOT_NEEDED:
        raise PresetError(f"{where}`: {not_needed(name)}")
    if name not in (list(TRANSFORMS) if isinstance(name, str) else ()):
        raise PresetError(
            f"{where}`: found {describe(content)}{did_you_mean(key_name(name), list(TRANSFORMS))}; allowed is a "
            f"transform's name or {{name: {{parameter: value}}}}, of {', '.join(TRANSFORMS)}"
        )
    if not isinstance(parameters, Mapping):
        hint = "; indent them below the name, or leave the colon out" if parameters is None else ""
        raise PresetError(
            f"{where}.{name}`: found {describe(parameters)}, allowed is a mapping of parameters to values{hint}"
        )
    parameters = dict(parameters)
    if "transforms" in parameters:
        parameters["transforms"] = _transforms(parameters["transforms"], f"{where}.{name}.transforms")
    return make_part(TRANSFORMS[name], parameters, f"{where}.{name}")


def _check_indented(content: Mapping[Any, Any], where: str) -> None:
    """Refuses YAML in which the values of the first key stand beside it instead of below it."""
    (name, value), *beside = content.items()
    if value is None and beside:
        names = [key_name(key) for key, _ in beside]
        raise PresetError(
            f"{where}`: {', '.join(first_lines(names))} must be indented below it, further than its name: write "
            f"{name}: {{{names[0]}: ...}}"
        )


def _replace(content: Mapping[str, Any], overrides: Mapping[str, Any], where: str) -> dict[str, Any]:
    replaced, keys = dict(content), [field.name for field in fields(Recipe)]
    for key, value in overrides.items():
        if key not in keys and key not in TRANSFORMS:
            raise PresetError(
                f"{where}: `{key_name(key)}` is not a key of a recipe{_what_has_it(replaced, key, value)}"
            )
        if key in TRANSFORMS:
            if value is not None and not isinstance(value, Mapping):
                raise PresetError(
                    f"{where}: `{key}`: found {describe(value)}, allowed is a mapping, or None to leave it out"
                )
            found: list[str] = []
            replaced = _with_transform(replaced, key, value, found)
            if key not in found:
                raise PresetError(f"{where}: the recipe has no {key}; it has {', '.join(dict.fromkeys(found))}")
        elif isinstance(value, Mapping) and isinstance(replaced.get(key), Mapping):
            replaced[key] = {**replaced[key], **value}
        else:
            replaced[key] = value
    if _has_transforms(content) and not _has_transforms(replaced) and "transforms" not in overrides:
        raise PresetError(f"{where}: no transform is left: leave one in, or give a recipe with `transforms: []`")
    return replaced


def _what_has_it(content: Mapping[str, Any], key: object, value: object) -> str:
    """Advises on an unknown key: the transforms that have it, or what is allowed."""
    if key in OF_THE_LOADER:
        return f": {OF_THE_LOADER[str(key)]}"
    found: list[str] = []
    _with_transform(content, "", None, found)  # changes nothing, and collects the names
    kinds = {name: TRANSFORMS[name] for name in found} | ({"mix": Mix} if content.get("mix") else {})
    owners = [name for name, kind in kinds.items() if key in [field.name for field in fields(kind)]]
    if owners:
        overrides = either([describe({name: {key: value}}) for name in owners])
        return f", but of its {' and '.join(owners)}: write {overrides}"
    keys = [field.name for field in fields(Recipe)]
    hint = did_you_mean(key_name(key), [*keys, *TRANSFORMS])
    return f"{hint}; allowed are {', '.join(keys)}, and the names of its transforms"


def _with_transform(content: Any, name: str, values: Mapping[str, Any] | None, found: list[str]) -> Any:  # noqa: ANN401
    """Changes or leaves out the transforms of that name in a part of a recipe; `found` collects the names seen."""
    if isinstance(content, str) and content in TRANSFORMS:
        content = {content: {}}
    if not isinstance(content, Mapping):
        return content
    changed = dict(content)
    for key, value in content.items():
        if key in ("transforms", "views") and isinstance(value, list):
            inner = [_with_transform(each, name, values, found) for each in value]
            changed[key] = [each for each in inner if not isinstance(each, Mapping) or each]
        elif key in TRANSFORMS:
            found.append(key)
            inner = _with_transform(value, name, values, found)
            if (_has_transforms(value) and not _has_transforms(inner)) or (key == name and values is None):
                del changed[key]
            elif key == name and isinstance(inner, Mapping):
                changed[key] = {**inner, **(values or {})}
            else:
                changed[key] = inner
    return changed


def _has_transforms(parameters: object) -> bool:
    transforms = parameters.get("transforms") if isinstance(parameters, Mapping) else None
    return isinstance(transforms, list) and bool(transforms)
