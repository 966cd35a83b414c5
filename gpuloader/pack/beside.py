"""A folder of pictures below `images`, with YOLO's text files below `labels` beside it, or masks below `masks`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpuloader.errors import PackError, describe
from gpuloader.pack.annotated import annotated_files, by_stem, number_categories, read_annotations
from gpuloader.pack.records import OpenedSource
from gpuloader.shards.pictures import IMAGE_EXTENSIONS

MOST_BYTES = 16 << 20  # of a text file
MOST_YAML_BYTES = 1 << 18

_IMAGES, _LABELS, _MASKS = "images", "labels", ("masks", "annotations")  # ADE20K has its masks in annotations
_TOLERANCE = 0.01  # of coordinates outside of the picture, by rounding


class Targets(NamedTuple):
    """The folder that has `images`, and the files beside a folder's pictures, by name without extension."""

    root: Path
    labels: dict[str, str] | None
    masks: dict[str, str] | None


def targets_beside(folder: Path) -> Targets | None:
    """Finds ROOT/labels/SPLIT/*.txt and ROOT/masks/SPLIT/*.png for the folder ROOT/images/SPLIT.

    Returns None if there are neither, or if the folder has folders, which then are classes.
    """
    folder = folder.absolute()
    images = next((each for each in (folder, *folder.parents) if each.name == _IMAGES), None)
    with os.scandir(folder) as entries:
        if images is None or any(entry.is_dir() and entry.name[0] != "." for entry in entries):
            return None
    root, below = images.parent, folder.relative_to(images)
    labels = _files_in(root / _LABELS / below, "txt")
    found = ((name, _files_in(root / name / below, "png")) for name in _MASKS)
    masks = {name: files for name, files in found if files}
    if len(masks) > 1:
        raise PackError(f"{folder} has masks in {' and in '.join(masks)} beside it: rename one of the folders")
    return Targets(root, labels, next(iter(masks.values()), None)) if labels or masks else None


def with_targets(folder: Path, targets: Targets, classes: Sequence[str] | None) -> OpenedSource:
    """Opens the folder's pictures, sorted by name, with boxes and polygons of text files, masks, or both.

    A picture without a text file is background. Classes have the names in data.yaml, or are bare numbers.
    """
    folder = folder.absolute()
    pictures = by_stem(folder, IMAGE_EXTENSIONS)
    paths = list(pictures.values())
    root, labels, masks = targets
    contents: list[dict[str, Any]] | None = None
    names = None
    if labels is not None:
        files = [labels.get(stem) for stem in pictures]
        contents = [
            {"image_id": i, "file_name": Path(path).name, "annotations": _annotations(file) if file else []}
            for i, (path, file) in enumerate(zip(paths, files, strict=True))
        ]
        names = number_categories(contents, files, classes, _names(root))
    if masks is not None and (missing := [path for stem, path in pictures.items() if stem not in masks]):
        raise PackError(
            f"{missing[0]} has no mask, as have {len(missing)} of {len(paths)} pictures: add or remove them"
        )
    return annotated_files(
        folder,
        paths,
        lambda i: paths[i],
        contents=contents,
        relative=labels is not None,
        masks=None if masks is None else [masks[stem] for stem in pictures],
        classes=names,
        left_out_count=len({*(labels or ()), *(masks or ())} - pictures.keys()),
    )


def _files_in(folder: Path, extension: str) -> dict[str, str] | None:
    return by_stem(folder, [extension]) or None if folder.is_dir() else None


def _annotations(file: str) -> list[dict[str, Any]]:
    """Reads lines of "CLASS x y width height", the center first, and "CLASS x y x y x y ...", a polygon."""
    annotations = []
    for number, line in enumerate(read_annotations(file, MOST_BYTES).split(b"\n"), start=1):
        if not (words := line.split()):
            continue
        try:
            label, numbers = int(words[0]), [float(word) for word in words[1:]]
        except ValueError:
            raise PackError(f"{file}, line {number}: {describe(line)} is not a class and numbers") from None
        if len(numbers) < 4 or len(numbers) % 2:
            raise PackError(
                f"{file}, line {number}: {len(numbers)} numbers behind the class: allowed are 4 of a box and 6, 8, ... "
                "of a polygon"
            )
        if not all(-_TOLERANCE <= value <= 1 + _TOLERANCE for value in numbers):  # which NaN is not
            raise PackError(f"{file}, line {number}: allowed are parts of the width and height, from 0 to 1")
        if len(numbers) == 4:
            x, y, width, height = numbers
            annotations.append({"bbox": [x - width / 2, y - height / 2, width, height], "category_id": label})
        else:
            xs, ys = numbers[0::2], numbers[1::2]
            box = [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
            annotations.append({"bbox": box, "category_id": label, "segmentation": [numbers]})
    return annotations


def _names(root: Path) -> tuple[str, ...] | None:
    """Returns `names` of the data.yaml beside `images`, or one folder up, as in ROOT/train/images."""
    file = next((file for file in (root / "data.yaml", root.parent / "data.yaml") if file.exists()), None)
    if file is None:
        return None
    from gpuloader.recipe.strict_yaml import load_yaml  # recipes take a while to import

    content = load_yaml(read_annotations(file, MOST_YAML_BYTES), str(file), PackError)
    if "kpt_shape" in content:
        raise PackError(f"{file}: key points (`kpt_shape`) cannot be packed")
    names = content.get("names")
    if isinstance(names, dict) and list(names) == list(range(len(names))):
        names = list(names.values())
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise PackError(f"{file}: its names are {describe(names)}: allowed are a list, and {{0: NAME, 1: NAME, ...}}")
    return tuple(names)
