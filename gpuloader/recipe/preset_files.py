"""Loads recipes by name, from a YAML file or a mapping, and overrides values in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeGuard

import yaml

from gpuloader.base.text import did_you_mean, either
from gpuloader.errors import PresetError, describe
from gpuloader.recipe import apply, budgets, colors, crops, detection, output, policies, timm, warps
from gpuloader.recipe.apply import Apply, own_name
from gpuloader.recipe.mix import Mix
from gpuloader.recipe.model import Transform, of_others, with_inner
from gpuloader.recipe.part import Where, as_plain_values, first_lines, key_name, make_part, not_needed, values_of
from gpuloader.recipe.recipe import Recipe, View
from gpuloader.recipe.strict_yaml import MAX_YAML_CHARACTERS, load_yaml

PresetName: TypeAlias = (
    Literal["a1", "a1_eval", "a2", "a3", "cifar10", "cifar100", "cifar100_eval", "cifar10_eval"]
    | Literal["clip_eval", "clip_train", "deit", "deit3", "deit3_eval", "deit_eval", "detection"]
    | Literal["detection_eval", "detection_multiscale", "detr", "detr_eval", "dino", "imagenet_eval"]
    | Literal["imagenet_randaugment", "imagenet_train", "imagenet_train_jitter", "moco_v2", "raw_uint8"]
    | Literal["resnet50_v1", "resnet50_v2", "resnet50_v2_eval", "segmentation", "segmentation_eval"]
    | Literal["simclr", "ssd", "ssd_eval", "ssdlite", "ssdlite_eval", "yolo", "yolo_eval"]
)
"""The names of configs/presets, listed so that editors can complete them; a test compares the two."""
AnyPreset: TypeAlias = PresetName | str | Path | Recipe | Mapping[str, Any]
"""The types that `load_preset` accepts."""

_FOLDER = Path(__file__).resolve().parents[1] / "configs" / "presets"

TRANSFORMS: dict[str, type[Any]] = {
    name: kind
    for module in (crops, budgets, detection, warps, colors, policies, timm, apply, output)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Transform) and hasattr(kind, "__dataclass_fields__")
}
"""All transforms by name."""


def preset_names() -> list[str]:
    """Lists the names of the library's presets."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def preset_text(name: str) -> str:
    """Reads the YAML of one of the library's presets.

    Raises:
        PresetError: no preset has this name.
    """
    if name not in preset_names():
        raise PresetError(
            f"no preset is called {name!r}{did_you_mean(name, preset_names())}: the presets are "
            f"{', '.join(preset_names())}; or give a path that ends in .yaml, or a Compose"
        )
    return (_FOLDER / f"{name}.yaml").read_text()


def recipe_yaml(recipe: Recipe) -> str:
    """Writes a recipe as YAML, without values at their default; `load_preset` reads it back."""
    return yaml.safe_dump(as_plain_values(recipe, brief=True), sort_keys=False, default_flow_style=None, width=110)


def load_preset(
    source: AnyPreset, overrides: Mapping[str, Any] | None = None, functions: Iterable[Callable[..., Any]] = ()
) -> Recipe:
    """Returns the recipe of an argument `preset`.

    The argument is a name, the path of a YAML file, a Recipe, or a mapping of a recipe's keys, such as
    `{"transforms": [...], "dtype": "float16"}`. `{name: overrides}` combines a name with overrides.

    Args:
        overrides: new values for keys of the recipe, and for transforms by name, such as `{"dtype": "float16",
            "RandomResizedCrop": {"size": 160}}`. An override applies to all transforms of that name; None drops them.
        functions: own code that the recipe names.

    Raises:
        PresetError: the recipe is missing or invalid. The message names the file, the key, the value found, the
            allowed values and the nearest valid name.
    """
    if not isinstance({} if overrides is None else overrides, Mapping):
        raise PresetError(f"overrides={describe(overrides)}: allowed is a mapping of the values to replace")
    if isinstance(functions, (str, bytes)) or not isinstance(functions, Iterable):
        raise PresetError(f"functions={describe(functions)}: allowed is a list of functions")
    if is_recipe_mapping(source):
        where, recipe = "preset", _recipe(source, "preset")
    elif isinstance(source, Mapping) and len(source) == 1:
        [(name, values)] = source.items()
        where, recipe = describe(name), load_preset(name, values)
    elif isinstance(source, Recipe):
        where, recipe = "the Compose", source
    elif isinstance(source, (str, Path)):
        where, text = _read(source)
        recipe = _recipe(load_yaml(text, where), where)
    else:
        raise PresetError(
            f"preset={describe(source)}: allowed are a name, a path, a Compose or a mapping of a recipe's keys; "
            f"{of_others(type(source))}"
        )
    recipe = _replace(recipe, overrides, Where(f"{where} with overrides")) if overrides else recipe
    return _bind(recipe, functions) if functions else recipe


def _bind(recipe: Recipe, functions: Iterable[Callable[..., Any]]) -> Recipe:
    """Binds each `Apply` without a function to the function with its name.

    Raises:
        PresetError: no function has the name.
    """
    by_name = {own_name(each): each for each in functions}

    def bound(each: Transform) -> Transform:
        if not isinstance(each, Apply) or each.function is not None:
            return each
        if each.called not in by_name:
            raise PresetError(
                f"the recipe applies {each.called!r}{did_you_mean(each.called, by_name)}: functions has "
                f"{', '.join(by_name)}"
            )
        return replace(each, function=by_name[each.called], name=None)

    return replace(recipe, **_in_all(values_of(recipe), lambda transforms: [*map(bound, transforms)]))


def _in_all(parts: Mapping[str, Any], change: Callable[[Sequence[Transform]], list[Transform]]) -> dict[str, Any]:
    """Returns a recipe's `transforms` and `views` with the transforms changed."""
    transforms, views = change(parts["transforms"]), parts["views"]
    if isinstance(views, (list, tuple)):
        views = [View(change(view.transforms), view.count) for view in views]
    return {"transforms": transforms, "views": views}


def is_recipe_mapping(source: object) -> TypeGuard[Mapping[str, Any]]:
    """Returns whether the mapping has a recipe's keys, as in YAML, and is not `{name: overrides}`."""
    return isinstance(source, Mapping) and ("transforms" in source or "views" in source)


def _read(source: str | Path) -> tuple[str, str | bytes]:
    """Returns a preset's file and its text; a user's file is read up to one byte beyond the limit."""
    if isinstance(source, str) and "/" not in source and not source.endswith((".yaml", ".yml")):
        return f"{source}.yaml", preset_text(source)
    try:
        path = Path(source).expanduser()
        if not path.is_file():
            raise PresetError(f"no such preset file: {source}")
        with path.open("rb") as file:
            return str(source), file.read(MAX_YAML_CHARACTERS + 1)
    except (OSError, RuntimeError) as error:  # RuntimeError: no such home folder
        raise PresetError(f"the preset file {source} cannot be read: {error}") from None


def _recipe(content: Mapping[str, Any], source: str) -> Recipe:
    try:
        return make_part(Recipe, _parts(content, where := Where(source)), where)
    except RecursionError:
        raise PresetError(f"{source}: it is nested too deep") from None


def _parts(content: Mapping[str, Any], where: Where) -> dict[str, Any]:
    """Returns the parameters of a recipe, a view or a transform; names and mappings become parts."""
    parts = dict(content)
    if "transforms" in parts:
        parts["transforms"] = _transforms(parts["transforms"], where.at("transforms"))
    if isinstance(parts.get("views"), (list, tuple)):
        parts["views"] = [_view(each, where.at("views").at(number)) for number, each in enumerate(parts["views"])]
    if isinstance(parts.get("mix"), Mapping):
        parts["mix"] = make_part(Mix, parts["mix"], where.at("mix"))
    return parts


def _view(content: object, where: Where) -> View:
    if isinstance(content, View):
        return content
    if not isinstance(content, Mapping):
        raise PresetError(where.found(content, ": allowed is a mapping with `transforms` and `count`"))
    return make_part(View, _parts(content, where), where)


def _transforms(content: object, where: Where) -> list[Transform]:
    if not isinstance(content, (list, tuple)):
        raise PresetError(where.found(content, ": allowed is a list, such as [RandomHorizontalFlip]"))
    transforms, problems = [], []
    for number, each in enumerate(content):
        try:
            transforms.append(_transform(each, where.at(number)))
        except PresetError as error:
            problems += str(error).splitlines()
    if problems:
        raise PresetError(*first_lines(problems))
    return transforms


def _transform(content: object, where: Where) -> Transform:
    if isinstance(content, Transform):
        return content
    [(name, parameters), *more] = content.items() if isinstance(content, Mapping) and content else [(content, {})]
    if more and parameters is None:
        raise PresetError(where.found(content, f": indent the parameters of {key_name(name)}"))
    name = content if more else name
    if advice := not_needed(name):
        raise PresetError(f"{where}: {advice}")
    if not isinstance(name, str) or name not in TRANSFORMS:
        allowed = f"a transform's name or {{name: {{parameter: value}}}}, of {', '.join(TRANSFORMS)}"
        raise PresetError(where.found(content, f"{did_you_mean(key_name(name), TRANSFORMS)}; allowed is {allowed}"))
    if not isinstance(parameters, Mapping):
        raise PresetError(where.at(name).found(parameters, ": allowed is a mapping of parameters to values"))
    return make_part(TRANSFORMS[name], _parts(parameters, where.at(name)), where.at(name))


def _replace(recipe: Recipe, overrides: Mapping[str, Any], where: Where) -> Recipe:
    """Returns the recipe with overrides: first of its own keys, then of its transforms by name."""
    parts = values_of(recipe)
    own = {key: value for key, value in overrides.items() if key in (*parts, "mipmaps")}  # an old name
    if isinstance(own.get("mix"), Mapping) and recipe.mix is not None:
        own["mix"] = {**values_of(recipe.mix), **own["mix"]}
    parts |= _parts(own, where)
    kinds = _kinds_in(parts)
    for name, values in overrides.items():
        if name not in own:
            _check_override(name, values, kinds, where)
            parts |= _in_all(parts, lambda transforms: _change(transforms, name, values, where))  # noqa: B023 - at once
    return make_part(Recipe, parts, where)


def _kinds_in(parts: Mapping[str, Any]) -> dict[str, type[Any]]:
    """Returns the classes of a recipe's transforms, including nested ones, and `Mix`, by the names of overrides."""
    views = parts["views"] if isinstance(parts["views"], (list, tuple)) else ()
    groups = [parts["transforms"], *(view.transforms for view in views)]
    kinds = {type(each).__name__: type(each) for group in groups for each in with_inner(group)}
    return kinds | ({} if parts["mix"] is None else {"mix": Mix})


def _check_override(name: object, values: object, kinds: Mapping[str, type[Any]], where: Where) -> None:
    """Raises PresetError unless the override is for a transform of the recipe."""
    if name in TRANSFORMS and name not in kinds:
        raise PresetError(f"{where}: the recipe has no {name}; it has {', '.join(kinds)}")
    key, keys = key_name(name), [field.name for field in fields(Recipe)]
    if name not in TRANSFORMS:
        owners = [each for each, kind in kinds.items() if key in [field.name for field in fields(kind)]]
        written = either([describe({owner: {key: values}}) for owner in owners])
        raise PresetError(
            f"{where}: `{key}` is not a key of a recipe, but of its {' and '.join(owners)}: write {written}"
            if owners
            else f"{where}: `{key}` is not a key of a recipe{did_you_mean(key, [*keys, *TRANSFORMS])}; allowed are "
            f"{', '.join(keys)}, and the names of its transforms"
        )
    if values is not None and not isinstance(values, Mapping):
        raise PresetError(where.at(key).found(values, ": allowed is a mapping, or None to leave it out"))


def _change(transforms: Sequence[Transform], name: object, values: Any, where: Where) -> list[Transform]:  # noqa: ANN401
    """Overrides values of the transforms of that name, or drops them and the parts that become empty."""
    changed = []
    for each in transforms:
        kind, parameters = type(each), values_of(each)
        if "transforms" in parameters:
            parameters["transforms"] = _change(parameters["transforms"], name, values, where)
        if parameters.get("transforms") == [] or (kind.__name__ == name and values is None):
            continue
        if kind.__name__ == name:
            parameters |= _parts(values or {}, where.at(kind.__name__))
        changed.append(make_part(kind, parameters, where.at(kind.__name__)))
    return changed
