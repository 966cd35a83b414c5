"""Which samples a rank gets at which step: arithmetic on positions.

An epoch is a row of positions 0, 1, 2, ..., and an order gives the sample at each. From a cursor on, each step takes
the next world_size * batch_size positions, the global batch, and rank r takes the r-th batch_size of them. So the
global batches are the same for every world size with the same global batch size, and resuming needs only an integer.
Only this module knows that a cursor holds one: others ask the plan.

The last global batch may be short. Every rank gets the same number of steps in each mode:

    drop     the short batch is left out
    pad      it is filled from the start of the epoch's order, and the filling is marked as not valid
    partial  it is split evenly: ranks differ by one sample at most (some get none, if there are fewer than ranks)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import ConfigError
from gpuloader.helpers.text import counted
from gpuloader.helpers.values import is_integer
from gpuloader.plan.draws import Draws, check_seed
from gpuloader.plan.order import Order
from gpuloader.plan.positions import Positions

LastBatch: TypeAlias = Literal["drop", "pad", "partial"]


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
    """

    cursor: Cursor
    ids: NDArray[np.int64]
    valid: NDArray[np.bool_]
    draws: Draws


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
        natural = _steps(self.samples, self.global_batch, self.last_batch)
        if natural == 0:
            raise ConfigError(
                f'last_batch="drop" leaves no batch: {counted(self.samples, "sample")} '
                f"{'is' if self.samples == 1 else 'are'} fewer than one step of "
                f"{counted(self.world_size, 'rank')} x batch_size {self.batch_size} = {self.global_batch}. "
                f'Use a smaller batch_size, or last_batch="pad" or "partial"'
            )
        steps = self.steps_per_epoch
        if steps is not None and not is_integer(steps, 1, natural + 1):
            raise ConfigError(
                f"steps_per_epoch={steps!r}: allowed is 1 to {natural}, the steps in one pass over "
                f"{counted(self.samples, 'sample')}, or None for all of them"
            )

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

    def at(self, epoch: int, step: int) -> Cursor:
        """Returns the place before a step of an epoch, counted from 0."""
        return Cursor(epoch, step * self.global_batch)

    def step_of(self, cursor: Cursor) -> int:
        """Returns the step at the cursor, from 0. After a resume with another global batch, steps may begin earlier."""
        return cursor.delivered // self.global_batch

    def steps_left(self, cursor: Cursor) -> int:
        """Counts the steps that are left in the cursor's epoch; the same on every rank."""
        return _steps(max(0, self.epoch_samples - cursor.delivered), self.global_batch, self.last_batch)

    def share(self, cursor: Cursor) -> tuple[int, int]:
        """Returns this rank's part of the global batch at the cursor: its first sample, and the one after its last."""
        left = self.epoch_samples - cursor.delivered
        if self.last_batch == "partial" and left < self.global_batch:
            return left * self.rank // self.world_size, left * (self.rank + 1) // self.world_size
        return self.rank * self.batch_size, (self.rank + 1) * self.batch_size

    def batch(self, cursor: Cursor) -> PlannedBatch:
        """Returns what this rank gets in the step at the cursor; the cursor's epoch must have steps left."""
        first, end = self.share(cursor)
        positions = np.arange(cursor.delivered + first, cursor.delivered + end, dtype=np.int64)
        # Only "pad" goes beyond the epoch: positions begin at 0 again there, and are not valid.
        valid, positions = positions < self.epoch_samples, positions % self.samples
        ids = self.ids(cursor.epoch, positions)
        draws = Draws(self.seed, cursor.epoch, positions if self.positions.repeats else ids)
        return PlannedBatch(cursor, ids, valid, draws)

    def draws_of_step(self, cursor: Cursor, rows: int) -> Draws:
        """Returns the random numbers of the step at the cursor, the same on all ranks, for each of `rows` rows."""
        return Draws(self.seed, cursor.epoch, np.full(rows, self.step_of(cursor)))

    def ids(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the samples at some positions of an epoch, both (k,) int64."""
        return self._order(epoch)(positions)

    def coming(self, cursor: Cursor, steps: int) -> NDArray[np.int64]:
        """Returns the samples of all ranks in the next `steps` steps of the cursor's epoch, in order, (k,) int64."""
        end = self.after(cursor, steps).delivered
        return self.ids(cursor.epoch, np.arange(cursor.delivered, end))

    def at_step(self, cursor: Cursor) -> Cursor:
        """Returns the cursor itself if its epoch has steps left, otherwise the start of the next epoch."""
        return cursor if self.steps_left(cursor) else Cursor(cursor.epoch + 1)

    def after(self, cursor: Cursor, steps: int = 1) -> Cursor:
        """Returns the place after the step at the cursor, or after several; at most the end of its epoch."""
        return Cursor(cursor.epoch, min(cursor.delivered + steps * self.global_batch, self.epoch_samples))

    def place(self, cursor: Cursor) -> dict[str, int]:
        """Returns the cursor as states save it, for any number of ranks and batch size."""
        return {"epoch": cursor.epoch, "delivered": cursor.delivered}

    def cursor(self, epoch: int, delivered: int) -> Cursor:
        """Makes the cursor that a state saved."""
        return Cursor(epoch, delivered)

    @cached_property
    def _order(self) -> Callable[[int], Order]:
        """The order of an epoch; two are kept, because the next one is read ahead while one ends."""
        return lru_cache(maxsize=2)(partial(self.positions.order, self.seed))


def _steps(samples: int, global_batch: int, last_batch: LastBatch) -> int:
    return samples // global_batch if last_batch == "drop" else -(-samples // global_batch)
