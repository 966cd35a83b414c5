"""LanceDB's StreamingDataset on a table of the encoded images, with the transforms of `systems.torchvision_`.

Its threads read and transform in the process of the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import lancedb
import pyarrow as pa
import torch
from lancedb.streaming import StreamingDataLoader, StreamingDataset

from systems import tars
from systems.common import Images, Loader, Task, main, normalise
from systems.torchvision_ import Pictures

_READ = 64


class _Transform:
    """What it calls with some rows of the table; the images of these, uint8."""

    def __init__(self, task: Task) -> None:
        self._transform = Pictures(task).transform

    def __call__(self, rows: pa.RecordBatch) -> list[torch.Tensor]:
        return [self._transform(encoded) for encoded in rows.column("jpg").to_pylist()]


def make(task: Task) -> Loader:
    """A dataset for each epoch, as its order belongs to it; with one split, so that no row is left out."""
    torch.set_num_threads(1)
    prefetch, task = task.prefetch or 2, replace(task, variant="simplejpeg")
    table, transform = _table(task), _Transform(task)

    def epoch(number: int) -> Iterator[Images]:
        images = StreamingDataset(
            table,
            num_splits=1,
            shuffle=task.train,
            epoch=number,
            read_batch_size=_READ,
            columns=["jpg"],
            transform=transform,
            transform_parallelism=task.threads,
            transform_queue_depth=prefetch * task.threads,
        )
        for batch in StreamingDataLoader(images, batch_size=task.batch):
            yield normalise(batch, task.device)

    settings = {
        "transform_parallelism": task.threads,
        "transform_queue_depth": prefetch * task.threads,
        "read_batch_size": _READ,
        "decoder": "simplejpeg",
    }
    return Loader(epoch, settings, ("lancedb", "pyarrow", "torch", "torchvision", "simplejpeg"))


def _table(task: Task) -> lancedb.Table:
    database = lancedb.connect(tars.made_of(task.shards, task.work, ".lance"))
    if "images" not in database.list_tables().tables:
        images = tars.Images(task.shards)
        encoded = pa.array([images[number] for number in range(len(images))], pa.large_binary())
        database.create_table("images", pa.table({"jpg": encoded}))
    return database.open_table("images")


if __name__ == "__main__":
    main(make)
