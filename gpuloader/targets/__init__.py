"""Targets: boxes, masks and key points, which follow the pixels."""

from gpuloader.targets.boxes import Boxes
from gpuloader.targets.keypoints import Keypoints
from gpuloader.targets.masks import Mask
from gpuloader.targets.models import to_detection, to_detr, to_tv_tensors

__all__ = ["Boxes", "Keypoints", "Mask", "to_detection", "to_detr", "to_tv_tensors"]
