"""Trains one step with the gpuloader that is installed in this environment, on shards that it makes, on the CPU."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

import gpuloader
from gpuloader.demo.pictures import CLASSES, write_shards

where = Path(gpuloader.__file__)
if not where.is_relative_to(sys.prefix):
    raise SystemExit(f"{where} is not within {sys.prefix}: gpuloader is not installed there")
with tempfile.TemporaryDirectory() as folder:
    shards = write_shards(Path(folder), "train", 8, 0, 8, lambda _: None)
    with gpuloader.GPULoader(shards, 8, None, preset="imagenet_randaugment") as loader:
        [(images, labels)] = loader
net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(len(CLASSES)))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
loss = torch.nn.functional.cross_entropy(net(images), labels)
loss.backward()
optimizer.step()
print(f"gpuloader {gpuloader.__version__}: a step on {tuple(images.shape)}, loss {loss.item():.2f}")
