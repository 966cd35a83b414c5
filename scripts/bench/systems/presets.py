"""This library's presets, with torch and DALI imported before: what the library itself adds to the start."""

from __future__ import annotations

import gc

import nvidia.dali.fn
import nvidia.dali.plugin.pytorch  # noqa: F401
import torch  # noqa: F401
from peers import PRESETS

from systems.common import Loader, Task, main


def make(task: Task) -> Loader:
    """The preset that the task's variant names, as it is."""
    from gpuloader import Decoder, GPULoader

    loader = GPULoader(
        [str(shard) for shard in task.shards],
        task.batch,
        None if task.device == "cpu" else "auto",
        preset=task.variant,
        decoder=Decoder(num_threads=task.threads),
    )
    return Loader(lambda number: (images for images, _ in loader), {}, ("gpuloader",))


if __name__ == "__main__":
    gc.collect()  # a full collection goes over all of torch, 0.1 s, and would fall on some rows by chance
    main(make, PRESETS)
