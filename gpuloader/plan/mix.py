"""`Mix`: interleaves several sources in a ratio, exact in each round of `sum(parts)` places.

A source is a range of samples with its own passes (epochs of the source); a small source repeats more often. Each pass
has every sample of the source once, wherever epochs begin. The ratio may change along the row, and each ratio begins a
new round. The samples that a source has given at a place are a sum over the ratios before.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.values import is_integer
from gpuloader.errors import ConfigError, describe
from gpuloader.plan.grouped_sampler import Grouped, GroupedSampler
from gpuloader.plan.order import Shuffle, seed_of_part
from gpuloader.plan.sample_order import Ints, Order, SampleSlice
from gpuloader.plan.samplers import Sampler, SampleSubset, ShuffledSampler, digest_of

AnyInterleaved = TypeVar("AnyInterleaved", bound="Interleaved")
_MOST_SHOWN = 5  # ratios
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


class Interleaved(Order):
    """Several sources, interleaved in ratios.

    Attributes:
        schedule: the ratios by epoch, the first from epoch 0 on.
        begun: the ratios by place of the row that began before the state that a run goes on from.
        ratios: the ratios by place of the row, the first from 0 on; `at_places` sets them.
    """

    schedule: tuple[Ratio, ...] = ()
    begun: tuple[Ratio, ...] = ()
    ratios: tuple[Ratio, ...] = ()

    @property
    @abstractmethod
    def sources(self) -> Sequence[Sampler]:
        """The row of each source."""

    def __str__(self) -> str:
        ratios = ", then ".join(":".join(map(str, each.parts)) for each in self.schedule[:_MOST_SHOWN])
        return f"sources in the ratio {ratios}{' ...' if len(self.schedule) > _MOST_SHOWN else ''}"

    def start_of(self, place: int) -> int:
        """Returns the place where a ratio begins that should begin at a place."""
        return place

    def at_places(self: AnyInterleaved, place_of: Callable[[float], int]) -> AnyInterleaved:
        """See `Order`: ratios that have begun, then ratios of later epochs."""
        later = (Ratio(self.start_of(place_of(each.start)), each.parts) for each in self.schedule[len(self.begun) :])
        return replace(self, ratios=(*self.begun, *later))  # type: ignore[type-var]

    def state(self, begun: int) -> dict[str, Any]:
        ratios = [[int(start), list(parts)] for start, parts in self.ratios if start < begun]
        return {**super().state(begun), "ratios": ratios}

    def resume(
        self: AnyInterleaved, state: Mapping[str, Any], begun: int, epoch: int, place_of: Callable[[float], int]
    ) -> AnyInterleaved:
        """See `Order`; later ratios may be others than before.

        If the state's epoch had another length, a ratio of this epoch may have begun at another place than here.
        """
        listed, count = state.get("ratios"), len(self.schedule[0].parts)
        if not isinstance(listed, (list, tuple)) or not all(_is_ratio(each, count) for each in listed):
            raise ConfigError(f"ratios={describe(listed)}: allowed are [place, parts] with a part for each source")
        ratios = tuple(Ratio(start, tuple(parts)) for start, parts in listed)
        starts = [ratio.start for ratio in ratios]
        if starts != sorted(starts) or starts[:1] not in ([], [0]) or starts[-1:] >= [begun]:
            raise ConfigError(f"the ratios begin at {describe(starts)}: allowed are 0, then places before the state's")
        certain = sum(self.start_of(place_of(each.start)) < begun for each in self.schedule)
        possible = sum(each.start < epoch for each in self.schedule)
        has = self.schedule[: max(certain, min(len(ratios), possible))]
        if [each.parts for each in ratios] != [each.parts for each in has]:
            raise ConfigError(
                f"up to there the weights of the sources were {_in_words(ratios)}, and this loader's are "
                f"{_in_words(has)}: weights may change from a later place on"
            )
        return replace(self, begun=ratios)  # type: ignore[type-var]

    def take(self, seed: int, first: int, offsets: Ints) -> SampleSlice:
        """See `Sampler`; each source has its own seed and passes."""
        taken = SampleSlice(*(np.empty_like(offsets) for _ in range(3)))
        for number, here, at, own in self._split(first, offsets):
            part = self.sources[number].take(seed_of_part(seed, number), at, own)
            for all_of_them, of_source in zip(taken, part):
                all_of_them[here] = of_source
        return taken

    def _split(self, first: int, offsets: Ints) -> Iterator[tuple[int, Ints, int, Ints]]:
        """Yields each source's number, the mask of its offsets, and its places in its own row, as `take` needs them."""
        ends = [*(ratio.start for ratio in self._rounds[1:]), float("inf")]
        for (start, parts), end, given in zip(self._rounds, ends, self._given):
            owners, before = _round_of(parts)
            here = np.flatnonzero((offsets >= start - first) & (offsets < end - first))
            done, slot = divmod(first - int(start), len(owners))  # of rounds, as Python's unbounded integers
            rounds, slots = np.divmod(slot + offsets[here], len(owners))
            for number in np.unique(owners[slots]).tolist():
                mine = np.flatnonzero(owners[slots] == number)
                own = rounds[mine] * parts[number] + before[slots[mine]]
                yield number, here[mine], given[number] + done * parts[number], own

    @property
    def _rounds(self) -> Sequence[Ratio]:
        """The ratios by place among what is interleaved."""
        return self.ratios

    @cached_property
    def _given(self) -> list[list[int]]:
        """The samples that each source has given before each ratio."""
        given = [[0] * len(self.schedule[0].parts)]
        for (start, parts), after in pairwise(self._rounds):
            owners, _ = _round_of(parts)
            rounds, slots = divmod(int(after.start - start), len(owners))
            counts = np.bincount(owners[:slots], minlength=len(parts)).tolist()
            given.append([so_far + rounds * part + count for so_far, part, count in zip(given[-1], parts, counts)])
        return given


@dataclass(frozen=True, eq=False)
class Mix(Interleaved, Grouped):
    """Several sources of samples, interleaved in ratios.

    Attributes:
        chosen: the samples of all sources.
        sizes: the number of samples of each source.
        shuffle: the order of each pass.
        shard_sizes: for "shards": (s,) int64 for each source, the number of its samples in each of its shards.
        groups: for "shards": the groups of each source; `fixed` as in `GroupedSampler`.
    """

    chosen: SampleSubset
    sizes: tuple[int, ...]
    schedule: tuple[Ratio, ...] = field()
    shuffle: Shuffle = field()
    shard_sizes: tuple[Ints, ...] = ()
    groups: int | None = None
    fixed: bool = False
    begun: tuple[Ratio, ...] = ()
    ratios: tuple[Ratio, ...] = ()

    @property
    def size(self) -> int:
        """The number of samples of all sources together."""
        return self.chosen.size

    @property
    def fingerprint(self) -> str:
        """See `Sampler`; without the ratios, which may change in a run."""
        return digest_of(f"mix {self.chosen.fingerprint} {self.sizes} {self.shuffle}", *self.shard_sizes)

    def includes(self, ids: Ints) -> NDArray[np.bool_]:
        return self.chosen.includes(ids)

    def groups_at(self, first: int, offsets: Ints) -> Ints:
        """See `GroupedSampler`; each source has its own groups."""
        groups = np.empty_like(offsets)
        for number, here, at, own in self._split(first, offsets):
            groups[here] = self._grouped[number].groups_at(at, own)
        return groups

    def near(self, seed: int, first: int, offset: Ints, sample: int, uniform: NDArray[np.float64]) -> Ints | None:
        """See `Order`; with groups, the samples come from the same group of the same source."""
        if self.groups is None:
            return None
        number = int(np.searchsorted(np.cumsum(self.sizes), self.chosen.number_of(sample), side="right"))
        return self._grouped[number].near(seed_of_part(seed, number), first, offset, sample, uniform)

    @cached_property
    def sources(self) -> Sequence[Sampler]:
        return self._grouped or [ShuffledSampler(each, self.shuffle) for each in self._chosen]

    @cached_property
    def _grouped(self) -> list[GroupedSampler]:
        if self.groups is None:
            return []
        return [GroupedSampler(each, sizes, self.groups) for each, sizes in zip(self._chosen, self.shard_sizes)]

    @property
    def _chosen(self) -> list[SampleSubset]:
        """The samples of each source."""
        firsts = np.cumsum([0, *self.sizes]).tolist()
        return [self.chosen.part(first, size) for first, size in zip(firsts, self.sizes)]


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


def _is_ratio(ratio: object, sources: int) -> bool:
    if not isinstance(ratio, (list, tuple)) or len(ratio) != 2 or not is_integer(ratio[0], 0):
        return False
    parts = ratio[1]
    return isinstance(parts, (list, tuple)) and len(parts) == sources and all(is_integer(part, 0) for part in parts)


def _in_words(ratios: Sequence[Ratio]) -> str:
    return ", then ".join(":".join(map(str, ratio.parts)) for ratio in ratios) or "none"
