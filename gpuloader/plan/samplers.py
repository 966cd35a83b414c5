"""Samplers: an endless row of samples, in passes with different orders. A pass is an epoch of the source.

Place q of the row holds the sample at place q % size of pass q // size. It is a function of the seed and q alone, so
any rank can take any place, and a run can resume at any place. These samplers make the passes:

    ShuffledSampler    every chosen sample once, in an order of `gpuloader.plan.order`
    GroupedSampler     every chosen sample once, by groups of shards: `gpuloader.plan.grouped_sampler`
    WeightedSampler    samples by weight: with replacement, each place draws; without, heavier samples tend to be first
    CustomSampler      the ids that a function of the pass's number returns
    BucketSampler      every sample once, with one bucket for each global batch: `gpuloader.plan.buckets`
    WeightedBuckets    the same, by weight

`Mix` and `MixedBuckets` interleave several: `gpuloader.plan.mix`, `gpuloader.plan.mixed_buckets`.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.text import counted
from gpuloader.errors import ConfigError
from gpuloader.plan.draws import EPOCHS, Draws, Stream
from gpuloader.plan.order import IdsAt, Shuffle, make_order
from gpuloader.plan.sample_order import Ints, Order, SampleSlice


class Sampler(Order):
    """The base class of samplers: a row of passes.

    Attributes:
        repeats: whether a sample can occur twice in a pass.
    """

    repeats: ClassVar[bool] = False

    @abstractmethod
    def order(self, seed: int, number: int) -> IdsAt:
        """Returns the order of a pass: a function from places in [0, size), int64 (k,), to ids, int64 (k,)."""

    def take(self, seed: int, first: int, offsets: Ints) -> SampleSlice:
        """See `Order`."""
        passes, within = self.find(first, offsets)
        ids = np.empty_like(within)
        for number in np.unique(passes).tolist():
            here = passes == number
            ids[here] = self._order_of(seed, number)(within[here])
        return SampleSlice(ids, passes, within if self.repeats else np.maximum(ids, ~ids))

    def find(self, first: int, offsets: Ints) -> tuple[Ints, Ints]:
        """Converts places of the row to passes, below 2**32, and places within them, both (k,)."""
        number, begin = divmod(first, self.size)
        more, within = np.divmod(begin + offsets, self.size)
        return (number % EPOCHS + more) % EPOCHS, within

    @cached_property
    def _order_of(self) -> Callable[[int, int], IdsAt]:
        return lru_cache(maxsize=2)(self.order)  # near its end, the next pass is read ahead


@dataclass(frozen=True, eq=False)
class SampleSubset:
    """Some samples of the data, numbered from 0: all, a list in a given order, or all except some.

    Attributes:
        size: the number of samples.
        ids: (n,) int64, the ids in their order; None for all of the data except `left_out`.
        ascending: the same ids, sorted.
        left_out: (m,) int64, the ids of dropped samples, ascending. Only these need memory.
        first: the number of the first sample, counted without dropped samples.
    """

    size: int
    ids: Ints | None = None
    ascending: Ints | None = None
    left_out: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    first: int = 0

    def __str__(self) -> str:
        samples = counted(self.size, "sample")
        return f"all {samples}" if self.ids is None and not len(self.left_out) else f"{samples} of the data"

    def part(self, first: int, size: int) -> SampleSubset:
        """Returns the subset of `size` samples from a number on."""
        return replace(self, first=first, size=size)

    def at(self, numbers: Ints) -> Ints:
        """Returns the ids of the samples with these numbers, (k,)."""
        if self.ids is not None:
            return self.ids[numbers]
        numbers = numbers + self.first if self.first else numbers
        # Sample `left_out[i]` comes after `left_out[i] - i` remaining samples, which ascends with i. So remaining
        # sample n comes after each i with left_out[i] - i <= n, and its id is n plus the number of such i. A bisection
        # finds it for all numbers at once, because an array of `left_out[i] - i` would need memory.
        before, end = np.zeros_like(numbers), np.full_like(numbers, len(self.left_out))
        while (open_ := before < end).any():
            middle = np.minimum((before + end) // 2, len(self.left_out) - 1)
            comes_after = open_ & (self.left_out[middle] - middle <= numbers)
            before, end = np.where(comes_after, middle + 1, before), np.where(open_ & ~comes_after, middle, end)
        return numbers + before

    def number_of(self, sample: int) -> int:
        """Returns the number of a chosen sample; the ids must ascend."""
        if self.ids is not None:
            return int(np.searchsorted(self.ids, sample))
        return sample - int(np.searchsorted(self.left_out, sample)) - self.first

    def includes(self, samples: Ints) -> NDArray[np.bool_]:
        """Returns, for each sample, (k,), whether it is chosen; a part answers for the whole subset."""
        if self.ids is None:
            return ~_is_in(samples, self.left_out)
        return _is_in(samples, np.sort(self.ids) if self.ascending is None else self.ascending)

    @cached_property
    def fingerprint(self) -> str:
        ids, kind = (self.left_out, "left out") if self.ids is None else (self.ids, "chosen")
        return digest_of(f"{kind} {self.size}", ids)


def _is_in(samples: Ints, some: Ints) -> NDArray[np.bool_]:
    """Returns (k,) whether each sample is in `some`, (n,) ascending ids, without a copy of them."""
    places = np.searchsorted(some, samples)
    found = np.zeros(len(samples), np.bool_)
    within = places < len(some)
    found[within] = some[places[within]] == samples[within]
    return found


@dataclass(frozen=True, eq=False)
class ShuffledSampler(Sampler):
    """Passes over every chosen sample once.

    Attributes:
        shuffle: the order; "none" keeps the order of the samples.
    """

    chosen: SampleSubset
    shuffle: Shuffle = "full"

    def __post_init__(self) -> None:
        self.order(0, 0)  # raises for an unknown `shuffle`

    def __str__(self) -> str:
        return str(self.chosen)

    @property
    def size(self) -> int:
        return self.chosen.size

    @cached_property
    def fingerprint(self) -> str:
        return digest_of(f"shuffled {self.chosen.fingerprint} {self.shuffle}")

    def order(self, seed: int, number: int) -> IdsAt:
        order = make_order(self.shuffle, self.size, seed, number)
        return lambda places: self.chosen.at(order(places))

    def includes(self, ids: Ints) -> NDArray[np.bool_]:
        return self.chosen.includes(ids)


def all_samples(samples: int, shuffle: Shuffle = "full") -> ShuffledSampler:
    """Returns the sampler of all samples of the data."""
    return ShuffledSampler(SampleSubset(samples), shuffle)


@dataclass(frozen=True, eq=False)
class WeightedSampler(Sampler):
    """Passes over chosen samples by weight; samples of weight 0 never occur.

    Attributes:
        weights: (n,) float64, not negative.
        replacement: whether a sample can occur twice in a pass.
        ends: the result of `cumulate` for the weights, if known.
    """

    chosen: SampleSubset
    weights: NDArray[np.float64]
    replacement: bool
    shuffle: Shuffle = "full"
    ends: NDArray[np.float64] | None = None

    how = "by weights"

    def __str__(self) -> str:
        return f"{counted(self.samples, 'sample')} by weight"

    @property
    def repeats(self) -> bool:  # type: ignore[override]
        return self.replacement

    @cached_property
    def size(self) -> int:
        """n; without replacement, the number of samples whose weight is above 0."""
        return len(self.weights) if self.replacement else int((self.weights > 0).sum())

    @cached_property
    def fingerprint(self) -> str:
        return digest_of(f"weighted {self.chosen.fingerprint} {self.replacement}", self.weights)

    def order(self, seed: int, number: int) -> IdsAt:
        """See `Sampler`. Without replacement by Efraimidis and Spirakis (2006): sorted by exponential numbers."""
        if not self.replacement:
            some = np.flatnonzero(self.weights)
            ids = self.chosen.at(some)
            with np.errstate(divide="ignore"):  # 0 gives -inf, which comes first
                keys = np.log(-np.log1p(-uniform_of(seed, number, ids))) - np.log(self.weights[some])
            sorted_ids = ids[np.argsort(keys, kind="stable")]
            return lambda places: sorted_ids[places]
        ends = self._ends

        def drawn(places: Ints) -> Ints:
            # Below ends[-1] even for the largest number, so the result never lies after the last sample with weight.
            found = uniform_of(seed, number, places) * ends[-1]
            return self.chosen.at(np.searchsorted(ends, found, side="right"))

        return drawn

    def includes(self, ids: Ints) -> NDArray[np.bool_]:
        return np.isin(ids, self.chosen.at(np.flatnonzero(self.weights)))

    @cached_property
    def _ends(self) -> NDArray[np.float64]:
        return self.cumulate(self.weights) if self.ends is None else self.ends

    @staticmethod
    def cumulate(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the cumulated weights, (n,), scaled so that the largest weight is 1."""
        return np.cumsum(weights / weights.max())


class CustomSampler(Sampler):
    """Passes of ids that a function of the pass's number returns, equally many for every pass.

    Args:
        function: must depend only on the number; it may be called again for the same number.
        samples: the number of samples; ids are smaller.

    Raises:
        ConfigError: the function returns invalid ids, or different ones when it is called again.
    """

    repeats = by_function = True
    shuffle = "none"
    how = "a function"
    size = 0
    fingerprint = ""

    def __init__(self, function: Callable[[int], Sequence[int] | NDArray[np.integer]], samples: int) -> None:
        self._function = function
        self._samples = samples
        first = self._ids(0)
        if not np.array_equal(first, self._ids(0)):
            raise ConfigError(
                "shuffle: called again for epoch 0, the function returned different ids: they must depend on the epoch "
                "alone; for example, seed the generator with the epoch"
            )
        self.size = len(first)
        self.fingerprint = digest_of("custom", first)

    def __str__(self) -> str:
        return f"{counted(self.samples, 'sample')} by a function"

    def order(self, seed: int, number: int) -> IdsAt:
        ids = self._ids(number)
        if len(ids) != self.size:
            raise ConfigError(
                f"shuffle: for epoch {number} the function returned {len(ids)} ids, and {self.size} for epoch 0: "
                f"every epoch must have the same number"
            )
        return lambda places: ids[places]

    def includes(self, ids: Ints) -> NDArray[np.bool_]:
        """See `Sampler`; answers for the first pass, because later passes are not known yet."""
        return np.isin(ids, self._ids(0))

    def _ids(self, number: int) -> Ints:
        ids = np.asarray(self._function(number))
        if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer) or len(ids) == 0:
            raise ConfigError(
                f"shuffle: for epoch {number} the function returned {ids.dtype} of shape {ids.shape}: allowed are "
                f"integers (n,), at least one"
            )
        if ids.min() < 0 or ids.max() >= self._samples:
            raise ConfigError(
                f"shuffle: for epoch {number} the function returned ids {ids.min()} to {ids.max()}: allowed is 0 to "
                f"{self._samples - 1}"
            )
        return ids.astype(np.int64)


def uniform_of(seed: int, number: int, ids: Ints) -> NDArray[np.float64]:
    """Draws (n,) multiples of 2**-53 in [0, 1); multiples of 2**-32 would bias the choice among many samples."""
    high, low = Draws(seed, number, ids).uniform(Stream.SAMPLING, 2).T
    return high + np.floor(low * 2.0**21) * 2.0**-53


def digest_of(what: str, *arrays: NDArray[np.generic]) -> str:
    """Computes the fingerprint of a sampler from a description and arrays."""
    digest = hashlib.blake2b(what.encode(), digest_size=16)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
