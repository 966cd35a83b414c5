"""Several loaders for one training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch.utils.data import DataLoader

from gpuloader.compat.loaders import create_optimized_dataloader
from gpuloader.errors import ConfigError


class SamplingStrategy(Enum):
    """How turns are taken among several loaders: the strategies of `MixedLoader`.

    Example:
        >>> from gpuloader.compat import SamplingStrategy
        >>> [strategy.value for strategy in SamplingStrategy]
        ['round_robin', 'weighted', 'sequential', 'alternate']
    """

    ROUND_ROBIN = "round_robin"
    WEIGHTED = "weighted"
    SEQUENTIAL = "sequential"
    ALTERNATING = "alternate"


@dataclass(frozen=True)
class MultiDataLoaderConfig:
    """How several loaders make one epoch.

    Attributes:
        sampling_strategy: how turns are taken.
        dataloader_weights: one for each loader, for `SamplingStrategy.WEIGHTED`; None weighs all equally.
        dataloader_names: one for each loader; if empty, they are numbered.
        cycle_short_loaders: if turns are drawn or taken in order: whether a loader that has ended begins again until
            the longest has ended. Otherwise the epoch ends when one has no batch left.
        seed: of the turns that are drawn.

    Example:
        >>> from gpuloader.compat import MultiDataLoaderConfig, SamplingStrategy
        >>> config = MultiDataLoaderConfig(SamplingStrategy.WEIGHTED, [3.0, 1.0], ["photos", "drawings"])
        >>> config.cycle_short_loaders
        True
    """

    sampling_strategy: SamplingStrategy = SamplingStrategy.ROUND_ROBIN
    dataloader_weights: Sequence[float] | None = None
    dataloader_names: Sequence[str] = ()
    cycle_short_loaders: bool = True
    seed: int = 0


def create_multi_dataloaders(
    datasets_dict: Mapping[str, tuple[Any, int]],
    batch_sizes: Mapping[str, int] | Sequence[int] | None = None,
    num_workers: int = 4,
) -> tuple[list[DataLoader[Any]], MultiDataLoaderConfig]:
    """Makes a training loader for each of several data sets, and a config that draws from all equally often.

    Args:
        datasets_dict: (data set, batch size) by name.
        batch_sizes: other batch sizes, by name or in the same order; None keeps those of `datasets_dict`.
        num_workers: worker processes of all loaders together, at least one for each.

    Raises:
        ConfigError: `batch_sizes` does not fit the data sets.

    Example:
        >>> import torch
        >>> from gpuloader.compat import create_multi_dataloaders
        >>> datasets = {"photos": (torch.zeros(40, 3), 8), "drawings": (torch.zeros(20, 3), 4)}
        >>> loaders, config = create_multi_dataloaders(datasets, {"drawings": 5}, num_workers=0)
        >>> [loader.batch_size for loader in loaders], config.dataloader_names
        ([8, 5], ['photos', 'drawings'])
    """
    names = list(datasets_dict)
    sizes = {name: size for name, (_, size) in datasets_dict.items()}
    changed = {} if batch_sizes is None else batch_sizes
    if not isinstance(changed, Mapping):
        changed = dict(zip(names, changed)) if len(changed) == len(names) else {"": 0}
    if not set(changed) <= set(names):
        raise ConfigError(
            f"batch_sizes={batch_sizes!r}: allowed is one for each of {', '.join(names)}, or fewer, by name"
        )
    workers = num_workers and max(1, num_workers // len(names))
    loaders = [
        create_optimized_dataloader(dataset, changed.get(name, sizes[name]), num_workers=workers)
        for name, (dataset, _) in datasets_dict.items()
    ]
    return loaders, MultiDataLoaderConfig(SamplingStrategy.WEIGHTED, [1.0] * len(names), names)
