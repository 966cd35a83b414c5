"""`Bucketed`: samples in buckets, such that each global batch is of one bucket.

An epoch deals the samples of each bucket out in quanta, and shuffles the quanta of all buckets:

    bucket 0    |  quantum  |  quantum  | quantum...|          each bucket's samples are shuffled first
    bucket 1    |  quantum  | quanta... |
    an epoch    | 1, second | 0, first  | 0, third  | ...

A quantum is a global batch, or several. So a run goes on with any number of ranks and any batch size whose product
divides the quantum: the quanta stay the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuloader.plan.order import Order, Shuffle, make_order, seed_of_part


@dataclass(frozen=True, eq=False)
class Bucketed:
    """Samples in buckets, each once in an epoch; the `Positions` of an epoch have a bucket's padding among them.

    Attributes:
        shapes: (height, width) of each bucket's images.
        runs: the ids of each bucket's samples, (n,) int64.
        quantum: how many positions, one after the other, are of one bucket.
        whole: whether the samples of a bucket that do not fill a quantum are left out, others in each epoch. If not,
            its last quantum is padded.
        shuffle: "full"; or "none" for the order of the ids, bucket after bucket.
    """

    repeats: ClassVar[bool] = False

    shapes: Sequence[tuple[int, int]]
    runs: Sequence[NDArray[np.int64]]
    quantum: int
    whole: bool = False
    shuffle: Shuffle = "full"

    @property
    def length(self) -> int:
        """The positions of an epoch, with the padding."""
        return int(self._ends[-1]) * self.quantum

    @property
    def samples(self) -> int:
        return sum(map(len, self.runs))

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.blake2b(f"buckets {self.quantum} {self.whole} {self.shuffle}".encode(), digest_size=16)
        for (height, width), run in zip(self.shapes, self.runs, strict=True):
            digest.update(f" {height} {width} {len(run)} ".encode() + np.ascontiguousarray(run).data)
        return digest.hexdigest()

    def order(self, seed: int, epoch: int) -> Order:
        """See `Positions`; at a position of padding it gives ~id, which is negative, of a sample of the same bucket."""
        slots_at = make_order(self.shuffle, int(self._ends[-1]), seed, epoch)
        orders = [
            make_order(self.shuffle, len(run), seed_of_part(seed, bucket), epoch)
            for bucket, run in enumerate(self.runs, 1)
        ]

        def deal(positions: NDArray[np.int64]) -> NDArray[np.int64]:
            turns, offsets = np.divmod(positions, self.quantum)
            slots = slots_at(turns)
            buckets = self._buckets_of(slots)
            places = (slots - self._starts[buckets]) * self.quantum + offsets
            ids = np.empty_like(positions)
            for bucket in np.unique(buckets):
                here, run = np.flatnonzero(buckets == bucket), self.runs[bucket]
                found = run[orders[bucket](places[here] % len(run))]
                ids[here] = np.where(places[here] < len(run), found, ~found)
            return ids

        return deal

    def buckets(self, seed: int, epoch: int) -> Order:
        """Returns a function of positions in [0, length), int64 (k,), that returns their buckets' numbers, (k,)."""
        slots_at = make_order(self.shuffle, int(self._ends[-1]), seed, epoch)
        return lambda positions: self._buckets_of(slots_at(positions // self.quantum))

    def includes(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.isin(ids, np.concatenate(self.runs))

    def _buckets_of(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._ends, slots, side="right")

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """(b,) how many quanta the buckets up to each have."""
        counts = np.array([len(run) for run in self.runs])
        return np.cumsum(counts // self.quantum if self.whole else -(-counts // self.quantum))

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.append(0, self._ends[:-1])
