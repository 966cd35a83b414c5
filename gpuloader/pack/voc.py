"""A folder of Pascal VOC as a source: boxes of Annotations, or masks of SegmentationClass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gpuloader.errors import PackError, describe
from gpuloader.pack.annotated import by_stem, fitted, read_annotations, unreadable, with_annotations
from gpuloader.pack.records import OpenedSource, Picture, open_pictures
from gpuloader.shards.pictures import SOURCE_EXTENSIONS

MOST_BYTES = 16 << 20  # of an XML file, and of a list

_PICTURES, _BOXES, _MASKS = "JPEGImages", "Annotations", "SegmentationClass"


def is_voc(path: Path) -> bool:
    """Returns whether a path is a folder with JPEGImages and Annotations/*.xml, or a list in its ImageSets."""
    if path.is_dir():
        return (path / _PICTURES).is_dir() and any((path / _BOXES).glob("*.xml"))
    return any(path.absolute().match(f"ImageSets/{kind}/*.txt") for kind in ("Main", "Segmentation"))


def voc(path: Path, classes: Sequence[str] | None) -> OpenedSource:
    """Opens the pictures of a folder with XML files, or the pictures of ImageSets/Main/LIST.txt, with boxes.

    For ImageSets/Segmentation/LIST.txt, it opens the pictures with masks. Pictures come in the list's order, or sorted.
    Classes are numbered by `classes`, or from 0 by sorted name.
    """
    path = path.absolute()
    listed = path.is_file()
    root = path.parents[2] if listed else path
    masked = listed and path.parent.name == "Segmentation"
    pictures = by_stem(root / _PICTURES, SOURCE_EXTENSIONS)
    targets = by_stem(root / _MASKS, ["png"]) if masked else by_stem(root / _BOXES, ["xml"])
    stems = _names_in(path) if listed else list(targets)
    for stem in stems:
        for kind, found in ((_PICTURES, pictures), (_MASKS if masked else _BOXES, targets)):
            if stem not in found:
                cure, (name, _, mark) = "correct or remove it", stem.rpartition(" ")
                if name.strip() in found and mark in ("-1", "0", "1"):
                    whole = path.with_name(f"{path.stem.rpartition('_')[2]}.txt")
                    other = "names alone" if whole == path else f"{whole}, whose boxes have all classes"
                    cure = f"a list with {mark} is of one class; give {other}"
                raise PackError(f"{path} has {describe(stem)}, which is not in {root / kind}: {cure}")
    folder, files = str(root / _PICTURES), [targets[stem] for stem in stems]
    chosen = [Picture(pictures[stem], mask=file if masked else None, place=file) for stem, file in zip(stems, files)]
    if masked:
        return open_pictures(folder, chosen, None, fit=fitted)
    chosen, names = with_annotations(chosen, files, _content, classes)
    unused = 0 if listed else len(pictures) - len(chosen)
    return open_pictures(folder, chosen, names, left_out_count=unused, fit=fitted)


def _names_in(file: Path) -> list[str]:
    try:
        names = read_annotations(file, MOST_BYTES).decode().split("\n")
    except UnicodeError as error:
        raise PackError(f"{file} is not a list of names in UTF-8: {error}") from None
    return [name.strip() for name in names if name.strip()]


class _WithoutDoctype(ElementTree.TreeBuilder):
    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:  # its entities could expand endlessly
        raise ValueError("it has a DOCTYPE, which is not allowed")


def _content(file: str) -> dict[str, Any]:
    """Reads an XML file: the picture's size, if it has one, and its objects, with names as `category_id`."""
    parser = ElementTree.XMLParser(target=_WithoutDoctype())
    try:
        root = ElementTree.fromstring(read_annotations(file, MOST_BYTES), parser)
        return {
            **{side: int(_number(root, f"size/{side}", "0")) for side in ("width", "height")},
            "annotations": [_annotation(each) for each in root.iterfind("object")],
        }
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        return unreadable(f"{file} cannot be read: {error}")


def _annotation(node: ElementTree.Element) -> dict[str, Any]:
    sides = [f"bndbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax")]
    box = None
    if any(map(node.findtext, sides)):
        left, top, right, bottom = (_number(node, side) for side in sides)
        box = [left - 1, top - 1, right - left + 1, bottom - top + 1]  # pixels from 1 on, and both ends included
    return {
        "bbox": box,
        "category_id": node.findtext("name", "").strip(),
        "difficult": int(_number(node, "difficult", "0")),
        "truncated": int(_number(node, "truncated", "0")),
    }


def _number(node: ElementTree.Element, path: str, default: str = "") -> float:
    text = node.findtext(path) or default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{path} of its <{node.tag}> is {describe(text)}, not a number")
    return number
