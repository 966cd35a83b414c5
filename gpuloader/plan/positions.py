"""Which samples an epoch goes through: position -> sample id, for all of the data, a part, or by weight.

Each is a function of seed, epoch and position alone, so any rank can take any position, and a run can resume at any.

    AllSamples every sample once
    ByShard    every sample once, some shards at a time
    Subset     every one of some samples once
    Remaining  the samples that are left where some are left out, by another of these
    Weighted   samples drawn by weight: with replacement, each position draws; without, heavier samples tend to be first
    Custom     what a function of the epoch returns

`gpuloader.plan.mixture` has more: several ranges in a ratio, and the first samples of a row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import ConfigError
from gpuloader.plan.draws import Draws, Stream
from gpuloader.plan.order import Order, Shuffle, make_order, shard_order


class Positions(Protocol):
    """A row of positions for each epoch.

    Attributes:
        length: how many there are, the same in every epoch.
        fingerprint: identifies the samples and their order; equal for equal samplings.
        repeats: whether a sample can occur twice in an epoch.
        shuffle: the name of the order; states keep it. A function has "none", weights have the recipe's default.
    """

    @property
    def length(self) -> int: ...

    @property
    def shuffle(self) -> Shuffle: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def repeats(self) -> bool: ...

    def order(self, seed: int, epoch: int) -> Order:
        """Returns a function of positions in [0, length), int64 (k,), that returns sample ids of the same shape."""

    def includes(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Says for each of these samples, (k,), whether it can occur in an epoch."""


class _All:
    def includes(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.ones(len(ids), np.bool_)


@dataclass(frozen=True)
class AllSamples(_All):
    """All samples."""

    repeats: ClassVar[bool] = False

    length: int
    shuffle: Shuffle = "full"

    def __post_init__(self) -> None:
        make_order(self.shuffle, self.length, seed=0, epoch=0)  # raises for an order that it does not have

    @property
    def fingerprint(self) -> str:
        return digest_of(f"whole {self.length} {self.shuffle}")

    def order(self, seed: int, epoch: int) -> Order:
        return make_order(self.shuffle, self.length, seed, epoch)


@dataclass(frozen=True, eq=False)
class ByShard(_All):
    """All samples of shards, each once, in the order "shards"; `sizes`, (s,) int64, are the shards' sample counts."""

    repeats: ClassVar[bool] = False
    shuffle: ClassVar[Shuffle] = "shards"

    sizes: NDArray[np.int64]

    @property
    def length(self) -> int:
        return int(self.sizes.sum())

    @cached_property
    def fingerprint(self) -> str:
        return digest_of("by shard", self.sizes)

    def order(self, seed: int, epoch: int) -> Order:
        return shard_order(self.sizes, seed, epoch)


@dataclass(frozen=True, eq=False)
class Subset:
    """Some samples, (n,) int64 ids, each once; in the given order if `shuffle` is "none"."""

    repeats: ClassVar[bool] = False

    ids: NDArray[np.int64]
    shuffle: Shuffle

    @property
    def length(self) -> int:
        return len(self.ids)

    @cached_property
    def fingerprint(self) -> str:
        return digest_of(f"subset {self.shuffle}", self.ids)

    def order(self, seed: int, epoch: int) -> Order:
        order = make_order(self.shuffle, self.length, seed, epoch)
        return lambda positions: self.ids[order(positions)]

    def includes(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.isin(ids, self.ids)


@dataclass(frozen=True, eq=False)
class Remaining:
    """The samples that are left where some are left out. It needs memory only for those that are left out.

    Attributes:
        positions: of the samples that are left, numbered from 0 in the order of their ids.
        left_out: (m,) int64 ids, ascending, each once.
    """

    positions: Positions
    left_out: NDArray[np.int64]

    @property
    def repeats(self) -> bool:
        return self.positions.repeats

    @property
    def shuffle(self) -> Shuffle:
        return self.positions.shuffle

    @property
    def length(self) -> int:
        return self.positions.length

    @cached_property
    def fingerprint(self) -> str:
        return digest_of(f"remaining {self.positions.fingerprint}", self.left_out)

    def order(self, seed: int, epoch: int) -> Order:
        order = self.positions.order(seed, epoch)

        def remaining(positions: NDArray[np.int64]) -> NDArray[np.int64]:
            # Sample `left_out[i]` comes after `left_out[i] - i` samples that are left, which ascends with i. So number
            # n of these comes after each i with left_out[i] - i <= n, and its id is n plus the number of such i. It is
            # found by halving, in as many turns for all positions, because an array of `left_out[i] - i` takes memory.
            numbers = order(positions)
            before, end = np.zeros_like(numbers), np.full_like(numbers, len(self.left_out))
            while (open_ := before < end).any():
                middle = np.minimum((before + end) // 2, len(self.left_out) - 1)
                comes_after = open_ & (self.left_out[middle] - middle <= numbers)
                before, end = np.where(comes_after, middle + 1, before), np.where(open_ & ~comes_after, middle, end)
            return numbers + before

        return remaining

    def includes(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return ~np.isin(ids, self.left_out)


@dataclass(frozen=True, eq=False)
class Weighted:
    """Samples by weight; those of weight 0 never occur.

    Attributes:
        ids: (n,) int64.
        weights: (n,) float64, not negative.
        replacement: whether a sample can occur twice in an epoch.
        shuffle: see `Positions`.
        ends: what `cumulate` makes of the weights, if it was made before.
    """

    ids: NDArray[np.int64]
    weights: NDArray[np.float64]
    replacement: bool
    shuffle: Shuffle = "full"
    ends: NDArray[np.float64] | None = None

    @property
    def repeats(self) -> bool:
        return self.replacement

    @cached_property
    def length(self) -> int:
        """n; without replacement, the number of samples whose weight is above 0."""
        return len(self.ids) if self.replacement else int((self.weights > 0).sum())

    @cached_property
    def fingerprint(self) -> str:
        return digest_of(f"weighted {self.replacement}", self.ids, self.weights)

    def order(self, seed: int, epoch: int) -> Order:
        """See `Positions`. Without replacement by Efraimidis and Spirakis (2006): sorted by exponential numbers."""
        if not self.replacement:
            some = self.weights > 0
            ids = self.ids[some]
            with np.errstate(divide="ignore"):  # the number 0 gives -inf, which comes first
                keys = np.log(-np.log1p(-_uniform(seed, epoch, ids))) - np.log(self.weights[some])
            sorted_ids = ids[np.argsort(keys, kind="stable")]
            return lambda positions: sorted_ids[positions]
        ends = self._ends

        def drawn(positions: NDArray[np.int64]) -> NDArray[np.int64]:
            # Below ends[-1] even for the largest number, so the result is never a sample after the last with weight.
            places = _uniform(seed, epoch, positions) * ends[-1]
            return self.ids[np.searchsorted(ends, places, side="right")]

        return drawn

    def includes(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.isin(ids, self.ids[self.weights > 0])

    @cached_property
    def _ends(self) -> NDArray[np.float64]:
        return self.cumulate(self.weights) if self.ends is None else self.ends

    @staticmethod
    def cumulate(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns (n,) the sums of the weights up to each, of which the largest counts 1."""
        return np.cumsum(weights / weights.max())


class Custom:
    """The ids that a function of the epoch returns, the same number for every epoch.

    Args:
        function: must depend on the epoch alone; it may be called again for the same epoch.
        samples: the ids are below this.

    Attributes:
        length: see `Positions`.
        fingerprint: of the first epoch.

    Raises:
        ConfigError: the function returns invalid ids, or different ones when it is called again.
    """

    repeats = True
    shuffle: ClassVar[Shuffle] = "none"

    def __init__(self, function: Callable[[int], Sequence[int] | NDArray[np.integer]], samples: int) -> None:
        self._function = function
        self._samples = samples
        first = self._ids(0)
        if not np.array_equal(first, self._ids(0)):
            raise ConfigError(
                "shuffle: called again for epoch 0, the function returned different ids: they must depend on the epoch "
                "alone; for example, seed the generator with the epoch"
            )
        self.length = len(first)
        self.fingerprint = digest_of("custom", first)

    def order(self, seed: int, epoch: int) -> Order:
        ids = self._ids(epoch)
        if len(ids) != self.length:
            raise ConfigError(
                f"shuffle: for epoch {epoch} the function returned {len(ids)} ids, and {self.length} for epoch 0: "
                f"every epoch must have the same number"
            )
        return lambda positions: ids[positions]

    def includes(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """See `Positions`; for the first epoch, because later epochs are not known yet."""
        return np.isin(ids, self._ids(0))

    def _ids(self, epoch: int) -> NDArray[np.int64]:
        ids = np.asarray(self._function(epoch))
        if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer) or len(ids) == 0:
            raise ConfigError(
                f"shuffle: for epoch {epoch} the function returned {ids.dtype} of shape {ids.shape}: allowed are "
                f"integers (n,), at least one"
            )
        if ids.min() < 0 or ids.max() >= self._samples:
            raise ConfigError(
                f"shuffle: for epoch {epoch} the function returned ids {ids.min()} to {ids.max()}: allowed is 0 to "
                f"{self._samples - 1}"
            )
        return ids.astype(np.int64)


def _uniform(seed: int, epoch: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Draws (n,) multiples of 2**-53 in [0, 1): steps of 2**-32 would draw some of many samples too often, or never."""
    high, low = Draws(seed, epoch, ids).uniform(Stream.SAMPLING, 2).T
    return high + np.floor(low * 2.0**21) * 2.0**-53


def digest_of(what: str, *arrays: NDArray[np.generic]) -> str:
    """Returns the fingerprint of a sampling, from a description and arrays."""
    digest = hashlib.blake2b(what.encode(), digest_size=16)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
