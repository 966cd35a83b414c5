"""Which samples an epoch goes through: position -> sample id, for all of the data, a part, by weight, or mixed.

Each is a function of seed, epoch and position alone: any rank can take any position, a run can go on from any.

    Whole      every sample once
    Subset     every one of some samples once
    Weighted   samples drawn by weight: with replacement each position draws; without, the heavier tend to come first
    Mixture    several ranges of samples in a fixed ratio, that of the weights in every run of as many positions as they
               add up to; a small range is gone through again and again, over the epochs' ends too
    Custom     what a function of the epoch says
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import ConfigError
from gpuloader.plan.draws import Draws, Stream
from gpuloader.plan.order import Order, Shuffle, make_order

_MOST_PARTS = 10_000


class Sampling(Protocol):
    """A row of positions for each epoch.

    Attributes:
        length: how many, the same in every epoch.
        fingerprint: names the samples and their order; the same for samplings that are the same.
    """

    @property
    def length(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def order(self, seed: int, epoch: int) -> Order:
        """Takes positions in [0, length), int64 (k,), gives sample ids alike."""

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class Whole:
    """All samples."""

    length: int
    shuffle: Shuffle

    @property
    def fingerprint(self) -> str:
        """See `Sampling`."""
        return self.shuffle

    def order(self, seed: int, epoch: int) -> Order:
        """See `Sampling`."""
        return make_order(self.shuffle, self.length, seed, epoch)


@dataclass(frozen=True, eq=False)
class Subset:
    """Some samples, (n,) int64 ids; in their order where `shuffle` is "none"."""

    ids: NDArray[np.int64]
    shuffle: Shuffle

    @property
    def length(self) -> int:
        """See `Sampling`."""
        return len(self.ids)

    @cached_property
    def fingerprint(self) -> str:
        """See `Sampling`."""
        return _digest(f"subset {self.shuffle}", self.ids)

    def order(self, seed: int, epoch: int) -> Order:
        """See `Sampling`."""
        order = make_order(self.shuffle, self.length, seed, epoch)
        return lambda positions: self.ids[order(positions)]


@dataclass(frozen=True, eq=False)
class Weighted:
    """Samples by weight; those that weigh 0 never come.

    Attributes:
        ids: (n,) int64.
        weights: (n,) float64, none below 0.
        replacement: whether a sample can come again in an epoch.
    """

    ids: NDArray[np.int64]
    weights: NDArray[np.float64]
    replacement: bool

    @cached_property
    def length(self) -> int:
        """n, or without replacement as many as weigh more than 0."""
        return len(self.ids) if self.replacement else int((self.weights > 0).sum())

    @cached_property
    def fingerprint(self) -> str:
        """See `Sampling`."""
        return _digest(f"weighted {self.replacement}", self.ids, self.weights)

    def order(self, seed: int, epoch: int) -> Order:
        """See `Sampling`. Without replacement by Efraimidis and Spirakis (2006): sorted by exponential numbers."""
        if not self.replacement:
            uniform = Draws(seed, epoch, self.ids).uniform(Stream.SAMPLING, 1)[:, 0]
            with np.errstate(divide="ignore"):
                keys = -np.log1p(-uniform) / self.weights
            sorted_ids = self.ids[np.argsort(keys, kind="stable")]
            return lambda positions: sorted_ids[positions]
        cumulative = self._cumulative

        def drawn(positions: NDArray[np.int64]) -> NDArray[np.int64]:
            uniform = Draws(seed, epoch, positions).uniform(Stream.SAMPLING, 1)[:, 0]
            return self.ids[np.searchsorted(cumulative, uniform * cumulative[-1], side="right")]

        return drawn

    @cached_property
    def _cumulative(self) -> NDArray[np.float64]:
        return np.cumsum(self.weights)


@dataclass(frozen=True, eq=False)
class Mixture:
    """Ranges of samples in a fixed ratio.

    Attributes:
        sizes: how many samples each range has; the first begins at sample 0, the others behind each other.
        parts: how many of `sum(parts)` neighbouring positions each range gets.
    """

    sizes: tuple[int, ...]
    parts: tuple[int, ...]
    shuffle: Shuffle

    @classmethod
    def of(cls, sizes: Sequence[int], weights: Sequence[float], shuffle: Shuffle) -> Mixture:
        """The mixture by weights, made whole numbers.

        Raises:
            ConfigError: weights that no small whole numbers have the ratio of.
        """
        fractions = [Fraction(weight).limit_denominator(1000) for weight in weights]
        if min(fractions) <= 0:
            raise ConfigError(f"weights {list(weights)}: allowed are numbers above 0, not below a thousandth")
        common = np.lcm.reduce([fraction.denominator for fraction in fractions])
        parts = [int(fraction * int(common)) for fraction in fractions]
        shared = int(np.gcd.reduce(parts))
        if sum(parts) // shared > _MOST_PARTS:
            raise ConfigError(f"weights {list(weights)}: their ratio needs too large numbers; round them")
        return cls(tuple(sizes), tuple(part // shared for part in parts), shuffle)

    @property
    def length(self) -> int:
        """As many whole rounds of the parts as fit into the number of samples, at least one."""
        return max(1, sum(self.sizes) // sum(self.parts)) * sum(self.parts)

    @property
    def fingerprint(self) -> str:
        """See `Sampling`."""
        return _digest(f"mixture {self.sizes} {self.parts} {self.shuffle}")

    def order(self, seed: int, epoch: int) -> Order:
        """See `Sampling`."""
        sources, before = self._pattern
        rounds = self.length // len(sources)
        starts = np.cumsum([0, *self.sizes])

        def mixed(positions: NDArray[np.int64]) -> NDArray[np.int64]:
            turn, place = np.divmod(positions, len(sources))
            ids = np.empty_like(positions)
            for source, (size, parts) in enumerate(zip(self.sizes, self.parts)):
                here = np.flatnonzero(sources[place] == source)
                passes, index = np.divmod((epoch * rounds + turn[here]) * parts + before[place[here]], size)
                for number in np.unique(passes):
                    rows = passes == number
                    order = _order_of_pass(self.shuffle, size, seed, source, int(number))
                    ids[here[rows]] = starts[source] + order(index[rows])
            return ids

        return mixed

    @cached_property
    def _pattern(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each place of a round the range that has it, and how many places before are of the same range.

        Each range's places are spread evenly: its k-th of n is due at (k + 1/2) / n of the round.
        """
        due = np.concatenate([(np.arange(parts) + 0.5) / parts for parts in self.parts])
        source = np.repeat(np.arange(len(self.parts)), self.parts)
        before = np.concatenate([np.arange(parts) for parts in self.parts])
        order = np.argsort(due, kind="stable")
        return source[order], before[order]


@lru_cache(maxsize=64)
def _order_of_pass(shuffle: Shuffle, size: int, seed: int, source: int, number: int) -> Order:
    """Each pass over each range has an order of its own: the ranges' seeds differ, the pass stands for the epoch."""
    return make_order(shuffle, size, (seed + source * 0x9E3779B97F4A7C15) % 2**64, number % 2**32)


class Custom:
    """What a function says: epoch -> sample ids, as many in every epoch.

    Args:
        function: must be a function of the epoch alone.
        samples: the ids are below this.

    Raises:
        ConfigError: what it gives are no such ids.
    """

    def __init__(self, function: Callable[[int], Sequence[int] | NDArray[np.integer]], samples: int) -> None:
        self._function = function
        self._samples = samples
        self._length: int | None = None
        self._length = len(self._ids(0))

    @property
    def length(self) -> int:
        """See `Sampling`."""
        assert self._length is not None
        return self._length

    @cached_property
    def fingerprint(self) -> str:
        """Of the first epoch."""
        return _digest("custom", self._ids(0))

    def order(self, seed: int, epoch: int) -> Order:
        """See `Sampling`."""
        ids = self._ids(epoch)
        return lambda positions: ids[positions]

    def _ids(self, epoch: int) -> NDArray[np.int64]:
        ids = np.asarray(self._function(epoch))
        if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer) or len(ids) == 0:
            raise ConfigError(
                f"shuffle: for epoch {epoch} the function gave {ids.dtype} of shape {ids.shape}: allowed are integers "
                f"(n,), at least one"
            )
        if ids.min() < 0 or ids.max() >= self._samples:
            raise ConfigError(
                f"shuffle: for epoch {epoch} the function gave ids from {ids.min()} to {ids.max()}: allowed is 0 to "
                f"{self._samples - 1}"
            )
        if self._length is not None and len(ids) != self._length:
            raise ConfigError(
                f"shuffle: for epoch {epoch} the function gave {len(ids)} ids, for epoch 0 {self._length}: they must "
                f"be as many in every epoch"
            )
        return ids.astype(np.int64)


def _digest(what: str, *arrays: NDArray[np.generic]) -> str:
    digest = hashlib.blake2b(what.encode(), digest_size=16)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
