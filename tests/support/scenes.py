"""Helpers that write scenes of coloured rectangles with their annotations, and load them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from making import encoded, write_shard
from PIL import Image

from gpuloader import Boxes, GPULoader, Keypoints, Mask

COUNT = 12
COLORS = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255]])
FIELDS = {
    "boxes": Boxes("json:annotations", format="xywh", labels="category_id", keys=("iscrowd", "area")),
    "points": Keypoints("json:annotations", flip_pairs=[(0, 1)]),
    "mask": Mask("mask.png", fill=255),
    "objects": Mask("json:annotations"),
}
EVAL: dict[str, Any] = {
    "transforms": [
        {"Resize": {"size": [40, 60], "interpolation": "nearest"}},
        {"Normalize": {"mean": [0.0, 0.0, 0.0], "std": [1.0, 1.0, 1.0]}},
    ]
}


HALF = {"bbox": [1, 1, 2, 3], "iscrowd": 0, "area": 6, "keypoints": [1, 1, 2], "segmentation": [[1, 1, 3, 1, 3, 4]]}


def size_of(number: int) -> tuple[int, int]:
    return 80 + 4 * (number % 5), 120 + 4 * (number % 3)


def annotations_of(number: int) -> list[dict[str, Any]]:
    """A rectangle for each of 0 to 3 colours, in columns that do not touch, with two points in opposite corners."""
    height, _ = size_of(number)
    found = []
    for color in range(number % 4):
        x, y, w, h = 40 * color + 4, 8 + number, 20 + number, height // 2
        found.append(
            {
                "bbox": [x, y, w, h],
                "category_id": color,
                "iscrowd": color % 2,
                "area": w * h,
                "keypoints": [x, y, 2, x + w - 1, y + h - 1, 1],
                "segmentation": [[x, y, x + w, y, x + w, y + h, x, y + h]],
            }
        )
    return found


def sample_of(number: int, changed: dict[str, bytes] | None = None) -> dict[str, bytes | str]:
    """A black picture with the rectangles, their annotations, and a mask with 1 + the number of the colour."""
    height, width = size_of(number)
    pixels = np.zeros((height, width, 3), np.uint8)
    mask = np.zeros((height, width), np.uint8)
    for annotation in annotations_of(number):
        x, y, w, h = annotation["bbox"]
        pixels[y : y + h, x : x + w] = COLORS[annotation["category_id"]]
        mask[y : y + h, x : x + w] = 1 + annotation["category_id"]
    return {
        "__key__": f"{number:03d}",
        "png": encoded(Image.fromarray(pixels), "PNG"),
        "json": json.dumps({"annotations": annotations_of(number)}).encode(),
        "mask.png": encoded(Image.fromarray(mask), "PNG"),
        **(changed or {}),
    }


def shard(folder: Path, changed: dict[int, dict[str, bytes]] | None = None) -> Path:
    return write_shard(folder / "a.tar", [sample_of(n, (changed or {}).get(n)) for n in range(COUNT)])


def loader(tar: Path, batch_size: int = 4, **options: Any) -> GPULoader:  # noqa: ANN401
    given = {"preset": EVAL, "label_from": None, "output": "dict", "fields": FIELDS, "seed": 3, **options}
    return GPULoader(tar, batch_size, "cpu", **given)


def train(*transforms: dict[str, Any]) -> dict[str, Any]:
    return {"transforms": [*transforms, {"Normalize": {"mean": [0.0, 0.0, 0.0], "std": [1.0, 1.0, 1.0]}}]}


def by_sample(batches: Iterable[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The entries of each sample by its number."""
    return {
        int(number): {name: value[row] for name, value in batch.items() if value is not None}
        for batch in batches
        for row, number in enumerate(batch["index"])
    }


def assert_same(ours: dict[int, dict[str, Any]], theirs: dict[int, dict[str, Any]]) -> None:
    assert ours.keys() == theirs.keys()
    for number, sample in ours.items():
        for name, value in sample.items():
            other = theirs[number][name]
            assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other, (name, number)


CROP = {"RandomResizedCrop": {"size": [48, 64], "scale": [0.3, 1.0], "interpolation": "nearest"}}
FLIPS: list[dict[str, Any]] = [{"RandomHorizontalFlip": {}}, {"RandomVerticalFlip": {}}]
RANDOM = {"preset": train(CROP, *FLIPS, {"RandomRotation": {"degrees": 20}}), "last_batch": "partial"}
