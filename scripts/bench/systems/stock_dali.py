"""DALI as its documentation shows it: its WebDataset reader with index files, and the iterator for torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

from systems.common import MEAN, RESIZE, SIZE, STD, Images, Loader, Task, main
from systems.tars import members


def make(task: Task) -> Loader:
    """The reader shuffles in a buffer; on the CPU one more thread than cores does not help."""
    prefetch = task.prefetch or 2
    pipeline = _graph(
        task,
        index_files(task.shards, task.work),
        batch_size=task.batch,
        num_threads=task.threads,
        device_id=None if task.device == "cpu" else 0,
        prefetch_queue_depth=prefetch,
        seed=0,
    )
    iterator = DALIGenericIterator(
        pipeline,
        ["images"],
        reader_name="reader",
        last_batch_policy=LastBatchPolicy.PARTIAL,
        auto_reset=True,
    )

    def epoch(number: int) -> Iterator[Images]:
        for [output] in iterator:
            yield output["images"]

    settings = {"num_threads": task.threads, "prefetch_queue_depth": prefetch, "initial_fill": 1024}
    return Loader(epoch, settings, ("nvidia-dali-cuda120", "nvidia-dali-cuda130", "torch"))


@pipeline_def  # type: ignore[untyped-decorator]
def _graph(task: Task, indexes: Sequence[Path]) -> Any:  # noqa: ANN401
    encoded = fn.readers.webdataset(
        paths=[str(shard) for shard in task.shards],
        index_paths=[str(index) for index in indexes],
        ext=["jpg;jpeg"],
        random_shuffle=task.train,
        initial_fill=1024,
        name="reader",
    )
    decoder = "cpu" if task.device == "cpu" else "mixed"
    common: dict[str, Any] = {"device": decoder, "output_type": types.RGB, "adjust_orientation": False}
    resizing: dict[str, Any] = {"interp_type": types.INTERP_LINEAR, "antialias": task.antialias}
    mirror: Any = 0
    cropping: dict[str, Any] = {"random_area": [0.08, 1.0], "random_aspect_ratio": [3 / 4, 4 / 3], "num_attempts": 10}
    if task.train:
        if task.decodes_regions:
            images = fn.decoders.image_random_crop(encoded, **cropping, **common)
            images = fn.resize(images, size=[SIZE, SIZE], **resizing)
        else:
            images = fn.decoders.image(encoded, **common)
            images = fn.random_resized_crop(images, size=[SIZE, SIZE], **cropping, **resizing)
        mirror = fn.random.coin_flip()
    else:
        images = fn.decoders.image(encoded, **common)
        images = fn.resize(images, resize_shorter=RESIZE, **resizing)
    return fn.crop_mirror_normalize(
        images,
        crop=(SIZE, SIZE),
        mirror=mirror,
        mean=[255 * value for value in MEAN],
        std=[255 * value for value in STD],
        dtype=types.FLOAT,
        output_layout="CHW",
    )


def index_files(shards: Sequence[Path], work: Path) -> list[Path]:
    """What DALI's `wds2idx` writes: for each sample a line of (extension, offset, bytes, name) of its components."""
    work.mkdir(parents=True, exist_ok=True)
    return [_index_file(shard, work / f"{number:06d}-{shard.name}.idx") for number, shard in enumerate(shards)]


def _index_file(shard: Path, index: Path) -> Path:
    samples: dict[str, list[str]] = {}
    for member in members(shard):
        folder, _, name = member.name.rpartition("/")
        key, _, extension = name.partition(".")
        line = f"{extension} {member.offset} {member.size_bytes} {member.name}"
        samples.setdefault(f"{folder}/{key}", []).append(line)
    part = index.with_suffix(f".{os.getpid()}")
    part.write_text("\n".join([f"v1.2 {len(samples)}", *(" ".join(lines) for lines in samples.values()), ""]))
    return part.rename(index)


if __name__ == "__main__":
    main(make, ("", "regions"))
