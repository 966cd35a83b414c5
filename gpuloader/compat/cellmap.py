"""cellmap_data's loader, for any data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, Sampler, WeightedRandomSampler, default_collate

from gpuloader.compat.loaders import seed_worker
from gpuloader.errors import ConfigError

_PREFETCH_FACTOR = 2
_METADATA = "__metadata__"


class CellMapDataLoader:
    """Batches of torch's DataLoader on a device, with the arguments and attributes of `cellmap_data.CellMapDataLoader`.

    Args:
        dataset: from cellmap_data, or any other with `__getitem__` and `__len__`.
        classes: their names; None uses the data set's names, if it has any.
        batch_size: samples in a batch.
        num_workers: worker processes. By default they stay from epoch to epoch.
        weighted_sampler: draws samples with the data set's `get_weighted_sampler(batch_size, rng)`, or by its
            `weights`.
        sampler: a sampler of torch, or a function that makes one; `refresh()` calls it again.
        is_train: shuffles, unless another argument chooses the samples.
        rng: of the order.
        device: of the batches; None uses the GPU if there is one.
        iterations_per_epoch: the batches of an epoch; None goes through the data once.
        loader: arguments of torch's DataLoader, such as `prefetch_factor`, which is 2 unless given.

    Raises:
        ConfigError: `weighted_sampler` for data without weights.
        ValueError: as raised by torch's DataLoader.
    """

    def __init__(
        self,
        dataset: Any,  # noqa: ANN401
        classes: Sequence[str] | None = None,
        batch_size: int = 1,
        num_workers: int = 0,
        weighted_sampler: bool = False,
        sampler: Sampler[int] | Callable[[], Sampler[int]] | None = None,
        is_train: bool = True,
        rng: torch.Generator | None = None,
        device: str | torch.device | None = None,
        iterations_per_epoch: int | None = None,
        **loader: Any,  # noqa: ANN401
    ) -> None:
        self.dataset = dataset
        self.classes = getattr(dataset, "classes", None) if classes is None else classes
        self.batch_size, self.num_workers = batch_size, num_workers
        self.weighted_sampler, self.sampler, self.is_train, self.rng = weighted_sampler, sampler, is_train, rng
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.iterations_per_epoch = iterations_per_epoch
        self._pin_memory = bool(loader.pop("pin_memory", True)) and self.device.type == "cuda"
        self._persistent_workers = bool(loader.pop("persistent_workers", True)) and num_workers > 0
        ahead = loader.pop("prefetch_factor", _PREFETCH_FACTOR)
        self._prefetch_factor = ahead if num_workers else None
        self.default_kwargs = {"worker_init_fn": seed_worker, "collate_fn": _collate, **loader}
        self.refresh()

    def refresh(self) -> None:
        """Makes a new loader; if a function or the data set chooses the samples, it chooses again."""
        sampler = self.sampler() if callable(self.sampler) else self.sampler or self._drawn()
        self._pytorch_loader: DataLoader[Any] = DataLoader(
            self.dataset,
            batch_size=self.batch_size,
            shuffle=self.is_train and sampler is None,
            sampler=sampler,
            num_workers=self.num_workers,
            pin_memory=self._pin_memory,
            persistent_workers=self._persistent_workers,
            prefetch_factor=self._prefetch_factor,
            generator=self.rng,
            **self.default_kwargs,
        )

    @property
    def loader(self) -> CellMapDataLoader:
        """The loader itself, for older code that loops over it."""
        return self

    def __len__(self) -> int:
        return len(self._pytorch_loader)

    def __iter__(self) -> Iterator[Any]:
        return (_to_device(batch, self.device) for batch in self._pytorch_loader)

    def _drawn(self) -> Sampler[int] | None:
        samples = None if self.iterations_per_epoch is None else self.iterations_per_epoch * self.batch_size
        if samples is not None and hasattr(self.dataset, "get_subset_random_sampler"):
            return self.dataset.get_subset_random_sampler(
                num_samples=samples, weighted=self.weighted_sampler, rng=self.rng
            )
        if self.weighted_sampler and samples is None and hasattr(self.dataset, "get_weighted_sampler"):
            return self.dataset.get_weighted_sampler(self.batch_size, self.rng)
        if self.weighted_sampler:
            if not hasattr(self.dataset, "weights"):
                raise ConfigError("weighted_sampler=True: the data set has neither get_weighted_sampler nor weights")
            return WeightedRandomSampler(self.dataset.weights, samples or len(self.dataset), generator=self.rng)
        return None if samples is None else RandomSampler(self.dataset, num_samples=samples, generator=self.rng)


def _collate(samples: list[Any]) -> Any:  # noqa: ANN401
    """Collates as torch does, except that cellmap_data's `__metadata__`, of any type, stays a list."""
    if not isinstance(samples[0], Mapping) or _METADATA not in samples[0]:
        return default_collate(samples)
    arrays = [{name: value for name, value in sample.items() if name != _METADATA} for sample in samples]
    return {**default_collate(arrays), _METADATA: [sample[_METADATA] for sample in samples]}


def _to_device(value: Any, device: torch.device) -> Any:  # noqa: ANN401
    """Moves each tensor of a batch without waiting for it; mappings become dictionaries, sequences keep their type."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {name: _to_device(part, device) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_to_device(part, device) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
