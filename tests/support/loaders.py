"""Loaders on the CPU of small images, and what tests of them compare."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from making import SIZES, jpeg, write_shard

from gpuloader import GPULoader
from gpuloader.chain.batch import Batch
from gpuloader.chain.link import cut
from gpuloader.loading.loader_chain import make_chain
from gpuloader.loading.opening import Prepare
from gpuloader.loading.run import Run
from gpuloader.plan import Cursor

SMALL = {"RandomResizedCrop": {"size": 32}}
SAMPLES = 40
CUT = jpeg(64, 64)[:-30]


def loader(tar: Any, batch_size: int = 8, **kwargs: Any) -> GPULoader:  # noqa: ANN401
    return GPULoader(tar, batch_size, None, **{"preset": {"imagenet_train": SMALL}, **kwargs})


def evaluation(tar: Any, batch_size: int = 8, **kwargs: Any) -> GPULoader:  # noqa: ANN401
    overrides = {"CenterCrop": {"size": 32}, "Resize": {"size": 36}}
    return loader(tar, batch_size, preset={"imagenet_eval": overrides}, **kwargs)


def first_part(run: Run, suspects: set[int] | None = None) -> Batch:
    """The first part of a run that is read, before it is decoded."""
    link = cut(make_chain(run, suspects or set()).end, Prepare)
    assert link is not None
    link.seek(Cursor())
    part = link.next()
    assert part is not None
    return part


def indices(batches: Iterable[Any]) -> list[list[int]]:
    return [batch["index"].tolist() for batch in batches]


def seen(batches: Iterable[Any]) -> list[list[list[int]]]:
    """Each batch's samples without padding: their numbers, and sums over the bytes of their pixels."""
    return [
        [
            [index, zlib.crc32(image.numpy().tobytes())]
            for index, image, valid in zip(batch["index"].tolist(), batch["image"], batch["valid"])
            if valid
        ]
        for batch in batches
    ]


def assert_equal(ours: Any, theirs: Any) -> None:  # noqa: ANN401
    """Checks values of batches, of any kind and nested."""
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert list(ours) == list(theirs)
        for name in ours:
            assert_equal(ours[name], theirs[name])
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs)
        for each, other in zip(ours, theirs, strict=True):
            assert_equal(each, other)
    elif isinstance(ours, torch.Tensor):
        assert torch.equal(ours, theirs)
    else:
        assert np.all(ours == theirs)


def small_net() -> torch.nn.Module:
    """The same at each call."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.AvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(48, 10))


def train(net: torch.nn.Module, batches: Iterable[Any], steps: int = 2) -> None:
    """Takes some steps; torch.optim would take seconds to import."""
    for _, (images, labels) in zip(range(steps), batches):
        torch.nn.functional.cross_entropy(net(images), labels).backward()
        with torch.no_grad():
            for weights in net.parameters():
                weights.sub_(0.1 * weights.grad)
                weights.grad = None


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
