"""Samples in passes: position -> sample id, for several ranges in a ratio.

    Mixture    several ranges of samples: each round of `sum(parts)` positions has their ratio exactly. A small range is
               repeated; a pass over a range continues across the ends of epochs

What each range gets may change along the run: a run is a row of segments, and each begins a new round. Their starts are
counted from the beginning of the run, where position p of epoch e is e * length + p. So a position alone tells how many
samples its range has given before: which pass over the range, and where in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import ConfigError
from gpuloader.plan.order import Order, Shuffle, make_order, seed_of_part
from gpuloader.plan.positions import digest_of

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


@dataclass(frozen=True)
class Segment:
    """What the ranges get in a part of the run.

    Attributes:
        start: its first position, counted from the beginning of the run.
        parts: how many of `sum(parts)` neighbouring positions each range gets.
    """

    start: int
    parts: tuple[int, ...]

    def given(self, positions: int) -> list[int]:
        """Counts the samples of each range in the first positions of the segment."""
        rounds, slots = divmod(positions, sum(self.parts))
        counts = np.bincount(_round_of(self.parts)[0][:slots], minlength=len(self.parts)).tolist()
        return [rounds * part + count for part, count in zip(self.parts, counts)]


def merge(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Leaves out each segment without a position, and each that changes nothing."""
    kept: list[Segment] = []
    for segment in segments:
        if kept and kept[-1].start == segment.start:
            kept.pop()
        if not kept or segment != replace(kept[-1], start=segment.start):
            kept.append(segment)
    return tuple(kept)


class _Piece(NamedTuple):
    """The part of a segment that lies in an epoch: where it begins and ends there, and what is done at its beginning.

    Attributes:
        slots: how many slots of the segment's running round.
        passes: of each range, how many passes, and how many samples of the running one.
    """

    first: int
    end: int
    segment: Segment
    slots: int
    passes: list[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Mixture:
    """Ranges of samples in a ratio.

    Attributes:
        sizes: how many samples each range has; the first begins at sample 0, each next one where the last ends.
        segments: those of the run; the first starts at 0.
        shuffle: the order of each pass.
    """

    repeats: ClassVar[bool] = True

    sizes: tuple[int, ...]
    segments: tuple[Segment, ...]
    shuffle: Shuffle

    @classmethod
    def of(cls, sizes: Sequence[int], weights: Sequence[float], shuffle: Shuffle) -> Mixture:
        """Makes the mixture of weights that do not change, all above 0; see `parts_of`."""
        return cls(tuple(sizes), (Segment(0, parts_of(weights)),), shuffle)

    @property
    def length(self) -> int:
        """The length of all ranges together."""
        return sum(self.sizes)

    @property
    def fingerprint(self) -> str:
        """See `Positions`."""
        if len(self.segments) == 1:
            return digest_of(f"mixture {self.sizes} {self.segments[0].parts} {self.shuffle}")
        segments = [(segment.start, segment.parts) for segment in self.segments]
        return digest_of(f"mixture {self.sizes} {segments} {self.shuffle}")

    def order(self, seed: int, epoch: int) -> Order:
        pieces = self._pieces(epoch * self.length)
        starts = np.cumsum([0, *self.sizes])

        def mix(positions: NDArray[np.int64]) -> NDArray[np.int64]:
            ids = np.empty_like(positions)
            for first, end, segment, slots, passes in pieces:
                ranges, before = _round_of(segment.parts)
                here = np.flatnonzero((positions >= first) & (positions < end))
                turn, slot = np.divmod(positions[here] - first + slots, len(ranges))
                for number, (size, part, (done, index)) in enumerate(zip(self.sizes, segment.parts, passes)):
                    rows = np.flatnonzero(ranges[slot] == number)
                    more, places = np.divmod(index + turn[rows] * part + before[slot[rows]], size)
                    for each in np.unique(more):
                        these = more == each
                        order = _order_of_pass(self.shuffle, size, seed, number, done + int(each))
                        ids[here[rows[these]]] = starts[number] + order(places[these])
            return ids

        return mix

    def includes(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.ones(len(ids), np.bool_)

    def _pieces(self, begin: int) -> list[_Piece]:
        """Returns what an epoch has of the segments; it begins at this position of the run."""
        end = begin + self.length
        pieces = []
        ends = [*(segment.start for segment in self.segments[1:]), end]
        for segment, given, segment_end in zip(self.segments, self._given, ends):
            first, last = max(begin, segment.start), min(end, segment_end)
            if first < last:
                # Python's integers, because positions of the run can be beyond 64 bits.
                rounds, slots = divmod(first - segment.start, sum(segment.parts))
                counts = [count + rounds * part for count, part in zip(given, segment.parts)]
                passes = [divmod(count, size) for count, size in zip(counts, self.sizes)]
                pieces.append(_Piece(first - begin, last - begin, segment, slots, passes))
        return pieces

    @cached_property
    def _given(self) -> list[list[int]]:
        """For each segment, how many samples each range has given before it."""
        given = [[0] * len(self.sizes)]
        for segment, after in pairwise(self.segments):
            here = segment.given(after.start - segment.start)
            given.append([before + now for before, now in zip(given[-1], here)])
        return given


@lru_cache(maxsize=8)
def _round_of(parts: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each slot of a round, its range, and how many slots before it have the same range.

    Each range's slots are spread evenly: its k-th of n is due at (k + 1/2) / n of the round.
    """
    due = np.concatenate([(np.arange(part) + 0.5) / part for part in parts if part])
    ranges = np.repeat(np.arange(len(parts)), parts)
    before = np.concatenate([np.arange(part) for part in parts])
    order = np.argsort(due, kind="stable")
    return ranges[order], before[order]


@lru_cache(maxsize=64)
def _order_of_pass(shuffle: Shuffle, size: int, seed: int, number: int, pass_number: int) -> Order:
    """Makes the order of one pass over a range: the ranges' seeds differ, and the pass number is the epoch."""
    return make_order(shuffle, size, seed_of_part(seed, number), pass_number % 2**32)
