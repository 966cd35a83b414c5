"""LitData's StreamingDataset on its own chunks of the encoded images, with the transforms of `systems.torchvision_`.

`optimize` writes the JPEGs as they are; its loader's worker processes read the chunks, decode and transform.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from litdata import StreamingDataLoader, StreamingDataset, optimize

from systems import tars
from systems.common import Images, Loader, Task, main, normalise
from systems.torchvision_ import Pictures

_CHUNK = "64MB"


class _Chunks(StreamingDataset):  # type: ignore[misc]
    def __init__(self, folder: Path, task: Task) -> None:
        super().__init__(str(folder), shuffle=task.train, drop_last=False)
        self._pictures = Pictures(task)

    def __getitem__(self, index: Any) -> torch.Tensor:  # noqa: ANN401
        return self._pictures.transform(super().__getitem__(index))


def make(task: Task) -> Loader:
    """One worker process to a core, kept over the epochs."""
    prefetch, task = task.prefetch or 2, replace(task, variant="simplejpeg")
    folder = tars.made_of(task.shards, task.work, ".litdata")
    if not (folder / "index.json").exists():
        images = tars.Images(task.shards)
        numbers = list(range(len(images)))
        optimize(images.__getitem__, numbers, str(folder), chunk_bytes=_CHUNK, num_workers=1, mode="overwrite")
    loader = StreamingDataLoader(
        _Chunks(folder, task),
        batch_size=task.batch,
        num_workers=task.threads,
        prefetch_factor=prefetch,
        persistent_workers=True,
        pin_memory=task.device == "cuda",
    )

    def epoch(number: int) -> Iterator[Images]:
        for images in loader:
            yield normalise(images, task.device)

    settings = {
        "num_workers": task.threads,
        "prefetch_factor": prefetch,
        "chunk_bytes": _CHUNK,
        "decoder": "simplejpeg",
    }
    return Loader(epoch, settings, ("litdata", "torch", "torchvision", "simplejpeg"))


if __name__ == "__main__":
    main(make)
