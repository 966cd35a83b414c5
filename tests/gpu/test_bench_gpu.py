"""`bench` on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuloader.tools.bench import bench


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("preset", ["imagenet_train", "imagenet_randaugment", "dino"])
def test_the_cpu_and_the_gpu_are_measured(shards: list[Path], preset: str) -> None:
    cpu, gpu = bench(shards, 8, 0, preset=preset, seconds=1).devices
    assert (cpu.device, gpu.device) == ("cpu", "cuda:0")
    assert [figures.stage for figures in gpu.stages] == ["read", "gate", "decode", "resize", "pixels", "loader"]
    assert "CPU time" not in gpu.limit
