"""Converts transforms of torchvision and other libraries, and models' configurations, to a recipe.

It reads the transforms' attributes, and imports none of these libraries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from itertools import groupby
from typing import Any, get_args

from gpuloader.errors import PresetError
from gpuloader.recipe.apply import Apply, Originals
from gpuloader.recipe.colors import RandomPhotometricDistort
from gpuloader.recipe.crops import RandomHorizontalFlip, RandomResizedCrop, Resize
from gpuloader.recipe.detection import Scaling
from gpuloader.recipe.from_config import as_config, of_config
from gpuloader.recipe.from_others import LIBRARIES, convert, leaves_of, library_of, name_of, no_counterpart, views_of
from gpuloader.recipe.model import Transform
from gpuloader.recipe.output import Normalize, RandomErasing
from gpuloader.recipe.part import CONVERTING, Where, make_part
from gpuloader.recipe.placement import GeometricTransform
from gpuloader.recipe.preset_files import TRANSFORMS
from gpuloader.recipe.recipe import Dtype, Recipe, View

_log = logging.getLogger("gpuloader")

_ATTRIBUTES = {"sampler_options": "options"}
"""Parameters with another name in torchvision."""
_MAKES_TENSORS = {"ToTensor", "PILToTensor", "ToImage"}
_NEVER_OWN = {"Normalize", "RandomErasing", "MixUp", "CutMix", *CONVERTING}
_FILL_MAY_BE_NONE = {"RandomRotation", "RandomAffine", "RandomPerspective"}
_ONLY = {"num_output_channels": 3, "expand": False}
"""The only supported value of these attributes."""


def recipe_from_torchvision(transform: object, *, own_code: bool = False, **options: Any) -> Recipe:  # noqa: ANN401
    """Converts a transform to a recipe; see `gpuloader.Compose.from_torchvision`."""
    config = as_config(transform)
    libraries = {library_of(leaf) for leaf in leaves_of(transform)} & {*LIBRARIES} if config is None else set()
    what = f"{min(libraries, default='torchvision')}'s transform" if config is None else "the model's configuration"
    splits = isinstance(transform, tuple) and len(transform) == 3 and "timm" in libraries

    def convert(walk: _Walk) -> dict[str, Any]:
        if config is not None:
            return {"transforms": walk.by(of_config, config)}
        return walk.splits(transform) if splits else walk.views(transform)

    keys = convert(walk := _Walk(options, own_code and not splits))
    if walk.problems:
        message = f"{what} cannot be translated: {'; '.join(dict.fromkeys(walk.problems))}"
        if config is None and not own_code and not splits:
            convert(still := _Walk(options, own_code=True))
            if not still.problems:
                raise PresetError(message, "own_code=True runs transforms without counterpart as they are")
        raise PresetError(message)
    return make_part(Recipe, {"dtype": walk.dtype, **options, **keys}, Where(what))


@dataclass
class _Walk:
    """Converts transforms in their order by the table; keeps the dtype after them, and collects all problems."""

    options: Mapping[str, Any] = field(default_factory=dict)
    own_code: bool = False
    problems: list[str] = field(default_factory=list)
    dtype: str = "uint8"

    def views(self, transform: object) -> dict[str, Any]:
        """Returns `transforms` or `views` of the recipe, or both."""
        made = [(self.view(each), self.dtype, count) for each, count in views_of(transform)]
        dtypes = sorted({dtype for _, dtype, _ in made})
        if len(dtypes) > 1:
            self.problems.append(f"its views are {' and '.join(dtypes)}: allowed is one dtype for all")
        groups = [
            View(transforms, sum(count for *_, count in views))
            for transforms, views in groupby(made, lambda each: each[0])
            if not self.problems
        ]
        count = sum(view.count for view in groups)
        if count > 1 and "views" in self.options:
            self.problems.append("it makes several views itself: leave `views` out")
        if len(groups) > 1:
            return {"views": groups}
        return {"transforms": made[0][0], **({"views": count} if count > 1 else {})}

    def splits(self, parts: Any) -> dict[str, Any]:  # noqa: ANN401
        """Converts the three parts of timm's `AugMixDataset`: for all views, for all but the first, the last steps."""
        base, augmentation, end = parts
        shared = self.of(leaves_of(base))
        first, others = (self.view(each)[len(shared) :] for each in ([base, end], [base, augmentation, end]))
        if any(getattr(leaf, "num_splits", 0) > 1 for leaf in leaves_of(end)):  # re_num_splits
            first = tuple(each for each in first if not isinstance(each, RandomErasing))
        count = self.options.get("views")
        if not isinstance(count, int) or count < 2:
            self.problems.append(
                f"it has three parts, from separate=True, and views={count!r}: give the number of --aug-splits, from "
                f"2 on, such as views=3; or leave separate out"
            )
            count = 2
        return {"transforms": shared, "views": [View(first), View(others, count - 1)]}

    def view(self, transform: object) -> tuple[Transform, ...]:
        """Converts a pipeline for one view."""
        self.dtype = "uint8"
        made = _with_distortion_last(self.of(_with_originals(transform) if self.own_code else leaves_of(transform)))
        resizes = [type(each).__name__ for each in made if isinstance(each, (Resize, RandomResizedCrop, Scaling))]
        if len(resizes) > 1:
            why = "here they become one resize, which changes the pixels: keep one"
            self.problems.append(f"{' and '.join(resizes)}: {why}")
        floats = [type(each).__name__ for each in made if isinstance(each, (Normalize, RandomErasing))]
        if floats and self.dtype == "uint8" and "dtype" not in self.options:
            self.problems.append(
                f"{' and '.join(floats)} on uint8: a list without ToTensor or ToDtype gives uint8; put ToTensor before "
                f'{floats[0]}, or give dtype="float32"'
            )
        return made

    def of(self, leaves: Iterable[Any]) -> tuple[Transform, ...]:
        """Converts transforms that hold no lists."""
        return tuple(made for leaf in leaves for made in ([leaf] if isinstance(leaf, Transform) else self._of(leaf)))

    def _of(self, leaf: Any) -> Sequence[Transform]:  # noqa: ANN401
        name = type(leaf).__name__ if library_of(leaf) == "torchvision" else ""
        return self.by(self._convert if name in CONVERTING else self._same if name in TRANSFORMS else convert, leaf)

    def by(self, row: Callable[[Any], Any], leaf: Any) -> tuple[Transform, ...]:  # noqa: ANN401
        """Converts by a row of the table; a problem gives nothing."""
        try:
            return self.of(leaves_of(row(leaf)))
        except PresetError as error:
            self.problems.extend(str(error).splitlines())
        return ()

    def _convert(self, leaf: Any) -> list[Transform]:  # noqa: ANN401
        """Changes the dtype."""
        name, before = type(leaf).__name__, self.dtype
        if name in ("ToTensor", "ToPILImage"):
            self.dtype = "float32" if name == "ToTensor" else "uint8"
        elif (value := _of_images(leaf.dtype)) is not None:
            self.dtype = str(value).removeprefix("torch.")
            if self.dtype not in get_args(Dtype):
                raise no_counterpart(leaf, f"to {self.dtype}: only {', '.join(get_args(Dtype))} are supported")
            if self.dtype != before and not getattr(leaf, "scale", True):
                raise no_counterpart(leaf, f"to {self.dtype} with scale=False: only scale=True is supported")
        return []

    def _same(self, leaf: Any) -> list[Transform]:  # noqa: ANN401
        """Returns the transform of the same name and parameters; an empty list if a problem was added."""
        name, before, parameters = type(leaf).__name__, len(self.problems), {}
        for attribute, only in _ONLY.items():
            if (value := getattr(leaf, attribute, only)) != only:
                raise no_counterpart(leaf, f"with {attribute}={value!r}: only {only!r} is supported")
        for parameter in (each.name for each in fields(TRANSFORMS[name])):
            attribute = _ATTRIBUTES.get(parameter, parameter)
            if parameter == "transforms":
                inner = [replace(self).of(leaves_of(each)) for each in leaf.transforms]
                if name == "RandomChoice" and len(self.problems) == before and any(len(each) != 1 for each in inner):
                    raise PresetError("RandomChoice: each choice must be exactly one transform")
                parameters[parameter] = sum(inner, ())
            elif hasattr(leaf, attribute):
                value = _convert_parameter(leaf, attribute)
                if parameter in ("fill", "threshold") and self.dtype != "uint8" and value is not None:
                    value = tuple(255 * each for each in value) if isinstance(value, tuple) else 255 * value
                if value is not None or (parameter == "fill" and name in _FILL_MAY_BE_NONE):
                    parameters[parameter] = value
        return [] if len(self.problems) > before else [TRANSFORMS[name](**parameters)]


def _with_originals(transform: object) -> list[Any]:
    """Lists the transforms; an `Apply` holds all from the first to the last one without counterpart."""
    leaves, walk, given, states, without = list(leaves_of(transform)), _Walk(), "picture", [], []
    for number, leaf in enumerate(leaves):
        states.append(given)
        walk.problems.clear()
        walk.of([leaf])
        name = type(leaf).__name__
        if name == "ToPILImage":
            given = "picture"
        elif name in _MAKES_TENSORS or given != "picture":
            given = walk.dtype
        if walk.problems and name not in _NEVER_OWN and callable(leaf) and not isinstance(leaf, type):
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
