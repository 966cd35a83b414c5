"""Grain's MapDataset over the shards' images, with the decoder and the transforms of `systems.torchvision_`.

Each of its threads decodes, transforms and collates whole batches. Its worker processes took more CPU time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import grain
import numpy as np
import torch

from systems.common import Images, Loader, Task, main, normalise
from systems.torchvision_ import Pictures


class _Source:
    """What its datasets take: NumPy's arrays by number, which Grain collates."""

    def __init__(self, task: Task) -> None:
        self._pictures = Pictures(task)

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, number: int) -> np.ndarray:
        return self._pictures[number].numpy()


def make(task: Task) -> Loader:
    """Each thread makes a batch; the dataset repeats by whole epochs of batches and its threads are kept."""
    torch.set_num_threads(1)
    prefetch, task = task.prefetch or 2, replace(task, variant="simplejpeg")
    images = grain.MapDataset.source(_Source(task)).seed(0)
    batches = (images.shuffle() if task.train else images).batch(task.batch)
    options = grain.ReadOptions(num_threads=task.threads, prefetch_buffer_size=prefetch * task.threads)
    loader = iter(batches.repeat().to_iter_dataset(options))

    def epoch(number: int) -> Iterator[Images]:
        for images in itertools.islice(loader, len(batches)):
            yield normalise(torch.from_numpy(images), task.device)

    settings = {
        "num_threads": options.num_threads,
        "prefetch_buffer_size": options.prefetch_buffer_size,
        "decoder": "simplejpeg",
    }
    return Loader(epoch, settings, ("grain", "torch", "torchvision", "simplejpeg"))


if __name__ == "__main__":
    main(make)
