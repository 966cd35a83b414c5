"""DALI's dynamic mode, whose operators are called one by one from Python, as its documentation shows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import nvidia.dali.experimental.dynamic as ndd
from nvidia.dali import types

from systems import tars
from systems.common import MEAN, RESIZE, SIZE, STD, Images, Loader, Task, main
from systems.stock_dali import index_files


def make(task: Task) -> Loader:
    """The reader shuffles in a buffer, as that of `systems.stock_dali`."""
    ndd.set_num_threads(task.threads)
    device = "cpu" if task.device == "cpu" else "gpu"
    reader = ndd.readers.Webdataset(
        paths=[str(shard) for shard in task.shards],
        index_paths=[str(index) for index in index_files(task.shards, task.work)],
        ext=["jpg;jpeg"],
        random_shuffle=task.train,
        initial_fill=1024,
    )
    count = len(tars.Images(task.shards))
    common: dict[str, Any] = {"device": device, "output_type": types.RGB, "adjust_orientation": False}
    resizing: dict[str, Any] = {"interp_type": types.INTERP_LINEAR, "antialias": task.antialias}

    cropping: dict[str, Any] = {"random_area": [0.08, 1.0], "random_aspect_ratio": [3 / 4, 4 / 3], "num_attempts": 10}

    def epoch(number: int) -> Iterator[Images]:
        left = count
        for (encoded,) in reader.next_epoch(batch_size=task.batch):
            mirror: Any = 0
            if task.train:
                if task.decodes_regions:
                    images = ndd.decoders.image_random_crop(encoded, **cropping, **common)
                    images = ndd.resize(images, size=[SIZE, SIZE], **resizing)
                else:
                    images = ndd.decoders.image(encoded, **common)
                    images = ndd.random_resized_crop(images, size=[SIZE, SIZE], **cropping, **resizing)
                mirror = ndd.random.coin_flip(batch_size=encoded.batch_size)
            else:
                images = ndd.decoders.image(encoded, **common)
                images = ndd.resize(images, resize_shorter=RESIZE, **resizing)
            batch = ndd.crop_mirror_normalize(
                images,
                crop=(SIZE, SIZE),
                mirror=mirror,
                mean=[255 * value for value in MEAN],
                std=[255 * value for value in STD],
                dtype=types.FLOAT,
                output_layout="CHW",
            ).torch()
            yield batch[:left]  # its last batch begins the next epoch
            left -= len(batch)

    settings = {"num_threads": task.threads, "initial_fill": 1024}
    return Loader(epoch, settings, ("nvidia-dali-cuda120", "nvidia-dali-cuda130", "torch"))


if __name__ == "__main__":
    main(make)
