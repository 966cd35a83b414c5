"""MosaicML's StreamingDataset on its own shards (MDS) of the encoded images, with `systems.torchvision_`'s transforms.

Its writer takes the JPEGs as they are; the workers of torch's DataLoader read the shards, decode and transform.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from systems import tars
from systems.common import Images, Loader, Task, main, normalise
from systems.torchvision_ import Pictures

from streaming import MDSWriter, StreamingDataset  # isort: skip - it imports torchvision, which the line above repairs


class _Shards(StreamingDataset):  # type: ignore[misc]
    def __init__(self, folder: Path, task: Task) -> None:
        super().__init__(local=str(folder), shuffle=task.train, batch_size=task.batch)
        self._pictures = Pictures(task)

    def __getitem__(self, number: int) -> torch.Tensor:
        return self._pictures.transform(super().__getitem__(number)["jpg"])


def make(task: Task) -> Loader:
    """One worker process to a core, kept over the epochs."""
    prefetch, task = task.prefetch or 2, replace(task, variant="simplejpeg")
    folder = tars.made_of(task.shards, task.work, ".mds")
    if not (folder / "index.json").exists():
        images = tars.Images(task.shards)
        with MDSWriter(out=str(folder), columns={"jpg": "bytes"}, exist_ok=True) as writer:
            for number in range(len(images)):
                writer.write({"jpg": images[number]})
    loader = DataLoader(
        _Shards(folder, task),
        batch_size=task.batch,
        num_workers=task.threads,
        prefetch_factor=prefetch,
        persistent_workers=True,
        pin_memory=task.device == "cuda",
    )

    def epoch(number: int) -> Iterator[Images]:
        for images in loader:
            yield normalise(images, task.device)

    settings = {"num_workers": task.threads, "prefetch_factor": prefetch, "decoder": "simplejpeg"}
    return Loader(epoch, settings, ("mosaicml-streaming", "torch", "torchvision", "simplejpeg"))


if __name__ == "__main__":
    main(make)
