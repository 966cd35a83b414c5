"""torchvision's detectors, with random weights, take what the loader delivers, in the loop of their reference."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from making import encoded, write_shard
from oracle import torchvision
from PIL import Image
from torch import nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign
from torchvision.ops.roi_align import _roi_align
from warm import warm

from gpuloader import Boxes, GPULoader
from gpuloader.targets import to_detection

PAGE = Path(__file__).resolve().parents[2] / "docs" / "detector.md"
FIELDS = {"boxes": Boxes("json:annotations", "xywh", labels="category_id")}


def suppress_overlaps(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """torchvision's `nms`, in place of its compiled operator."""
    left, kept = scores.argsort(descending=True), []
    while len(left):
        kept.append(left[0])
        overlaps = torchvision.ops.box_iou(boxes[left[:1]], boxes[left[1:]])[0]
        left = left[1:][overlaps <= iou_threshold]
    return torch.stack(kept) if kept else left


@pytest.fixture
def _operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's in place of the compiled ones, which do not fit a CPU-only torch."""
    monkeypatch.setattr("torchvision.ops.boxes.nms", suppress_overlaps)
    monkeypatch.setattr("torchvision.ops.poolers.roi_align", _align)


def _align(
    features: torch.Tensor,
    rois: torch.Tensor,
    *,
    output_size: tuple[int, int],
    spatial_scale: float,
    sampling_ratio: int,
) -> torch.Tensor:
    aligned: torch.Tensor = _roi_align.__wrapped__(features, rois, spatial_scale, *output_size, sampling_ratio, False)
    return aligned


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures with a bright square for each of their boxes."""
    rng, samples = np.random.default_rng(0), []
    for number in range(8):
        pixels, annotations = np.full((96, 128, 3), 40, np.uint8), []
        for label in range(number % 3):  # the first has no boxes
            x, y = int(rng.integers(8, 20)) + 60 * label, int(rng.integers(8, 40))
            pixels[y : y + 40, x : x + 40, label] = 250
            annotations.append({"bbox": [x, y, 40, 40], "category_id": label})
        document = json.dumps({"annotations": annotations}).encode()
        samples.append({"__key__": str(number), "jpg": encoded(Image.fromarray(pixels), "JPEG"), "json": document})
    return write_shard(tmp_path_factory.mktemp("detection") / "a.tar", samples)


@pytest.mark.parametrize(
    "preset",
    [
        {"ssdlite": {"Resize": {"size": [96, 96]}}},
        {"detection_multiscale": {"RandomShortestSize": {"min_size": [64, 80, 96], "max_size": 128}}},
    ],
    ids=["one size", "sizes that differ"],
)
@pytest.mark.usefixtures("_operators")
def test_faster_rcnn_learns_from_the_batches(shard: Path, preset: object) -> None:
    torch.manual_seed(0)
    loader = GPULoader(str(shard), 4, "cpu", preset=preset, label_from=None, output="dict", fields=FIELDS)
    backbone = nn.Sequential(nn.Conv2d(3, 16, 8, 8), nn.GroupNorm(4, 16), nn.ReLU())
    backbone.out_channels = 16  # type: ignore[assignment]
    model = FasterRCNN(
        backbone,
        num_classes=3,
        rpn_anchor_generator=AnchorGenerator(((32,),), ((1.0,),)),
        box_roi_pool=MultiScaleRoIAlign(["0"], 3, 2),
        min_size=96,
        max_size=128,
        rpn_post_nms_top_n_train=32,
        box_batch_size_per_image=32,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    losses = []
    for _ in range(8):
        for batch in loader:
            images, targets = to_detection(batch)
            for target in targets:
                target["labels"] += 1
            parts = model(images, targets)
            optimizer.zero_grad()
            sum(parts.values()).backward()
            optimizer.step()
            losses.append(sum(parts.values()).item())
    assert set(parts) == {"loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg"}
    assert len(losses) == 16
    assert np.mean(losses[-4:]) < 0.85 * np.mean(losses[:4])


@pytest.mark.slow(kept=0)
@pytest.mark.usefixtures("_operators")
def test_the_detector_of_the_tutorial_finds_the_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of the page run here, those that need torchvision's compiled operators too."""
    pytest.importorskip("pycocotools")
    monkeypatch.chdir(tmp_path)
    path = os.pathsep.join([str(warm().folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    made: dict[str, Any] = {}
    for language, code in re.findall(r"^```(bash|python|py)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        if language == "bash":
            subprocess.run(["bash", "-euc", code], check=True, env={**os.environ, "PATH": path})
        else:
            exec(code, made)
    assert made["evaluation"].stats[1] > 0.8
