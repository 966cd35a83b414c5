"""Data modules: training and validation batches from data of any kind."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch.utils.data import IterableDataset, random_split

from gpuloader.compat.collators import TaskSpec
from gpuloader.compat.loaders import DataLoaderConfig, DataLoaderFactory
from gpuloader.errors import ConfigError
from gpuloader.helpers.late_imports import import_late
from gpuloader.helpers.text import counted
from gpuloader.loading.world import World

if TYPE_CHECKING:  # they import DALI, which data other than shards does not need
    from gpuloader.loading.argument_types import AnyPreset
    from gpuloader.loading.loader import GPULoader

Loader: TypeAlias = Iterable[Any]


@runtime_checkable
class DataModuleProtocol(Protocol):
    """An object with training and validation batches; Lightning's data modules are such objects, too."""

    def train_dataloader(self) -> Loader:
        """Returns the batches of training."""

    def val_dataloader(self) -> Loader:
        """Returns the batches of validation."""


class UniversalDataModule:
    """Training and validation batches: from shards by `GPULoader`, or from data sets by torch's DataLoader.

    Shards are what `GPULoader` takes: paths, patterns, URLs and lists of those. Data sets are torch's, Hugging Face's,
    lists of tensors, and any other object with `__getitem__` and `__len__`; or an `IterableDataset`, which decides its
    own order, shares itself among ranks, and needs `val_data`.

    Under torch.distributed each rank has its share. For data sets, call `loader.sampler.set_epoch(epoch)` there.

    Loaders have `state_dict` and `load_state_dict`, which resume with the rest of an epoch: `GPULoader` always, others
    if torchdata is installed.

    Args:
        train_data: shards, or a data set.
        val_data: the same; None uses a part of `train_data`.
        task_spec: the task, which chooses the collator of data sets; None uses torch's `default_collate`.
        tokenizer: of transformers, for text.
        batch_size: samples of this rank in a batch.
        val_split: without `val_data`, the share of `train_data`, in [0, 1), that is drawn by `seed` for validation and
            left out of training.
        num_workers: worker processes for data sets; None as in `DataLoaderConfig`. Shards need none.
        seed: of the order and of the split.
        eval_preset: the recipe for validation on shards; the recipe for training is `preset`.
        loader: arguments of `GPULoader` for shards. Validation shares the same ones as in `GPULoaderDataModule`.

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
        *,
        eval_preset: AnyPreset = "imagenet_eval",
        **loader: Any,  # noqa: ANN401 - as `TrainerLoaders` has them
    ) -> None:
        if not isinstance(val_split, (int, float)) or not 0 <= val_split < 1:
            raise ConfigError(f"val_split={val_split!r}: allowed is a share of train_data in [0, 1)")
        self.task_spec, self.tokenizer = task_spec, tokenizer
        if loader and not (self._is_shards(train_data) or self._is_shards(val_data)):
            raise ConfigError(f"{', '.join(loader)}: for shards only, but the data is a {type(train_data).__name__}")
        self.batch_size, self.num_workers, self.seed = batch_size, num_workers, seed
        self._train_loader: dict[str, Any] = {"seed": seed, **loader}
        self._val_loader: dict[str, Any] = {}
        if self._is_shards(train_data) or self._is_shards(val_data):
            evaluation_options = import_late("gpuloader.trainers.datamodule").evaluation_options
            self._val_loader = evaluation_options(self._train_loader, eval_preset)
        self._train, self._val = train_data, val_data
        if val_data is None and val_split:
            self._split(val_split)

    def train_dataloader(self) -> Loader:
        """Makes a loader, shuffled by the seed. Loop again for the next epoch; a new loader begins with the first."""
        return self._loader(self._train, self._train_loader, shuffle=True)

    def val_dataloader(self) -> Loader:
        """Makes a loader, in the data's order; returns an empty list if there is nothing to validate on."""
        return [] if self._val is None else self._loader(self._val, self._val_loader, shuffle=False)

    def _loader(self, data: Any, options: Mapping[str, Any], shuffle: bool) -> Loader:  # noqa: ANN401
        if self._is_shards(data):
            return _gpu_loader(data, self.batch_size, **options)
        stream = isinstance(data, IterableDataset)
        config = DataLoaderConfig(
            self.batch_size,
            shuffle=shuffle and not stream,
            num_workers=self.num_workers,
            seed=self.seed,
            world=None if stream else World.detect(),
        )
        return DataLoaderFactory().create_dataloader(data, config, self.task_spec, self.tokenizer)

    def _is_shards(self, data: object) -> bool:
        if isinstance(data, (list, tuple)) and data:
            texts = self.task_spec is not None and self.task_spec.modality == "text"
            return _is_source(data[0]) and not (texts and isinstance(data[0], str))
        return _is_source(data)

    def _split(self, share: float) -> None:
        data = self._train
        if self._is_shards(data):
            kind = import_late("gpuloader.loading.options").Sampling
            as_value = import_late("gpuloader.recipe.part").as_value
            sampling = as_value(kind, "sampling", self._train_loader.get("sampling") or {})
            if sampling.subset is not None:
                raise ConfigError("sampling=Sampling(subset=...) and val_split: give one of them, or val_data")
            with _gpu_loader(data, self.batch_size, **self._train_loader) as loader:
                train, val = self._parts(range(len(loader.dataset)), share)
            self._val = data
            self._train_loader["sampling"] = replace(sampling, subset=sorted(train.indices))
            self._val_loader["sampling"] = kind(subset=sorted(val.indices))
        else:
            self._train, self._val = self._parts(data, share)

    def _parts(self, data: Any, share: float) -> list[Any]:  # noqa: ANN401
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


def _gpu_loader(*arguments: Any, **options: Any) -> GPULoader[Any]:  # noqa: ANN401
    return import_late("gpuloader").GPULoader(*arguments, **options)


def _is_source(data: object) -> bool:
    """Says whether it is one of those that `GPULoader` takes."""
    return isinstance(data, (str, os.PathLike)) or (isinstance(data, Mapping) and "tar" in data)
