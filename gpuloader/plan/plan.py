"""`Plan`: which samples each rank gets at each step, and their random numbers: `Epochs` on an `Order`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.values import is_integer
from gpuloader.errors import ConfigError, describe
from gpuloader.plan.draws import EPOCHS, Draws
from gpuloader.plan.epoch import Cursor, Epochs, Start
from gpuloader.plan.sample_order import Ints, Order

_STEPS_LOOKED_AT = 64


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
class Plan(Epochs):
    """The order of a run for one rank; equal plans give equal batches."""

    @property
    def num_samples(self) -> int:
        """The samples of a pass; without the padding of buckets."""
        return self.source.samples

    @property
    def facts(self) -> dict[str, Any]:
        """The values that must be equal on all ranks, beside the samples and the seed, in plain JSON types."""
        source, names = self.source, ("batch_size", "last_batch", "steps_per_epoch", "repeats")
        return {
            **{name: getattr(self, name) for name in names},
            "samples": source.size,
            "quantum": source.quantum if source.fixed else None,
            "groups": source.groups,
            "weights": [list(ratio) for ratio in source.schedule] or None,
        }

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
        if not self._row.shapes:
            return None
        places = np.arange(cursor.delivered, self.after(cursor, steps).delivered, self.global_batch)
        offsets, _ = self._split(cursor.epoch, places)
        return self._row.shapes_at(self.seed, *offsets)

    def replacements(self, cursor: Cursor, sample: int, uniform: NDArray[np.float64]) -> Ints:
        """Returns replacements, (k,), for a bad sample of the step at the cursor, by numbers in [0, 1), (k,).

        They come from the step's bucket, or from the sample's group, or from a pass from the beginning of the epoch.
        """
        offset, _ = self._split(cursor.epoch, np.array([cursor.delivered]))
        found = self._row.near(self.seed, *offset, sample, uniform)
        return self.ids(cursor.epoch, np.floor(uniform * self.source.size).astype(np.int64)) if found is None else found

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
        of_steps = begins + np.arange(self.global_batch)
        if (arranged := self._arrange(cursor.epoch, of_steps)) is not None:
            of_steps = np.take_along_axis(of_steps, arranged, 1)
        places = [of_steps[:, of_ranks].ravel()]
        for step in range(full, min(steps, full + self.steps_left(self.after(cursor, full)))):
            places += [self._places(self.after(cursor, step), rank) for rank in ranks]
        of_all = np.concatenate(places)
        return self.ids(cursor.epoch, of_all[of_all < self.length_of(cursor.epoch)])

    def share_of(self, ranks: Sequence[int]) -> float:
        """Estimates the share of the shards that some neighbouring ranks read."""
        return 1.0 if self.source.groups is None else len(ranks) / self.world_size

    def times_read(self, nodes: float) -> float:
        """Returns how often all nodes together read a group of shards; of 2.5 nodes, the last has half the ranks."""
        begins = self.global_batch * np.arange(min(self.steps, _STEPS_LOOKED_AT))[:, None]
        (first, offsets), _ = self._split(0, (begins + np.arange(self.global_batch)) % self.length_of(0))
        return self._row.times_read(first, offsets, nodes)

    def state(self, cursor: Cursor) -> dict[str, Any]:
        """Returns the cursor for a state, in plain JSON types, valid for any number of ranks and length of epochs."""
        begin, delivered = self.first(cursor.epoch), cursor.delivered
        begun = -(-(begin + delivered) // self.repeats)
        return {"epoch": cursor.epoch, "begin": begin, "delivered": delivered, **self._row.state(begun)}

    def resume(self, state: Mapping[str, Any]) -> tuple[Plan, Cursor]:
        """Returns the plan that resumes from a state, and the cursor of the state.

        Raises:
            ConfigError: the state's place is invalid; the bucket batch differs, or steps would end beyond it; or the
                weights of sources differ before the state.
        """
        cursor = Cursor(_integer(state, "epoch", EPOCHS), _integer(state, "delivered"))
        start = Start(cursor.epoch, _integer(state, "begin"), cursor.delivered)
        plan = replace(self.keep(state), start=start)
        begun = -(-(start.place + cursor.delivered) // self.repeats)
        source = plan.source.resume(state, begun, cursor.epoch + (cursor.delivered > 0), plan.row_place)
        plan = replace(plan, source=source)
        plan.check_place(cursor)
        return plan, cursor

    def keep(self, state: Mapping[str, Any]) -> Plan:
        """Returns the plan with a state's `quantum` of buckets, or groups of shards, which a run keeps.

        Raises:
            ConfigError: this plan has other values, and they are fixed.
        """
        return replace(self, source=self.source.keep(state))

    def _places(self, cursor: Cursor, rank: int) -> Ints:
        """Returns the places of a rank in the step at the cursor, (k,); padding is beyond the epoch."""
        begin, end, size = (self._begin_of(each, cursor) for each in (rank, rank + 1, self.world_size))
        if self.source.groups is None:
            return cursor.delivered + np.arange(begin, end)
        if cursor.delivered + size > self.length_of(cursor.epoch):
            arranged = self._arrange(cursor.epoch, cursor.delivered + np.arange(size))
        else:
            first, copies = divmod(self.first(cursor.epoch) + cursor.delivered, self.repeats)
            arranged = self._arrange_step(self._row.like(first, -(-(copies + size) // self.repeats)), copies, size)
        return cursor.delivered + (np.arange(begin, end) if arranged is None else arranged[begin:end])

    @cached_property
    def _arrange_step(self) -> Callable[[int, int, int], Ints | None]:
        """Arranges a step from its place in the row, the copy of its first sample, and its size."""
        return lru_cache(maxsize=4)(
            lambda first, copies, size: self._row.arrange(first, (copies + np.arange(size)) // self.repeats)
        )

    def _arrange(self, epoch: int, places: Ints) -> Ints | None:
        """Arranges steps, (..., k) places of an epoch; padding is taken as the epoch's first places."""
        (first, offsets), _ = self._split(epoch, places % self.length_of(epoch))
        return self._row.arrange(first, offsets)

    @cached_property
    def _row(self) -> Order:
        return self.source.at_places(self.row_place)

    def _split(self, epoch: int, places: Ints) -> tuple[tuple[int, Ints], Ints]:
        """Converts places of an epoch to places of the row, as `take` needs them, and the numbers of copies."""
        first, begin = divmod(self.first(epoch), self.repeats)
        offsets, copies = np.divmod(begin + places, self.repeats)
        return (first, offsets), copies


def _integer(state: Mapping[str, Any], name: str, most: int | None = None) -> int:
    value = state.get(name)
    if not is_integer(value, 0, None if most is None else most + 1):
        allowed = "at least 0" if most is None else f"0 to {most}"
        raise ConfigError(f"{name}={describe(value)}: allowed is an integer of {allowed}")
    return value
