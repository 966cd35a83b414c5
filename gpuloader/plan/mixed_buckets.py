"""`MixedBuckets`: several sources with buckets. Each bucket batch is of one source, and the batches come in a ratio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.plan.buckets import BucketSampler
from gpuloader.plan.mix import Interleaved, Ratio
from gpuloader.plan.order import Shuffle, seed_of_part
from gpuloader.plan.sample_order import Ints
from gpuloader.plan.samplers import digest_of


@dataclass(frozen=True, eq=False)
class MixedBuckets(Interleaved):
    """Several sources with the same buckets, whose bucket batches are interleaved in ratios.

    Attributes:
        of_sources: the bucketed samples of each source.
        quantum: the number of samples of a bucket batch.
        fixed: whether `quantum` is fixed; otherwise a state may override it.
    """

    KEPT = BucketSampler.KEPT

    of_sources: Sequence[BucketSampler]
    schedule: tuple[Ratio, ...] = field()
    quantum: int = field()
    fixed: bool = False
    begun: tuple[Ratio, ...] = ()
    ratios: tuple[Ratio, ...] = ()

    def __str__(self) -> str:
        return f"buckets of {super().__str__()}"

    @property
    def shuffle(self) -> Shuffle:  # type: ignore[override]
        return self.of_sources[0].shuffle

    @property
    def shapes(self) -> Sequence[tuple[int, int]]:  # type: ignore[override]
        return self.of_sources[0].shapes

    @property
    def size(self) -> int:
        return sum(source.size for source in self.sources)

    @property
    def samples(self) -> int:
        return sum(source.samples for source in self.sources)

    @cached_property
    def sources(self) -> Sequence[BucketSampler]:
        return [replace(source, quantum=self.quantum) for source in self.of_sources]

    @cached_property
    def fingerprint(self) -> str:
        """See `Order`; without `quantum` and the ratios."""
        return digest_of(f"mix of buckets {[source.fingerprint for source in self.of_sources]}")

    def includes(self, ids: Ints) -> NDArray[np.bool_]:
        return np.any([source.includes(ids) for source in self.sources], axis=0)

    def start_of(self, place: int) -> int:
        """See `Interleaved`; a ratio begins with a bucket batch."""
        return -(-place // self.quantum) * self.quantum

    def near(self, seed: int, first: int, offset: Ints, sample: int, uniform: NDArray[np.float64]) -> Ints:
        """See `Order`; the samples come from the step's bucket of its source."""
        [(number, _, at, own)] = self._split(first, offset)
        return self.sources[number].near(seed_of_part(seed, number), at, own, sample, uniform)

    def shapes_at(self, seed: int, first: int, offsets: Ints) -> list[tuple[int, int]]:
        found = np.empty((len(offsets), 2), np.int64)
        for number, here, at, own in self._split(first, offsets):
            found[here] = self.sources[number].shapes_at(seed_of_part(seed, number), at, own)
        return [(height, width) for height, width in found.tolist()]

    @property
    def used_shapes(self) -> list[tuple[int, int]]:
        return list(dict.fromkeys(chain(*(source.used_shapes for source in self.sources))))

    @property
    def dropped(self) -> list[str]:
        return [f"{name} of source {number}" for number, each in enumerate(self.sources) for name in each.dropped]

    def check_steps(self, ranks: int, batch_size: int, place: int = 0) -> None:
        for source in self.sources:
            source.check_steps(ranks, batch_size, place)

    def state(self, begun: int) -> dict[str, Any]:
        return {**super().state(begun), "quantum": self.quantum}

    def _split(self, first: int, offsets: Ints) -> Iterator[tuple[int, Ints, int, Ints]]:
        """See `Interleaved`, whose places are bucket batches here."""
        first, begin = divmod(first, self.quantum)
        batches, within = np.divmod(begin + offsets, self.quantum)
        for number, here, at, own in super()._split(first, batches):
            yield number, here, at * self.quantum, own * self.quantum + within[here]

    @cached_property
    def _rounds(self) -> Sequence[Ratio]:
        return [Ratio(self.start_of(int(start)) // self.quantum, parts) for start, parts in self.ratios]
