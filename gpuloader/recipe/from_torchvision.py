"""Converts transforms of torchvision and other libraries, and models' configurations, to a recipe.

It reads the transforms' attributes, and imports none of these libraries.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import fields
from enum import Enum
from itertools import groupby
from typing import Any, get_args

from gpuloader.errors import PresetError
from gpuloader.recipe.apply import Apply, Originals
from gpuloader.recipe.colors import RandomPhotometricDistort
from gpuloader.recipe.crops import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from gpuloader.recipe.detection import Scaling
from gpuloader.recipe.from_config import as_config, translate_config
from gpuloader.recipe.from_others import LIBRARIES, library_of, name_of, row_of, views_of, why_not, with_crops
from gpuloader.recipe.from_timm import NoCounterpartError
from gpuloader.recipe.model import Transform
from gpuloader.recipe.output import Normalize, RandomErasing
from gpuloader.recipe.part import CONVERTING, make_part
from gpuloader.recipe.placement import GeometricTransform
from gpuloader.recipe.preset_files import TRANSFORMS
from gpuloader.recipe.recipe import Dtype, Recipe, View

_log = logging.getLogger("gpuloader")

_NESTING = {"Compose", "Sequential", "ModuleList"}
_NOTHING_TO_DO = {"PILToTensor", "ToImage", "ToPureTensor", "RGB", "Identity", "ConvertBoundingBoxFormat"}
_ATTRIBUTES = {"sampler_options": "options"}
"""Parameters with another name in torchvision."""
_MAKES_TENSORS = {"ToTensor", "PILToTensor", "ToImage"}
_MIXING = {"MixUp": "mixup_alpha", "CutMix": "cutmix_alpha"}
"""The parameter of `Mix` for the alpha of torchvision's transform."""
_NEVER_OWN = {"Normalize", "RandomErasing", *CONVERTING, *_MIXING}
_FILL_MAY_BE_NONE = {"RandomRotation", "RandomAffine", "RandomPerspective"}
_ONLY = {"num_output_channels": 3, "expand": False}
"""The only supported value of these attributes."""


def recipe_from_torchvision(transform: object, *, own_code: bool = False, **options: Any) -> Recipe:  # noqa: ANN401
    """Converts a transform to a recipe; see `gpuloader.Compose.from_torchvision`."""
    problems: list[str] = []
    config, splits = as_config(transform), False
    if config is not None:
        what = "the model's configuration"
        transforms, dtype = translate_config(config, problems)
        keys: dict[str, Any] = {"transforms": transforms}
    else:
        libraries = {library for leaf in _leaves(transform) if (library := library_of(leaf)) in LIBRARIES}
        what = f"{min(libraries, default='torchvision')}'s transform"
        splits = isinstance(transform, tuple) and len(transform) == 3 and "timm" in libraries
        if splits:
            keys, dtype = _translate_splits(transform, options, problems)
        else:
            keys, dtype = _translate_views(transform, options, problems, own_code)
    if problems:
        message = f"{what} cannot be translated: {'; '.join(dict.fromkeys(problems))}"
        if config is None and not own_code and not splits:
            still: list[str] = []
            _translate_views(transform, options, still, own_code=True)
            if not still:
                raise PresetError(message, "own_code=True runs transforms without counterpart as they are")
        raise PresetError(message)
    return make_part(Recipe, {"dtype": dtype, **options, **keys}, f"{what}: `")


def _translate_views(
    transform: object, options: Mapping[str, Any], problems: list[str], own_code: bool
) -> tuple[dict[str, Any], str]:
    """Returns (`transforms` or `views` of the recipe, or both; the dtype after them)."""
    made = [(_translate_view(each, options, problems, own_code), count) for each, count in views_of(transform)]
    dtypes = sorted({dtype for (_, dtype), _ in made})
    if len(dtypes) > 1:
        problems.append(f"its views are {' and '.join(dtypes)}: allowed is one dtype for all")
    groups = [
        View(transforms, sum(count for _, count in views))
        for transforms, views in groupby(made, lambda each: each[0][0])
        if not problems
    ]
    count = sum(view.count for view in groups)
    if count > 1 and "views" in options:
        problems.append("it makes several views itself: leave `views` out")
    if len(groups) > 1:
        return {"views": groups}, dtypes[0]
    return {"transforms": made[0][0][0], **({"views": count} if count > 1 else {})}, dtypes[0]


def _translate_splits(parts: Any, options: Mapping[str, Any], problems: list[str]) -> tuple[dict[str, Any], str]:  # noqa: ANN401
    """Converts the three parts of timm's `AugMixDataset`: for all views, for all but the first, and the last steps."""
    base, augmentation, end = parts
    shared, _ = _translate(_leaves(base, problems), "uint8", problems)
    first, dtype = _translate_view([base, end], options, problems, own_code=False)
    others, _ = _translate_view([base, augmentation, end], options, problems, own_code=False)
    if any(getattr(leaf, "num_splits", 0) > 1 for leaf in _leaves(end)):  # re_num_splits
        first = tuple(each for each in first if not isinstance(each, RandomErasing))
    count = options.get("views")
    if not isinstance(count, int) or count < 2:
        problems.append(
            f"it has three parts, from separate=True, and views={count!r}: give the number of --aug-splits, from 2 on, "
            f"such as views=3; or leave separate out"
        )
        count = 2
    views = [View(first[len(shared) :]), View(others[len(shared) :], count - 1)]
    return {"transforms": shared, "views": views}, dtype


def _translate_view(
    transform: object, options: Mapping[str, Any], problems: list[str], own_code: bool
) -> tuple[tuple[Transform, ...], str]:
    """Returns (the transforms of a view, the dtype after them)."""
    whole = _with_originals(transform) if own_code else transform
    transforms, dtype = _translate(_leaves(whole, problems), "uint8", problems)
    transforms = _with_distortion_last(transforms)
    resizes = [type(each).__name__ for each in transforms if isinstance(each, (Resize, RandomResizedCrop, Scaling))]
    if len(resizes) > 1:
        problems.append(f"{' and '.join(resizes)}: here they become one resize, which changes the pixels: keep one")
    floats = [type(each).__name__ for each in transforms if isinstance(each, (Normalize, RandomErasing))]
    if floats and dtype == "uint8" and "dtype" not in options:
        problems.append(
            f"{' and '.join(floats)} on uint8: a list without ToTensor or ToDtype gives uint8; put ToTensor before "
            f'{floats[0]}, or give dtype="float32"'
        )
    return transforms, dtype


def _with_originals(transform: object) -> list[Any]:
    """Lists the transforms; an `Apply` holds all from the first to the last one without counterpart."""
    leaves, dtype, given, states, without = list(_leaves(transform)), "uint8", "picture", [], []
    for number, leaf in enumerate(leaves):
        problems: list[str] = []
        states.append(given)
        _, dtype = _translate(_leaves(leaf, problems), dtype, problems)
        name = type(leaf).__name__
        given = "picture" if name == "ToPILImage" else dtype if name in _MAKES_TENSORS or given != "picture" else given
        if problems and name not in _NEVER_OWN and callable(leaf) and not isinstance(leaf, type):
            without.append(number)
    if not without:
        return leaves
    first, end = without[0], without[-1] + 1
    name = " ".join(name_of(leaf)[1] for leaf in leaves[first:end])
    resized = any(type(leaf).__name__ in TRANSFORMS and hasattr(leaf, "size") for leaf in leaves[end:])
    own = Apply(Originals(leaves[first:end], states[first]), name, same_size=not resized)
    converting = [leaf for leaf in leaves[first:end] if type(leaf).__name__ in CONVERTING]
    return [*leaves[:first], own, *converting, *leaves[end:]]


def _with_distortion_last(transforms: tuple[Transform, ...]) -> tuple[Transform, ...]:
    """Moves SSD's colours after the geometry; flips may follow them anyway."""
    kinds = [type(each) for each in transforms]
    behind = kinds[kinds.index(RandomPhotometricDistort) :] if RandomPhotometricDistort in kinds else []
    if not any(issubclass(kind, GeometricTransform) and not issubclass(kind, RandomHorizontalFlip) for kind in behind):
        return transforms
    _log.warning(
        "RandomPhotometricDistort moves after resizing, cropping and padding: boxes do not change, but padding changes "
        "its colour, too, and contrast uses the mean of the crop"
    )
    end = 1 + max(number for number, kind in enumerate(kinds) if issubclass(kind, GeometricTransform))
    return (
        tuple(sorted(transforms[:end], key=lambda each: isinstance(each, RandomPhotometricDistort))) + transforms[end:]
    )


def _leaves(transform: Any, problems: list[str] | None = None) -> Iterable[Any]:  # noqa: ANN401
    """Yields the transforms within nested `Compose`s and lists, in order.

    With `problems`, other libraries' transforms become torchvision's transforms, or are named in `problems`.
    """
    row = None if problems is None else row_of(transform)
    if isinstance(transform, (list, tuple)) or type(transform).__name__ in _NESTING:
        for inner in with_crops(getattr(transform, "transforms", transform)):
            yield from _leaves(inner, problems)
    elif row is None or problems is None:
        yield transform
    else:
        try:
            yield from _leaves(row(transform), problems)
        except PresetError as error:  # a number out of range here
            problems.extend(str(error).splitlines())
        except NoCounterpartError as error:
            problems.append(f"{library_of(transform)}'s {name_of(transform)[1]} {error}")


def _translate(leaves: Iterable[Any], dtype: str, problems: list[str]) -> tuple[tuple[Transform, ...], str]:
    """Returns (the transforms, the dtype after them); `dtype` is the image's before them."""
    transforms = []
    for leaf in leaves:
        module, name = name_of(leaf)
        if isinstance(leaf, Transform):
            transforms.append(leaf)
        elif not module.startswith(("torchvision.transforms", "torch.nn")):
            problems.append(why_not(leaf, _NESTING))
        elif name in _MIXING:
            mix = f"mix=Mix(num_classes={leaf.num_classes or '...'}, {_MIXING[name]}={leaf.alpha})"
            problems.append(f"{name} mixes batches: leave it out, and give the recipe {mix}")
        elif name in CONVERTING:
            dtype = _convert(leaf, dtype, problems)
        elif name == "ImageClassification":  # the `transforms()` of torchvision's weights
            resize = Resize(leaf.resize_size[0], leaf.interpolation.value, antialias=leaf.antialias is not False)
            transforms += [resize, CenterCrop(leaf.crop_size[0]), Normalize(tuple(leaf.mean), tuple(leaf.std))]
            dtype = "float32"
        elif name not in _NOTHING_TO_DO:
            transforms += _one(leaf, dtype, problems)
    return tuple(transforms), dtype


def _convert(leaf: Any, dtype: str, problems: list[str]) -> str:  # noqa: ANN401
    name = type(leaf).__name__
    if name in ("ToTensor", "ToPILImage"):
        return "float32" if name == "ToTensor" else "uint8"
    value = _of_images(leaf.dtype)
    wanted = dtype if value is None else str(value).removeprefix("torch.")
    if wanted not in get_args(Dtype):
        problems.append(f"{name} to {wanted}: only {', '.join(get_args(Dtype))} are supported")
    elif wanted != dtype and not getattr(leaf, "scale", True):
        problems.append(f"{name} to {wanted} with scale=False: only scale=True is supported")
    return wanted


def _one(leaf: Any, dtype: str, problems: list[str]) -> list[Transform]:  # noqa: ANN401
    """Returns the counterpart of a transform; an empty list if a problem was added."""
    name, before = type(leaf).__name__, len(problems)
    if name not in TRANSFORMS:
        problems.append(why_not(leaf, _NESTING))
        return []
    problems.extend(
        f"{name} with {attribute}={getattr(leaf, attribute)!r}: only {wanted!r} is supported"
        for attribute, wanted in _ONLY.items()
        if getattr(leaf, attribute, wanted) != wanted
    )
    parameters = {}
    for field in fields(TRANSFORMS[name]):
        if field.name == "transforms":
            inner = [_translate(_leaves(each, problems), dtype, problems)[0] for each in leaf.transforms]
            if name == "RandomChoice" and len(problems) == before and any(len(each) != 1 for each in inner):
                problems.append("RandomChoice: each choice must be exactly one transform")
            parameters["transforms"] = sum(inner, ())
        elif hasattr(leaf, _ATTRIBUTES.get(field.name, field.name)):
            value = _convert_parameter(leaf, _ATTRIBUTES.get(field.name, field.name))
            if field.name in ("fill", "threshold") and dtype != "uint8" and value is not None:
                value = tuple(255 * each for each in value) if isinstance(value, tuple) else 255 * value
            if value is not None or (field.name == "fill" and name in _FILL_MAY_BE_NONE):
                parameters[field.name] = value
    if len(problems) > before:
        return []
    try:
        return [TRANSFORMS[name](**parameters)]
    except PresetError as error:
        problems.extend(str(error).splitlines())
        return []


def _convert_parameter(leaf: Any, parameter: str) -> Any:  # noqa: ANN401
    """Converts a parameter to this library's form; None if it is the default."""
    value, name = getattr(leaf, parameter), type(leaf).__name__
    if parameter == "value" and value is None:  # v2 keeps RandomErasing's noise as None
        return "random"
    if parameter == "antialias":
        return value is not False
    if parameter == "padding" and name == "RandomCrop" and ".v2." in type(leaf).__module__ and value is not None:
        value = [value[side] for side in (0, 2, 1, 3)]  # v2 keeps it as left, right, top, bottom
    value = _of_images(value.value if isinstance(value, Enum) else value)
    if value == "nearest-exact":  # `nearest` is the same here, as in PIL
        return "nearest"
    if hasattr(value, "tolist"):  # a tensor of float32, whose numbers are written as the user gave them
        value = [float(f"{each:.7g}") for each in value.tolist()]
    if isinstance(value, (list, tuple)):
        all_sides = parameter in ("size", "kernel_size", "padding") and name != "Resize"
        one = len(set(value)) == 1 if all_sides else len(value) == 1 and parameter != "p"
        return value[0] if one else tuple(value)
    return value


def _of_images(value: Any) -> Any:  # noqa: ANN401
    """Returns the value for images, if v2 has a value for each type of input."""
    if not isinstance(value, Mapping):
        return value
    by_name = {getattr(kind, "__name__", kind): each for kind, each in value.items()}
    otherwise = getattr(value, "default_factory", None)  # from a defaultdict
    known = [by_name[kind] for kind in ("Image", "Tensor", "others") if kind in by_name]
    return next(iter(known), None if otherwise is None else otherwise())
