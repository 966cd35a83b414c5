"""Samplers: the samples of an endless row, gone through again and again, each time in an order of its own.

Place q of the row holds the sample at place q % size of pass q // size. It is a function of the seed and q alone, so
any rank can take any place, and a run can resume at any. A pass is one of these:

    ShuffledSampler    every chosen sample once, in an order of `gpuloader.plan.order`
    GroupedSampler     the same, such that neighbouring ranks read neighbouring shards: `gpuloader.plan.grouped_sampler`
    WeightedSampler    samples by weight: with replacement, each place draws; without, heavier ones tend to be first
    CustomSampler      what a function of the pass's number returns
    BucketSampler      every sample once, such that each global batch is of one bucket: `gpuloader.plan.buckets`

`Mix` interleaves several: `gpuloader.plan.mix`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import ConfigError
from gpuloader.plan.draws import EPOCHS, Draws, Stream
from gpuloader.plan.order import Order, Shuffle, make_order

Ints = NDArray[np.int64]


class SampleSlice(NamedTuple):
    """The samples at k places of a row, and the addresses of their random numbers.

    Attributes:
        ids: (k,) int64; ~id, which is negative, for the padding of a bucket.
        passes: (k,) int64, the pass that each place is in.
        numbers: (k,) int64, what tells a sample's random numbers from others of the same pass: its id; its place in the
            pass, if a pass can have a sample twice.
    """

    ids: Ints
    passes: Ints
    numbers: Ints


class Sampler(ABC):
    """A row of passes.

    Attributes:
        repeats: whether a sample can occur twice in a pass.
        size: how many places a pass has.
        samples: how many of these are not padding.
        shuffle: the name of the order; states keep it. A function has "none", weights have the recipe's default.
        fingerprint: identifies the samples and their order; equal for equal passes.
    """

    repeats: ClassVar[bool] = False

    shuffle: Shuffle

    @property
    @abstractmethod
    def size(self) -> int: ...

    @property
    def samples(self) -> int:
        return self.size

    @property
    @abstractmethod
    def fingerprint(self) -> str: ...

    @abstractmethod
    def order(self, seed: int, number: int) -> Order:
        """Returns the order of a pass: a function of places in [0, size), int64 (k,), that returns as many ids."""

    @abstractmethod
    def includes(self, ids: Ints) -> NDArray[np.bool_]:
        """Says for each of these samples, (k,), whether it can occur in a pass."""

    def take(self, seed: int, first: int, offsets: Ints) -> SampleSlice:
        """Takes the samples at the places `first` + `offsets`, (k,), of the row; `first` may be beyond 64 bits."""
        passes, within = self.find(first, offsets)
        ids = np.empty_like(within)
        for number in np.unique(passes).tolist():
            here = passes == number
            ids[here] = self._order_of(seed, number)(within[here])
        return SampleSlice(ids, passes, within if self.repeats else np.maximum(ids, ~ids))

    def find(self, first: int, offsets: Ints) -> tuple[Ints, Ints]:
        """Returns the passes that places of the row are in, below 2**32, and the places there, both (k,)."""
        number, begin = divmod(first, self.size)
        more, within = np.divmod(begin + offsets, self.size)
        return (number % EPOCHS + more) % EPOCHS, within

    @cached_property
    def _order_of(self) -> Callable[[int, int], Order]:
        return lru_cache(maxsize=2)(self.order)  # the next pass is read ahead while one ends


@dataclass(frozen=True, eq=False)
class SampleSubset:
    """Some samples of the data, numbered from 0: all; or some in a given order; or all but some.

    Attributes:
        size: how many there are.
        ids: (n,) int64, those of the samples in their order; None for all of the data, without those left out.
        ascending: the same ids, sorted.
        left_out: (m,) int64 ids, ascending, of the samples that are left out. Memory is needed only for these.
        first: the number of the first one, counted among all that are not left out.
    """

    size: int
    ids: Ints | None = None
    ascending: Ints | None = None
    left_out: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    first: int = 0

    def part(self, first: int, size: int) -> SampleSubset:
        """Returns `size` samples from a number on."""
        return replace(self, first=first, size=size)

    def at(self, numbers: Ints) -> Ints:
        """Returns the ids of the samples with these numbers, (k,)."""
        if self.ids is not None:
            return self.ids[numbers]
        numbers = numbers + self.first if self.first else numbers
        # Sample `left_out[i]` comes after `left_out[i] - i` samples that are left, which ascends with i. So number n of
        # these comes after each i with left_out[i] - i <= n, and its id is n plus the number of such i. It is found by
        # halving, in as many turns for all numbers, because an array of `left_out[i] - i` takes memory.
        before, end = np.zeros_like(numbers), np.full_like(numbers, len(self.left_out))
        while (open_ := before < end).any():
            middle = np.minimum((before + end) // 2, len(self.left_out) - 1)
            comes_after = open_ & (self.left_out[middle] - middle <= numbers)
            before, end = np.where(comes_after, middle + 1, before), np.where(open_ & ~comes_after, middle, end)
        return numbers + before

    def number_of(self, sample: int) -> int:
        """Returns the number of a chosen sample; if their ids ascend."""
        if self.ids is not None:
            return int(np.searchsorted(self.ids, sample))
        return sample - int(np.searchsorted(self.left_out, sample)) - self.first

    def includes(self, samples: Ints) -> NDArray[np.bool_]:
        """Says for each of some samples of the data, (k,), whether it is chosen; of a part, whether one of all is."""
        if self.ids is None:
            return ~_is_in(samples, self.left_out)
        return _is_in(samples, np.sort(self.ids) if self.ascending is None else self.ascending)

    @cached_property
    def fingerprint(self) -> str:
        ids, kind = (self.left_out, "left out") if self.ids is None else (self.ids, "chosen")
        return digest_of(f"{kind} {self.size}", ids)


def _is_in(samples: Ints, some: Ints) -> NDArray[np.bool_]:
    """Returns (k,) whether each of some samples is one of (n,) others, which ascend; without memory for these."""
    places = np.searchsorted(some, samples)
    found = np.zeros(len(samples), np.bool_)
    within = places < len(some)
    found[within] = some[places[within]] == samples[within]
    return found


@dataclass(frozen=True, eq=False)
class ShuffledSampler(Sampler):
    """Every chosen sample once.

    Attributes:
        shuffle: with "none", they come in their order.
    """

    chosen: SampleSubset
    shuffle: Shuffle = "full"

    def __post_init__(self) -> None:
        self.order(0, 0)  # raises for an unknown `shuffle`

    @property
    def size(self) -> int:
        return self.chosen.size

    @cached_property
    def fingerprint(self) -> str:
        return digest_of(f"shuffled {self.chosen.fingerprint} {self.shuffle}")

    def order(self, seed: int, number: int) -> Order:
        order = make_order(self.shuffle, self.size, seed, number)
        return lambda places: self.chosen.at(order(places))

    def includes(self, ids: Ints) -> NDArray[np.bool_]:
        return self.chosen.includes(ids)


def all_samples(samples: int, shuffle: Shuffle = "full") -> ShuffledSampler:
    """Returns passes over so many samples, all of the data."""
    return ShuffledSampler(SampleSubset(samples), shuffle)


@dataclass(frozen=True, eq=False)
class WeightedSampler(Sampler):
    """Chosen samples by weight; those of weight 0 never occur.

    Attributes:
        weights: (n,) float64, not negative.
        replacement: whether a sample can occur twice in a pass.
        ends: what `cumulate` makes of the weights, if it was made before.
    """

    chosen: SampleSubset
    weights: NDArray[np.float64]
    replacement: bool
    shuffle: Shuffle = "full"
    ends: NDArray[np.float64] | None = None

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

    def order(self, seed: int, number: int) -> Order:
        """See `Sampler`. Without replacement by Efraimidis and Spirakis (2006): sorted by exponential numbers."""
        if not self.replacement:
            some = np.flatnonzero(self.weights)
            ids = self.chosen.at(some)
            with np.errstate(divide="ignore"):  # the number 0 gives -inf, which comes first
                keys = np.log(-np.log1p(-_uniform(seed, number, ids))) - np.log(self.weights[some])
            sorted_ids = ids[np.argsort(keys, kind="stable")]
            return lambda places: sorted_ids[places]
        ends = self._ends

        def drawn(places: Ints) -> Ints:
            # Below ends[-1] even for the largest number, so the result is never a sample after the last with weight.
            found = _uniform(seed, number, places) * ends[-1]
            return self.chosen.at(np.searchsorted(ends, found, side="right"))

        return drawn

    def includes(self, ids: Ints) -> NDArray[np.bool_]:
        return np.isin(ids, self.chosen.at(np.flatnonzero(self.weights)))

    @cached_property
    def _ends(self) -> NDArray[np.float64]:
        return self.cumulate(self.weights) if self.ends is None else self.ends

    @staticmethod
    def cumulate(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns (n,) the sums of the weights up to each, of which the largest counts 1."""
        return np.cumsum(weights / weights.max())


class CustomSampler(Sampler):
    """The ids that a function of the pass's number returns, the same number for every pass.

    Args:
        function: must depend on the number alone; it may be called again for the same one.
        samples: the ids are below this.

    Raises:
        ConfigError: the function returns invalid ids, or different ones when it is called again.
    """

    repeats = True
    shuffle = "none"
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

    def order(self, seed: int, number: int) -> Order:
        ids = self._ids(number)
        if len(ids) != self.size:
            raise ConfigError(
                f"shuffle: for epoch {number} the function returned {len(ids)} ids, and {self.size} for epoch 0: "
                f"every epoch must have the same number"
            )
        return lambda places: ids[places]

    def includes(self, ids: Ints) -> NDArray[np.bool_]:
        """See `Sampler`; for the first pass, because later ones are not known yet."""
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


def _uniform(seed: int, number: int, ids: Ints) -> NDArray[np.float64]:
    """Draws (n,) multiples of 2**-53 in [0, 1): steps of 2**-32 would draw some of many samples too often, or never."""
    high, low = Draws(seed, number, ids).uniform(Stream.SAMPLING, 2).T
    return high + np.floor(low * 2.0**21) * 2.0**-53


def digest_of(what: str, *arrays: NDArray[np.generic]) -> str:
    """Returns the fingerprint of a sampling, from a description and arrays."""
    digest = hashlib.blake2b(what.encode(), digest_size=16)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
