"""COCO's ground truth, packed, through an evaluation recipe and back, is what it was: pycocotools gives AP 1.0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from making import jpeg
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from gpuloader import Boxes, Compose, Field, GPULoader, Mask
from gpuloader.errors import ConfigError
from gpuloader.pack import pack
from gpuloader.targets import to_coco
from gpuloader.transforms import Resize

COUNT = 10


def write_coco(folder: Path) -> Path:
    """Random boxes of three categories, whose ids are not their order, with outlines."""
    rng = np.random.default_rng(0)
    content: dict[str, list[dict[str, Any]]] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": number, "name": f"class {number}"} for number in (90, 7, 18)],
    }
    (folder / "val").mkdir(parents=True)
    for number in range(COUNT):
        height, width = (120 + 10 * number, 200 - 8 * number)
        (folder / "val" / f"{number:03d}.jpg").write_bytes(jpeg(height, width, seed=number))
        content["images"].append(
            {"id": 500 - number, "file_name": f"{number:03d}.jpg", "height": height, "width": width}
        )
        for _ in range(number % 5):
            w, h = rng.uniform(20, 70, 2)
            x, y = rng.uniform(0, (width - w, height - h))
            outline = [[x, y, x + w, y, x + w, y + h, x, y + h]]
            box = {"id": len(content["annotations"]) + 1, "image_id": 500 - number, "bbox": [x, y, w, h], "iscrowd": 0}
            category = {"category_id": int(rng.choice([90, 7, 18])), "area": w * h, "segmentation": outline}
            content["annotations"].append({**box, **category})
    file = folder / "instances_val.json"
    file.write_text(json.dumps(content))
    return file


def perfect_outputs(batch: Any, first_label: int = 0) -> list[dict[str, torch.Tensor]]:  # noqa: ANN401
    """What a model would return that finds each box."""
    return [
        {"boxes": boxes, "labels": labels + first_label, "scores": torch.ones(len(boxes))}
        for boxes, labels in zip(batch["boxes"], batch["boxes_labels"])
    ]


def average_precision(file: Path, results: list[dict[str, Any]]) -> float:
    truth = COCO(str(file))
    evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return float(evaluation.stats[0])  # over overlaps of 0.5 to 0.95


def test_ground_truth_that_went_through_the_recipe_and_back_has_ap_1(tmp_path: Path) -> None:
    file = write_coco(tmp_path / "coco")
    pack(file, tmp_path / "shards", images=tmp_path / "coco" / "val")
    ids = json.loads((tmp_path / "shards" / "classes.json").read_text())["ids"]
    fields = {
        "boxes": Boxes("json:annotations", format="xywh", labels="category_id", keys=("area",)),
        "objects": Mask("json:annotations"),
        "image_id": Field("json:image_id"),
    }
    options = {"preset": Compose([Resize((160, 160))]), "label_from": None, "output": "dict", "fields": fields}
    loader = GPULoader(tmp_path / "shards", 4, "cpu", **options)
    results: list[dict[str, Any]] = []
    for batch in loader:
        scales = (batch["original_size"] / batch["size"]).flip(1)
        for row, image in enumerate(batch["image_id"]):
            corners = (batch["boxes"][row] * scales[row].repeat(2)).double().numpy()
            boxes = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], 1)
            areas = batch["boxes_area"][row] * scales[row].prod()
            np.testing.assert_allclose(areas, boxes[:, 2:].prod(1), rtol=1e-4)
            pixels = batch["objects"][row].sum((1, 2)) * scales[row].prod()
            np.testing.assert_allclose(pixels, areas, rtol=0.15)  # whole pixels
            for box, label in zip(boxes.tolist(), batch["boxes_labels"][row].tolist()):
                results.append({"image_id": image, "category_id": ids[label], "bbox": box, "score": 1.0})
        made = to_coco(perfect_outputs(batch, first_label=1), batch, first_label=1, label_ids=ids)
        for ours, by_hand in zip(made, results[-len(made) :], strict=True):
            np.testing.assert_allclose(ours.pop("bbox"), by_hand["bbox"], rtol=1e-5)
            assert ours == {name: value for name, value in by_hand.items() if name != "bbox"}
    assert len(results) == len(json.loads(file.read_text())["annotations"]) == 20
    assert average_precision(file, results) == 1.0


RECIPES = {
    "dense": Compose([Resize((96, 160))]),
    "list": Compose([Resize(64)], batch="list"),
    "pad": Compose([Resize(64, max_size=100)], batch={"pad": 32}),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_pycocotools_takes_what_to_coco_makes_also_of_a_last_batch_with_padding(tmp_path: Path, recipe: str) -> None:
    """Each picture counts once, and crowds, which training drops, are no missed objects."""
    file = write_coco(tmp_path / "coco")
    content = json.loads(file.read_text())
    content["annotations"][0]["iscrowd"] = 1
    file.write_text(json.dumps(content))
    pack(file, tmp_path / "shards", images=tmp_path / "coco" / "val")
    ids = json.loads((tmp_path / "shards" / "classes.json").read_text())["ids"]
    boxes = Boxes("json:annotations", "xywh", labels="category_id", leave_out="iscrowd")
    fields = {"boxes": boxes, "image_id": Field("json:image_id")}
    loader = GPULoader(tmp_path / "shards", 4, "cpu", preset=RECIPES[recipe], fields=fields, last_batch="pad")
    results = [each for batch in loader for each in to_coco(perfect_outputs(batch), batch, label_ids=ids)]
    assert len(results) == 19
    assert average_precision(file, results) == 1.0


BATCH = {"original_size": torch.tensor([[64, 96]]), "size": torch.tensor([[32, 32]]), "index": torch.tensor([5])}
OUTPUT = {"boxes": torch.tensor([[4.0, 8.0, 20.0, 24.0]]), "labels": torch.tensor([2]), "scores": torch.tensor([0.5])}


@pytest.mark.parametrize(
    ("outputs", "more", "options", "expected"),
    [
        ([OUTPUT], {"image_id": [31]}, {"first_label": 1, "label_ids": [7, 18]}, (31, 18)),
        ([OUTPUT], {"image_id": [31]}, {"label_ids": [None, 7, 18]}, (31, 18)),
        ([OUTPUT], {"image_id": [31]}, {}, (31, 2)),
        ([OUTPUT], {"image_id": [31]}, {"first_label": 1}, (31, 1)),
        ([OUTPUT], {}, {"image_id": None}, (5, 2)),
        ([{**OUTPUT, "boxes": OUTPUT["boxes"].half().requires_grad_()}], {}, {"image_id": None}, (5, 2)),
        ([OUTPUT], {"image_id": [31], "valid": torch.tensor([False])}, {}, None),
        ([OUTPUT], {}, {}, "image_id='image_id': the batch has"),
        ([OUTPUT], {"image_id": [31]}, {"label_ids": [7, 18]}, r"label_ids has no id for the labels \[2\]"),
        ([OUTPUT], {"image_id": [31]}, {"first_label": 3, "label_ids": [7, 18]}, r"no id for the labels \[-1\]"),
        ([OUTPUT], {"image_id": [31]}, {"first_label": 1.0}, "first_label=1.0: allowed is an integer"),
        ([OUTPUT], {"image_id": [31]}, {"label_ids": 7}, "label_ids=7: allowed is a list of integers"),
        ([OUTPUT] * 2, {"image_id": [31]}, {}, "outputs have .*: allowed are 1, each with boxes"),
        ([{"boxes": OUTPUT["boxes"]}], {"image_id": [31]}, {}, "allowed are 1, each with boxes"),
    ],
)
def test_ids_of_pictures_and_categories(
    outputs: list[dict[str, torch.Tensor]],
    more: dict[str, Any],
    options: dict[str, Any],
    expected: tuple[int, int] | str | None,
) -> None:
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=expected):
            to_coco(outputs, {**BATCH, **more}, **options)
        return
    results = to_coco(outputs, {**BATCH, **more}, **options)
    assert [(each["image_id"], each["category_id"]) for each in results] == ([] if expected is None else [expected])
    assert all((each["bbox"], each["score"]) == ([12.0, 16.0, 48.0, 32.0], 0.5) for each in results)


def test_a_batch_without_sizes_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no original_size and size"):
        to_coco([OUTPUT], {"size": BATCH["size"], "image_id": [31]})
