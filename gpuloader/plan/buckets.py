"""`BucketSampler` and `WeightedBuckets`: samples in buckets, so that each global batch comes from one bucket.

A pass (an epoch of the source) shuffles each bucket's samples, deals them out in bucket batches, and shuffles these:

    bucket 0    |   batch   |   batch   | batch ... |
    bucket 1    |   batch   | batch ... |
    a pass      | 1, second | 0, first  | 0, third  | ...

A bucket batch has `quantum` samples: one global batch, or several. So a run resumes with any number of ranks and any
batch size whose product divides `quantum`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.text import counted
from gpuloader.errors import ConfigError
from gpuloader.plan.order import IdsAt, Shuffle, make_order, seed_of_part
from gpuloader.plan.sample_order import Ints
from gpuloader.plan.samplers import Sampler, digest_of, uniform_of


@dataclass(frozen=True, eq=False)
class BucketSampler(Sampler):
    """Samples in buckets, each once in a pass; a pass includes the buckets' padding.

    Attributes:
        shapes: (height, width) of each bucket's images; empty if the recipe decides the sizes.
        runs: the ids of each bucket's samples, (n,) int64.
        quantum: the number of samples of a bucket batch.
        drop: whether incomplete bucket batches are dropped, with other samples in each pass. If not, they are padded.
        shuffle: "full"; or "none" for the order of the ids, bucket after bucket.
        fixed: whether `quantum` is fixed; otherwise a state may override it.
    """

    KEPT = "Buckets", "quantum", 2**31

    shapes: Sequence[tuple[int, int]] = field()
    runs: Sequence[Ints] = field()
    quantum: int = field()
    drop: bool = False
    shuffle: Shuffle = "full"
    fixed: bool = False

    def __str__(self) -> str:
        return f"buckets of {counted(self.samples, 'sample')}"

    @property
    def size(self) -> int:
        return int(self._ends[-1]) * self.quantum

    @property
    def samples(self) -> int:
        return sum(map(len, self.runs))

    @cached_property
    def fingerprint(self) -> str:
        """See `Sampler`; without `quantum`, which states keep separately."""
        digest = hashlib.blake2b(f"buckets {self.drop} {self.shuffle}".encode(), digest_size=16)
        shapes = [f"{height} {width}" for height, width in self.shapes] or ["any"] * len(self.runs)
        for shape, run in zip(shapes, self.runs, strict=True):
            digest.update(f" {shape} {len(run)} ".encode() + np.ascontiguousarray(run).data)
        return digest.hexdigest()

    def order(self, seed: int, number: int) -> IdsAt:
        """See `Sampler`; padding is ~id, which is negative, of a sample of the same bucket."""
        slots_at = make_order(self.shuffle, int(self._ends[-1]), seed, number)
        orders = [
            make_order(self.shuffle, len(run), seed_of_part(seed, bucket), number)
            for bucket, run in enumerate(self.runs, 1)
        ]

        def deal(places: Ints) -> Ints:
            turns, offsets = np.divmod(places, self.quantum)
            slots = slots_at(turns)
            buckets = self._buckets_of(slots)
            within = (slots - self._starts[buckets]) * self.quantum + offsets
            ids = np.empty_like(places)
            for bucket in np.unique(buckets):
                here, run = np.flatnonzero(buckets == bucket), self.runs[bucket]
                found = run[orders[bucket](within[here] % len(run))]
                ids[here] = np.where(within[here] < len(run), found, ~found)
            return ids

        return deal

    def near(self, seed: int, first: int, offset: Ints, sample: int, uniform: NDArray[np.float64]) -> Ints:
        """See `Order`; the samples come from the step's bucket."""
        return self._choose(self._buckets(seed, first, offset).item(), uniform)

    def shapes_at(self, seed: int, first: int, offsets: Ints) -> list[tuple[int, int]]:
        return [self.shapes[bucket] for bucket in self._buckets(seed, first, offsets)]

    @property
    def used_shapes(self) -> list[tuple[int, int]]:
        return [shape for shape, run in zip(self.shapes, self.runs) if len(run)]

    @property
    def dropped(self) -> list[str]:
        names = [f"{height}x{width}" for height, width in self.shapes] or list(
            map("number {}".format, range(len(self.runs)))
        )
        return [name for name, run in zip(names, self.runs) if self.drop and 0 < len(run) < self.quantum]

    def check_steps(self, ranks: int, batch_size: int, place: int = 0) -> None:
        """Raises ConfigError unless steps from the place end at the end of the bucket batch, and a pass has some."""
        step, done = ranks * batch_size, place % self.quantum
        steps = f"{counted(ranks, 'rank')} x batch_size {batch_size} = {step}"
        if self.quantum % step:
            raise ConfigError(
                f"{steps} does not divide the bucket batch, quantum={self.quantum}: allowed "
                f"{_allowed_sizes(self.quantum, ranks)}"
            )
        if not self.size:
            raise ConfigError(
                f'last_batch="drop" leaves no batch: no bucket has {counted(self.quantum, "sample")}. Use a smaller '
                f'batch_size, or last_batch="pad"'
            )
        if done % step:
            raise ConfigError(
                f"{done} samples of a bucket batch of {self.quantum} are delivered, and steps of {steps} would end "
                f"beyond it: allowed {_allowed_sizes(gcd(done, self.quantum), ranks)}"
            )

    def state(self, begun: int) -> dict[str, Any]:
        return {"quantum": self.quantum}

    def _choose(self, bucket: int, uniform: NDArray[np.float64]) -> Ints:
        """Returns samples of a bucket, (k,), by numbers in [0, 1), (k,)."""
        run = self.runs[bucket]
        return run[np.floor(uniform * len(run)).astype(np.int64)]

    def _buckets(self, seed: int, first: int, offsets: Ints) -> Ints:
        """Returns the numbers of the buckets, (k,), at places of the row."""
        passes, within = self.find(first, offsets)
        buckets = np.empty_like(within)
        for number in np.unique(passes).tolist():
            here = passes == number
            buckets[here] = self._buckets_at(seed, number)(within[here] // self.quantum)
        return buckets

    def _buckets_at(self, seed: int, number: int) -> IdsAt:
        """Returns a function from bucket batches of a pass, (k,), to their buckets, (k,)."""
        slots_at = make_order(self.shuffle, int(self._ends[-1]), seed, number)
        return lambda turns: self._buckets_of(slots_at(turns))

    def includes(self, ids: Ints) -> NDArray[np.bool_]:
        return np.isin(ids, np.concatenate(self.runs))

    def _buckets_of(self, slots: Ints) -> Ints:
        return np.searchsorted(self._ends, slots, side="right")

    @cached_property
    def _ends(self) -> Ints:
        """(b,) the cumulated numbers of bucket batches."""
        counts = np.array([len(run) for run in self.runs])
        return np.cumsum(counts // self.quantum if self.drop else -(-counts // self.quantum))

    @cached_property
    def _starts(self) -> Ints:
        return np.append(0, self._ends[:-1])


@dataclass(frozen=True, eq=False)
class WeightedBuckets(BucketSampler):
    """Samples in buckets by weight: a bucket batch draws its bucket by the sum of its weights, then each sample.

    A pass has as many bucket batches as without weights, without padding. A sample can occur twice.

    Attributes:
        weights: of each bucket's samples, (n,) float64, not negative, not all 0.
    """

    repeats = True
    how = "by weights"

    weights: Sequence[NDArray[np.float64]] = ()

    def __str__(self) -> str:
        return f"buckets of {counted(self.samples, 'sample')} by weight"

    @property
    def samples(self) -> int:
        return self.size

    @cached_property
    def fingerprint(self) -> str:
        return digest_of(f"weighted {super().fingerprint}", *self.weights)

    def order(self, seed: int, number: int) -> IdsAt:
        buckets_at = self._buckets_at(seed, number)

        def drawn(places: Ints) -> Ints:
            buckets, numbers = buckets_at(places // self.quantum), uniform_of(seed, number, places)
            ids = np.empty_like(places)
            for bucket in np.unique(buckets).tolist():
                here = buckets == bucket
                ids[here] = self._choose(bucket, numbers[here])
            return ids

        return drawn

    @property
    def used_shapes(self) -> list[tuple[int, int]]:
        return [shape for shape, each in zip(self.shapes, self.weights) if each.any()]

    @property
    def dropped(self) -> list[str]:
        """Any bucket with weight can be drawn."""
        return []

    def includes(self, ids: Ints) -> NDArray[np.bool_]:
        return np.isin(ids, np.concatenate([run[each > 0] for run, each in zip(self.runs, self.weights)]))

    def _buckets_at(self, seed: int, number: int) -> IdsAt:
        # The numbers lie behind those of the samples. Below ends[-1], so the result has weight: see `WeightedSampler`.
        ends = np.cumsum([each[-1] if len(each) else 0.0 for each in self._cumulated])
        return lambda turns: np.searchsorted(ends, uniform_of(seed, number, self.size + turns) * ends[-1], "right")

    def _choose(self, bucket: int, uniform: NDArray[np.float64]) -> Ints:
        ends = self._cumulated[bucket]
        return self.runs[bucket][np.searchsorted(ends, uniform * ends[-1], "right")]

    @cached_property
    def _cumulated(self) -> list[NDArray[np.float64]]:
        """The cumulated weights of each bucket, scaled so that the largest weight is 1."""
        largest = max(each.max(initial=0) for each in self.weights)
        return [np.cumsum(each / largest) for each in self.weights]


def _allowed_sizes(multiple: int, ranks: int) -> str:
    """Lists the batch sizes, or else the numbers of ranks, with a global batch that divides a number."""
    size, left = divmod(multiple, ranks)
    whose = "are numbers of ranks" if left else f"with {counted(ranks, 'rank')} are batch sizes of"
    most = multiple if left else size
    return f"{whose} {', '.join(str(number) for number in range(1, most + 1) if most % number == 0)}"
