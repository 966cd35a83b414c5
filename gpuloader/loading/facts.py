"""The properties of a loader: its data, device and sizes, also by the names of torch's DataLoader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from gpuloader.errors import ConfigError
from gpuloader.loading.iteration import EpochSampler, EpochsMixin
from gpuloader.loading.run import Run
from gpuloader.loading.world import World
from gpuloader.recipe import Recipe
from gpuloader.shards import read_names
from gpuloader.shards.class_names import as_list


@dataclass(frozen=True)
class Dataset:
    """The data of a loader.

    Attributes:
        num_samples: the number of samples in the shards, including samples outside of a `subset`; `len` is the same.
        classes: the names of the classes, if they are known.
    """

    num_samples: int
    classes: tuple[str, ...] | None

    def __len__(self) -> int:
        return self.num_samples

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class by its name, as in torchvision's datasets; empty if the classes are not known."""
        return {name: label for label, name in enumerate(self.classes or ())}


class LoaderFacts(EpochsMixin):
    """The properties of a loader, from its run and its position in the run."""

    _fresh: Run
    _run: Run

    def __len__(self) -> int:
        """Returns the number of steps in an epoch, the same on every rank. In a resumed epoch, fewer may remain."""
        return self._run.plan.steps

    if not TYPE_CHECKING:  # type checkers would take it for an iteration by number

        def __getitem__(self, _: object) -> NoReturn:
            raise ConfigError("a GPULoader has no items by number: loop over it, without a DataLoader around it")

    def __repr__(self) -> str:
        return f"GPULoader({self._run})"

    @property
    def preset(self) -> Recipe:
        """The recipe of the loader."""
        return self._run.recipe

    @property
    def device(self) -> torch.device:
        """The torch device of the batches."""
        return self._run.device

    @property
    def world(self) -> World:
        """This rank and the number of ranks."""
        return self._run.world

    @property
    def classes(self) -> tuple[str, ...] | Any:  # noqa: ANN401 - or None, which checkers would ask about each time
        """The names of the classes, entry i for label i; None if they are not known."""
        labels = self._fresh.labels
        return as_list(read_names(self._fresh.shards.shards)) if labels is None else labels.classes

    @property
    def num_samples(self) -> int:
        """The number of samples in an epoch over all ranks, after `sampling`."""
        return self._run.plan.num_samples

    @property
    def shapes(self) -> list[tuple[int, int]] | Any:  # noqa: ANN401 - or None
        """The (height, width) of the images in each remaining step of the epoch, the same on every rank.

        It is None without buckets, and with `Buckets(groups=...)`, where images have their own sizes.
        """
        cursor = self._progress.cursor
        return self._run.plan.shapes(cursor, self._run.plan.steps_left(cursor))

    @property
    def batch_size(self) -> int:
        """The number of samples of this rank in a step."""
        return self._run.plan.batch_size

    @property
    def dataset(self) -> Dataset:
        """All of the data: `len(loader.dataset)` samples, its `classes` and `class_to_idx`."""
        return Dataset(len(self._fresh.shards), self.classes)

    @property
    def sampler(self) -> EpochSampler:
        """The sampler for scripts that use torch's DataLoader. Its `set_epoch` calls the loader's.

        Its length is the number of samples of this rank in an epoch.
        """
        return EpochSampler(self._run.plan, self.set_epoch)

    @property
    def batch_sampler(self) -> None:
        """None, as in torch's DataLoader without a batch sampler."""
        return None
