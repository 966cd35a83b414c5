"""FFCV, with the images in its own file format as JPEGs of quality 90, decoded as they are read.

Its writer encodes again, and its resizing is OpenCV's area filter, which antialiases.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.rgb_image import CenterCropRGBImageDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader as FfcvLoader
from ffcv.loader import OrderOption
from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToDevice, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image

from systems import tars
from systems.common import MEAN, RESIZE, SIZE, STD, Images, Loader, Task, main


def make(task: Task) -> Loader:
    """Its threads decode into pages of batches that it made beforehand."""
    prefetch = task.prefetch or 2
    size = (SIZE, SIZE)
    if task.train:
        decoding = [RandomResizedCropRGBImageDecoder(size), RandomHorizontalFlip()]
    else:
        decoding = [CenterCropRGBImageDecoder(size, ratio=SIZE / RESIZE)]
    mean, std = (255 * np.array(values) for values in (MEAN, STD))
    normalising = [NormalizeImage(mean, std, np.float32)]
    moving = [ToTensor(), ToDevice(torch.device(task.device), non_blocking=True), ToTorchImage()]
    # Its normalisation is a kernel of its own on each device: before the move on the CPU, behind it on a GPU.
    steps = normalising + moving if task.device == "cpu" else moving + normalising
    loader = FfcvLoader(
        str(_beton(task)),
        batch_size=task.batch,
        num_workers=task.threads,
        order=OrderOption.RANDOM if task.train else OrderOption.SEQUENTIAL,
        drop_last=False,
        batches_ahead=prefetch,
        pipelines={"image": decoding + steps, "label": None},
    )

    def epoch(number: int) -> Iterator[Images]:
        for (images,) in loader:
            yield images

    return Loader(epoch, {"num_workers": task.threads, "batches_ahead": prefetch}, ("ffcv", "torch", "numpy"))


class _Pictures:
    """What its writer takes: a Pillow image and a label for each sample."""

    def __init__(self, images: tars.Images) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, number: int) -> tuple[Image.Image, int]:
        return Image.open(io.BytesIO(self._images[number])).convert("RGB"), 0


def _beton(task: Task) -> Path:
    path = tars.made_of(task.shards, task.work, ".beton")
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}")
        fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=90), "label": IntField()}
        DatasetWriter(str(part), fields, num_workers=task.threads).from_indexed_dataset(
            _Pictures(tars.Images(task.shards))
        )
        part.rename(path)
    return path


if __name__ == "__main__":
    main(make)
