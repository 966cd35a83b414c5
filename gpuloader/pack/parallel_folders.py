"""A folder of pictures below `images`, with YOLO's text files below `labels` beside it, or masks below `masks`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gpuloader.errors import PackError, describe
from gpuloader.pack.annotated import by_stem, fitted, read_annotations, unreadable, with_annotations
from gpuloader.pack.records import OpenedSource, Picture, open_pictures
from gpuloader.shards.folder import list_files
from gpuloader.shards.pictures import JPEG_EXTENSIONS, SOURCE_EXTENSIONS, in_hidden_folder, is_picture, warn_of_hidden

MOST_BYTES = 16 << 20  # of a text file
MOST_YAML_BYTES = 1 << 18

_IMAGES, _LABELS, _MASKS = "images", "labels", ("masks", "annotations")  # ADE20K has its masks in annotations
_TOLERANCE = 0.01  # of coordinates outside of the picture, by rounding


def with_targets_beside(folder: Path, classes: Sequence[str] | None) -> OpenedSource | None:
    """Opens the pictures of ROOT/images/SPLIT, sorted by name, with the text files and masks beside them.

    Text files are ROOT/labels/SPLIT/*.txt, and masks are ROOT/masks/SPLIT/*.png. Returns None if there are neither, or
    if the folder has subfolders, which are then classes.

    A picture without a text file is background. Classes have the names in data.yaml, or are bare numbers.
    """
    folder = folder.absolute()
    images = next((each for each in (folder, *folder.parents) if each.name == _IMAGES), None)
    with os.scandir(folder) as entries:
        if images is None or any(entry.is_dir() and not in_hidden_folder(f"{entry.name}/") for entry in entries):
            return None
    root, below = images.parent, folder.relative_to(images)
    labels, masks = _files_in(root / _LABELS / below, "txt"), _masks(root, below)
    beside = [file for name in _MASKS if (each := root / name / below).is_dir() for file in sorted(each.iterdir())]
    if not labels and not any(is_picture(file.name, SOURCE_EXTENSIONS) for file in beside):
        return None
    warn_of_hidden(folder, *list_files(folder).hidden)
    pictures = by_stem(folder, SOURCE_EXTENSIONS)
    if (masks or not labels) and (missing := [stem for stem in pictures if stem not in masks]):
        near = (_cure(file.name, missing[0]) for file in beside if file.stem not in pictures or file.stem == missing[0])
        raise PackError(
            f"{pictures[missing[0]]} has no mask, as have {len(missing)} of {len(pictures)} pictures: "
            f"{next(filter(None, near), 'add or remove them')}"
        )
    found, names = [Picture(path, mask=masks.get(stem)) for stem, path in pictures.items()], None
    if labels:
        found, names = with_annotations(found, [*map(labels.get, pictures)], _content, classes, _names(root))
    unused = len((labels.keys() | masks.keys()) - pictures.keys())
    return open_pictures(str(folder), found, names, left_out_count=unused, fit=partial(fitted, relative=True))


def _masks(root: Path, below: Path) -> dict[str, str]:
    found = {name: files for name in _MASKS if (files := _files_in(root / name / below, "png"))}
    if len(found) > 1:
        raise PackError(f"{root} has masks in {' and in '.join(found)} beside its {_IMAGES}: rename one of the folders")
    return next(iter(found.values()), {})


def _cure(name: str, stem: str) -> str | None:
    """Returns how a file beside the masks becomes the mask of a picture; None if it is of another picture."""
    own, _, extension = name.rpartition(".")
    if own == stem and extension.lower() in JPEG_EXTENSIONS:
        return f"{name} is a JPEG, which changes the numbers of a mask: write it again, as {stem}.png"
    if own == stem and is_picture(name, SOURCE_EXTENSIONS):
        return f"convert {name} to {stem}.png, as with Pillow's Image.open({name!r}).save('{stem}.png')"
    near = extension.lower() == "png" and own.startswith(stem) and not own.removeprefix(stem)[0].isalnum()
    return f"rename {name} to {stem}.png, and the others in the same way" if near else None


def _files_in(folder: Path, extension: str) -> dict[str, str]:
    return by_stem(folder, [extension]) if folder.is_dir() else {}


def _content(file: str) -> dict[str, Any]:
    """Reads lines of "CLASS x y width height", the center first, and "CLASS x y x y x y ...", a polygon."""
    annotations = []
    for number, line in enumerate(read_annotations(file, MOST_BYTES).split(b"\n"), start=1):
        if not (words := line.split()):
            continue
        try:
            label, *numbers = (float(word) for word in words)
            if not label.is_integer():
                raise ValueError
        except ValueError:
            return unreadable(f"{file}, line {number}: {describe(line)} is not a class and numbers")
        if len(numbers) < 4 or len(numbers) % 2:
            return unreadable(
                f"{file}, line {number}: {len(numbers)} numbers behind the class: allowed are 4 of a box and 6, 8, ... "
                "of a polygon"
            )
        if not all(-_TOLERANCE <= value <= 1 + _TOLERANCE for value in numbers):  # which NaN is not
            return unreadable(f"{file}, line {number}: allowed are parts of the width and height, from 0 to 1")
        if len(numbers) == 4:
            x, y, width, height = numbers
            annotations.append({"bbox": [x - width / 2, y - height / 2, width, height], "category_id": int(label)})
        else:
            xs, ys = numbers[0::2], numbers[1::2]
            box = [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
            annotations.append({"bbox": box, "category_id": int(label), "segmentation": [numbers]})
    return {"annotations": annotations}


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
