"""Detects the rank and the number of processes from torch.distributed and the environment; the only module to do so."""

from __future__ import annotations

import logging
import os
import re

from gpuloader.errors import ConfigError

_log = logging.getLogger("gpuloader")


def refuse_several_workers() -> None:
    """Raises ConfigError in one of several workers of a torch DataLoader, because each would deliver all samples."""
    from torch.utils.data import get_worker_info

    worker = get_worker_info()
    if worker is not None and worker.num_workers > 1:
        raise ConfigError(
            f"this loader is made in worker {worker.id} of {worker.num_workers} of a torch DataLoader, and each of "
            f"them would deliver all samples. Loop over the GPULoader itself: it decodes in threads. Or "
            f"give each its share: world=World(worker.id, worker.num_workers) of torch.utils.data.get_worker_info()"
        )


def distributed_rank() -> tuple[int, int] | None:
    """Returns the rank and the world size of torch.distributed, if it is initialised."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return None


def environment_rank() -> tuple[int, int]:
    """Returns the rank and the world size of torchrun; 0 of 1 without it."""
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


def local_rank(otherwise: int) -> int:
    """Returns torchrun's or Slurm's number of this process on its machine."""
    return _integer("LOCAL_RANK", _integer("SLURM_LOCALID", otherwise))


def local_world_size() -> int:
    """Returns torchrun's or Slurm's number of processes on this machine; 1 without them."""
    of_slurm = re.match(r"\d+", os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))  # such as "8(x4)"
    return _integer("LOCAL_WORLD_SIZE", int(of_slurm[0]) if of_slurm else 1)


def _integer(variable: str, default: int) -> int:
    if variable not in os.environ:
        return default
    try:
        return int(os.environ[variable])
    except ValueError:
        raise ConfigError(f"the environment variable {variable}={os.environ[variable]!r} is not an integer") from None
