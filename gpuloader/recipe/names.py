"""The names of the presets that come with the library, so that editors complete them."""

from __future__ import annotations

from typing import Literal, TypeAlias

PresetName: TypeAlias = Literal[
    "a1",
    "a1_eval",
    "a2",
    "a3",
    "cifar10",
    "cifar100",
    "cifar100_eval",
    "cifar10_eval",
    "clip_eval",
    "clip_train",
    "deit",
    "deit3",
    "deit3_eval",
    "deit_eval",
    "dino",
    "imagenet_eval",
    "imagenet_randaugment",
    "imagenet_train",
    "imagenet_train_jitter",
    "moco_v2",
    "raw_uint8",
    "resnet50_v1",
    "resnet50_v2",
    "resnet50_v2_eval",
    "simclr",
]
"""A file of configs/presets; a test compares them."""
