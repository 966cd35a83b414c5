"""Targets: boxes, masks and key points, transformed with the image."""

from gpuloader.targets import boxes, keypoints, masks  # noqa: F401 - they register the fields that YAML names
from gpuloader.targets.models import to_coco, to_detection, to_detr, to_tv_tensors

__all__ = ["to_coco", "to_detection", "to_detr", "to_tv_tensors"]
