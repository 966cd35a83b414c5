"""`Mix`: interleaves several sources in a ratio, exact in each round of `sum(parts)` places.

A source is a range of samples with its own passes (epochs of the source); a small source repeats more often. Each pass
has every sample of the source once, wherever epochs begin. The ratio may change along the row, and each ratio begins a
new round. The samples that a source has given at a place are a sum over the ratios before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import ConfigError
from gpuloader.plan.grouped_sampler import GroupedSampler
from gpuloader.plan.order import Shuffle, seed_of_part
from gpuloader.plan.samplers import Ints, SampleSlice, SampleSubset, ShuffledSampler, digest_of

_TOTALS = np.array([*range(1, 10_001), 100_000])


@np.errstate(invalid="ignore")
def parts_of(weights: Sequence[float]) -> tuple[int, ...]:
    """Returns integers in the ratio of the weights, within 1%; some weight must be above 0.

    Raises:
        ConfigError: the integers would have a sum above 100,000.
    """
    shares = np.array(weights) / max(weights)
    shares = shares[shares > 0] / shares.sum()
    exact = _TOTALS[:, None] * shares
    parts = np.rint(exact)
    off = np.abs(parts / exact - 1).max(axis=1).round(9)  # rounded, so that the smallest of equal errors wins
    if not off.min() <= 0.01:  # or it is not a number
        raise ConfigError(
            f"the weights {list(weights)} are too far apart for a fixed ratio: make the smallest at least 0.05% of "
            f"their sum"
        )
    found = iter(parts[off.argmin()])
    return tuple(int(next(found)) if weight else 0 for weight in weights)


class Ratio(NamedTuple):
    """The places of each source, of `sum(parts)` neighbouring places, from a place on.

    Attributes:
        start: a place of the row; in a schedule an epoch, where 2.5 is the middle of epoch 2.
    """

    start: float
    parts: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Mix:
    """Several sources, interleaved in ratios, with the attributes of a `Sampler`.

    Attributes:
        chosen: the samples of all sources.
        sizes: the number of samples of each source.
        schedule: the ratios by epoch, the first from epoch 0 on.
        shuffle: the order of each pass.
        shard_sizes: for "shards": (s,) int64 for each source, the number of its samples in each of its shards.
        groups: for "shards": the groups of each source; `fixed` as in `GroupedSampler`.
        ratios: the ratios by place of the row, the first from 0 on; the plan converts epochs to places.
    """

    chosen: SampleSubset
    sizes: tuple[int, ...]
    schedule: tuple[Ratio, ...]
    shuffle: Shuffle
    shard_sizes: tuple[Ints, ...] = ()
    groups: int | None = None
    fixed: bool = False
    ratios: tuple[Ratio, ...] = ()

    @property
    def size(self) -> int:
        """The number of samples of all sources together."""
        return self.chosen.size

    @property
    def samples(self) -> int:
        return self.size

    @property
    def fingerprint(self) -> str:
        """See `Sampler`; without the ratios, which may change in a run."""
        return digest_of(f"mix {self.chosen.fingerprint} {self.sizes} {self.shuffle}", *self.shard_sizes)

    def includes(self, ids: Ints) -> NDArray[np.bool_]:
        return self.chosen.includes(ids)

    def with_ratios(self, ratios: Sequence[Ratio]) -> Mix:
        return replace(self, ratios=tuple(ratios))

    def take(self, seed: int, first: int, offsets: Ints) -> SampleSlice:
        """See `Sampler`; each source has its own seed and passes."""
        taken = SampleSlice(*(np.empty_like(offsets) for _ in range(3)))
        for number, here, at, own in self._split(first, offsets):
            part = self._sources[number].take(seed_of_part(seed, number), at, own)
            for all_of_them, of_source in zip(taken, part):
                all_of_them[here] = of_source
        return taken

    def groups_at(self, first: int, offsets: Ints) -> Ints:
        """See `GroupedSampler`; each source has its own groups."""
        groups = np.empty_like(offsets)
        for number, here, at, own in self._split(first, offsets):
            source = self._sources[number]
            assert isinstance(source, GroupedSampler)
            groups[here] = source.groups_at(at, own)
        return groups

    def near(self, seed: int, sample: int, uniform: NDArray[np.float64]) -> Ints:
        """See `GroupedSampler`; the samples come from the same source."""
        number = int(np.searchsorted(np.cumsum(self.sizes), self.chosen.number_of(sample), side="right"))
        source = self._sources[number]
        assert isinstance(source, GroupedSampler)
        return source.near(seed_of_part(seed, number), sample, uniform)

    def _split(self, first: int, offsets: Ints) -> Iterator[tuple[int, Ints, int, Ints]]:
        """Yields each source's number, the mask of its offsets, and its places in its own row, as `take` needs them."""
        ends = [*(ratio.start for ratio in self.ratios[1:]), float("inf")]
        for (start, parts), end, given in zip(self.ratios, ends, self._given):
            owners, before = _round_of(parts)
            here = np.flatnonzero((offsets >= start - first) & (offsets < end - first))
            done, slot = divmod(first - int(start), len(owners))  # of rounds, as Python's unbounded integers
            rounds, slots = np.divmod(slot + offsets[here], len(owners))
            for number in np.unique(owners[slots]).tolist():
                mine = np.flatnonzero(owners[slots] == number)
                own = rounds[mine] * parts[number] + before[slots[mine]]
                yield number, here[mine], given[number] + done * parts[number], own

    @cached_property
    def _sources(self) -> list[ShuffledSampler | GroupedSampler]:
        firsts = np.cumsum([0, *self.sizes]).tolist()
        chosen = [self.chosen.part(first, size) for first, size in zip(firsts, self.sizes)]
        if self.groups is None:
            return [ShuffledSampler(each, self.shuffle) for each in chosen]
        return [GroupedSampler(each, sizes, self.groups) for each, sizes in zip(chosen, self.shard_sizes)]

    @cached_property
    def _given(self) -> list[list[int]]:
        """The samples that each source has given before each ratio."""
        given = [[0] * len(self.sizes)]
        for (start, parts), after in pairwise(self.ratios):
            owners, _ = _round_of(parts)
            rounds, slots = divmod(int(after.start - start), len(owners))
            counts = np.bincount(owners[:slots], minlength=len(parts)).tolist()
            given.append([so_far + rounds * part + count for so_far, part, count in zip(given[-1], parts, counts)])
        return given


@lru_cache(maxsize=8)
def _round_of(parts: tuple[int, ...]) -> tuple[Ints, Ints]:
    """Returns, for each slot of a round, its source, and the number of earlier slots of this source.

    Each source's slots are spread evenly: its k-th of n is due at (k + 1/2) / n of the round.
    """
    due = np.concatenate([(np.arange(part) + 0.5) / part for part in parts if part])
    owners = np.repeat(np.arange(len(parts)), parts)
    before = np.concatenate([np.arange(part) for part in parts])
    order = np.argsort(due, kind="stable")
    return owners[order], before[order]
