"""`World`: this rank and the number of ranks; `agree` checks that all ranks have the same arguments."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import socket
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from gpuloader.errors import ConfigError
from gpuloader.helpers.cores import available_cores
from gpuloader.helpers.values import as_python_integer

if TYPE_CHECKING:  # some builds of torch have no torch.distributed
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

_MEETING_SECONDS = 120.0
GPU_THREADS = 8
_meetings: defaultdict[str, Iterator[int]] = defaultdict(count)  # by the ranks that meet
_log = logging.getLogger("gpuloader")


@dataclass(frozen=True)
class World:
    """One process among those that share the data.

    Attributes:
        rank: the data rank, in [0, world_size): which part of each global batch this process gets.
        world_size: the number of data ranks on all machines together; with `from_mesh`, several processes can have one.
        local_rank: this process among those of its machine. It chooses the GPU; 0 shows progress and warns for its
            machine. If not given, it is torchrun's or Slurm's value if they set one, otherwise the rank.
        local_world_size: the number of processes on its machine. If not given, it is torchrun's value, otherwise 1;
            `agree` then counts the processes.
        members: for each data rank, the processes that have it, by their ranks in torch.distributed. Only `from_mesh`
            and `from_group` give it; otherwise it is empty.

    Example:
        >>> from gpuloader import World
        >>> World(rank=3, world_size=8).world_size
        8
    """

    rank: int
    world_size: int
    local_rank: int = None  # type: ignore[assignment]  # an integer once it is made
    local_world_size: int = None  # type: ignore[assignment]
    members: tuple[tuple[int, ...], ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("rank", "world_size", "local_rank", "local_world_size"):
            object.__setattr__(self, name, as_python_integer(getattr(self, name)))
        if self.local_rank is None:
            rank = self.rank if isinstance(self.rank, int) else 0
            object.__setattr__(self, "local_rank", _local_rank(rank))
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

    @classmethod
    def of_process(cls) -> World:
        """Returns this process among those of its machine, for what shares no data, such as a `Stage`."""
        return cls(*(_from_distributed() or (0, 1)))

    def decoding_threads(self, device_id: int | None) -> int:
        """Returns this process's share of the machine's cores; with a GPU, at most 8."""
        cores = max(1, available_cores() // self.local_world_size)
        return cores if device_id is None else min(cores, GPU_THREADS)

    @classmethod
    def from_mesh(cls, mesh: DeviceMesh, names: str | Sequence[str] | None = None) -> World:
        """Takes the data rank from those dimensions of a mesh of torch.distributed that divide the data.

        Ranks of the mesh that differ only in other dimensions, such as those of tensor, context and pipeline
        parallelism, get the same batches. All ranks of the mesh must make the loader.

        Args:
            names: one dimension or several, such as `("dp_replicate", "dp_shard")`. The data rank counts through them
                in the order of the mesh. `()` gives all ranks the same batches. None is for a mesh of one dimension.
                In a mesh without names, the dimensions are "0", "1" and so on.

        Raises:
            ConfigError: the mesh has no such dimension, or has several and `names` is None; or this process is not in
                the mesh.

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
        """Takes the rank in a process group as the data rank; all ranks of the group must make the loader.

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
                world = cls(rank, len(members), _local_rank(here))
                object.__setattr__(world, "members", tuple(map(tuple, members)))
                return world
        raise ConfigError(
            f"this process is rank {here} of torch.distributed, but the {kind} has the ranks "
            f"{sorted(chain(*members))}: make the loader only on these"
        )


def agree(world: World, facts: Mapping[str, Any], wait_seconds: float = _MEETING_SECONDS) -> World:
    """Compares facts over the members of a world, or over all ranks of torch.distributed if this world is the same.

    Every member must call it equally often and in the same order. They meet at torch.distributed's default store: this
    needs neither a GPU nor a process group, and it cannot hang. The ranks in messages are those of torch.distributed.

    Args:
        facts: in plain JSON types.

    Returns:
        The world, where `local_world_size` is at least the number of members on this machine: `mp.spawn` does not set
        LOCAL_WORLD_SIZE.

    Raises:
        ConfigError: facts differ, or members did not come in time; every member raises the same message, which names
            the facts and ranks.
    """
    found = _from_distributed()
    if found is None or not (world.members or found == (world.rank, world.world_size)):
        return world
    here, world_size = found
    members = world.members or [[rank] for rank in range(world_size)]
    from torch.distributed.distributed_c10d import PrefixStore

    from gpuloader.internals.torch import default_store

    ranks = sorted(chain(*members))
    meeting = hashlib.blake2b(json.dumps(ranks).encode(), digest_size=16).hexdigest()
    store = PrefixStore(f"gpuloader/{meeting}/{next(_meetings[meeting])}", default_store())
    host = socket.gethostname()
    store.add(f"ranks of {host}", 1)
    store.set(f"facts/{here}", json.dumps({"data_ranks": len(members), "data_rank": world.rank, **facts}))
    began = time.monotonic()
    if here == ranks[0]:
        store.set("verdict", _verdict(store, members, timedelta(seconds=wait_seconds)))
    try:
        # The first rank may itself wait this long for the others before it gives the verdict.
        store.wait(["verdict"], timedelta(seconds=2 * wait_seconds))
    except RuntimeError:
        raise ConfigError(f"rank {ranks[0]} did not make this loader within {_since(began)}: {_ALIKE}") from None
    if verdict := store.get("verdict").decode():
        raise ConfigError(verdict)
    counted = copy(world)
    object.__setattr__(counted, "local_world_size", max(world.local_world_size, store.add(f"ranks of {host}", 0)))
    return counted


_ALIKE = (
    "all ranks must make the same loaders in the same order; for one of a single rank, pass world=World(0, 1), "
    "for one of some ranks, world=World.from_group(group)"
)


def _verdict(store: Any, members: Sequence[Sequence[int]], wait: timedelta) -> str:  # noqa: ANN401 - a torch Store
    """Says what is wrong with the facts of all members; empty if they agree."""
    keys = {rank: f"facts/{rank}" for rank in sorted(chain(*members))}
    began = time.monotonic()
    try:
        store.wait(list(keys.values()), wait)
    except RuntimeError:
        missing = [rank for rank, key in keys.items() if not store.check([key])]
        return f"the ranks {missing} did not make this loader within {_since(began)}: {_ALIKE}"
    facts = {rank: json.loads(store.get(key)) for rank, key in keys.items()}
    differences = []
    for name in facts[min(facts)]:
        ranks: dict[str, list[int]] = defaultdict(list)
        for rank, fact in facts.items():
            ranks[json.dumps(fact.get(name))].append(rank)
        alike = sorted(map(sorted, members)) if name == "data_rank" else [list(keys)]
        if sorted(ranks.values()) != alike:
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


def _local_rank(otherwise: int) -> int:
    return _integer("LOCAL_RANK", _integer("SLURM_LOCALID", otherwise))


def _integer(variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default))
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"the environment variable {variable}={text!r} is not an integer") from None
