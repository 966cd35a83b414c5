"""Which of how many processes this one is."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gpuloader.errors import ConfigError


@dataclass(frozen=True)
class World:
    """One process among those that share the data.

    Attributes:
        rank: this process, in [0, world_size).
        world_size: the number of processes on all machines together.
        local_rank: this process among those of its machine.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size or self.local_rank < 0:
            raise ConfigError(
                f"rank={self.rank}, world_size={self.world_size}, local_rank={self.local_rank}: "
                f"allowed are 0 <= rank < world_size and local_rank >= 0"
            )

    @classmethod
    def detect(cls, rank: int | None = None, world_size: int | None = None) -> World:
        """Takes what is given, else torch.distributed if it is initialised, else torchrun's environment, else 0 of 1.

        The local rank is torchrun's or Slurm's where they give one, else the rank.

        Only this function reads the environment and torch.distributed.
        """
        if (rank is None) != (world_size is None):
            raise ConfigError(f"rank={rank}, world_size={world_size}: give both or neither")
        if rank is None or world_size is None:
            rank, world_size = _from_distributed() or _from_environment()
        return cls(rank, world_size, _integer("LOCAL_RANK", default=_integer("SLURM_LOCALID", default=rank)))


def _from_distributed() -> tuple[int, int] | None:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return None


def _from_environment() -> tuple[int, int]:
    if ("RANK" in os.environ) != ("WORLD_SIZE" in os.environ):
        raise ConfigError(
            "of the environment variables RANK and WORLD_SIZE only one is set: set both (torchrun does), "
            "or pass rank= and world_size="
        )
    return _integer("RANK", default=0), _integer("WORLD_SIZE", default=1)


def _integer(variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default))
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"the environment variable {variable}={text!r} is not an integer") from None
