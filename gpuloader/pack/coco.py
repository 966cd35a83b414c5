"""An annotation file of COCO as a source."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from gpuloader.base.values import is_integer
from gpuloader.errors import PackError, describe
from gpuloader.pack.annotated import as_json, as_whole, fitted, read_annotations, renumber
from gpuloader.pack.records import OpenedSource, Picture, open_pictures

MOST_BYTES = 1 << 32  # of an annotation file

_LISTS = ("images", "annotations", "categories")


def coco(file: Path, images: Path | None, classes: Sequence[str] | None) -> OpenedSource:
    """Opens the pictures of an annotation file, in its order, with their annotations.

    Categories are numbered from 0 in the order of their ids, or by `classes`. The rest of an annotation stays
    unchanged.

    Args:
        images: the folder that `file_name` is relative to. None searches the file's own folder, and NAME beside it for
            instances_NAME.json, as COCO's own files are.
    """
    content = _read(file)
    entries, annotations, categories = (_by_id(content[name], name, file) for name in _LISTS)
    del content
    ids = sorted(categories)
    for number, category in categories.items():
        if not isinstance(category.get("name"), str) or not category["name"]:
            raise PackError(f"{file}: category {number} has no name")
    own = [categories[number]["name"] for number in ids]
    if classes is not None and len(set(own)) < len(own):
        raise PackError(f"{file}: several categories have one name, so they cannot be numbered by names")
    labels, names = renumber(own, classes, lambda i: f"{file}, category {ids[i]}")
    label_of = dict(zip(ids, labels, strict=True))
    id_of = {label: number for number, label in label_of.items()}

    of_image: dict[int, list[dict[str, Any]]] = {number: [] for number in entries}
    for number, annotation in annotations.items():
        for kind, known in (("image", entries), ("category", label_of)):
            of = annotation[f"{kind}_id"] = as_whole(annotation.get(f"{kind}_id"))
            if not is_integer(of) or of not in known:
                raise PackError(
                    f"{file}: annotation {number} has the {kind}_id {describe(of)}, which is no {kind} of the file"
                )
        annotation["category_id"] = label_of[annotation["category_id"]]
        of_image[annotation["image_id"]].append(annotation)
    names_of: dict[int, str] = {}
    for number, entry in entries.items():
        name = entry.get("file_name")
        if not isinstance(name, str) or not name or name.startswith("/") or ".." in name.split("/"):
            raise PackError(
                f"{file}, image {number} has the file_name {describe(name)}: allowed are paths within the folder of "
                "the images"
            )
        names_of[number] = str(PurePosixPath(name))
    folder = _images_folder(file, next(iter(names_of.values()), None), images)
    # A file of boxes may have a few outlines, whose lack then makes no box bad.
    objects, half, keys = annotations.values(), len(annotations) / 2, ("bbox", "segmentation")
    needed = [key for key in keys if sum(bool(each.get(key)) for each in objects) >= half] or ["bbox"]
    origin, pictures = f"{file}, image ", []
    for number, entry in entries.items():
        content = {name: as_whole(entry.get(name)) for name in ("width", "height", "file_name")}
        content = {"image_id": number, **content, "annotations": of_image[number]}
        encoded = as_json(content, f"{origin}{number}")
        pictures.append(Picture(f"{folder}/{names_of[number]}", json=encoded, place=number))
    class_ids, fit = tuple(id_of.get(label) for label in range(len(names))), partial(fitted, needed=needed)
    return open_pictures(str(folder), pictures, names, origin=origin, class_ids=class_ids, fit=fit)


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_annotations(file, MOST_BYTES))
    except (ValueError, RecursionError) as error:
        raise PackError(f"{file} is not JSON: {error}") from None
    if not isinstance(content, dict) or not all(isinstance(content.get(name), list) for name in _LISTS):
        keys = describe(sorted(content)) if isinstance(content, dict) else describe(content)
        raise PackError(
            f"{file} is not an annotation file of COCO, with the lists {', '.join(_LISTS)}: it has {keys}; a table of "
            "pictures is FILE.csv or FILE.jsonl"
        )
    return content


def _by_id(entries: Sequence[Any], kind: str, file: Path) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for i, entry in enumerate(entries):
        number = as_whole(entry.get("id")) if isinstance(entry, dict) else None
        if not is_integer(number, -(2**63), 2**63):
            raise PackError(f"{file}: entry {i} of its {kind} has no integer as id: {describe(entry)}")
        if number in found:
            raise PackError(f"{file}: the id {number} occurs twice in its {kind}: correct one of the two")
        entry["id"] = number
        found[number] = entry
    return found


def _images_folder(file: Path, first: str | None, images: Path | None) -> Path:
    if images is not None:
        return images.absolute()
    own = file.absolute().parent
    folders = (own, own.parent / file.stem.rpartition("_")[2])
    for folder in folders:
        if first is None or (folder / first).exists():
            return folder
    raise PackError(
        f"{file}: its first picture {first} is neither in {folders[0]} nor in {folders[1]}: give the folder of "
        "the pictures, --images FOLDER"
    )
