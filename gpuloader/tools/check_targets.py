"""Checks the components beside each image, and whether targets lie in their image, without decoding it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.text import counted
from gpuloader.images.limits import RefusalError
from gpuloader.images.orientation import FIRST_TRANSPOSED
from gpuloader.loading.fields import Component, parse_fields
from gpuloader.recipe import Recipe, Shape
from gpuloader.shards import ShardSet
from gpuloader.targets.annotations import size_of
from gpuloader.targets.boxes import Boxes

MOST_BEYOND_PIXELS = 1.0
"""How far a box may reach beyond its image: collections round and clip their boxes in different ways."""

_NO_DRAWS = np.zeros(4)  # any of the values that a field may choose will do


def find_faults(
    shards: ShardSet,
    fields: Mapping[str, Component],
    recipe: Recipe,
    names: Mapping[int, str],
    sample: int,
    stored: Shape,
) -> list[tuple[str, str]]:
    """Returns the kinds and causes of faults in the targets of a sample that training delivers.

    Args:
        fields: the loader's fields, resolved.
        recipe: the loader's recipe; its `orientation` decides whether targets fit the stored or the upright picture.
        names: label -> name; if it is empty, labels are not compared.
        stored: the (height, width) of its image.

    Raises:
        RefusalError: a component is missing or cannot be parsed, so the sample is bad in training.
    """

    def component(extension: str, required: bool) -> bytes | None:
        content = shards.read_component(sample, extension)
        if content is None and required:
            raise RefusalError(f"it has no .{extension} component, which the loader's fields need")
        return content

    [orientation] = shards.index.at("orientation", np.array([sample]))
    turned = (stored[1], stored[0]) if orientation >= FIRST_TRANSPOSED else stored
    size, faults = turned if recipe.orientation == "apply" else stored, list[tuple[str, str]]()
    for name, value in parse_fields(fields, component, size, _NO_DRAWS).items():
        if isinstance(fields[name], Boxes):
            faults += _outside(name, value.boxes, size)
            if names and "labels" in value.columns:
                faults += _unknown(name, value.columns["labels"], names)
    with_json = any(field.is_target and field.extension == "json" for field in fields.values())
    content = shards.read_component(sample, "json") if with_json else None
    return [*faults, *_other_size(content, size, stored, turned)]


def _unknown(name: str, labels: NDArray[np.int64], names: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    wrong = np.flatnonzero(~np.isin(labels, list(names)))
    if len(wrong):
        known = f"classes.json has {counted(len(names), 'class', 'classes')}"
        yield "unknown labels", f"{_first(name, wrong)} has the label {labels[wrong[0]]}, but {known}"


def _outside(name: str, boxes: NDArray[np.float64], size: Shape) -> Iterator[tuple[str, str]]:
    """Finds boxes that reach beyond the image by more than a pixel, or lie wholly outside."""
    height, width = size
    sides = np.array([width, height])
    beyond = np.concatenate([-boxes[:, :2], boxes[:, 2:] - sides], 1).max(1, initial=0)
    apart = (np.maximum(boxes[:, :2], 0) >= np.minimum(boxes[:, 2:], sides)).any(axis=1)
    apart &= (boxes[:, :2] < boxes[:, 2:]).all(axis=1)
    wrong = np.flatnonzero((beyond > MOST_BEYOND_PIXELS) | apart)
    if len(wrong):
        first = wrong[0]
        corners = ", ".join(f"{side:g}" for side in boxes[first].tolist())
        how = "is wholly outside of" if apart[first] else f"reaches {beyond[first]:.3g} pixels beyond"
        yield "boxes outside", f"{_first(name, wrong)}, {corners}, {how} the image of {width}x{height} pixels"


def _other_size(content: bytes | None, size: Shape, stored: Shape, turned: Shape) -> Iterator[tuple[str, str]]:
    """Finds a `width` and `height` in a sample's `json` that are not the size that the recipe's targets fit."""
    sides = size_of(json.loads(content or b"null"))
    if sides is None or sides == size:
        return
    height, width = sides
    if sides == turned:
        fits = "which fits the upright picture: set `orientation: apply` in the recipe"
    elif sides == stored:
        fits = "which fits the picture as it is stored: set `orientation: off` in the recipe"
    else:
        fits = f"but its image has {size[1]}x{size[0]}"
    yield "another size", f"its annotations are for {width}x{height} pixels, {fits}"


def _first(name: str, wrong: NDArray[np.int64]) -> str:
    others = f" and {counted(len(wrong) - 1, 'other box', 'other boxes')}" if len(wrong) > 1 else ""
    return f"{name}[{wrong[0]}]{others}"
