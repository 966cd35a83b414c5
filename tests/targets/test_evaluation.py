"""COCO's ground truth, packed, through an evaluation recipe and back, is what it was: pycocotools gives AP 1.0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from making import jpeg
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from gpuloader import Boxes, Compose, Field, GPULoader, Mask
from gpuloader.pack import pack
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


def test_ground_truth_that_went_through_the_recipe_and_back_has_ap_1(tmp_path: Path) -> None:
    file = write_coco(tmp_path / "coco")
    pack(file, tmp_path / "shards", images=tmp_path / "coco" / "val")
    ids = json.loads((tmp_path / "shards" / "classes.json").read_text())["ids"]
    fields = {
        "boxes": Boxes("json:annotations", format="xywh", labels="category_id", keys=("area",)),
        "objects": Mask("json:annotations"),
        "image_id": Field("json:image_id"),
    }
    loader = GPULoader(
        tmp_path / "shards",
        4,
        "cpu",
        preset=Compose([Resize((160, 160))]),
        label_from=None,
        output="dict",
        fields=fields,
    )
    results = []
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
    truth = COCO(str(file))
    evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    assert len(results) == len(truth.anns) == 20
    assert evaluation.stats[0] == 1.0  # over overlaps of 0.5 to 0.95
