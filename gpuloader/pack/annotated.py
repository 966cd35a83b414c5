"""Code for pictures with boxes and masks that the sources COCO, VOC and YOLO share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuloader.errors import PackError
from gpuloader.helpers.regular_file import read_regular
from gpuloader.images.header import image_header
from gpuloader.images.orientation import FIRST_TRANSPOSED, image_orientation
from gpuloader.pack.records import OpenedSource, number_labels, picture_files


def annotated_files(
    folder: Path,
    paths: Sequence[str],
    where: Callable[[int], str],
    *,
    contents: Sequence[Mapping[str, Any]] | None = None,
    relative: bool = False,
    masks: Sequence[str] | None = None,
    classes: tuple[str, ...] | None = None,
    left_out_count: int = 0,
) -> OpenedSource:
    """Opens pictures in files, with each picture's `json` in `contents`; other arguments are as in `picture_files`."""
    fields = [{} if contents is None else {"json": _as_json(contents[i], where(i))} for i in range(len(paths))]
    opened = picture_files(str(folder), paths, fields, where, classes, masks=masks, relative=relative)
    return replace(opened, left_out_count=left_out_count, annotated=True)


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


def number_categories(
    contents: Sequence[Mapping[str, Any]],
    files: Sequence[str | None],
    classes: Sequence[str] | None,
    own: Sequence[str] | None = None,
) -> tuple[str, ...] | None:
    """Replaces the classes of all annotations by numbers, in place, and returns the names of the numbers.

    Args:
        contents: each picture's `json`, with a class's name or number as each `category_id`.
        files: the file of each picture's annotations, for errors.
        classes: the names that labels are numbered by; None uses `own`, or the sorted names that occur.
        own: names of the numbers in the files, if they are known.
    """
    found = [(file, each) for file, content in zip(files, contents, strict=True) for each in content["annotations"]]
    given = [each["category_id"] for _, each in found]
    numbers, names = number_labels(given, classes if own is None else own, lambda i: str(found[i][0]))
    if own is not None:
        label_of, names = renumber(own, classes, lambda i: f"data.yaml, class {i}")
        numbers = [label_of[number] for number in numbers]
    for (_, each), number in zip(found, numbers, strict=True):
        each["category_id"] = number
    return names


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
    try:
        return read_regular(Path(path), most_bytes)
    except OSError as error:
        raise PackError(f"the annotations {os.fspath(path)} cannot be read: {error.strerror}") from None


def in_pixels(relative: bytes, image: bytes) -> bytes:
    """Converts relative annotations to pixels, by the size of the upright picture in a JPEG, PNG or WebP."""

    def read(count: int, offset: int) -> bytes:
        return image[offset : offset + count]

    height, width, _ = image_header(read)
    if image_orientation(read) >= FIRST_TRANSPOSED:
        height, width = width, height
    content = json.loads(relative)
    for annotation in content["annotations"]:
        for numbers in (annotation["bbox"], *annotation.get("segmentation", ())):
            numbers[0::2] = [number * width for number in numbers[0::2]]
            numbers[1::2] = [number * height for number in numbers[1::2]]
    return json.dumps({**content, "width": width, "height": height}).encode()


def _as_json(content: Mapping[str, Any], where: str) -> bytes:
    try:
        return json.dumps(content, allow_nan=False).encode()
    except ValueError:
        raise PackError(f"{where}: its annotations have NaN or an infinite number: correct them") from None
    except RecursionError:
        raise PackError(f"{where}: its annotations are nested too deeply to be written: correct them") from None
