"""Code for pictures with boxes and masks that the sources COCO, VOC and YOLO share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from gpuloader.errors import PackError
from gpuloader.images.header import image_header
from gpuloader.images.limits import RefusalError
from gpuloader.images.orientation import FIRST_TRANSPOSED, image_orientations
from gpuloader.pack.records import MASK, Dropped, Picture, number_labels, read_whole

_CAUSE = "cannot be read"
_COLUMNS = ("area", "difficult", "iscrowd", "truncated")
_EMPTY: tuple[object, ...] = (None, [], {})


def renumber(
    own: Sequence[str], classes: Sequence[str] | None, where: Callable[[int], str]
) -> tuple[Sequence[int], tuple[str, ...]]:
    """Returns the label of each of a source's own classes, in their order, and the names of all labels.

    Args:
        classes: the names that labels are numbered by; None uses the source's own names.
    """
    if classes is None or tuple(classes) == tuple(own):  # also if a name occurs twice
        return range(len(own)), tuple(own)
    return number_labels(own, classes, where)[0], tuple(classes)


def with_annotations(
    pictures: Sequence[Picture],
    files: Sequence[str | None],
    read: Callable[[str], dict[str, Any]],
    classes: Sequence[str] | None,
    own: Sequence[str] | None = None,
) -> tuple[list[Picture], tuple[str, ...] | None]:
    """Returns the pictures with their `json`, with a number as each `category_id`, and the names of the numbers.

    Args:
        files: the file of each picture's annotations; None for a picture without objects.
        read: reads a file into keys of the `json`, with a class's name or number as each `category_id`.
        classes: the names that labels are numbered by; None uses `own`, or the sorted names that occur.
        own: names of the numbers in the files, if they are known.
    """
    contents = [
        {"image_id": i, "file_name": Path(picture.path).name, **(read(file) if file else {"annotations": []})}
        for i, (picture, file) in enumerate(zip(pictures, files, strict=True))
    ]
    found = [(file, each) for file, content in zip(files, contents) for each in content["annotations"]]
    labels, named = [each["category_id"] for _, each in found], classes if own is None else own
    numbers, names = number_labels(labels, named, lambda i: str(found[i][0]))
    if own is not None:
        label_of, names = renumber(own, classes, lambda i: f"data.yaml, class {i}")
        numbers = [label_of[number] for number in numbers]
    for (_, each), number in zip(found, numbers, strict=True):
        each["category_id"] = number
    written = (as_json(content, str(each.place or each.path)) for each, content in zip(pictures, contents))
    return [each._replace(json=content) for each, content in zip(pictures, written)], names


def by_stem(folder: Path, extensions: Collection[str]) -> dict[str, str]:
    """Returns the paths of a folder's files with these extensions, sorted, by their names without extension."""
    paths: dict[str, str] = {}
    for name in sorted(os.listdir(folder)):  # noqa: PTH208 - names only, perhaps millions
        stem, _, extension = name.rpartition(".")
        if extension.lower() not in extensions or not stem or name.startswith("."):
            continue
        if stem in paths:
            raise PackError(f"{paths[stem]} and {name} are called the same: rename or remove one of them")
        paths[stem] = f"{folder}/{name}"
    return paths


def read_annotations(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Reads a file of annotations."""
    return read_whole(path, most_bytes, "the annotations {} cannot be read: {}")


def as_json(content: Mapping[str, Any], where: str) -> bytes:
    """Writes the `json` of a picture that `where` names; if JSON cannot hold it, the picture is `unreadable`."""
    try:
        return json.dumps(content, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return json.dumps(unreadable(f"{where} has NaN, an infinite number or too many levels")).encode()


def unreadable(cause: str) -> dict[str, Any]:
    """Returns the `json` of a picture whose annotations cannot be read; `pack` leaves it out with this cause."""
    return {"annotations": [], _CAUSE: cause}


def as_whole(number: object) -> object:
    """Returns a float that is a whole number, such as 3.0, as an integer; and all else as it is."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def fitted(
    fields: Mapping[str, bytes], image: bytes, *, relative: bool = False, needed: Sequence[str] = ("bbox",)
) -> tuple[Mapping[str, bytes], Dropped]:
    """Fits annotations and a mask to their picture; the loader's own fields parse what is stored.

    Args:
        image: the JPEG, PNG or WebP that is stored. Annotations without a size get its size.
        relative: boxes and polygons are parts of the upright picture's width and height, and become pixels.
        needed: "bbox", "segmentation" or both: objects that lack one of them, or its area, are dropped.
    """
    from gpuloader.loading.fields import Component, parse_fields  # imported here, because they import torch
    from gpuloader.targets import boxes, keypoints, masks, outlines
    from gpuloader.targets.annotations import size_of

    fits, of_mask = _sizes(image), _sizes(fields.get(MASK, b""))[0]
    targets: dict[str, Component] = {"mask": masks.Mask(MASK)} if MASK in fields else {}
    dropped: Dropped = ()
    if "json" in fields:
        try:
            content = json.loads(fields["json"])
            if cause := content.get(_CAUSE):
                raise ValueError(cause)
            height, width = sides = fits[-1] if relative else size_of(content) or fits[0]
            if sides not in fits:
                raise ValueError(f"they are for {width}x{height} pixels, but the image has {fits[0][1]}x{fits[0][0]}")
            annotations, dropped = _usable(content["annotations"], needed)
            for annotation in annotations if relative else ():
                for numbers in (annotation["bbox"], *annotation.get("segmentation", ())):
                    numbers[0::2] = [number * width for number in numbers[0::2]]
                    numbers[1::2] = [number * height for number in numbers[1::2]]
            outlines.check_outlines(
                [each for each in annotations if each.get("segmentation") not in _EMPTY], height, width
            )
            content |= {"width": width, "height": height, "annotations": annotations}
            fields = {**fields, "json": json.dumps(content).encode()}
        except (ValueError, RecursionError) as error:
            raise RefusalError(f"its annotations: {error}") from None
        targets["points"] = keypoints.Keypoints("json:annotations")
        if "bbox" in needed:
            keys = [key for key in _COLUMNS if any(key in each for each in annotations)]
            targets["boxes"] = boxes.Boxes("json:annotations", format="xywh", labels="category_id", keys=keys)
    parse_fields(targets, lambda extension, _: fields[extension], of_mask if of_mask in fits else fits[0], np.zeros(4))
    return fields, dropped


def _sizes(image: bytes) -> list[tuple[int, int]]:
    """Returns (height, width) as stored; and behind it the upright picture's, if EXIF turns it."""
    height, width, _ = image_header(lambda count, offset: image[offset : offset + count])
    return [(height, width), (width, height)][: 1 + int(image_orientations([image])[0] >= FIRST_TRANSPOSED)]


def _usable(annotations: Sequence[dict[str, Any]], needed: Sequence[str]) -> tuple[list[dict[str, Any]], Dropped]:
    """Returns the objects with all that is `needed`, and the names and causes of what is dropped."""
    usable, dropped = [], []
    for number, annotation in enumerate(annotations):
        name = f"annotations[{number}]" + (f" (id {annotation['id']})" if "id" in annotation else "")
        box, outline = annotation.get("bbox"), annotation.get("segmentation")
        parts = outline
        if isinstance(outline, list):
            parts = [part for part in outline if not _are_numbers(part) or len(part) >= 6]
        if empty := [key for key in needed if annotation.get(key) in _EMPTY]:
            dropped.append((name, f"it has no {' and no '.join(empty)}"))
        elif _are_numbers(box) and len(box) == 4 and min(box[2:]) <= 0:
            dropped.append((name, f"its bbox {box} has no area"))
        else:
            if parts != outline:
                dropped.append((name, "a polygon of its segmentation has fewer than three points"))
            if parts or not outline:
                usable.append(annotation if parts == outline else {**annotation, "segmentation": parts})
    return usable, dropped


def _are_numbers(value: object) -> TypeGuard[list[float]]:
    return isinstance(value, list) and all(isinstance(each, (int, float)) for each in value)
