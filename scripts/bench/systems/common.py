"""What every system's runner shares: arguments, the recipe's numbers, and the loop that measures epochs.

A runner gives `main` a function that makes its loader: a `Task` to a `Loader`. The loop is the same for all of them,
and so is what it does with a batch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import numpy as np
from processes import peak_rss_bytes, seconds_since_start, tree_cpu_seconds

RECIPES = ("train", "eval", "resnet50_v2", "randaugment", "decoded-train", "decoded-serve", "detect", "segment")
SIZE = 224
RESIZE = 256
DETECT_SIZE = (300, 300)
SEGMENT_SIZES = (260, 1040)  # for the shorter side
SEGMENT_CROP = 480
SEGMENT_FILL = 255
ZOOM_OUT_FILL = (123, 117, 104)
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

Images: TypeAlias = Any
"""A batch of images, samples first: an array or a tensor, on whichever device; or a list of arrays of bytes."""


@dataclass(frozen=True)
class Task:
    """What a system is asked to do.

    Attributes:
        shards: WebDataset tars of `key.jpg`, `key.cls`, of which one may be named several times; or one folder of
            `CLASS/NUMBER.jpg`. The recipes `detect` and `segment` read `key.json` and `key.mask.png` beside `key.jpg`.
        recipe: one of `RECIPES`.
        antialias: whether the bilinear resizing filters what it shrinks.
        batch: images in a batch.
        threads: threads or worker processes that decode.
        prefetch: batches made before they are asked for; None for what was found best for the system.
        device: "cpu" or "cuda".
        variant: which of the system's ways.
        work: a folder for what the system has to make of the shards first.
    """

    shards: list[Path]
    recipe: str = "train"
    antialias: bool = False
    batch: int = 128
    threads: int = 1
    prefetch: int | None = None
    device: str = "cpu"
    variant: str = ""
    work: Path = field(default_factory=Path)

    @property
    def train(self) -> bool:
        """Whether the recipe is one for training."""
        return self.recipe not in ("eval", "decoded-serve")

    @property
    def decodes_regions(self) -> bool:
        """Whether only the regions that a recipe needs are decoded: on a GPU that ends some processes."""
        return self.device == "cpu" or self.variant == "regions"

    @property
    def decoded_size(self) -> int | None:
        """The pixels of the shorter side that images are stored with, decoded; None where they are JPEGs."""
        return {"decoded-train": RESIZE, "decoded-serve": SIZE}.get(self.recipe)


@dataclass(frozen=True)
class Loader:
    """A system that is ready.

    Attributes:
        epoch: gives the batches of an epoch, by its number.
        settings: what was chosen for it, for the report.
        packages: distributions whose versions the report names.
    """

    epoch: Callable[[int], Iterable[Images]]
    settings: dict[str, Any]
    packages: tuple[str, ...]


def main(make: Callable[[Task], Loader], variants: tuple[str, ...] = ("",)) -> None:
    """Runs the loader as the command line says: a line of JSON on the loader, then one for each epoch, or the start."""
    imported = {"imports_seconds": seconds_since_start(), "imports_cpu_seconds": time.process_time()}
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", nargs="+", type=Path, required=True)
    parser.add_argument("--recipe", choices=RECIPES, default="train")
    parser.add_argument("--antialias", action="store_true")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--start", action="store_true", help="only the first batch, and when it was there")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prefetch", type=int)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--variant", choices=variants, default=variants[0])
    parser.add_argument("--work", type=Path, default=Path(".bench"), help="a folder for what is made of the shards")
    arguments = vars(parser.parse_args())
    epochs, start = arguments.pop("epochs"), arguments.pop("start")
    task = Task(**arguments)
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some systems print, as do their worker processes: that goes to stderr
    loader = make(task)
    _print(results, {"settings": loader.settings, "versions": versions(loader.packages)})
    if start:
        batches = iter(loader.epoch(0))
        next(batches)
        _print(results, {**imported, "batch_seconds": seconds_since_start(), "batch_cpu_seconds": tree_cpu_seconds()})
        return
    for number in range(epochs):
        _print(results, _measure(loader, number))


def _measure(loader: Loader, number: int) -> dict[str, float]:
    """One epoch: its images, its time, its CPU time; and what the process took until now."""
    images, checksum = 0, 0.0
    cpu, started = tree_cpu_seconds(), time.monotonic()
    for batch in loader.epoch(number):
        images += len(batch[0]) if _has_views(batch) else len(batch)
        checksum += consume(batch)
    ended = time.monotonic()
    return {
        "epoch": number,
        "images": images,
        "started_at_seconds": started,
        "ended_at_seconds": ended,
        "cpu_seconds": tree_cpu_seconds() - cpu,
        "peak_rss_bytes": peak_rss_bytes(),
        "checksum": checksum,
    }


def consume(batch: Images) -> float:
    """The sum of 16 pixels of each image: little work, but it waits for every image to be there."""
    if isinstance(batch, list):  # of views, of images of several sizes, or of encoded images
        return sum(consume(each) if each.ndim > 1 else float(each[::256].sum(dtype=np.int64)) for each in batch)
    values = batch[..., ::56, ::56]
    return float(values.sum() if getattr(values, "is_cuda", False) else np.asarray(values).sum())


def _has_views(batch: Images) -> bool:
    """Whether it is a list with a batch for each view, and not a list of images."""
    return isinstance(batch, list) and batch[0].ndim == 4


def normalise(images: Any, device: str) -> Images:  # noqa: ANN401 - torch's tensor; not every environment has torch
    """Levels (B, 3, h, w), on the device, with the recipes' mean and standard deviation."""
    moved = images.to(device, non_blocking=True).float()
    mean, std = (255 * moved.new_tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return moved.sub_(mean).div_(std)


def versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of the distributions that are installed, and Python's."""
    found = {"python": sys.version.split()[0]}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _print(results: TextIO, line: dict[str, Any]) -> None:
    results.write(json.dumps(line) + "\n")
    results.flush()
