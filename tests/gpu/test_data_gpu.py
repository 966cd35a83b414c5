"""Batches that are copied ahead on a stream of their own, collated images, and pinned targets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from making import encoded, picture, write_shard

from gpuloader import GPULoader, Mask
from gpuloader.compat import (
    CellMapDataLoader,
    DeviceLoader,
)
from gpuloader.loading.loader import run_of
from gpuloader.loading.reader import Reader
from gpuloader.plan import Cursor
from gpuloader.shards import Arena

ROWS = 4 << 20  # bytes of a sample: long enough to copy that a mistake shows


@pytest.mark.parametrize("pin_memory", [True, False])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_whole_however_busy_the_gpu_is(gpu: int, pin_memory: bool, num_workers: int) -> None:
    data = [{"raw": torch.full((ROWS,), number, dtype=torch.uint8), "number": number} for number in range(12)]
    loader = DeviceLoader(data, f"cuda:{gpu}", batch_size=2, pin_memory=pin_memory, num_workers=num_workers)
    for _ in range(2):
        sums = []
        for batch in loader:
            assert batch["raw"].device == batch["number"].device == torch.device("cuda", gpu)
            torch.cuda._sleep(20_000_000)  # the step is slower than the copies: none may overwrite what it uses
            sums.append((batch["raw"] == batch["number"][:, None]).all())
            del batch
        assert torch.stack(sums).all()
        assert len(sums) == 6


def test_one_batch_is_copied_ahead(gpu: int) -> None:
    class Data(list):
        def __init__(self, numbers: range) -> None:
            super().__init__(numbers)
            self.asked: list[int] = []

        def __getitem__(self, number: int) -> torch.Tensor:
            self.asked.append(number)
            return torch.tensor(number)

    data = Data(range(4))
    batches = iter(DeviceLoader(data, f"cuda:{gpu}", batch_size=1))
    assert next(batches).item() == 0
    assert data.asked == [0, 1]
    assert [batch.item() for batch in batches] == [1, 2, 3]


def test_cellmaps_loader_pins_and_delivers_on_the_gpu(gpu: int) -> None:
    loader = CellMapDataLoader([{"raw": torch.ones(4)}] * 4, batch_size=2)
    assert loader._pin_memory
    assert {batch["raw"].device.type for batch in loader} == {"cuda"}


def test_large_targets_are_read_into_pinned_memory(gpu: int, tmp_path: Path) -> None:
    outline = {"segmentation": {"size": [8, 8], "counts": [0, 64]}}
    document = json.dumps({"annotations": [outline] * 2}).encode()
    tar = write_shard(tmp_path / "a.tar", [{"__key__": "0", "png": encoded(picture(8, 8), "PNG"), "json": document}])
    options = {"preset": {"transforms": [{"Resize": {"size": [200, 300]}}]}, "label_from": None, "output": "dict"}
    with GPULoader(tar, 1, gpu, **options, fields={"outlines": Mask("json:annotations")}) as loader:
        [read] = Reader(run_of(loader)).read(Cursor(), Arena()).fields["outlines"][""]
        assert read.values.is_pinned()
        [outlines] = next(iter(loader))["outlines"]
        assert outlines.device == torch.device("cuda", gpu)
        assert outlines.tolist() == [[[1] * 300] * 200] * 2
