"""`Epochs`: decides which places of a run's row of samples each step and each rank gets.

A run is one endless row of samples: an `Order`. An epoch takes the next places of the row, as many as a pass has, or
`steps_per_epoch` steps. Each step takes the next world_size * batch_size places, the global batch, and rank r takes the
r-th batch_size of them. So the global batches depend on their size, not on the number of ranks. To resume, a run needs
only the place where its epoch began, and the samples delivered since.

The last global batch of an epoch may be short. Every rank gets the same number of steps in each mode:

    drop     the short batch is dropped
    pad      it is filled with the first samples of the epoch, which are marked as not valid
    equal    it is filled in the same way, but only until all ranks have the same number of samples
    partial  it is split evenly: ranks differ by at most one sample

"partial" avoids batches without samples. If fewer samples than ranks remain after the last full step, this step
takes ceil(batch_size / 2) samples for each rank, and the last step takes the rest. For 101 samples, 2 ranks and a
batch_size of 25, the steps are 25 and 25, 13 and 13, 12 and 13. The samples of these two steps then depend on the
number of ranks. With a batch_size of 1, or fewer samples than ranks, some ranks get no sample.

With buckets, each global batch comes from one bucket, and each bucket ends with "drop" or "pad":
`gpuloader.plan.buckets`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, TypeVar, get_args

from gpuloader.base.text import counted
from gpuloader.base.values import is_integer
from gpuloader.errors import ConfigError
from gpuloader.plan.draws import check_seed
from gpuloader.plan.sample_order import Order

LastBatch: TypeAlias = Literal["drop", "pad", "partial", "equal"]
AnyEpochs = TypeVar("AnyEpochs", bound="Epochs")


@dataclass(frozen=True, order=True)
class Cursor:
    """A place between two steps of the run; `Cursor(epoch)` is the start of an epoch. Earlier places are smaller.

    Attributes:
        epoch: in [0, 2**32), or 2**32 after the last epoch.
        delivered: the samples of this epoch that all ranks together have delivered, without padding; in a
            `MixedLoader`, the batches.
    """

    epoch: int = 0
    delivered: int = 0


@dataclass(frozen=True)
class Start:
    """The place that epochs are counted from: the beginning of the run, or the state that it resumed from.

    Attributes:
        epoch: of the state.
        place: of the row, where this epoch begins.
        delivered: the samples of this epoch that were delivered before.
    """

    epoch: int = 0
    place: int = 0
    delivered: int = 0


@dataclass(frozen=True)
class Epochs:
    """The epochs and steps of a run for one rank.

    Attributes:
        source: the row of samples; only its size counts here, and which steps it allows.
        batch_size: samples of one rank in one step.
        steps_per_epoch: the steps of each epoch; None makes an epoch as long as a pass.
        repeats: the copies of each sample, one after the other; each copy has other random numbers.
        start: the place that epochs are counted from.
    """

    source: Order
    batch_size: int
    rank: int = 0
    world_size: int = 1
    last_batch: LastBatch = "drop"
    seed: int = 0
    steps_per_epoch: int | None = None
    repeats: int = 1
    start: Start = field(default_factory=Start)

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for name in ("batch_size", "steps_per_epoch", "repeats"):
            value = getattr(self, name)
            if not is_integer(value, 1) and not (value is None and name == "steps_per_epoch"):
                raise ConfigError(f"{name}={value!r}: allowed is an integer of at least 1")
        if self.last_batch not in get_args(LastBatch):
            allowed = ", ".join(map(repr, get_args(LastBatch)))
            raise ConfigError(f"last_batch={self.last_batch!r}: allowed are {allowed}; drop_last=False is 'partial'")
        self.source.check_steps(self.world_size, self.batch_size)
        if self.steps == 0:
            raise ConfigError(
                f'last_batch="drop" leaves no batch: {counted(self.length, "sample")} '
                f"{'is' if self.length == 1 else 'are'} fewer than one step of "
                f"{counted(self.world_size, 'rank')} x batch_size {self.batch_size} = {self.global_batch}. "
                f'Use a smaller batch_size, or last_batch="pad", "equal" or "partial"'
            )

    @property
    def global_batch(self) -> int:
        """Samples of all ranks in one step."""
        return self.world_size * self.batch_size

    @property
    def length(self) -> int:
        """The places of the row in one epoch."""
        return self.source.size if self.steps_per_epoch is None else self.steps_per_epoch * self.global_batch

    def length_of(self, epoch: int) -> int:
        """Returns the places of an epoch. An epoch that a run of another length began ends where this run's would.

        Samples that this run drops at its end then come in the next epoch, unless an epoch is a pass.
        """
        delivered = self.start.delivered
        if epoch != self.start.epoch or not delivered:
            return self.length
        left = max(0, self.length - delivered)
        if self.source.quantum is not None or (self.last_batch == "drop" and self.steps_per_epoch is not None):
            left -= left % self.global_batch
        return delivered + left

    def first(self, epoch: int) -> int:
        """Returns the place of the row where an epoch begins; epochs before the state count from the start."""
        start = self.start
        if epoch <= start.epoch:
            return start.place if epoch == start.epoch else epoch * self.length
        return start.place + self.length_of(start.epoch) + (epoch - start.epoch - 1) * self.length

    @property
    def steps(self) -> int:
        """The steps of an epoch, equal on every rank."""
        return _steps(self.length, self.global_batch, self.last_batch)

    def on(self: AnyEpochs, ranks: object) -> AnyEpochs:
        """Returns rank 0's plan for another number of ranks with the same global batch; this plan if none exists."""
        if not is_integer(ranks, 1) or self.global_batch % ranks:
            return self
        return replace(self, batch_size=self.global_batch // ranks, rank=0, world_size=ranks)

    def at(self, epoch: int, step: int) -> Cursor:
        """Returns the cursor before a step of an epoch, counted from 0."""
        return self.after(Cursor(epoch), step)

    def whole(self: AnyEpochs, epoch: int) -> AnyEpochs:
        """Returns the plan in which an epoch has all its steps, also if a run of other steps began it."""
        start = self.start
        return replace(self, start=replace(start, delivered=0)) if start.delivered and epoch == start.epoch else self

    def step_of(self, cursor: Cursor) -> int:
        """Returns the step at the cursor, from 0. After a resume with another global batch, steps may begin earlier."""
        return cursor.delivered // self.global_batch

    def steps_left(self, cursor: Cursor) -> int:
        """Counts the remaining steps of the cursor's epoch, equal on every rank."""
        return _steps(self._left(cursor), self.global_batch, self.last_batch)

    def share(self, cursor: Cursor) -> tuple[int, int]:
        """Returns this rank's part of the global batch at the cursor: the first sample, and the one after the last."""
        return self._begin_of(self.rank, cursor), self._begin_of(self.rank + 1, cursor)

    def _begin_of(self, rank: int, cursor: Cursor) -> int:
        """Returns where a rank's part of the step at the cursor begins; for rank `world_size`, where the step ends."""
        taken, ranks = self.after(cursor).delivered - cursor.delivered, self.world_size
        if self.last_batch == "partial":
            return taken * rank // ranks
        return rank * (-(-taken // ranks) if self.last_batch == "equal" else self.batch_size)

    @property
    def has_empty_shares(self) -> bool:
        """Whether some ranks get no sample in the last step of an epoch."""
        last = self.length - replace(self, start=Start()).at(0, self.steps - 1).delivered
        return self.last_batch == "partial" and last < self.world_size

    def at_step(self, cursor: Cursor) -> Cursor:
        """Returns the cursor itself if its epoch has steps left, otherwise the start of the next epoch."""
        return cursor if self.steps_left(cursor) else Cursor(cursor.epoch + 1)

    def after(self, cursor: Cursor, steps: int = 1) -> Cursor:
        """Returns the cursor after one or more steps, at most the end of the epoch."""
        full, rest = divmod(self._left(cursor), self.global_batch)
        end = cursor.delivered + steps * self.global_batch
        if self.last_batch == "partial" and 0 < steps == full and 0 < rest < self.world_size:
            end -= self.world_size * (self.batch_size // 2)  # samples that the last full step leaves to the last step
        return replace(cursor, delivered=min(end, cursor.delivered + self._left(cursor)))

    def check_place(self, cursor: Cursor) -> None:
        """Raises ConfigError unless steps from the cursor end at the end of the bucket batch."""
        self.source.check_steps(self.world_size, self.batch_size, self.first(cursor.epoch) + cursor.delivered)

    def row_place(self, start: float) -> int:
        """Converts a start in epochs, such as 2.5, to the place of its sample; earlier epochs are counted back."""
        epoch = int(start)
        back = max(0, self.start.epoch - epoch)
        first = self.first(epoch + back) - back * self.length
        return -(-(first + min(round(start % 1 * self.length), self.length_of(epoch))) // self.repeats)

    def _left(self, cursor: Cursor) -> int:
        """Counts the remaining places of the cursor's epoch."""
        return max(0, self.length_of(cursor.epoch) - cursor.delivered)


def _steps(samples: int, global_batch: int, last_batch: LastBatch) -> int:
    return samples // global_batch if last_batch == "drop" else -(-samples // global_batch)
