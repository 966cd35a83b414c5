"""Finds the targets of a sample, and draws them on its picture: boxes, masks and points."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from gpuloader.base.text import printable
from gpuloader.chain.batch import Batch
from gpuloader.loading.own_targets import OwnTargets
from gpuloader.loading.run import Run
from gpuloader.recipe import ViewParams
from gpuloader.targets.boxes import Boxes
from gpuloader.targets.keypoints import Keypoints
from gpuloader.targets.masks import Mask
from gpuloader.targets.target import Target

CROWD = "iscrowd"
_ANNOTATIONS, _MASK = "json:annotations", "mask.png"
_IGNORED = 255  # the class of pixels without one, in Pascal VOC and ADE20K
_LINE, _RADIUS, _TEXT = 2, 3, 11


@dataclass(frozen=True, eq=False)
class Overlay:
    """The targets of one picture, in its pixels.

    Attributes:
        areas: (h, w) int64 each: the number of the class or object of each pixel, 0 for none.
        boxes: left, top, right, bottom, with a number for the colour and a text.
        points: x, y, with a number for the colour.
    """

    areas: list[NDArray[np.int64]]
    boxes: list[tuple[tuple[float, ...], int, str]]
    points: list[tuple[float, float, int]]


def find_targets(extensions: Collection[str], content: bytes | None) -> dict[str, Target]:
    """Returns the fields of what `gpuloader pack` writes beside a picture: COCO's annotations, and masks.

    Args:
        extensions: of the sample's components.
        content: of its `json`.
    """
    found: dict[str, Target] = {_MASK: Mask(_MASK, fill=_IGNORED)} if _MASK in extensions else {}
    annotations: Any = None
    with suppress(ValueError, RecursionError, LookupError, TypeError):
        annotations = json.loads(content or b"null")["annotations"]
    if not isinstance(annotations, list) or not all(isinstance(each, dict) and "bbox" in each for each in annotations):
        return found
    shared = set.intersection(*map(set, annotations)) if annotations else set()
    labels = "category_id" if "category_id" in shared else None
    crowds = all(isinstance(each.get(CROWD), int) for each in annotations)
    found["boxes"] = Boxes(_ANNOTATIONS, format="xywh", labels=labels, keys=[CROWD] if crowds else ())
    if "segmentation" in shared:
        found["outlines"] = Mask(_ANNOTATIONS)
    if any("keypoints" in each for each in annotations):
        found["points"] = Keypoints(_ANNOTATIONS)
    return found


def overlay_of(
    fields: Mapping[str, Target], values: Mapping[str, Any], view: ViewParams, class_names: Mapping[int, str]
) -> Overlay:
    """Returns the targets of one sample in a view.

    Args:
        fields: the targets, by name.
        values: of the sample, as the fields parse them.
        view: the parameters of this sample alone.
        class_names: label -> name, if names are known.
    """
    found = Overlay([], [], [])
    for name, field in fields.items():
        entries = field.entries(values[name], view)
        if isinstance(field, Boxes):
            found.boxes.extend(_boxes(entries, class_names))
        elif isinstance(field, Keypoints):
            points, known = entries[""], entries["visibility"] > 0
            numbers = np.argwhere(known)[:, 1].tolist()
            found.points.extend((x, y, number) for (x, y), number in zip(points[known].tolist(), numbers))
        elif isinstance(field, Mask):
            found.areas.append(_areas(entries[""], field.fill))
    return found


def overlays_of(
    run: Run, batch: Batch, row: int, class_names: Mapping[int, str], names: Collection[str] | None = None
) -> list[Overlay]:
    """Returns the targets of a row of a decoded batch in each view; an empty list if its rows are mixed.

    Args:
        names: the fields to draw; None draws all targets.
    """
    if batch.step.mixing is not None:
        return []
    fields = {name: each for name, each in run.fields.items() if isinstance(each, Target)}
    fields = fields if names is None else {name: fields[name] for name in names}
    own, views = OwnTargets(run), batch.delivered.take([row]).views
    values: list[Mapping[str, Any]] = [batch.values[row]] * len(views)
    if own.fields:
        values = [{name: own.value(name, each[row]) for name in fields} for each in batch.targets]
        views = batch.params.take([row]).views
    return [overlay_of(fields, *each, class_names) for each in zip(values, views)]


def _boxes(
    entries: Mapping[str, NDArray[Any]], names: Mapping[int, str]
) -> Iterator[tuple[tuple[float, ...], int, str]]:
    boxes = entries[""].tolist()
    labels, crowds = (entries[key].tolist() if key in entries else [None] * len(boxes) for key in ("labels", CROWD))
    for number, (box, label, crowd) in enumerate(zip(boxes, labels, crowds)):
        name = "" if label is None else names.get(label, str(label))
        yield tuple(box), number if label is None else label, f"{name} (crowd)".lstrip() if crowd else name


def _areas(masks: NDArray[np.integer], fill: int) -> NDArray[np.int64]:
    if masks.ndim == 2:  # of classes
        return np.where(masks == fill, 0, masks).astype(np.int64)
    areas = np.zeros(masks.shape[1:], np.int64)
    for number, mask in enumerate(masks):
        areas[mask > 0] = 1 + number
    return areas


def draw_targets(picture: Image.Image, overlay: Overlay, fit: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Returns the fitted picture with its targets: masks as a tint, lines and points of one width."""
    pixels = np.array(picture)
    for areas in overlay.areas:
        inside = areas != 0
        pixels[inside] = pixels[inside] // 2 + _colours(areas[inside]) // 2
    fitted = fit(Image.fromarray(pixels))
    across, down = fitted.width / picture.width, fitted.height / picture.height
    pen, font = ImageDraw.Draw(fitted), ImageFont.load_default(_TEXT)
    for (x1, y1, x2, y2), number, _ in overlay.boxes:
        left, top, right, bottom = round(x1 * across), round(y1 * down), round(x2 * across) - 1, round(y2 * down) - 1
        pen.rectangle((left, top, max(left, right), max(top, bottom)), outline=_colour(number), width=_LINE)
    for x, y, number in overlay.points:
        at, radius = ((x + 0.5) * across, (y + 0.5) * down), _RADIUS
        place = (at[0] - radius, at[1] - radius, at[0] + radius, at[1] + radius)
        pen.ellipse(place, fill=_colour(number), outline="white")
    for (x1, y1, *_), number, text in overlay.boxes:
        if text:
            corner = (round(x1 * across), max(0, round(y1 * down) - _TEXT - _LINE))
            pen.rectangle(pen.textbbox(corner, printable(text), font), fill=_colour(number))
            pen.text(corner, printable(text), "white", font)
    return fitted


def _colours(numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Returns (n, 3) colours; neighbouring numbers have different colours."""
    turns = 0.618034 * (numbers % 1000)[:, None] + np.array([0, 1 / 3, 2 / 3])
    return np.rint(110 + 100 * np.cos(2 * np.pi * turns)).astype(np.uint8)


def _colour(number: int) -> tuple[int, ...]:
    return tuple(_colours(np.array([number]))[0].tolist())
