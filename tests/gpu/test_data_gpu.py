"""Batches of torch's loaders on the GPU, and pinned targets."""

from __future__ import annotations

from pathlib import Path

import torch
from making import encoded, picture, write_shard
from PIL import Image

from gpuloader import GPULoader, Mask
from gpuloader.compat import CellMapDataLoader
from gpuloader.loading.loader import run_of
from gpuloader.loading.reader import Reader
from gpuloader.plan import Cursor


def test_cellmaps_loader_pins_and_delivers_on_the_gpu(gpu: int) -> None:
    loader = CellMapDataLoader([{"raw": torch.ones(4)}] * 4, batch_size=2)
    assert loader._pin_memory
    assert {batch["raw"].device.type for batch in loader} == {"cuda"}


def test_large_targets_are_read_into_pinned_memory(gpu: int, tmp_path: Path) -> None:
    parts = {"png": encoded(picture(8, 8), "PNG"), "mask.png": encoded(Image.new("L", (8, 8), 1), "PNG")}
    tar = write_shard(tmp_path / "a.tar", [{"__key__": "0", **parts}])
    options = {"preset": {"transforms": [{"Resize": {"size": [200, 300]}}]}, "label_from": None, "output": "dict"}
    with GPULoader(tar, 1, gpu, **options, fields={"objects": Mask("mask.png", instances=True)}) as loader:
        [read] = Reader(run_of(loader)).open(Cursor()).batch.fields["objects"][""]
        assert read.values.is_pinned()
        [objects] = next(iter(loader))["objects"]
        assert objects.device == torch.device("cuda", gpu)
        assert objects.tolist() == [[[1] * 300] * 200]
