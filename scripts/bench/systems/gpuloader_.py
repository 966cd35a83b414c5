"""This library, through its public interface."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuloader import Decoder, GPULoader
from gpuloader.pack import pack
from systems.common import SIZE, Images, Loader, Task, main
from systems.tars import one_tar

_PRESETS = {"resnet50_v2": "resnet50_v2", "decoded-train": "imagenet_train", "decoded-serve": "imagenet_eval"}


def make(task: Task) -> Loader:
    """Everything as a user has it by default, but for the last batch, which is delivered too."""
    prefetch = task.prefetch or 2
    preset = _PRESETS.get(task.recipe, f"imagenet_{task.recipe}")
    resizing: dict[str, Any] = {"antialias": task.antialias}
    if task.recipe == "decoded-serve":
        resizing["size"] = SIZE
    loader = GPULoader(
        [str(shard) for shard in (task.shards if task.decoded_size is None else _decoded(task, task.decoded_size))],
        task.batch,
        None if task.device == "cpu" else "auto",
        preset={preset: {"RandomResizedCrop" if task.train else "Resize": resizing}},
        last_batch="pad" if task.recipe == "resnet50_v2" else "partial",  # what mixes takes no batch that is short
        decoder=Decoder(num_threads=task.threads, prefetch=prefetch),
        label_from="default" if task.decoded_size is None else None,
    )

    def epoch(number: int) -> Iterator[Images]:
        loader.set_epoch(number)
        for images, _ in loader:
            yield images

    settings = {"num_threads": task.threads, "prefetch": prefetch}
    return Loader(epoch, settings, ("gpuloader", "nvidia-dali-cuda120", "nvidia-dali-cuda130", "torch"))


def _decoded(task: Task, size: int) -> list[Path]:
    """The images in the shards, decoded and resized once."""
    tar = one_tar(task.shards, task.work, size)
    folder = tar.with_suffix("")
    pack(tar, folder, decoded=size, shuffle=False)  # goes on where it was, or finds nothing left to do
    return sorted(folder.glob("*.tar"))


if __name__ == "__main__":
    main(make)
