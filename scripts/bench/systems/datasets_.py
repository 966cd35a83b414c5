"""Hugging Face's datasets: an Arrow table of the encoded images, with the transforms of `systems.torchvision_`.

Its writer takes the JPEGs as they are; the workers of torch's DataLoader read the table, decode and transform.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, Features, Value, load_from_disk
from torch.utils.data import DataLoader

from systems import tars
from systems.common import Images, Loader, Task, main, normalise
from systems.torchvision_ import Pictures


def make(task: Task) -> Loader:
    """One worker process to a core, kept over the epochs."""
    prefetch, task = task.prefetch or 2, replace(task, variant="simplejpeg")
    transform = Pictures(task).transform

    def decode(rows: dict[str, list[bytes]]) -> dict[str, list[torch.Tensor]]:
        return {"jpg": [transform(encoded) for encoded in rows["jpg"]]}

    loader: DataLoader[Any] = DataLoader(
        load_from_disk(str(_table(task))).with_transform(decode),
        batch_size=task.batch,
        shuffle=task.train,
        num_workers=task.threads,
        prefetch_factor=prefetch,
        persistent_workers=True,
        pin_memory=task.device == "cuda",
    )

    def epoch(number: int) -> Iterator[Images]:
        for batch in loader:
            yield normalise(batch["jpg"], task.device)

    settings = {"num_workers": task.threads, "prefetch_factor": prefetch, "decoder": "simplejpeg"}
    return Loader(epoch, settings, ("datasets", "pyarrow", "torch", "torchvision", "simplejpeg"))


def _table(task: Task) -> Path:
    path = tars.made_of(task.shards, task.work, ".arrow")
    if not path.exists():
        part, images = path.with_suffix(f".{os.getpid()}"), tars.Images(task.shards)
        encoded = [images[number] for number in range(len(images))]
        Dataset.from_dict({"jpg": encoded}, features=Features({"jpg": Value("large_binary")})).save_to_disk(str(part))
        part.rename(path)
    return path


if __name__ == "__main__":
    main(make)
