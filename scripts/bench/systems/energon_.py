"""Megatron Energon on a tar of the images, with the decoder and the transforms of `systems.torchvision_`.

It takes no key twice, so the images are in one tar, which it indexes. Its workers share that out, shuffle in a buffer,
and collate; each ends an epoch with a short batch of its own. To restore each sample's seeds for drawing,
`stateless(restore_seeds=True)`, costs more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from megatron.energon import (
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    Sample,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from megatron.energon.flavors.webdataset import BaseWebdatasetFactory

from systems import tars
from systems.common import Images, Loader, Task, main, normalise
from systems.torchvision_ import Pictures

_BUFFER = 100
_DATASET = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"


@edataclass
class _Picture(Sample):
    image: torch.Tensor


class _Encoder(DefaultTaskEncoder):
    decoder = None

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._pictures = Pictures(task)
        self.cookers = [Cooker(self.cook)]

    @stateless
    def cook(self, sample: CrudeSample) -> _Picture:
        """An image of encoded bytes."""
        return _Picture(**basic_sample_keys(sample), image=self._pictures.transform(sample["jpg"]))

    def encode_sample(self, sample: _Picture) -> _Picture:
        return sample

    def batch(self, samples: Sequence[_Picture]) -> torch.Tensor:
        return torch.stack([sample.image for sample in samples])


def make(task: Task) -> Loader:
    """One worker process to a core, kept over the epochs."""
    prefetch, task = task.prefetch or 2, replace(task, variant="simplejpeg")
    workers = WorkerConfig(rank=0, world_size=1, num_workers=task.threads)
    common: dict[str, Any] = {"worker_config": workers, "batch_size": task.batch, "task_encoder": _Encoder(task)}
    if task.train:
        shuffling = {"shuffle_buffer_size": _BUFFER, "max_samples_per_sequence": _BUFFER}
        images = get_train_dataset(_indexed(task), repeat=False, **shuffling, **common)
    else:
        images = get_val_dataset(_indexed(task), split_part="train", **common)
    loader = get_loader(images, prefetch_factor=prefetch)

    def epoch(number: int) -> Iterator[Images]:
        for batch in loader:
            yield normalise(batch, task.device)

    settings = {
        "num_workers": task.threads,
        "prefetch_factor": prefetch,
        "shuffle_buffer_size": _BUFFER,
        "decoder": "simplejpeg",
    }
    return Loader(epoch, settings, ("megatron-energon", "torch", "torchvision", "simplejpeg"))


def _indexed(task: Task) -> Path:
    """A folder with a link to one tar of the images, and the index of it; in the shards keys may come again."""
    path = tars.made_of(task.shards, task.work, ".energon")
    if not path.exists():
        tar, part = tars.one_tar(task.shards, task.work).resolve(), path.with_suffix(f".{os.getpid()}")
        part.mkdir()
        (part / "images.tar").symlink_to(tar)
        BaseWebdatasetFactory.prepare_dataset(part, ["images.tar"], split_parts_ratio=[("train", 1.0)], workers=1)
        (part / ".nv-meta/dataset.yaml").write_text(_DATASET)
        part.rename(path)
    return path


if __name__ == "__main__":
    main(make)
