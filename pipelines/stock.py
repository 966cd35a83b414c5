"""A pipeline as DALI's documentation shows it, with which users compare: nothing of this library is in it.

DALI reads the shards itself, as its reader is a part of what is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.data_node import DataNode
from nvidia.dali.pipeline import Pipeline
from nvidia.dali.plugin.pytorch import DALIGenericIterator

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def stock_batches(
    shards: Sequence[Path], indexes: Sequence[Path], batch_size: int, num_threads: int, device_id: int | None
) -> Iterator[torch.Tensor]:
    """Batches for training on ImageNet, (B, 3, 224, 224) float32, without end.

    Args:
        shards: tars of images named KEY.jpg.
        indexes: for each of them, the file that DALI's `wds2idx` writes.
        batch_size, num_threads: as for any pipeline.
        device_id: a GPU, or None for the CPU.
    """
    pipeline = _graph(shards, indexes, batch_size=batch_size, num_threads=num_threads, device_id=device_id)
    for [output] in DALIGenericIterator(pipeline, ["images"]):
        yield output["images"]


@pipeline_def  # type: ignore[untyped-decorator]
def _graph(shards: Sequence[Path], indexes: Sequence[Path]) -> DataNode:
    encoded = fn.readers.webdataset(
        paths=list(map(str, shards)), index_paths=list(map(str, indexes)), ext=["jpg"], random_shuffle=True
    )
    device = "cpu" if Pipeline.current().device_id is None else "mixed"
    images = fn.decoders.image_random_crop(
        encoded, device=device, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
    )
    return fn.crop_mirror_normalize(
        fn.resize(images, size=[224, 224]),
        mirror=fn.random.coin_flip(),
        mean=[255 * value for value in _MEAN],
        std=[255 * value for value in _STD],
        dtype=types.FLOAT,
        output_layout="CHW",
    )
