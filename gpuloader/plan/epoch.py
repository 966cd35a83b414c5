"""Which samples a rank gets at which step: arithmetic on positions.

An epoch is a row of positions 0, 1, 2, ..., and an order gives the sample at each. From a cursor on, each step takes
the next world_size * batch_size positions, the global batch, and rank r takes the r-th batch_size of them. So the
global batches are the same for every world size with the same global batch size, and resuming needs only an integer.
Only this module knows that a cursor holds one: others ask the plan.

The last global batch may be short. Every rank gets the same number of steps in each mode:

    drop     the short batch is left out
    pad      it is filled from the start of the epoch's order, and the filling is marked as not valid
    equal    it is filled in the same way, but only until all ranks have the same number of samples
    partial  it is split evenly: ranks differ by one sample at most

"partial" avoids batches without samples: if fewer samples than ranks are left after the last full step, this step
takes ceil(batch_size / 2) samples for each rank, and the last step takes the rest. For 101 samples, 2 ranks and a
batch_size of 25, the steps are 25 and 25, 13 and 13, 12 and 13. Which samples form one of these two steps then depends
on the number of ranks. With a batch_size of 1, or fewer samples than ranks, some ranks get none.

With buckets, each global batch is of one bucket, and each bucket ends with "drop" or "pad": `gpuloader.plan.buckets`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from math import gcd
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import ConfigError
from gpuloader.helpers.text import counted
from gpuloader.helpers.values import is_integer
from gpuloader.plan.buckets import Bucketed
from gpuloader.plan.draws import Draws, check_seed
from gpuloader.plan.order import Order
from gpuloader.plan.positions import Positions

LastBatch: TypeAlias = Literal["drop", "pad", "partial", "equal"]


@dataclass(frozen=True, order=True)
class Cursor:
    """A place between two steps of the run; `Cursor(epoch)` is where an epoch begins. Earlier places are smaller.

    Attributes:
        epoch: in [0, 2**32), or 2**32 at the end of the last.
        delivered: the samples of this epoch that all ranks together have delivered, without padding. Only the plan
            reads and makes it.
    """

    epoch: int = 0
    delivered: int = 0


@dataclass(frozen=True)
class PlannedBatch:
    """What one rank gets in one step.

    Attributes:
        cursor: the place before the step.
        ids: (b,) int64 sample ids, b <= batch_size.
        valid: (b,) bool, False for padding.
        draws: their random numbers: those of the samples. If a sample can occur twice in an epoch, those of the
            positions, so that each copy is augmented differently.
        shape: (height, width) of the step's bucket; None without buckets.
    """

    cursor: Cursor
    ids: NDArray[np.int64]
    valid: NDArray[np.bool_]
    draws: Draws
    shape: tuple[int, int] | None = None

    def row(self, row: int) -> PlannedBatch:
        this = slice(row, row + 1)
        return replace(self, ids=self.ids[this], valid=self.valid[this], draws=self.draws.take(this))


@dataclass(frozen=True)
class Plan:
    """The order of a run, as one rank sees it; equal plans give equal batches.

    Attributes:
        positions: which samples an epoch goes through, and in which order.
        batch_size: samples of one rank in one step.
        steps_per_epoch: ends each epoch after that many steps; None uses all samples.
    """

    positions: Positions
    batch_size: int
    rank: int = 0
    world_size: int = 1
    last_batch: LastBatch = "drop"
    seed: int = 0
    steps_per_epoch: int | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if not is_integer(self.batch_size, 1):
            raise ConfigError(f"batch_size={self.batch_size!r}: allowed is an integer of at least 1")
        if self.last_batch not in get_args(LastBatch):
            allowed = ", ".join(map(repr, get_args(LastBatch)))
            raise ConfigError(f"last_batch={self.last_batch!r}: allowed are {allowed}")
        if self.bucketed is not None:
            self._check_quantum(self.bucketed)
        natural = _steps(self.samples, self.global_batch, self.last_batch)
        if natural == 0:
            raise ConfigError(
                f'last_batch="drop" leaves no batch: {counted(self.samples, "sample")} '
                f"{'is' if self.samples == 1 else 'are'} fewer than one step of "
                f"{counted(self.world_size, 'rank')} x batch_size {self.batch_size} = {self.global_batch}. "
                f'Use a smaller batch_size, or last_batch="pad", "equal" or "partial"'
            )
        steps = self.steps_per_epoch
        if steps is not None and not is_integer(steps, 1, natural + 1):
            raise ConfigError(
                f"steps_per_epoch={steps!r}: allowed is 1 to {natural}, the steps in one pass over "
                f"{counted(self.samples, 'sample')}, or None for all of them"
            )

    def _check_quantum(self, buckets: Bucketed) -> None:
        if buckets.quantum % self.global_batch:
            raise ConfigError(
                f"{counted(self.world_size, 'rank')} x batch_size {self.batch_size} = {self.global_batch} does not "
                f"divide the buckets' quantum, {buckets.quantum}: allowed {self._allowed_sizes(buckets.quantum)}"
            )
        if not buckets.length:
            raise ConfigError(
                f'last_batch="drop" leaves no batch: no bucket has {counted(buckets.quantum, "sample")}. Use a smaller '
                f'batch_size, or last_batch="pad"'
            )

    def _allowed_sizes(self, multiple: int) -> str:
        """Says which batch sizes, or else which numbers of ranks, have a global batch that divides a number."""
        size, left = divmod(multiple, self.world_size)
        whose = "are numbers of ranks" if left else f"with {counted(self.world_size, 'rank')} are batch sizes of"
        most = multiple if left else size
        return f"{whose} {', '.join(str(number) for number in range(1, most + 1) if most % number == 0)}"

    @property
    def bucketed(self) -> Bucketed | None:
        """The positions, if they are of buckets."""
        return self.positions if isinstance(self.positions, Bucketed) else None

    @property
    def num_samples(self) -> int:
        """The samples in an epoch without `steps_per_epoch`; without the padding of buckets."""
        return self.samples if self.bucketed is None else self.bucketed.samples

    @property
    def samples(self) -> int:
        """The number of positions in an epoch without `steps_per_epoch`."""
        return self.positions.length

    @property
    def global_batch(self) -> int:
        """Samples of all ranks in one step."""
        return self.world_size * self.batch_size

    @property
    def epoch_samples(self) -> int:
        """The positions in one epoch; fewer than `samples` only with `steps_per_epoch`."""
        if self.steps_per_epoch is None:
            return self.samples
        return min(self.samples, self.steps_per_epoch * self.global_batch)

    @property
    def steps(self) -> int:
        """The steps of an epoch; the same on every rank."""
        return _steps(self.epoch_samples, self.global_batch, self.last_batch)

    def on(self, ranks: object) -> Plan:
        """Returns rank 0's plan of another number of ranks with the same global batch; itself if there is none."""
        if not is_integer(ranks, 1) or self.global_batch % ranks:
            return self
        return replace(self, batch_size=self.global_batch // ranks, rank=0, world_size=ranks)

    def at(self, epoch: int, step: int) -> Cursor:
        """Returns the place before a step of an epoch, counted from 0."""
        return self.after(Cursor(epoch), step)

    def step_of(self, cursor: Cursor) -> int:
        """Returns the step at the cursor, from 0. After a resume with another global batch, steps may begin earlier."""
        return cursor.delivered // self.global_batch

    def steps_left(self, cursor: Cursor) -> int:
        """Counts the steps that are left in the cursor's epoch; the same on every rank."""
        return _steps(max(0, self.epoch_samples - cursor.delivered), self.global_batch, self.last_batch)

    def share(self, cursor: Cursor) -> tuple[int, int]:
        """Returns this rank's part of the global batch at the cursor: its first sample, and the one after its last."""
        taken, rank, ranks = self.after(cursor).delivered - cursor.delivered, self.rank, self.world_size
        if self.last_batch == "partial":
            return taken * rank // ranks, taken * (rank + 1) // ranks
        size = -(-taken // ranks) if self.last_batch == "equal" else self.batch_size
        return rank * size, (rank + 1) * size

    @property
    def has_empty_shares(self) -> bool:
        """Whether some ranks get no sample in the last step of an epoch."""
        last = self.epoch_samples - self.at(0, self.steps - 1).delivered
        return self.last_batch == "partial" and last < self.world_size

    def batch(self, cursor: Cursor) -> PlannedBatch:
        """Returns what this rank gets in the step at the cursor; the cursor's epoch must have steps left."""
        first, end = self.share(cursor)
        positions = np.arange(cursor.delivered + first, cursor.delivered + end, dtype=np.int64)
        # Only padding is beyond the epoch: positions begin at 0 again there, and are not valid.
        valid, positions = positions < self.epoch_samples, positions % self.samples
        found = self._order(cursor.epoch)(positions)
        ids = _decoded(found)
        draws = Draws(self.seed, cursor.epoch, positions if self.positions.repeats else ids)
        shape = next(iter(self.shapes(cursor, 1) or ()), None)
        return PlannedBatch(cursor, ids, valid & (found >= 0), draws, shape)

    def shapes(self, cursor: Cursor, steps: int) -> list[tuple[int, int]] | None:
        """Returns (height, width) of the next `steps` steps of the cursor's epoch; None without buckets."""
        if self.bucketed is None:
            return None
        positions = np.arange(cursor.delivered, self.after(cursor, steps).delivered, self.global_batch)
        return [self.bucketed.shapes[bucket] for bucket in self._buckets(cursor.epoch)(positions)]

    def replacements(self, cursor: Cursor, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
        """Returns samples in place of a bad one of the step at the cursor, (k,), by numbers in [0, 1), (k,).

        They are of the step's bucket; without buckets, of all of the epoch.
        """
        if self.bucketed is None:
            return self.ids(cursor.epoch, np.floor(uniform * self.samples).astype(np.int64))
        [bucket] = self._buckets(cursor.epoch)(np.array([cursor.delivered]))
        run = self.bucketed.runs[bucket]
        return run[np.floor(uniform * len(run)).astype(np.int64)]

    def draws_of_step(self, cursor: Cursor, rows: int) -> Draws:
        """Returns the random numbers of the step at the cursor, the same on all ranks, for each of `rows` rows."""
        return Draws(self.seed, cursor.epoch, np.full(rows, self.step_of(cursor)))

    def ids(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the samples at some positions of an epoch, both (k,) int64."""
        return _decoded(self._order(epoch)(positions))

    def coming(self, cursor: Cursor, steps: int) -> NDArray[np.int64]:
        """Returns the samples of all ranks in the next `steps` steps of the cursor's epoch, in order, (k,) int64."""
        end = self.after(cursor, steps).delivered
        return self.ids(cursor.epoch, np.arange(cursor.delivered, end))

    def at_step(self, cursor: Cursor) -> Cursor:
        """Returns the cursor itself if its epoch has steps left, otherwise the start of the next epoch."""
        return cursor if self.steps_left(cursor) else Cursor(cursor.epoch + 1)

    def after(self, cursor: Cursor, steps: int = 1) -> Cursor:
        """Returns the place after the step at the cursor, or after several; at most the end of its epoch."""
        full, rest = divmod(self.epoch_samples - cursor.delivered, self.global_batch)
        end = cursor.delivered + steps * self.global_batch
        if self.last_batch == "partial" and 0 < steps == full and 0 < rest < self.world_size:
            end -= self.world_size * (self.batch_size // 2)  # which the last full step leaves to the last one
        return Cursor(cursor.epoch, min(end, self.epoch_samples))

    def place(self, cursor: Cursor) -> dict[str, int]:
        """Returns the cursor as states save it, for any number of ranks and batch size that the quantum allows."""
        quantum = {} if self.bucketed is None else {"quantum": self.bucketed.quantum}
        return {"epoch": cursor.epoch, "delivered": cursor.delivered, **quantum}

    def cursor(self, epoch: int, delivered: int) -> Cursor:
        """Makes the cursor that a state saved.

        Raises:
            ConfigError: it is within a quantum of a bucket, and a step from there would go beyond its end.
        """
        cursor = Cursor(epoch, delivered)
        if self.bucketed is not None and delivered % self.global_batch and self.steps_left(cursor):
            place = delivered % self.bucketed.quantum
            raise ConfigError(
                f"{place} samples of a quantum of {self.bucketed.quantum} are delivered, and steps of "
                f"{counted(self.world_size, 'rank')} x batch_size {self.batch_size} = {self.global_batch} would go "
                f"beyond its end: allowed {self._allowed_sizes(gcd(place, self.bucketed.quantum))}"
            )
        return cursor

    @cached_property
    def _order(self) -> Callable[[int], Order]:
        """The order of an epoch; two are kept, because the next one is read ahead while one ends."""
        return lru_cache(maxsize=2)(partial(self.positions.order, self.seed))

    @cached_property
    def _buckets(self) -> Callable[[int], Order]:
        """The buckets of an epoch's positions, if there are buckets."""
        assert self.bucketed is not None
        return lru_cache(maxsize=2)(partial(self.bucketed.buckets, self.seed))


def _decoded(found: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the ids of what an order gives: a bucket's padding is ~id, which is negative."""
    return np.maximum(found, ~found)


def _steps(samples: int, global_batch: int, last_batch: LastBatch) -> int:
    return samples // global_batch if last_batch == "drop" else -(-samples // global_batch)
