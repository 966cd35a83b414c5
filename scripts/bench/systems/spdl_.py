"""SPDL's pipeline of threads, around the decoder and the transforms of `systems.torchvision_`'s variant `simplejpeg`.

SPDL's own decoder is FFmpeg's, from a library of the system. It took 1.5 ms of CPU time for an image of 500 x 375, its
filters for the crop included, where libjpeg-turbo took 0.6 ms; so this system uses the faster one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import torch
from spdl.pipeline import PipelineBuilder

from systems.common import Images, Loader, Task, main, normalise
from systems.torchvision_ import Pictures

_STEP = 16


def make(task: Task) -> Loader:
    """One thread more than cores, and several images to a step: threads that swap less often wait less for Python."""
    torch.set_num_threads(1)
    prefetch, threads = task.prefetch or 2, task.threads + 1
    pictures = Pictures(replace(task, variant="simplejpeg"))

    def decode(numbers: list[int]) -> list[torch.Tensor]:
        return [pictures[number] for number in numbers]

    def batch(images: list[torch.Tensor]) -> torch.Tensor:
        return normalise(torch.stack(images), "cpu")

    def epoch(number: int) -> Iterator[Images]:
        order = list(range(len(pictures)))
        if task.train:
            random.Random(number).shuffle(order)
        pipeline = (
            PipelineBuilder()
            .add_source(order)
            .aggregate(_STEP)
            .pipe(decode, concurrency=threads)
            .disaggregate()
            .aggregate(task.batch)
            .pipe(batch)
            .add_sink(prefetch)
            .build(num_threads=threads + 1)
        )
        with pipeline.auto_stop():
            for images in pipeline:
                yield images.to(task.device)

    settings = {"concurrency": threads, "images to a step": _STEP, "sink": prefetch, "decoder": "simplejpeg"}
    return Loader(epoch, settings, ("spdl", "torch", "torchvision", "simplejpeg"))


if __name__ == "__main__":
    main(make)
