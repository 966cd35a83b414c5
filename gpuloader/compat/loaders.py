"""Makes torch's DataLoader for a GPU; torchdata's StatefulDataLoader if it is installed."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler

from gpuloader.base.cores import available_cores
from gpuloader.compat.collators import CollatorRegistry, TaskSpec
from gpuloader.loading.world import World


@dataclass(frozen=True)
class DataLoaderConfig:
    """The arguments of a DataLoader; the machine decides those that are None.

    Attributes:
        batch_size: samples in a batch of one rank.
        shuffle: whether each epoch has a different order.
        num_workers: worker processes; None uses up to four for each GPU, as the cores allow, and 0 without a GPU.
        pin_memory: whether batches are in memory that a GPU copies from quickly; only where there is a GPU.
        prefetch_factor: batches that each worker makes ahead. Ignored without workers.
        persistent_workers: whether workers stay from epoch to epoch; None keeps them.
        drop_last: whether a short last batch is dropped.
        seed: of the order and of the workers; None uses a different one in each run.
        collate_fn: makes a batch from a list of samples; None uses the task's collator, otherwise torch's.
        world: shares the samples among ranks with a `DistributedSampler`: call `loader.sampler.set_epoch(epoch)`. None
            uses all samples.
    """

    batch_size: int = 32
    shuffle: bool = False
    num_workers: int | None = None
    pin_memory: bool | None = None
    prefetch_factor: int | None = 2
    persistent_workers: bool | None = None
    drop_last: bool = False
    seed: int | None = None
    collate_fn: Callable[[Sequence[Any]], Any] | None = None
    world: World | None = None

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of torch's DataLoader, without the data set, its order and its collator."""
        gpu = torch.cuda.is_available()
        workers = _optimal_workers() if self.num_workers is None else self.num_workers
        return {
            "batch_size": self.batch_size,
            "num_workers": workers,
            "pin_memory": gpu and self.pin_memory is not False,
            "prefetch_factor": self.prefetch_factor if workers else None,
            "persistent_workers": workers > 0 and self.persistent_workers is not False,
            "drop_last": self.drop_last,
            "worker_init_fn": seed_worker,
            "generator": None if self.seed is None else torch.Generator().manual_seed(self.seed),
        }


class DataLoaderFactory:
    """A factory of torch's DataLoader, or of torchdata's StatefulDataLoader if it is installed."""

    def create_dataloader(
        self,
        dataset: Any,  # noqa: ANN401 - whatever has __getitem__ and __len__, or is an IterableDataset
        config: DataLoaderConfig | None = None,
        task_spec: TaskSpec | None = None,
        tokenizer: Any = None,  # noqa: ANN401 - transformers need not be installed
    ) -> DataLoader[Any]:
        """Returns a loader over a data set of torch or Hugging Face, or over a list of tensors.

        If torchdata is installed, the loader has `state_dict` and `load_state_dict`, and can resume mid-epoch.

        Raises:
            ConfigError: as raised by `CollatorRegistry.get_collator`.
            ValueError: as raised by torch's DataLoader.
        """
        config = config or DataLoaderConfig()
        collate = config.collate_fn
        if collate is None and task_spec is not None:
            collate = CollatorRegistry.get_instance().get_collator(task_spec, tokenizer=tokenizer)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # torchdata calls it
            return _loader_class()(dataset, collate_fn=collate, **_order(dataset, config), **config.arguments())


def _order(dataset: Any, config: DataLoaderConfig) -> dict[str, Any]:  # noqa: ANN401
    if config.world is None or config.world.world_size == 1:
        return {"shuffle": config.shuffle}
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset,
        config.world.world_size,
        config.world.rank,
        shuffle=config.shuffle,
        seed=config.seed or 0,
        drop_last=config.drop_last,
    )
    return {"sampler": sampler}


def _loader_class() -> type[DataLoader[Any]]:
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "torchdata":
            raise
        return DataLoader
    return StatefulDataLoader


def seed_worker(worker_id: int) -> None:
    """Seeds `random` and NumPy in a DataLoader's worker, from torch's seed there."""
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def _optimal_workers() -> int:
    """Returns up to four for each GPU of this process, limited by its share of the cores; 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0
    processes = World.detect().local_world_size
    gpus = max(1, torch.cuda.device_count() // processes)
    return max(1, min(4 * gpus, available_cores() // processes))
