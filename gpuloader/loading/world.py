"""`World`: this rank and the number of ranks; `agree` checks that all ranks have the same arguments."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from typing import Any

import numpy as np

from gpuloader.errors import ConfigError

_MEETING_SECONDS = 120.0
_meetings = count()
_log = logging.getLogger("gpuloader")


@dataclass(frozen=True)
class World:
    """One process among those that share the data.

    Attributes:
        rank: this process, in [0, world_size).
        world_size: the number of processes on all machines together.
        local_rank: this process among those of its machine. If not given, it is torchrun's or Slurm's value if they
            set one, otherwise the rank.
        local_world_size: the number of processes on its machine. If not given, it is torchrun's value, otherwise 1;
            `agree` then counts the processes.

    Example:
        >>> from gpuloader import World
        >>> World(rank=3, world_size=8).world_size
        8
    """

    rank: int
    world_size: int
    local_rank: int = None  # type: ignore[assignment]  # an integer once it is made
    local_world_size: int = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for name in ("rank", "world_size", "local_rank", "local_world_size"):
            value = getattr(self, name)
            object.__setattr__(self, name, value.item() if isinstance(value, np.integer) else value)
        if self.local_rank is None:
            rank = self.rank if isinstance(self.rank, int) else 0
            object.__setattr__(self, "local_rank", _integer("LOCAL_RANK", _integer("SLURM_LOCALID", rank)))
        if self.local_world_size is None:
            object.__setattr__(self, "local_world_size", _integer("LOCAL_WORLD_SIZE", 1))
        numbers = (self.rank, self.world_size, self.local_rank, self.local_world_size)
        integers = all(isinstance(number, int) for number in numbers)
        if not integers or not 0 <= self.rank < self.world_size or self.local_rank < 0 or self.local_world_size < 1:
            raise ConfigError(
                f"rank={self.rank!r}, world_size={self.world_size!r}, local_rank={self.local_rank!r}, "
                f"local_world_size={self.local_world_size!r}: allowed are integers, 0 <= rank < world_size, "
                f"local_rank >= 0 and local_world_size >= 1"
            )

    @classmethod
    def detect(cls) -> World:
        """Takes rank and world size from torch.distributed if it is initialised, otherwise from torchrun's environment.

        Without either, this is rank 0 of 1. Slurm's tasks are not ranks by themselves, because they may be independent
        runs; if there are several, a warning says so. Only this module reads the environment and torch.distributed.
        """
        _refuse_several_workers()
        return cls(*(_from_distributed() or _from_environment()))


def agree(world: World, facts: Mapping[str, Any], wait_seconds: float = _MEETING_SECONDS) -> World:
    """Compares facts over all ranks, if torch.distributed is initialised with the same rank and world size.

    Every rank must call it equally often and in the same order. The ranks meet at torch.distributed's default store:
    this needs neither a GPU nor a process group, and it cannot hang.

    Args:
        facts: in plain JSON types.

    Returns:
        The world with the ranks of this machine counted, because `mp.spawn` does not set LOCAL_WORLD_SIZE.

    Raises:
        ConfigError: facts differ, or ranks did not come in time; every rank raises the same message, which names the
            facts and ranks.
    """
    if _from_distributed() != (world.rank, world.world_size):
        return world
    from torch.distributed.distributed_c10d import PrefixStore

    from gpuloader.internals.torch import default_store

    store = PrefixStore(f"gpuloader/{next(_meetings)}", default_store())
    host = socket.gethostname()
    store.add(f"ranks of {host}", 1)
    store.set(f"facts/{world.rank}", json.dumps(facts))
    began = time.monotonic()
    if world.rank == 0:
        store.set("verdict", _verdict(store, world.world_size, timedelta(seconds=wait_seconds)))
    try:
        # Rank 0 may itself wait this long for the others before it gives the verdict.
        store.wait(["verdict"], timedelta(seconds=2 * wait_seconds))
    except RuntimeError:
        raise ConfigError(f"rank 0 did not make this loader within {_since(began)}: {_ALIKE}") from None
    if verdict := store.get("verdict").decode():
        raise ConfigError(verdict)
    return replace(world, local_world_size=store.add(f"ranks of {host}", 0))


_ALIKE = "all ranks must make the same loaders in the same order; for one of a single rank, pass world=World(0, 1)"


def _verdict(store: Any, world_size: int, wait: timedelta) -> str:  # noqa: ANN401 - a torch.distributed.Store
    """Says what is wrong with the facts of all ranks; empty if they agree."""
    keys = [f"facts/{rank}" for rank in range(world_size)]
    began = time.monotonic()
    try:
        store.wait(keys, wait)
    except RuntimeError:
        missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
        return f"the ranks {missing} did not make this loader within {_since(began)}: {_ALIKE}"
    facts = [json.loads(store.get(key)) for key in keys]
    differences = []
    for name in facts[0]:
        ranks: dict[str, list[int]] = {}
        for rank, fact in enumerate(facts):
            ranks.setdefault(json.dumps(fact.get(name)), []).append(rank)
        if len(ranks) > 1:
            differences.append("; ".join(f"{name}={value} on ranks {of}" for value, of in ranks.items()))
    return f"the loaders of the ranks differ: {'; '.join(differences)}" if differences else ""


def _since(began: float) -> str:
    """Returns the time that passed, less than the limit if the store's process ended: then nobody waits any longer."""
    return f"{time.monotonic() - began:.1f} s"


def _refuse_several_workers() -> None:
    """Raises ConfigError in one of several workers of torch's DataLoader, as each would deliver all of the data."""
    from torch.utils.data import get_worker_info

    worker = get_worker_info()
    if worker is not None and worker.num_workers > 1:
        raise ConfigError(
            f"this loader is made in worker {worker.id} of {worker.num_workers} of a torch DataLoader, and each of "
            f"them would deliver all samples. Loop over the GPULoader itself: it decodes in threads. Or "
            f"give each its share: world=World(worker.id, worker.num_workers) of torch.utils.data.get_worker_info()"
        )


def _from_distributed() -> tuple[int, int] | None:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return None


def _from_environment() -> tuple[int, int]:
    if ("RANK" in os.environ) != ("WORLD_SIZE" in os.environ):
        raise ConfigError(
            "only one of the environment variables RANK and WORLD_SIZE is set: set both (torchrun does), "
            "or pass world=World(rank, world_size)"
        )
    if "RANK" not in os.environ and (tasks := _integer("SLURM_STEP_NUM_TASKS", default=1)) > 1:
        _log.warning(
            "srun runs %d tasks, but the loader in each of them is rank 0 of 1 and delivers all of the data: if they "
            "train together, call torch.distributed.init_process_group first, set RANK and WORLD_SIZE, or pass "
            "world=World(rank, world_size)",
            tasks,
        )
    return _integer("RANK", default=0), _integer("WORLD_SIZE", default=1)


def _integer(variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default))
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"the environment variable {variable}={text!r} is not an integer") from None
