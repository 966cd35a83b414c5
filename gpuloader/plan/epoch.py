"""`Plan`: decides which samples each rank gets at each step, by arithmetic on the run's row of samples.

A run is one endless row of samples: a `Sampler`, or a `Mix` of several. An epoch takes the next places of the row, as
many as a pass has, or `steps_per_epoch` steps. Each step takes the next world_size * batch_size places, the global
batch, and rank r takes the r-th batch_size of them. So the global batches depend on their size, not on the number of
ranks. To resume, a run needs only the place where its epoch began, and the samples delivered since.

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import ceil, gcd
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.text import counted
from gpuloader.base.values import is_integer
from gpuloader.errors import ConfigError, describe
from gpuloader.plan.buckets import BucketSampler
from gpuloader.plan.draws import EPOCHS, Draws, check_seed
from gpuloader.plan.grouped_sampler import MOST_GROUPS, GroupedSampler
from gpuloader.plan.mix import Mix, Ratio
from gpuloader.plan.samplers import Ints, Sampler

_STEPS_LOOKED_AT = 64
LastBatch: TypeAlias = Literal["drop", "pad", "partial", "equal"]


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
class PlannedBatch:
    """The samples of one rank in one step.

    Attributes:
        cursor: the place before the step.
        ids: (b,) int64 sample ids, b <= batch_size.
        places: (b,) int64, the samples' places in the epoch, from its beginning over all ranks; -1 for padding.
        draws: the samples' random numbers. If a sample can occur twice in an epoch, the numbers belong to the
            positions, so that each copy is augmented differently.
        shape: (height, width) of the step's bucket; None without buckets or sizes of buckets.
    """

    cursor: Cursor
    ids: NDArray[np.int64]
    places: NDArray[np.int64]
    draws: Draws
    shape: tuple[int, int] | None = None

    @property
    def valid(self) -> NDArray[np.bool_]:
        """(b,) bool, False for padding."""
        return self.places >= 0

    def take(self, rows: slice) -> PlannedBatch:
        """Returns some of the rows."""
        return replace(self, ids=self.ids[rows], places=self.places[rows], draws=self.draws.take(rows))


@dataclass(frozen=True)
class Start:
    """The place that epochs are counted from: the beginning of the run, or the state that it resumed from.

    Attributes:
        epoch: of the state.
        place: of the row, where this epoch begins.
        delivered: the samples of this epoch that were delivered before.
        ratios: the ratios of a mix that have begun before.
    """

    epoch: int = 0
    place: int = 0
    delivered: int = 0
    ratios: tuple[Ratio, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The order of a run for one rank; equal plans give equal batches.

    Attributes:
        source: the row of samples.
        batch_size: samples of one rank in one step.
        steps_per_epoch: the steps of each epoch; None makes an epoch as long as a pass.
        repeats: the copies of each sample, one after the other; each copy has other random numbers.
        start: the place that epochs are counted from.
    """

    source: Sampler | Mix
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
        if self.bucketed is not None:
            self._check_quantum(self.bucketed)
        if self.steps == 0:
            raise ConfigError(
                f'last_batch="drop" leaves no batch: {counted(self.length, "sample")} '
                f"{'is' if self.length == 1 else 'are'} fewer than one step of "
                f"{counted(self.world_size, 'rank')} x batch_size {self.batch_size} = {self.global_batch}. "
                f'Use a smaller batch_size, or last_batch="pad", "equal" or "partial"'
            )

    def _check_quantum(self, buckets: BucketSampler) -> None:
        if buckets.quantum % self.global_batch:
            raise ConfigError(
                f"{counted(self.world_size, 'rank')} x batch_size {self.batch_size} = {self.global_batch} does not "
                f"divide the bucket batch, quantum={buckets.quantum}: allowed {self._allowed_sizes(buckets.quantum)}"
            )
        if not buckets.size:
            raise ConfigError(
                f'last_batch="drop" leaves no batch: no bucket has {counted(buckets.quantum, "sample")}. Use a smaller '
                f'batch_size, or last_batch="pad"'
            )

    def _allowed_sizes(self, multiple: int) -> str:
        """Lists the batch sizes, or else the numbers of ranks, with a global batch that divides a number."""
        size, left = divmod(multiple, self.world_size)
        whose = "are numbers of ranks" if left else f"with {counted(self.world_size, 'rank')} are batch sizes of"
        most = multiple if left else size
        return f"{whose} {', '.join(str(number) for number in range(1, most + 1) if most % number == 0)}"

    @property
    def bucketed(self) -> BucketSampler | None:
        """The source if it has buckets, otherwise None."""
        return self.source if isinstance(self.source, BucketSampler) else None

    @cached_property
    def grouped(self) -> GroupedSampler | Mix | None:
        """The row if it has groups of shards, otherwise None."""
        return self._row if isinstance(self._row, (GroupedSampler, Mix)) and self._row.groups else None

    @property
    def num_samples(self) -> int:
        """The samples of a pass; without the padding of buckets."""
        return self.source.samples

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
        if self.bucketed is not None or (self.last_batch == "drop" and self.steps_per_epoch is not None):
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

    @property
    def facts(self) -> dict[str, Any]:
        """The values that must be equal on all ranks, beside the samples and the seed, in plain JSON types."""
        source, names = self.source, ("batch_size", "last_batch", "steps_per_epoch", "repeats")
        return {
            **{name: getattr(self, name) for name in names},
            "samples": source.size,
            "quantum": source.quantum if isinstance(source, BucketSampler) and source.fixed else None,
            "groups": None if self.grouped is None else self.grouped.groups,
            "weights": [list(ratio) for ratio in source.schedule] if isinstance(source, Mix) else None,
        }

    def on(self, ranks: object) -> Plan:
        """Returns rank 0's plan for another number of ranks with the same global batch; this plan if none exists."""
        if not is_integer(ranks, 1) or self.global_batch % ranks:
            return self
        return replace(self, batch_size=self.global_batch // ranks, rank=0, world_size=ranks)

    def at(self, epoch: int, step: int) -> Cursor:
        """Returns the cursor before a step of an epoch, counted from 0."""
        return self.after(Cursor(epoch), step)

    def whole(self, epoch: int) -> Plan:
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

    def batch(self, cursor: Cursor) -> PlannedBatch:
        """Returns this rank's samples in the step at the cursor; the cursor's epoch must have steps left."""
        places = self._places(cursor, self.rank)
        length = self.length_of(cursor.epoch)
        offsets, copies = self._split(cursor.epoch, places % length)
        taken = self._row.take(self.seed, *offsets)
        passes = (taken.passes * self.repeats + copies) % EPOCHS
        draws = Draws(self.seed, cursor.epoch, taken.numbers, passes)
        shape = next(iter(self.shapes(cursor, 1) or ()), None)
        places = np.where((places < length) & (taken.ids >= 0), places, -1)
        return PlannedBatch(cursor, np.maximum(taken.ids, ~taken.ids), places, draws, shape)

    def shapes(self, cursor: Cursor, steps: int) -> list[tuple[int, int]] | None:
        """Returns (height, width) of the next `steps` steps of the cursor's epoch; None without sizes of buckets."""
        if self.bucketed is None or not self.bucketed.shapes:
            return None
        places = np.arange(cursor.delivered, self.after(cursor, steps).delivered, self.global_batch)
        return [self.bucketed.shapes[bucket] for bucket in self._buckets(cursor.epoch, places)]

    def replacements(self, cursor: Cursor, sample: int, uniform: NDArray[np.float64]) -> Ints:
        """Returns replacements, (k,), for a bad sample of the step at the cursor, by numbers in [0, 1), (k,).

        They come from the step's bucket, or from the sample's group, or from a pass from the beginning of the epoch.
        """
        if self.grouped is not None:
            return self.grouped.near(self.seed, sample, uniform)
        if self.bucketed is None:
            return self.ids(cursor.epoch, np.floor(uniform * self.source.size).astype(np.int64))
        [bucket] = self._buckets(cursor.epoch, np.array([cursor.delivered]))
        run = self.bucketed.runs[bucket]
        return run[np.floor(uniform * len(run)).astype(np.int64)]

    def draws_of_step(self, cursor: Cursor, rows: int) -> Draws:
        """Returns the random numbers of the step at the cursor for `rows` rows, equal on all ranks."""
        return Draws(self.seed, cursor.epoch, np.full(rows, self.step_of(cursor)))

    def ids(self, epoch: int, places: Ints) -> Ints:
        """Returns the samples, (k,) int64, at places of an epoch, (k,) int64."""
        offsets, _ = self._split(epoch, places)
        ids = self._row.take(self.seed, *offsets).ids
        return np.maximum(ids, ~ids)  # padding is negative

    def coming(self, cursor: Cursor, steps: int, ranks: Sequence[int]) -> Ints:
        """Returns the samples of some ranks, (k,) int64, for each of the next steps of the cursor's epoch."""
        full = max(0, min(steps, self._left(cursor) // self.global_batch - 1))  # the last step may be split in two
        begins = cursor.delivered + self.global_batch * np.arange(full)[:, None]
        of_ranks = np.concatenate([rank * self.batch_size + np.arange(self.batch_size) for rank in ranks])
        places = [self._by_group(cursor.epoch, begins + np.arange(self.global_batch))[:, of_ranks].ravel()]
        for step in range(full, min(steps, full + self.steps_left(self.after(cursor, full)))):
            places += [self._places(self.after(cursor, step), rank) for rank in ranks]
        of_all = np.concatenate(places)
        return self.ids(cursor.epoch, of_all[of_all < self.length_of(cursor.epoch)])

    def _places(self, cursor: Cursor, rank: int) -> Ints:
        """Returns the places of a rank in the step at the cursor, (k,); padding is beyond the epoch."""
        begin, end, size = (self._begin_of(each, cursor) for each in (rank, rank + 1, self.world_size))
        if self.grouped is None:
            return cursor.delivered + np.arange(begin, end)
        if isinstance(self.grouped, GroupedSampler) and cursor.delivered + size <= self.length_of(cursor.epoch):
            first, copies = divmod(self.first(cursor.epoch) + cursor.delivered, self.repeats)
            within = first % self.grouped.size
            if within + -(-(copies + size) // self.repeats) <= self.grouped.size:  # most steps lie in one pass
                return cursor.delivered + self._sorted_step(within % self.grouped.groups, copies, size)[begin:end]
        return self._by_group(cursor.epoch, cursor.delivered + np.arange(size)[None])[0, begin:end]

    @cached_property
    def _sorted_step(self) -> Callable[[int, int, int], Ints]:
        """Sorts the places of a step by group, from the place among the groups and the copy of its first one."""

        def sort(turn: int, copies: int, size: int) -> Ints:
            assert isinstance(self.grouped, GroupedSampler)
            groups = self.grouped.groups_at(turn, (copies + np.arange(size)) // self.repeats)
            return np.argsort(groups, kind="stable")

        return lru_cache(maxsize=4)(sort)

    def share_of(self, ranks: Sequence[int]) -> float:
        """Estimates the share of the shards that some neighbouring ranks read."""
        return 1.0 if self.grouped is None else len(ranks) / self.world_size

    def times_read(self, nodes: float) -> float:
        """Returns how often all nodes together read a group of shards; of 2.5 nodes, the last has half the ranks."""
        if self.grouped is None:
            return float(ceil(nodes))
        steps = np.arange(min(self.steps, _STEPS_LOOKED_AT))[:, None]
        groups = self._groups(0, steps * self.global_batch + np.arange(self.global_batch))
        borders = np.rint(np.arange(1, ceil(nodes)) * self.global_batch / nodes).astype(int)
        of_nodes = np.split(np.sort(groups, axis=1), borders, axis=1)
        return sum(len(np.unique(each)) for each in of_nodes) / len(np.unique(groups))

    def _by_group(self, epoch: int, places: Ints) -> Ints:
        """Sorts the places of steps, (steps, k), by group, so that neighbouring ranks take neighbouring groups."""
        if self.grouped is None:
            return places
        groups = self._groups(epoch, places).astype(np.uint16)  # small integers are sorted faster
        return np.take_along_axis(places, np.argsort(groups, axis=1, kind="stable"), 1)

    def _groups(self, epoch: int, places: Ints) -> Ints:
        assert self.grouped is not None
        (first, offsets), _ = self._split(epoch, places.ravel() % self.length_of(epoch))
        return self.grouped.groups_at(first, offsets).reshape(places.shape)

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

    def state(self, cursor: Cursor) -> dict[str, Any]:
        """Returns the cursor for a state, in plain JSON types, valid for any number of ranks and length of epochs."""
        place: dict[str, Any] = {
            "epoch": cursor.epoch,
            "begin": self.first(cursor.epoch),
            "delivered": cursor.delivered,
        }
        if self.grouped is not None:
            place["groups"] = self.grouped.groups
        if isinstance(self._row, Mix):
            now = place["begin"] + cursor.delivered
            begun = [[int(start), list(parts)] for start, parts in self._row.ratios if start * self.repeats < now]
            return {**place, "ratios": begun}
        return place if self.bucketed is None else {**place, "quantum": self.bucketed.quantum}

    def resume(self, state: Mapping[str, Any]) -> tuple[Plan, Cursor]:
        """Returns the plan that resumes from a state, and the cursor of the state.

        Raises:
            ConfigError: the state's place is invalid; the bucket batch differs, or steps would end beyond it; or the
                weights of sources differ before the state.
        """
        cursor = Cursor(_integer(state, "epoch", EPOCHS), _integer(state, "delivered"))
        start = Start(cursor.epoch, _integer(state, "begin"), cursor.delivered)
        plan = replace(self.keep(state), start=start)
        plan = replace(plan, start=replace(start, ratios=plan.ratios_in(state)))
        plan.check_place(cursor)
        return plan, cursor

    def keep(self, state: Mapping[str, Any]) -> Plan:
        """Returns the plan with a state's `quantum` of buckets, or groups of shards, which a run keeps.

        Raises:
            ConfigError: this plan has other values, and they are fixed.
        """
        source = self.source
        if isinstance(source, BucketSampler):
            argument, name, most = "Buckets", "quantum", 2**31
        elif isinstance(source, (GroupedSampler, Mix)) and source.groups:
            argument, name, most = "Sampling", "groups", MOST_GROUPS
        else:
            return self
        kept, mine = state.get(name), getattr(source, name)
        if not is_integer(kept, 1, most + 1) or kept == mine:
            return self
        if source.fixed:
            raise ConfigError(
                f"the state has {name}={kept}, this loader has {argument}({name}={mine}): leave {name} out, or give "
                f"{kept}"
            )
        if isinstance(source, BucketSampler):
            return replace(self, source=replace(source, quantum=kept))
        return replace(self, source=replace(source, groups=kept))

    def check_place(self, cursor: Cursor) -> None:
        """Raises ConfigError unless steps from the cursor end at the end of the bucket batch."""
        quantum = self.global_batch if self.bucketed is None else self.bucketed.quantum
        done = (self.first(cursor.epoch) + cursor.delivered) % quantum
        if self.bucketed is not None and done % self.global_batch:
            raise ConfigError(
                f"{done} samples of a bucket batch of {quantum} are delivered, and steps of "
                f"{counted(self.world_size, 'rank')} x batch_size {self.batch_size} = {self.global_batch} would end "
                f"beyond it: allowed {self._allowed_sizes(gcd(done, quantum))}"
            )

    def ratios_in(self, state: Mapping[str, Any]) -> tuple[Ratio, ...]:
        """Returns the ratios of a mix that began before a state, where this plan starts; later ones may change.

        If the state's epoch had another length, a ratio of this epoch may have begun at another place than here.
        """
        if not isinstance(self.source, Mix):
            return ()
        listed, schedule = state.get("ratios"), self.source.schedule
        if not isinstance(listed, (list, tuple)) or not all(_is_ratio(each, len(self.source.sizes)) for each in listed):
            raise ConfigError(f"ratios={describe(listed)}: allowed are [place, parts] with a part for each source")
        ratios = tuple(Ratio(start, tuple(parts)) for start, parts in listed)
        starts = [ratio.start for ratio in ratios]
        now = self.start.place + self.start.delivered
        if starts != sorted(starts) or starts[:1] not in ([], [0]) or starts[-1:] >= [-(-now // self.repeats)]:
            raise ConfigError(f"the ratios begin at {describe(starts)}: allowed are 0, then places before the state's")
        begun = sum(self._row_place(each.start) * self.repeats < now for each in schedule)
        possible = sum(each.start < self.start.epoch + (self.start.delivered > 0) for each in schedule)
        has = schedule[: max(begun, min(len(ratios), possible))]
        if [each.parts for each in ratios] != [each.parts for each in has]:
            raise ConfigError(
                f"up to there the weights of the sources were {_in_words(ratios)}, and this loader's are "
                f"{_in_words(has)}: weights may change from a later place on"
            )
        return ratios

    @cached_property
    def _row(self) -> Sampler | Mix:
        return self.source.with_ratios(self._row_ratios) if isinstance(self.source, Mix) else self.source

    @cached_property
    def _row_ratios(self) -> list[Ratio]:
        """The ratios of a mix by place of the row: ratios that have begun, then ratios of later epochs."""
        if not isinstance(self.source, Mix):
            return []
        begun, schedule = self.start.ratios, self.source.schedule
        return [*begun, *(Ratio(self._row_place(each.start), each.parts) for each in schedule[len(begun) :])]

    def _row_place(self, start: float) -> int:
        """Converts a start in epochs, such as 2.5, to the place of its sample; earlier epochs are counted back."""
        epoch = int(start)
        back = max(0, self.start.epoch - epoch)
        first = self.first(epoch + back) - back * self.length
        return -(-(first + min(round(start % 1 * self.length), self.length_of(epoch))) // self.repeats)

    def _split(self, epoch: int, places: Ints) -> tuple[tuple[int, Ints], Ints]:
        """Converts places of an epoch to places of the row, as `take` needs them, and the numbers of copies."""
        first, begin = divmod(self.first(epoch), self.repeats)
        offsets, copies = np.divmod(begin + places, self.repeats)
        return (first, offsets), copies

    def _buckets(self, epoch: int, places: Ints) -> Ints:
        assert self.bucketed is not None
        offsets, _ = self._split(epoch, places)
        return self.bucketed.buckets(self.seed, *offsets)

    def _left(self, cursor: Cursor) -> int:
        """Counts the remaining places of the cursor's epoch."""
        return max(0, self.length_of(cursor.epoch) - cursor.delivered)


def _integer(state: Mapping[str, Any], name: str, most: int | None = None) -> int:
    value = state.get(name)
    if not is_integer(value, 0, None if most is None else most + 1):
        allowed = "at least 0" if most is None else f"0 to {most}"
        raise ConfigError(f"{name}={describe(value)}: allowed is an integer of {allowed}")
    return value


def _is_ratio(ratio: object, sources: int) -> bool:
    if not isinstance(ratio, (list, tuple)) or len(ratio) != 2 or not is_integer(ratio[0], 0):
        return False
    parts = ratio[1]
    return isinstance(parts, (list, tuple)) and len(parts) == sources and all(is_integer(part, 0) for part in parts)


def _in_words(ratios: Sequence[Ratio]) -> str:
    return ", then ".join(":".join(map(str, ratio.parts)) for ratio in ratios) or "none"


def _steps(samples: int, global_batch: int, last_batch: LastBatch) -> int:
    return samples // global_batch if last_batch == "drop" else -(-samples // global_batch)
