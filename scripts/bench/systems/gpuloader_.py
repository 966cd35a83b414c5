"""This library, through its public interface."""

from __future__ import annotations

from collections.abc import Iterator

from gpuloader import GPULoader
from systems.common import Images, Loader, Task, main


def make(task: Task) -> Loader:
    """Everything as a user has it by default, but for the last batch, which is handed out too."""
    prefetch = task.prefetch or 2
    preset = task.recipe if task.recipe == "resnet50_v2" else f"imagenet_{task.recipe}"
    resizing = "RandomResizedCrop" if task.train else "Resize"
    loader = GPULoader(
        [str(shard) for shard in task.shards],
        task.batch,
        None if task.device == "cpu" else "auto",
        preset=preset,
        preset_overrides={resizing: {"antialias": task.antialias}},
        last_batch="pad" if task.recipe == "resnet50_v2" else "partial",  # what mixes takes no batch that is short
        num_threads=task.threads,
        prefetch=prefetch,
    )

    def epoch(number: int) -> Iterator[Images]:
        loader.set_epoch(number)
        for images, _ in loader:
            yield images

    settings = {"num_threads": task.threads, "prefetch": prefetch}
    return Loader(epoch, settings, ("gpuloader", "nvidia-dali-cuda120", "nvidia-dali-cuda130", "numba", "torch"))


if __name__ == "__main__":
    main(make)
