"""`Mix`: several sources interleaved in a ratio: each round of `sum(parts)` places has the ratio exactly.

A source is the next samples of the data, in passes of its own; a small one is gone through more often. Its samples are
taken one after the other, so each pass over it has every sample once, wherever epochs begin. The ratio may change along
the row, and each ratio begins a new round: what a source has given at a place is a sum over the ratios before it.
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
    """Returns whole numbers in the ratio of weights, some above 0, or in one within 1% of it.

    Raises:
        ConfigError: no such numbers have a sum of at most 100,000.
    """
    shares = np.array(weights) / max(weights)
    shares = shares[shares > 0] / shares.sum()
    exact = _TOTALS[:, None] * shares
    parts = np.rint(exact)
    off = np.abs(parts / exact - 1).max(axis=1).round(9)  # rounded, so that the smallest of equals is taken
    if not off.min() <= 0.01:  # or it is not a number
        raise ConfigError(
            f"the weights {list(weights)} are too far apart for a fixed ratio: make the smallest at least 0.05% of "
            f"their sum"
        )
    found = iter(parts[off.argmin()])
    return tuple(int(next(found)) if weight else 0 for weight in weights)


class Ratio(NamedTuple):
    """How many of `sum(parts)` neighbouring places each source gets, from a place on.

    Attributes:
        start: a place of the row; in a schedule an epoch, and 2.5 is the middle of epoch 2.
    """

    start: float
    parts: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Mix:
    """Sources in ratios; see `Sampler` for what it shares with these.

    Attributes:
        chosen: the samples of all sources.
        sizes: how many of them each source has.
        schedule: the ratios by epoch, the first from epoch 0 on.
        shuffle: the order of each pass.
        shard_sizes: for "shards": (s,) int64 for each source, how many of its samples each of its shards has.
        groups: for "shards": the groups of each source; `fixed` as in `GroupedSampler`.
        ratios: the ratios by place of the row, the first from 0 on. The plan knows where epochs begin.
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
        """The samples of all sources together."""
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
        """See `Sampler`; each source has a seed and passes of its own."""
        taken = SampleSlice(*(np.empty_like(offsets) for _ in range(3)))
        for number, here, at, own in self._split(first, offsets):
            part = self._sources[number].take(seed_of_part(seed, number), at, own)
            for all_of_them, of_source in zip(taken, part):
                all_of_them[here] = of_source
        return taken

    def groups_at(self, first: int, offsets: Ints) -> Ints:
        """See `GroupedSampler`; each source has groups of its own."""
        groups = np.empty_like(offsets)
        for number, here, at, own in self._split(first, offsets):
            source = self._sources[number]
            assert isinstance(source, GroupedSampler)
            groups[here] = source.groups_at(at, own)
        return groups

    def near(self, seed: int, sample: int, uniform: NDArray[np.float64]) -> Ints:
        """See `GroupedSampler`; the samples are of the same source."""
        number = int(np.searchsorted(np.cumsum(self.sizes), self.chosen.number_of(sample), side="right"))
        source = self._sources[number]
        assert isinstance(source, GroupedSampler)
        return source.near(seed_of_part(seed, number), sample, uniform)

    def _split(self, first: int, offsets: Ints) -> Iterator[tuple[int, Ints, int, Ints]]:
        """Yields each source's number, which of the offsets are its, and these in the source's row, as `take` asks."""
        ends = [*(ratio.start for ratio in self.ratios[1:]), float("inf")]
        for (start, parts), end, given in zip(self.ratios, ends, self._given):
            owners, before = _round_of(parts)
            here = np.flatnonzero((offsets >= start - first) & (offsets < end - first))
            done, slot = divmod(first - int(start), len(owners))  # of rounds; Python's integers have any size
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
        """For each ratio, how many samples each source has given before it."""
        given = [[0] * len(self.sizes)]
        for (start, parts), after in pairwise(self.ratios):
            owners, _ = _round_of(parts)
            rounds, slots = divmod(int(after.start - start), len(owners))
            counts = np.bincount(owners[:slots], minlength=len(parts)).tolist()
            given.append([so_far + rounds * part + count for so_far, part, count in zip(given[-1], parts, counts)])
        return given


@lru_cache(maxsize=8)
def _round_of(parts: tuple[int, ...]) -> tuple[Ints, Ints]:
    """For each slot of a round, its source, and how many slots before it have the same one.

    Each source's slots are spread evenly: its k-th of n is due at (k + 1/2) / n of the round.
    """
    due = np.concatenate([(np.arange(part) + 0.5) / part for part in parts if part])
    owners = np.repeat(np.arange(len(parts)), parts)
    before = np.concatenate([np.arange(part) for part in parts])
    order = np.argsort(due, kind="stable")
    return owners[order], before[order]
