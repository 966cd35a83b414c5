"""Data modules: training and validation batches from data sets of any kind."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch.utils.data import IterableDataset, random_split

from gpuloader.base.text import counted
from gpuloader.compat.collators import TaskSpec
from gpuloader.compat.loaders import DataLoaderConfig, DataLoaderFactory
from gpuloader.errors import ConfigError
from gpuloader.loading.world import World

Loader: TypeAlias = Iterable[Any]


@runtime_checkable
class DataModuleProtocol(Protocol):
    """An object with training and validation batches; Lightning's data modules are such objects, too."""

    def train_dataloader(self) -> Loader:
        """Returns the batches of training."""

    def val_dataloader(self) -> Loader:
        """Returns the batches of validation."""


class UniversalDataModule:
    """Training and validation batches from data sets, by torch's DataLoader; for shards, `GPULoaderDataModule`.

    Data sets are torch's, Hugging Face's, lists of tensors, and any other object with `__getitem__` and `__len__`; or
    an `IterableDataset`, which decides its own order, shares itself among ranks, and needs `val_data`.

    Under torch.distributed each rank has its share: call `loader.sampler.set_epoch(epoch)` there. If torchdata is
    installed, loaders have `state_dict` and `load_state_dict`, which resume with the rest of an epoch.

    Args:
        train_data: a data set.
        val_data: a data set; None uses a part of `train_data`.
        task_spec: the task, which chooses the collator; None uses torch's `default_collate`.
        tokenizer: of transformers, for text.
        batch_size: samples of this rank in a batch.
        val_split: without `val_data`, the share of `train_data`, in [0, 1), that is drawn by `seed` for validation and
            not used for training.
        num_workers: worker processes; None as in `DataLoaderConfig`.
        seed: of the order and of the split.

    Attributes:
        seed: as above.

    Raises:
        ConfigError: an argument is invalid, or does not fit this kind of data.
    """

    def __init__(
        self,
        train_data: Any,  # noqa: ANN401
        val_data: Any = None,  # noqa: ANN401
        task_spec: TaskSpec | None = None,
        tokenizer: Any = None,  # noqa: ANN401 - transformers need not be installed
        batch_size: int = 32,
        val_split: float = 0.1,
        num_workers: int | None = None,
        seed: int = 42,
    ) -> None:
        if not isinstance(val_split, (int, float)) or not 0 <= val_split < 1:
            raise ConfigError(f"val_split={val_split!r}: allowed is a share of train_data in [0, 1)")
        if isinstance(train_data, (str, os.PathLike)):
            raise ConfigError(
                f"train_data={str(train_data)!r} names shards or a folder: use GPULoader, or GPULoaderDataModule of "
                f"gpuloader.trainers.lightning"
            )
        self.task_spec, self.tokenizer = task_spec, tokenizer
        self.batch_size, self.num_workers, self.seed = batch_size, num_workers, seed
        self._train, self._val = train_data, val_data
        if val_data is None and val_split:
            self._train, self._val = self._split(val_split)

    def train_dataloader(self) -> Loader:
        """Returns a loader, shuffled by the seed. Loop again for the next epoch; a new loader begins with the first."""
        return self._loader(self._train, shuffle=True)

    def val_dataloader(self) -> Loader:
        """Returns a loader in the data's order, or an empty list if there is nothing to validate on."""
        return [] if self._val is None else self._loader(self._val, shuffle=False)

    def _loader(self, data: Any, shuffle: bool) -> Loader:  # noqa: ANN401
        stream = isinstance(data, IterableDataset)
        config = DataLoaderConfig(
            self.batch_size,
            shuffle=shuffle and not stream,
            num_workers=self.num_workers,
            seed=self.seed,
            world=None if stream else World.detect(),
        )
        return DataLoaderFactory().create_dataloader(data, config, self.task_spec, self.tokenizer)

    def _split(self, share: float) -> list[Any]:
        data = self._train
        if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
            raise ConfigError(
                f"val_split={share!r}: a {type(data).__name__} has no length; give val_data, or val_split=0"
            )
        held_out = round(share * len(data))
        if not 0 < held_out < len(data):
            raise ConfigError(
                f"val_split={share!r} of {counted(len(data), 'sample')} leaves {held_out} for validation: "
                f"give val_data, another share, or val_split=0 for no validation"
            )
        return random_split(data, [len(data) - held_out, held_out], torch.Generator().manual_seed(self.seed))
