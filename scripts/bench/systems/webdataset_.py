"""webdataset's own loader of the shards, with the decoder and the transforms of `systems.torchvision_`.

Its workers share the shards out, shuffle in a buffer, and collate; each ends an epoch with a short batch of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import webdataset

from systems.common import Images, Loader, Task, main, normalise
from systems.torchvision_ import Pictures

_BUFFER = 500


def make(task: Task) -> Loader:
    """One worker process to a core, kept over the epochs."""
    prefetch, task = task.prefetch or 2, replace(task, variant="simplejpeg")
    transform = Pictures(task).transform

    def decode(sample: dict[str, Any]) -> tuple[torch.Tensor]:
        return (transform(sample["jpg"]),)

    shards = [str(shard) for shard in task.shards]
    samples = webdataset.WebDataset(shards, shardshuffle=len(shards) if task.train else False, empty_check=False)
    order = samples.shuffle(_BUFFER) if task.train else samples
    loader = webdataset.WebLoader(
        order.map(decode).batched(task.batch),
        batch_size=None,
        num_workers=task.threads,
        prefetch_factor=prefetch,
        persistent_workers=True,
        pin_memory=task.device == "cuda",
    )

    def epoch(number: int) -> Iterator[Images]:
        for (images,) in loader:
            yield normalise(images, task.device)

    settings = {"num_workers": task.threads, "prefetch_factor": prefetch, "shuffle": _BUFFER, "decoder": "simplejpeg"}
    return Loader(epoch, settings, ("webdataset", "torch", "torchvision", "simplejpeg"))


if __name__ == "__main__":
    main(make)
