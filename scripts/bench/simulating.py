"""Walks the real plan of a run on many GPUs: which shards a node's ranks touch, and how many its cache downloads.

Nothing is read, and nothing runs on a GPU: the rate of the GPUs is assumed.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.plan import Chosen, Passes, Plan, Shuffle, Shuffled, all_samples
from gpuloader.shards.remote import Need

SHUFFLES: tuple[Shuffle, ...] = ("full", "block", "shards")
NODE_GPUS = 8
_MOST_HOURS = 5
_MOST_COUNTED = 1 << 24  # positions of all ranks, to count the downloads of a cache that is not full yet
_COUNTED_STEPS = 16  # at least, once it is full


@dataclass(frozen=True)
class Cluster:
    """What is assumed of a run.

    Attributes:
        samples: in the data.
        nodes: of 8 GPUs.
        images_per_second: what each GPU consumes.
        batch_size: of each GPU.
        shard_samples: in each shard.
        cache_shards: how many shards the cache of a node holds.
        store_requests_per_second: what the store answers, for all nodes together.
    """

    samples: int = 10**9
    nodes: int = 128
    images_per_second: float = 50.0
    batch_size: int = 32
    shard_samples: int = 4000
    cache_shards: int = 30_000
    store_requests_per_second: float = 5000.0

    @property
    def gpus(self) -> int:
        return NODE_GPUS * self.nodes

    @property
    def shards(self) -> int:
        return -(-self.samples // self.shard_samples)

    @property
    def epoch_seconds(self) -> float:
        return self.samples / self.gpus / self.images_per_second

    @property
    def steps_per_hour(self) -> int:
        return round(3600 * self.images_per_second / self.batch_size)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The samples of each shard, (shards,)."""
        sizes = np.full(self.shards, self.shard_samples)
        sizes[-1] -= sizes.sum() - self.samples
        return sizes

    def positions(self, shuffle: Shuffle) -> Passes:
        return (
            Shuffled(Chosen(int(self.sizes.sum())), "shards", self.sizes)
            if shuffle == "shards"
            else all_samples(self.samples, shuffle)
        )


def simulate(cluster: Cluster) -> dict[str, Any]:
    """Returns what is assumed; and for each shuffle the shards touched in each hour, and downloaded in an epoch."""
    shuffles = {}
    for shuffle in SHUFFLES:
        positions = cluster.positions(shuffle)
        shuffles[shuffle] = {
            "touched": touched(cluster, positions),
            "downloads": downloads(cluster, positions),
        }
    return {"assumed": asdict(cluster), "shuffles": shuffles}


def touched(cluster: Cluster, positions: Passes, node: int = 0) -> list[list[int]]:
    """Counts the shards that the ranks of a node touch in each hour: for each hour each rank's, then the node's."""
    # Ranks take neighbouring parts of a global batch, so a node's part is that of one rank with a larger batch.
    plan = Plan(positions, NODE_GPUS * cluster.batch_size, node, cluster.nodes)
    hours = max(1, min(plan.steps // cluster.steps_per_hour, _MOST_HOURS))
    rows = []
    for hour in range(hours):
        seen = np.zeros((NODE_GPUS, cluster.shards), np.bool_)
        for step in range(hour * cluster.steps_per_hour, min((hour + 1) * cluster.steps_per_hour, plan.steps)):
            ids = plan.batch(plan.at(0, step)).ids.reshape(NODE_GPUS, -1)
            seen[np.arange(NODE_GPUS)[:, None], ids // cluster.shard_samples] = True
        rows.append([*seen.sum(axis=1).tolist(), int(seen.any(axis=0).sum())])
    return rows


def downloads(cluster: Cluster, positions: Passes) -> int:
    """Counts the shards that a node downloads in an epoch, if its cache removes the least recently used one.

    The loader downloads ahead what all ranks need, so this asks its `Need`, step by step. In a large epoch it goes on
    until the cache is full, and as far again, and takes that for the rest of the epoch.
    """
    if cluster.cache_shards >= cluster.shards:
        return cluster.shards
    plan = Plan(positions, cluster.batch_size, 0, cluster.gpus)
    need = Need(plan, lambda samples: samples // cluster.shard_samples, dict.fromkeys(range(cluster.shards)))
    held: OrderedDict[int, None] = OrderedDict()
    count = full_at = step = 0
    end = min(plan.steps, max(1, _MOST_COUNTED // plan.global_batch))
    is_whole = end == plan.steps
    while step < end:
        for shard in need.shards(plan.at(0, step), 1):
            count += shard not in held
            held[shard] = None
            held.move_to_end(shard)
            if len(held) > cluster.cache_shards:
                held.popitem(last=False)
        step += 1
        if len(held) == cluster.cache_shards and not full_at and not is_whole:
            count, full_at = 0, step
            end = min(plan.steps, full_at + max(full_at, _COUNTED_STEPS))
    return round(count * plan.steps / (end - full_at))
