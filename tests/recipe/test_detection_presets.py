"""The presets of detectors and segmenters have the transforms of torchvision's references, but for what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from gpuloader import Compose
from gpuloader import transforms as T

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALES = list(range(480, 801, 32))
TO_FLOAT = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
BOXES = [v2.ConvertBoundingBoxFormat("XYXY"), v2.SanitizeBoundingBoxes(labels_getter=None)]


def resized(size: Any, **options: Any) -> v2.Transform:  # noqa: ANN401
    """What torchvision's detection models do to an image: `torch.nn.functional.interpolate`, without antialiasing."""
    return v2.Resize(size, antialias=False, **options)


# references/detection/presets.py and references/segmentation/presets.py; the last resize is that of the models
REFERENCES: dict[str, list[v2.Transform]] = {
    "ssdlite": [v2.RandomIoUCrop(), v2.RandomHorizontalFlip(), *BOXES, resized([320, 320])],
    "ssdlite_eval": [resized([320, 320])],
    "ssd_eval": [resized([300, 300])],
    "detection": [v2.RandomHorizontalFlip(), resized(800, max_size=1333)],
    "detection_multiscale": [v2.RandomShortestSize(SCALES, 1333), v2.RandomHorizontalFlip()],
    "detection_eval": [resized(800, max_size=1333)],
    "segmentation": [v2.RandomResize(260, 1040), v2.RandomHorizontalFlip(), v2.RandomCrop(480)],
    "segmentation_eval": [v2.Resize(520)],
    "detr_eval": [v2.Resize(800, max_size=1333)],
}


@pytest.mark.parametrize("name", REFERENCES)
def test_a_preset_has_the_transforms_of_its_reference(name: str) -> None:
    preset = Compose.load(name)
    normalize = [v2.Normalize(MEAN, STD)] if name.startswith(("segmentation", "detr")) else []
    reference = v2.Compose([*REFERENCES[name], *TO_FLOAT, *normalize])
    assert preset.transforms == Compose.from_torchvision(reference, batch=preset.batch).transforms


def test_ssds_geometry_and_colours_are_the_references() -> None:
    transforms = Compose.load("ssd").transforms
    reference = [v2.RandomZoomOut([123, 117, 104]), v2.RandomIoUCrop(), v2.RandomHorizontalFlip(), *BOXES]
    made = Compose.from_torchvision(v2.Compose([*reference, resized([300, 300]), *TO_FLOAT])).transforms
    assert transforms[:5] == made
    theirs = v2.RandomPhotometricDistort()
    for each, name in zip(transforms[5:], ("brightness", "contrast", "saturation", "hue"), strict=True):
        assert isinstance(each, T.RandomApply)
        assert each.p == theirs.p
        assert each.transforms == (T.ColorJitter(**{name: tuple(getattr(theirs, name))}),)


def test_detrs_sizes_and_padding_are_the_papers() -> None:
    made = Compose.load("detr")([np.zeros((90, 60, 3), np.uint8), np.zeros((50, 80, 3), np.uint8)], seed=3)
    assert made.shape[:2] == (2, 3)
    flip, crop, resize, _ = Compose.load("detr").transforms
    assert flip == T.RandomHorizontalFlip()
    assert crop == T.RandomSizeCrop(384, 600, [400, 500, 600], p=0.5)
    assert resize == T.RandomShortestSize(SCALES, max_size=1333)
    assert Compose.load("detr").batch == Compose.load("detr_eval").batch == {"pad": 1}


@pytest.mark.parametrize("name", ["yolo", "yolo_eval"])
def test_yolos_letterbox_is_gray(name: str) -> None:
    preset = Compose.load(name)
    image = np.zeros((20, 640, 3), np.uint8)
    levels = preset(image, seed=3)
    assert levels.shape == (3, 640, 640)
    border = levels[:, :200] if name == "yolo_eval" else levels[:, :100]
    gray = border.mean((1, 2)) * 255
    assert (gray - 114).abs().max() < (0.01 if name == "yolo_eval" else 114 * 0.41)  # brightness changes by 0.4
