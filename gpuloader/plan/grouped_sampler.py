"""`GroupedSampler`: lets neighbouring ranks read neighbouring shards, for `shuffle="shards"`.

    part     the shards, in an order fixed by the seed, are cut into C equal parts of all samples, one for each group
    place    place p of a pass belongs to group (p % C) * stride % C, and takes the group's next sample
    order    a pass permutes a group's shards, then the samples within each window of WINDOW_SHARDS // C of them
    step     the plan sorts a step's places by group, so neighbouring ranks, and so a node, take neighbouring groups

Groups do not change with the pass, so a node needs the same shards in all epochs. The samples of a step do not depend
on the number of ranks or nodes. The stride spreads neighbouring places over all groups. So a step that is no multiple
of C, or one source of several, is spread evenly over the groups, up to one or two places.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, gcd
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuloader.plan.draws import Stream, words
from gpuloader.plan.order import ROUNDS, IdsAt, Permutation
from gpuloader.plan.sample_order import Ints, Order
from gpuloader.plan.samplers import Sampler, SampleSubset, digest_of

WINDOW_SHARDS = 16  # that all nodes read at a time if steps are small
MOST_GROUPS = 1 << 16
_GROUP_SAMPLES = 64  # of a large step: 4 groups for a node with 8 ranks of 32, and only 32 for 8 ranks of 256


def choose_groups(global_batch: int, shards: int, multiple: int = 1) -> int:
    """Returns the largest divisor of the global batch up to a 64th of it, or to 16, and up to the number of shards.

    It is a multiple of `multiple`; without such a divisor, it is `multiple`.
    """
    most = min(max(WINDOW_SHARDS, global_batch // _GROUP_SAMPLES), shards, MOST_GROUPS)
    return next((each for each in range(most, 0, -1) if not (each % multiple or global_batch % each)), multiple)


class _Parts(NamedTuple):
    """The parts of shards in each group: the first chosen sample of each part, and its size.

    Attributes:
        firsts: (k,) int64.
        sizes: (k,) int64, above 0.
        groups: (k,) int64, ascending.
        shards: (k,) int64.
    """

    firsts: Ints
    sizes: Ints
    groups: Ints
    shards: Ints


class Grouped(Order):
    """An order with groups of shards: the ranks take the places of a step by group."""

    KEPT = "Sampling", "groups", MOST_GROUPS

    @abstractmethod
    def groups_at(self, first: int, offsets: Ints) -> Ints:
        """Returns the groups, (k,), at places of the row."""

    def arrange(self, first: int, offsets: Ints) -> Ints | None:
        if self.groups is None:
            return None
        groups = self._groups(first, offsets).astype(np.uint16)  # small integers are sorted faster
        return np.argsort(groups, axis=-1, kind="stable")

    def times_read(self, first: int, offsets: Ints, nodes: float) -> float:
        """See `Order`; of 2.5 nodes, the last has half the ranks."""
        if self.groups is None:
            return super().times_read(first, offsets, nodes)
        groups = self._groups(first, offsets)
        borders = np.rint(np.arange(1, ceil(nodes)) * groups.shape[1] / nodes).astype(int)
        of_nodes = np.split(np.sort(groups, axis=1), borders, axis=1)
        return sum(len(np.unique(each)) for each in of_nodes) / len(np.unique(groups))

    def state(self, begun: int) -> dict[str, Any]:
        return {} if self.groups is None else {"groups": self.groups}

    def _groups(self, first: int, offsets: Ints) -> Ints:
        return self.groups_at(first, offsets.ravel()).reshape(offsets.shape)


@dataclass(frozen=True, eq=False)
class GroupedSampler(Grouped, Sampler):
    """Passes over every chosen sample once, by groups of shards.

    Attributes:
        chosen: the samples, in the order of the shards.
        shard_sizes: (s,) int64, the number of chosen samples in each shard.
        groups: the number of groups, C.
        fixed: whether a state with another number of groups is refused.
    """

    shuffle = "shards"

    chosen: SampleSubset
    shard_sizes: Ints
    groups: int = 1
    fixed: bool = False

    def __str__(self) -> str:
        return str(self.chosen)

    @property
    def size(self) -> int:
        return self.chosen.size

    @cached_property
    def fingerprint(self) -> str:
        """See `Sampler`; without the number of groups, which a state keeps separately."""
        return digest_of(f"grouped {self.chosen.fingerprint}", self.shard_sizes)

    def includes(self, ids: Ints) -> NDArray[np.bool_]:
        return self.chosen.includes(ids)

    def groups_at(self, first: int, offsets: Ints) -> Ints:
        return self._group_of_turn[self.find(first, offsets)[1] % self.groups]

    def like(self, first: int, count: int) -> int:
        """See `Order`: within a pass, the groups repeat."""
        within = first % self.size
        return within % self.groups if within + count <= self.size else first

    def order(self, seed: int, number: int) -> IdsAt:
        parts, keys = self.parts(seed), words(seed, number, Stream.ORDER, 2 * ROUNDS)
        counts = np.bincount(parts.groups, minlength=self.groups)
        begins = np.cumsum(counts) - counts
        within = np.arange(len(parts.groups)) - begins[parts.groups]
        permuted = begins[parts.groups] + Permutation(counts, keys[:ROUNDS])(within, parts.groups)
        ends = np.cumsum(parts.sizes[permuted])
        # A slot and its sample's number differ by the same amount within a part.
        shifts = parts.firsts[permuted] - (ends - parts.sizes[permuted])
        window_shards = max(1, WINDOW_SHARDS // self.groups)
        window_ends = ends[np.append((np.diff(parts.groups) > 0) | (within[1:] % window_shards == 0), True)]
        window_begins = np.append(0, window_ends[:-1])
        in_window = Permutation(window_ends - window_begins, keys[ROUNDS:])

        def ordered(places: Ints) -> Ints:
            turns, residues = np.divmod(places, self.groups)
            slots = self._begins[self._group_of_turn[residues]] + turns
            windows = np.searchsorted(window_ends, slots, side="right")
            slots = window_begins[windows] + in_window(slots - window_begins[windows], windows)
            return self.chosen.at(slots + shifts[np.searchsorted(ends, slots, side="right")])

        return ordered

    def near(self, seed: int, first: int, offset: Ints, sample: int, uniform: NDArray[np.float64]) -> Ints:
        """See `Order`; the samples come from the sample's group."""
        parts = self.parts(seed)
        number = self.chosen.number_of(sample)
        part = np.argmax((parts.firsts <= number) & (number < parts.firsts + parts.sizes))
        mine = np.flatnonzero(parts.groups == parts.groups[part])
        ends = np.cumsum(parts.sizes[mine])
        slots = np.floor(uniform * ends[-1]).astype(np.int64)
        found = np.searchsorted(ends, slots, side="right")
        return self.chosen.at(parts.firsts[mine][found] + slots - (ends - parts.sizes[mine])[found])

    @cached_property
    def parts(self) -> Any:  # noqa: ANN401
        return lru_cache(maxsize=2)(self._cut)

    def _cut(self, seed: int) -> _Parts:
        """Cuts the shards into the groups' parts of the samples."""
        permuted = Permutation(len(self.shard_sizes), words(seed, 0, Stream.GROUPS, ROUNDS))
        shards = permuted(np.arange(len(self.shard_sizes)))
        sizes = self.shard_sizes[shards]
        shard_ends, group_ends = np.cumsum(sizes), np.append(self._begins[1:], self.size)
        ends = np.unique(np.concatenate([shard_ends, group_ends]))
        ends = ends[ends > 0]
        begins = np.append(0, ends[:-1])
        of = np.searchsorted(shard_ends, begins, side="right")
        firsts = (np.cumsum(self.shard_sizes) - self.shard_sizes)[shards[of]] + begins - (shard_ends - sizes)[of]
        return _Parts(firsts, ends - begins, np.searchsorted(group_ends, begins, side="right"), shards[of])

    @cached_property
    def _group_of_turn(self) -> Ints:
        """(C,) the group of each of C neighbouring places: multiples of about 0.618 * C are far apart."""
        stride = next(each for each in range(round(self.groups * 0.618) or 1, 0, -1) if gcd(each, self.groups) == 1)
        return np.arange(self.groups) * stride % self.groups

    @cached_property
    def _begins(self) -> Ints:
        """(C,) the first sample of each group among all samples, in the order of the groups."""
        turn_of_group = np.argsort(self._group_of_turn)
        sizes = self.size // self.groups + (turn_of_group < self.size % self.groups)
        return np.cumsum(sizes) - sizes
