"""Helpers that make pictures with boxes and masks, as the usual collections store them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from making import encoded, jpeg
from PIL import Image

SIZES = {"a": (40, 60), "b.c": (60, 40), "d": (30, 30)}
"""Heights and widths of the pictures, by name."""


def write_pictures(folder: Path, names: Sequence[str] = tuple(SIZES)) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(names):
        (folder / f"{name}.jpg").write_bytes(jpeg(*SIZES[name], seed=seed))
    return folder


def mask(name: str) -> Image.Image:
    """Random classes 0 to 20, in VOC's palette, with a border of 255."""
    pixels = np.random.default_rng(len(name)).integers(0, 21, SIZES[name], dtype=np.uint8)
    pixels[0] = 255
    image = Image.fromarray(pixels, "P")
    image.putpalette([value for i in range(256) for value in (i, 255 - i, i // 2)])
    return image


def write_masks(folder: Path, names: Sequence[str] = tuple(SIZES)) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"{name}.png").write_bytes(encoded(mask(name), "PNG"))


def coco_content() -> dict[str, list[dict[str, Any]]]:
    """Three pictures in an order of their own, the last one without annotations; categories 7, 18 and 90."""

    def annotation(number: int, image: int, category: int, **more: object) -> dict[str, Any]:
        box = [1.5 * number, 2, 10.25, 8]
        return {"id": number, "image_id": image, "category_id": category, "bbox": box, "area": 82, "iscrowd": 0, **more}

    images = {42: "a", 9: "b.c", 1000: "d"}
    return {
        "images": [
            {"id": i, "file_name": f"{name}.jpg", "height": SIZES[name][0], "width": SIZES[name][1], "license": 3}
            for i, name in images.items()
        ],
        "annotations": [
            annotation(5, 9, 90, segmentation=[[1.5, 2, 11, 2.25, 11, 10]]),
            annotation(1, 42, 18, keypoints=[4, 5, 2, 0, 0, 0], segmentation=[[1, 1, 9, 1, 9, 9]]),
            annotation(2, 9, 7, iscrowd=1, segmentation={"size": [60, 40], "counts": [0, 2400]}),
        ],
        "categories": [{"id": 90, "name": "emu"}, {"id": 7, "name": "dog"}, {"id": 18, "name": "cat"}],
    }


def write_coco(folder: Path, content: Mapping[str, object] | None = None, split: str = "train2017") -> Path:
    """FOLDER/annotations/instances_SPLIT.json with the pictures FOLDER/SPLIT."""
    write_pictures(folder / split)
    file = folder / "annotations" / f"instances_{split}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(coco_content() if content is None else content))
    return file


def voc_object(name: str, box: Sequence[object], more: str = "<difficult>0</difficult><truncated>1</truncated>") -> str:
    sides = "".join(f"<{side}>{value}</{side}>" for side, value in zip(("xmin", "ymin", "xmax", "ymax"), box))
    part = "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>"
    return f"<object><name>{name}</name>{more}<bndbox>{sides}</bndbox>{part}</object>"


def write_voc(folder: Path, objects: Mapping[str, Sequence[str]]) -> Path:
    """ROOT with the pictures, an XML file with these objects for each of their names, lists of all, and masks."""
    root = folder / "VOCdevkit" / "VOC2012"
    write_pictures(root / "JPEGImages", list(objects))
    write_masks(root / "SegmentationClass", list(objects))
    (root / "Annotations").mkdir()
    for name, each in objects.items():
        height, width = SIZES[name]
        size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
        text = f"<annotation><filename>../../{name}.jpg</filename>{size}{''.join(each)}</annotation>"
        (root / "Annotations" / f"{name}.xml").write_text(text)
    for kind in ("Main", "Segmentation"):
        (root / "ImageSets" / kind).mkdir(parents=True)
        (root / "ImageSets" / kind / "train.txt").write_text("".join(f"{name}\n" for name in reversed(objects)))
    return root


def write_yolo(folder: Path, labels: Mapping[str, str], names: str = "names: {0: cat, 1: dog}\n") -> Path:
    """FOLDER/images/train with all pictures, FOLDER/labels/train with these texts, and data.yaml."""
    images = write_pictures(folder / "images" / "train")
    (folder / "labels" / "train").mkdir(parents=True)
    for name, text in labels.items():
        (folder / "labels" / "train" / f"{name}.txt").write_text(text)
    if names:
        (folder / "data.yaml").write_text(names)
    return images
