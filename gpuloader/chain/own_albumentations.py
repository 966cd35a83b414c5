"""Calls transforms of albumentations with an image and its targets, under albumentations' own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.chain.target_rows import has_rows, take_rows

_WORDS = {("f", 2): "bboxes", ("u", 2): "mask", ("i", 2): "mask", ("u", 3): "masks", ("f", 3): "keypoints"}


def call_with_targets(
    transform: Any,  # noqa: ANN401
    image: NDArray[np.uint8],
    targets: Mapping[str, Any],
) -> tuple[Any, Mapping[str, Any]]:
    """Returns the transformed image and targets. The label field "rows" tells which boxes, and rows of columns, stay.

    Raises:
        ValueError: albumentations cannot transform these targets, or its box format is wrong.
    """
    names = _names_of(targets)
    given = {word: targets[name] for word, name in names.items() if word != "masks" or len(targets[name])}
    takes_boxes = "bboxes" in getattr(transform, "processors", {})
    if takes_boxes or "bboxes" in names:
        _check_boxes(transform.processors["bboxes"].params if takes_boxes else None)
        boxes = given.setdefault("bboxes", np.zeros((0, 4)))
        given["rows"] = np.arange(len(boxes))
    made = transform(image=image, **given)
    changed = {name: np.asarray(made[word]) for word, name in names.items() if word in made}
    if "masks" in names and "masks" not in given:  # albumentations needs at least one mask
        changed[names["masks"]] = np.zeros((0, *made["image"].shape[:2]), np.uint8)
    if "bboxes" in names:
        changed |= _boxes_of(names["bboxes"], made, {**targets, **changed}, targets)
    return made["image"], {**targets, **changed}


def _names_of(targets: Mapping[str, Any]) -> dict[str, str]:
    """Returns the names of the targets, by albumentations' argument names."""
    names: dict[str, str] = {}
    for name, value in targets.items():
        word = _WORDS.get((value.dtype.kind, value.ndim)) if isinstance(value, np.ndarray) else None
        if word == "keypoints" or word in names:
            why = "key points" if word == "keypoints" else f"{names[word]} and {name}, which are both {word}"
            raise ValueError(
                f"a transform of albumentations, as it is, does not move {why}: write a function (image, targets) that "
                f"calls it and moves them"
            )
        names |= {} if word is None else {word: name}
    return names


def _check_boxes(params: Any) -> None:  # noqa: ANN401
    if params is None or params.format != "pascal_voc" or "rows" not in (params.label_fields or ()):
        raise ValueError(
            'boxes need albumentations.Compose([...], bbox_params=BboxParams("pascal_voc", label_fields=["rows"])): '
            "pixels, and the rows of the boxes, by which their labels follow"
        )


def _boxes_of(
    name: str, made: Mapping[str, Any], moved: Mapping[str, Any], before: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the remaining boxes and rows of their columns; an area is scaled with its box."""
    rows, boxes, begins = np.asarray(made["rows"], np.int64), moved[name].reshape(-1, 4), f"{name}_"
    in_loader = f"{begins}number" in before
    columns = [
        each
        for each, value in before.items()
        if each != name and (each.startswith(begins) if in_loader else has_rows(each, value, len(before[name])))
    ]
    found = {each: take_rows(moved[each], rows) for each in columns}
    area = f"{begins}area" if in_loader else "area"
    if isinstance(found.get(area), np.ndarray):
        found[area] = found[area] * (_areas(boxes) / _areas(before[name][rows]))
    return {**found, name: boxes}


def _areas(boxes: NDArray[Any]) -> NDArray[Any]:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
