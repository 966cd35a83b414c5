"""`gpuloader bench --train` with networks of torchvision and timm."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gpuloader import ConfigError
from gpuloader.tools.bench import bench
from gpuloader.tools.training_step import make_model

pytest.importorskip("timm")


@pytest.mark.parametrize("name", ["squeezenet1_1", "vit_tiny_patch16_224"])  # torchvision's, timm's
def test_a_network_by_its_name(name: str) -> None:
    assert make_model(name)(torch.zeros(2, 3, 224, 224)).shape == (2, 1000)


def test_one_that_neither_knows() -> None:
    with pytest.raises(ConfigError, match=r"no network is called 'resnet5' \(did you mean resnet50\?\)"):
        make_model("resnet5")


def test_its_training_is_measured(shards: list[Path]) -> None:
    result = bench(shards, 4, None, preset="imagenet_eval", seconds=0.2, train="squeezenet1_1")
    training = result.devices[0].training
    assert training is not None
    assert training.model == "squeezenet1_1"
