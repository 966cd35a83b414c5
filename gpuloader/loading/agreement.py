"""Compares the arguments of a loader between ranks."""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import chain, count
from typing import Any

from gpuloader.errors import ConfigError
from gpuloader.loading.ranks import distributed_rank
from gpuloader.loading.world import World

_MEETING_SECONDS = 120.0
_ALIKE = (
    "all ranks must make the same loaders in the same order; for a loader on one rank, pass world=World(0, 1), "
    "for a loader on some ranks, world=World.from_group(group)"
)
_meetings: defaultdict[str, Iterator[int]] = defaultdict(count)  # by the ranks that meet


def agree(world: World, facts: Mapping[str, Any], wait_seconds: float = _MEETING_SECONDS) -> World:
    """Compares facts between the members of a world; without members, between the ranks of torch.distributed.

    Every member must call it equally often and in the same order. They use torch.distributed's default store, which
    needs neither a GPU nor a process group; each wait has a time limit. Messages use the ranks of torch.distributed.

    Args:
        facts: values in plain JSON types.

    Returns:
        The world, where `local_world_size` is at least the number of members on this machine, because `mp.spawn` does
        not set LOCAL_WORLD_SIZE. Its `node` has the data ranks of this machine.

    Raises:
        ConfigError: facts differ, or members did not call it in time. Every member raises the same message, which names
            the facts and ranks.
    """
    found = distributed_rank()
    if found is None or not (world.members or found == (world.rank, world.world_size)):
        return world
    here, world_size = found
    members = world.members or [[rank] for rank in range(world_size)]
    from torch.distributed.distributed_c10d import PrefixStore

    from gpuloader.base.torch import default_store

    ranks = sorted(chain(*members))
    meeting = hashlib.blake2b(json.dumps(ranks).encode(), digest_size=16).hexdigest()
    store = PrefixStore(f"gpuloader/{meeting}/{next(_meetings[meeting])}", default_store())
    host = socket.gethostname()
    store.set(f"{host}/{store.add(f'ranks of {host}', 1)}", str(world.rank))
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
    on_host = store.add(f"ranks of {host}", 0)
    together = max(world.local_world_size, on_host)
    node = tuple(sorted({int(store.get(f"{host}/{number}")) for number in range(1, on_host + 1)}))
    return World(world.rank, world.world_size, world.local_rank, together, node=node, members=world.members)


def _verdict(store: Any, members: Sequence[Sequence[int]], wait: timedelta) -> str:  # noqa: ANN401 - a torch Store
    """Returns a text on the differences between the facts of all members; empty if they agree."""
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
    """Returns the elapsed time as a text; it is below the limit if the process of the store ended."""
    return f"{time.monotonic() - began:.1f} s"
