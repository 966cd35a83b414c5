"""This library, through its public interface."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers import TARGETS

from gpuloader import Boxes, Compose, Decoder, GPULoader, Mask, transforms
from gpuloader.pack import pack
from systems.common import (
    DETECT_SIZE,
    MEAN,
    SEGMENT_CROP,
    SEGMENT_FILL,
    SEGMENT_SIZES,
    SIZE,
    STD,
    ZOOM_OUT_FILL,
    Images,
    Loader,
    Task,
    main,
)
from systems.tars import one_tar

_PRESETS = {"resnet50_v2": "resnet50_v2", "decoded-train": "imagenet_train", "decoded-serve": "imagenet_eval"}


def make(task: Task) -> Loader:
    """Everything as a user has it by default, but for the last batch, which is delivered too."""
    prefetch = task.prefetch or 2
    loader = GPULoader(
        [str(shard) for shard in (task.shards if task.decoded_size is None else _decoded(task, task.decoded_size))],
        task.batch,
        None if task.device == "cpu" else "auto",
        last_batch="pad" if task.recipe == "resnet50_v2" else "partial",  # what mixes takes no batch that is short
        decoder=Decoder(num_threads=task.threads, prefetch=prefetch),
        **(_with_targets(task) if task.recipe in TARGETS else _of_images(task)),
    )

    def epoch(number: int) -> Iterator[Images]:
        loader.set_epoch(number)
        for batch in loader:
            yield batch["image"] if task.recipe in TARGETS else batch[0]

    settings = {"num_threads": task.threads, "prefetch": prefetch}
    return Loader(epoch, settings, ("gpuloader", "nvidia-dali-cuda120", "nvidia-dali-cuda130", "torch"))


def _of_images(task: Task) -> dict[str, Any]:
    """The options for images with labels."""
    preset = _PRESETS.get(task.recipe, f"imagenet_{task.recipe}")
    resizing: dict[str, Any] = {"antialias": task.antialias}
    if task.recipe == "decoded-serve":
        resizing["size"] = SIZE
    smaller: dict[str, Any] = {}
    if task.variant == "oversampling":  # which no recipe has without antialiasing
        smaller, resizing["antialias"] = {"oversampling": 1.5}, True
    return {
        "preset": {preset: {"RandomResizedCrop" if task.train else "Resize": resizing, **smaller}},
        "label_from": "default" if task.decoded_size is None else None,
    }


def _with_targets(task: Task) -> dict[str, Any]:
    """The options for images with boxes or masks."""
    if task.recipe == "detect":
        steps = [
            transforms.RandomZoomOut(ZOOM_OUT_FILL),
            transforms.RandomIoUCrop(),
            transforms.RandomHorizontalFlip(),
            transforms.Resize(DETECT_SIZE),
            transforms.SanitizeBoundingBoxes(),
        ]
        fields = {"boxes": Boxes("json:annotations", "xywh", labels="category_id")}
    else:
        steps = [
            transforms.RandomResize(*SEGMENT_SIZES),
            transforms.RandomHorizontalFlip(),
            transforms.RandomCrop(SEGMENT_CROP),
        ]
        fields = {"mask": Mask("mask.png", fill=SEGMENT_FILL)}
    recipe = Compose([*steps, transforms.Normalize(MEAN, STD)])
    return {"preset": recipe, "fields": fields, "label_from": None, "output": "dict"}


def _decoded(task: Task, size: int) -> list[Path]:
    """The images in the shards, decoded and resized once."""
    tar = one_tar(task.shards, task.work, size)
    folder = tar.with_suffix("")
    pack(tar, folder, decoded=size, shuffle=False)  # goes on where it was, or finds nothing left to do
    return sorted(folder.glob("*.tar"))


if __name__ == "__main__":
    main(make, ("", "oversampling"))
