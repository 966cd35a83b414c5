"""Loaders on the CPU of small images, and what tests of them compare."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from making import SIZES, jpeg, write_shard

from gpuloader import GPULoader

SMALL = {"RandomResizedCrop": {"size": 32}}
SAMPLES = 40
CUT = jpeg(64, 64)[:-30]


def loader(tar: Any, batch_size: int = 8, **kwargs: Any) -> GPULoader:  # noqa: ANN401
    return GPULoader(tar, batch_size, None, **{"preset": {"imagenet_train": SMALL}, **kwargs})


def evaluation(tar: Any, batch_size: int = 8, **kwargs: Any) -> GPULoader:  # noqa: ANN401
    overrides = {"CenterCrop": {"size": 32}, "Resize": {"size": 36}}
    return loader(tar, batch_size, preset={"imagenet_eval": overrides}, **kwargs)


def indices(batches: Iterable[Any]) -> list[list[int]]:
    return [batch["index"].tolist() for batch in batches]


def spoilt(folder: Path, bad: dict[int, bytes], count: int = SAMPLES) -> Path:
    """A shard in which some images are other bytes."""
    images = [bad.get(i, jpeg(*SIZES[i % len(SIZES)], seed=i)) for i in range(count)]
    samples = [{"__key__": f"{i:06d}", "jpg": image, "cls": b"%d" % (i % 10)} for i, image in enumerate(images)]
    return write_shard(folder / "spoilt.tar", samples)


class Clock:
    """The time of a loader, in seconds: it passes where a test says so, and only there.

    Attributes:
        delivering_seconds: what delivering a batch takes.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.delivering_seconds = 0.0

    def perf_counter(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds
