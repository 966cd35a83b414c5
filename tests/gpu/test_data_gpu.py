"""Batches of torch's loaders on the GPU, and pinned targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from loaders import first_part
from making import encoded, picture, write_shard
from PIL import Image
from scenes import FIELDS, FLIPS, shard, train

from gpuloader import GPULoader, Mask
from gpuloader.compat import CellMapDataLoader
from gpuloader.loading.loader import run_of
from gpuloader.targets import to_detection


def test_cellmaps_loader_pins_and_delivers_on_the_gpu(gpu: int) -> None:
    loader = CellMapDataLoader([{"raw": torch.ones(4)}] * 4, batch_size=2)
    assert loader._pin_memory
    assert {batch["raw"].device.type for batch in loader} == {"cuda"}


def test_large_targets_are_read_into_pinned_memory(gpu: int, tmp_path: Path) -> None:
    parts = {"png": encoded(picture(8, 8), "PNG"), "mask.png": encoded(Image.new("L", (8, 8), 1), "PNG")}
    tar = write_shard(tmp_path / "a.tar", [{"__key__": "0", **parts}])
    options = {"preset": {"transforms": [{"Resize": {"size": [200, 300]}}]}, "label_from": None, "output": "dict"}
    with GPULoader(tar, 1, gpu, **options, fields={"objects": Mask("mask.png", instances=True)}) as loader:
        [read] = first_part(run_of(loader)).step.fields["objects"][""]
        assert read.values.is_pinned()
        [objects] = next(iter(loader))["objects"]
        assert objects.device == torch.device("cuda", gpu)
        assert objects.tolist() == [[[1] * 300] * 200]


def test_detection_waits_for_nothing_on_the_gpu(gpu: int, tmp_path: Path) -> None:
    preset = train({"Resize": {"size": 40}}, *FLIPS) | {"batch": {"pad": 32}}
    options: dict[str, Any] = {"preset": preset, "fields": FIELDS, "label_from": None, "output": "dict", "seed": 3}
    detection: dict[str, Any] = {"crowds": False, "label_ids": [1, 7, 18], "masks": "objects", "points": "points"}
    tar = shard(tmp_path)
    with GPULoader(tar, 4, gpu, **options) as on_gpu, GPULoader(tar, 4, "cpu", **options) as on_cpu:
        for batch, same in zip(on_gpu, on_cpu, strict=True):
            mode = torch.cuda.get_sync_debug_mode()
            torch.cuda.set_sync_debug_mode("error")
            try:
                _, targets = to_detection(batch, **detection)
            finally:
                torch.cuda.set_sync_debug_mode(mode)
            for ours, theirs in zip(targets, to_detection(same, **detection)[1], strict=True):
                for name in ("boxes", "labels", "iscrowd", "image_id", "masks", "keypoints"):
                    assert torch.equal(ours[name].cpu(), theirs[name])
