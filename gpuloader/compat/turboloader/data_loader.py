"""turboloader's DataLoader: batches are lists of samples, with whole images as arrays in main memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.values import is_integer
from gpuloader.compose import Compose
from gpuloader.errors import ConfigError, LabelError
from gpuloader.loading.loader import GPULoader
from gpuloader.loading.selection import Sources
from gpuloader.loading.world import World

_log = logging.getLogger("gpuloader")
WHOLE = Compose([], batch="list", dtype="uint8")
"""The recipe of images as they are stored."""


class Sample(dict[str, Any]):
    """A sample.

    image   (height, width, 3), RGB: uint8, whole, as stored; in a `Pipeline`, the result of its `TransformConfig`
    label   its number, if the data has labels
    index   its number in the data
    key     WebDataset's `__key__`
    """

    def get_image(self) -> NDArray[Any]:
        image: NDArray[Any] = self["image"]
        return image

    def __missing__(self, name: str) -> NoReturn:
        if name == "label":
            raise LabelError(
                f"{self['key']!r} has no label: the tar has neither KEY.cls nor folders; `tar -C folder .` keeps them. "
                f"Make it again with labels, or use sample.get('label', 0) if you need none"
            )
        raise ConfigError(f"a sample has no {name!r}: it has {', '.join(self)}")


def samples_of(batch: Mapping[str, Any]) -> Iterator[Sample]:
    """Yields the samples of a batch of `GPULoader(output="dict")`; without a label if the data has none."""
    labels = batch["label"]
    for row, image in enumerate(batch["image"]):
        pixels = np.ascontiguousarray(image.permute(1, 2, 0).cpu().numpy())
        sample = Sample(image=pixels, index=int(batch["index"][row]), key=batch["key"][row])
        if labels is not None:
            sample["label"] = int(labels[row])
        yield sample


def check_count(name: str, value: object) -> None:
    """Checks that an argument is an integer of at least 1."""
    if not is_integer(value, 1):
        raise ConfigError(f"{name}={value!r}: allowed is an integer of at least 1")


class DataLoader:
    """Batches of samples: lists of `Sample`. Each loop over it is the next epoch, in a new order.

    Order, labels, sharing between ranks and errors are `GPULoader`'s. Labels come from `.cls`, otherwise from the
    folders, numbered by name; if there are neither, there are no labels.

    Args:
        data_path: tars, as `GPULoader` takes them.
        batch_size: samples of this rank in a step.
        num_workers: threads that decode; None or 0 for this process's share of the cores.
        shuffle: whether an epoch's order is drawn over all of the data.
        enable_distributed: whether ranks share the data; otherwise each has all of it. It needs torch.distributed to be
            initialised before, or torchrun.
        drop_last: whether a short last batch is dropped; otherwise several ranks split it evenly.

    Raises:
        GPULoaderError: one of `gpuloader.errors`; its message says what to do. Also raised in the loop.
    """

    def __init__(
        self,
        data_path: Sources,
        batch_size: int = 32,
        num_workers: int | None = None,
        shuffle: bool = False,
        *,
        enable_distributed: bool = False,
        drop_last: bool = False,
    ) -> None:
        self._loader = GPULoader(
            data_path,
            batch_size,
            "cpu",
            preset=WHOLE,
            shuffle=bool(shuffle),
            last_batch="drop" if drop_last else "partial",
            output="dict",
            label_from="auto",
            decoder={"num_threads": num_workers or None},
            world=None if enable_distributed else World(0, 1),
        )
        if enable_distributed and self._loader.world.world_size == 1:
            _log.warning(
                "enable_distributed=True, but this process is rank 0 of 1, so it has all of the data: if there are "
                "others, call torch.distributed.init_process_group before making the DataLoader, or use torchrun"
            )

    def __len__(self) -> int:
        """Returns the number of batches in an epoch, the same on every rank."""
        return len(self._loader)

    def __iter__(self) -> Iterator[list[Sample]]:
        return (list(samples_of(batch)) for batch in self._loader)
