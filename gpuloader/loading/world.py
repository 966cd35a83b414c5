"""`World`: this rank and the number of ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from gpuloader.base.cores import available_cores
from gpuloader.base.values import as_python_integer, is_integer
from gpuloader.errors import ConfigError
from gpuloader.loading import ranks

if TYPE_CHECKING:  # some builds of torch have no torch.distributed
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, init=False)
class World:
    """The rank of a process among the processes that share the data.

    Attributes:
        rank: the data rank, in [0, world_size). It selects the part of each global batch that this process gets.
        world_size: the number of data ranks on all machines. With `from_mesh`, several processes can have the same one.
        local_rank: the number of this process on its machine. It chooses the GPU; process 0 shows progress and logs
            warnings for its machine. The default is the value of torchrun or Slurm, otherwise the rank.
        local_world_size: the number of processes on this machine. The default is the value of torchrun or Slurm,
            otherwise 1; under torch.distributed, the loader counts the processes.
        node: the data ranks on this machine. Under torch.distributed, the loader finds them; otherwise
            `local_world_size` consecutive ranks share a machine.
        members: for each data rank, its processes, as ranks of torch.distributed. Empty unless `from_mesh` or
            `from_group` made the world.

    Example:
        >>> from gpuloader import World
        >>> World(rank=3, world_size=8).world_size
        8
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node: tuple[int, ...] = field(init=False, repr=False)
    members: tuple[tuple[int, ...], ...] = field(init=False, repr=False)

    def __init__(
        self,
        rank: int,
        world_size: int,
        local_rank: int | None = None,
        local_world_size: int | None = None,
        *,
        node: tuple[int, ...] = (),
        members: tuple[tuple[int, ...], ...] = (),
    ) -> None:
        given = {
            "rank": rank,
            "world_size": world_size,
            "local_rank": ranks.local_rank(rank) if local_rank is None else local_rank,
            "local_world_size": ranks.local_world_size() if local_world_size is None else local_world_size,
        }
        numbers = {name: as_python_integer(number) for name, number in given.items()}
        if not all(map(is_integer, numbers.values(), (0, 1, 0, 1))) or numbers["rank"] >= numbers["world_size"]:
            raise ConfigError(
                f"{', '.join(f'{name}={number!r}' for name, number in given.items())}: allowed are integers, "
                f"0 <= rank < world_size, local_rank >= 0 and local_world_size >= 1"
            )
        first = numbers["rank"] // numbers["local_world_size"] * numbers["local_world_size"]
        neighbours = range(first, min(first + numbers["local_world_size"], numbers["world_size"]))
        node = node or ((numbers["rank"],) if members else tuple(neighbours))
        vars(self).update(numbers, node=node, members=members)

    @classmethod
    def detect(cls) -> World:
        """Detects rank and world size: from torch.distributed if it is initialised, otherwise from torchrun.

        Without either, this is rank 0 of 1. Slurm tasks are not used as ranks, because they may be independent runs;
        several tasks log a warning.
        """
        ranks.refuse_several_workers()
        return cls(*(ranks.distributed_rank() or ranks.environment_rank()))

    @classmethod
    def of_process(cls) -> World:
        """Returns the world for code that does not share data, such as a `Stage`; its local rank chooses the GPU."""
        return cls(*(ranks.distributed_rank() or (0, 1)))

    @property
    def cores(self) -> int:
        """This process's share of the machine's cores, at least 1."""
        return max(1, available_cores() // self.local_world_size)

    @classmethod
    def from_mesh(cls, mesh: DeviceMesh, names: str | Sequence[str] | None = None) -> World:
        """Takes the data rank from the dimensions of a torch.distributed mesh that divide the data.

        Ranks that differ only in other dimensions, such as tensor, context or pipeline parallelism, get the same
        batches. All ranks of the mesh must make the loader.

        Args:
            names: the dimensions that divide the data: one, or several such as `("dp_replicate", "dp_shard")`. Data
                ranks are numbered in the order of the mesh. `()` gives all ranks the same batches. None is for a mesh
                of one dimension. In a mesh without names, the dimensions are "0", "1" and so on.

        Raises:
            ConfigError: the mesh has no such dimension, or several dimensions and `names` is None; or this process is
                not in the mesh.

        Example:
            >>> import torch.distributed as dist
            >>> from torch.distributed.device_mesh import init_device_mesh
            >>> from gpuloader import World
            >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            >>> mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
            >>> World.from_mesh(mesh, "dp").world_size
            1
            >>> dist.destroy_process_group()
        """
        known = mesh.mesh_dim_names or tuple(map(str, range(mesh.ndim)))
        chosen = (names,) if isinstance(names, str) else known if names is None and mesh.ndim == 1 else names
        if chosen is None or not set(chosen) <= set(known):
            raise ConfigError(
                f"names={names!r}: allowed are dimensions of the mesh: {', '.join(map(repr, known))}. Name those that "
                f"divide the data: world=World.from_mesh(mesh, names); ranks that differ only in the others get the "
                f"same batches"
            )
        divide = [number for number, name in enumerate(known) if name in chosen]
        others = [number for number in range(mesh.ndim) if number not in divide]
        rows = mesh.mesh.permute(*divide, *others).reshape(math.prod(mesh.mesh.shape[each] for each in divide), -1)
        return cls._of_members("mesh", rows.tolist())

    @classmethod
    def from_group(cls, group: ProcessGroup) -> World:
        """Takes the rank in a process group as the data rank. All ranks of the group must make the loader.

        Raises:
            ConfigError: this process is not in the group.

        Example:
            >>> import torch.distributed as dist
            >>> from gpuloader import World
            >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            >>> World.from_group(dist.new_group([0])).world_size
            1
            >>> dist.destroy_process_group()
        """
        import torch.distributed as dist

        if not isinstance(group, dist.ProcessGroup):
            raise ConfigError(
                f"group={group!r}: allowed is a torch.distributed.ProcessGroup with this process in it; "
                f"make the loader only on the ranks of the group"
            )
        return cls._of_members("group", [[rank] for rank in dist.get_process_group_ranks(group)])

    @classmethod
    def _of_members(cls, kind: str, members: Sequence[Sequence[int]]) -> World:
        import torch.distributed as dist

        here = dist.get_rank()
        for rank, processes in enumerate(members):
            if here in processes:
                return cls(rank, len(members), ranks.local_rank(here), members=tuple(map(tuple, members)))
        raise ConfigError(
            f"this process is rank {here} of torch.distributed, but the {kind} has the ranks "
            f"{sorted(chain(*members))}: make the loader only on these"
        )
