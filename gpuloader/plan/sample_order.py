"""`Order`: an endless row of samples. The plan takes its places, and asks nothing of it but what stands here.

Each kind of order is a class: passes of a `Sampler` (`gpuloader.plan.samplers`), or a `Mix` of several.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.text import counted
from gpuloader.base.values import is_integer
from gpuloader.errors import ConfigError
from gpuloader.plan.order import Shuffle

Ints = NDArray[np.int64]
AnyOrder = TypeVar("AnyOrder", bound="Order")


class SampleSlice(NamedTuple):
    """The samples at k places of a row, and the addresses of their random numbers.

    Attributes:
        ids: (k,) int64; ~id, which is negative, for the padding of a bucket.
        passes: (k,) int64, the pass of each place.
        numbers: (k,) int64, the address of a sample's random numbers within a pass: its id, or its place if a pass can
            have a sample twice.
    """

    ids: Ints
    passes: Ints
    numbers: Ints


class Order(ABC):
    """The base class of orders. Places of the row are `first` + `offsets`; `first` may exceed 64 bits.

    Attributes:
        shuffle: the name of the order, which states keep. A function has "none", weights have the recipe's default.
        quantum: the number of samples of one bucket that come together; None without buckets.
        groups: the number of groups of shards, each read by neighbouring ranks; None without groups.
        fixed: whether the user gave what `KEPT` names; otherwise a state may override it.
        shapes: (height, width) of each bucket's images; empty if the recipe decides the sizes.
        schedule: the ratios of several sources by epoch.
        by_function: whether a function of the user chooses the samples.
        KEPT: what a run keeps over its resumes: the argument's class, its option and attribute, the largest value.
    """

    KEPT: ClassVar[tuple[str, str, int] | None] = None

    shuffle: Shuffle
    quantum: int | None = None
    groups: int | None = None
    fixed: bool = False
    shapes: Sequence[tuple[int, int]] = ()
    schedule: Sequence[Any] = ()
    by_function: ClassVar[bool] = False

    @property
    @abstractmethod
    def size(self) -> int:
        """The places of a pass; of a mix, the number of samples of all sources."""

    @property
    def samples(self) -> int:
        """The places of a pass without padding."""
        return self.size

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Identifies the samples and their order; equal for equal passes."""

    @property
    def how(self) -> str:
        """The order in a few words."""
        return self.shuffle if self.groups is None else f"{self.shuffle} in {counted(self.groups, 'group')}"

    def __str__(self) -> str:
        """Returns a description of the samples, in words."""
        return f"all {counted(self.samples, 'sample')}"

    @abstractmethod
    def includes(self, ids: Ints) -> NDArray[np.bool_]:
        """Returns, for each of these samples, (k,), whether it can occur."""

    @abstractmethod
    def take(self, seed: int, first: int, offsets: Ints) -> SampleSlice:
        """Returns the samples at places of the row, offsets (k,)."""

    def arrange(self, first: int, offsets: Ints) -> Ints | None:
        """Returns the order in which the ranks take the places of each step, both (..., k); None for their own order.

        It is the same from `like(first, k)` on.
        """
        return None

    def like(self, first: int, count: int) -> int:
        """Returns a place from which on `count` places are arranged as from `first` on; few different ones."""
        return first

    def times_read(self, first: int, offsets: Ints, nodes: float) -> float:
        """Returns how often all nodes together read the shards of some steps, (steps, k)."""
        return float(ceil(nodes))

    def near(self, seed: int, first: int, offset: Ints, sample: int, uniform: NDArray[np.float64]) -> Ints | None:
        """Returns replacements, (k,), for a sample of the step at a place; None if any sample of the epoch may be one.

        Args:
            offset: (1,), of the step.
            uniform: (k,) numbers in [0, 1), which choose the replacements.
        """
        return None

    def shapes_at(self, seed: int, first: int, offsets: Ints) -> list[tuple[int, int]]:
        """Returns (height, width) of the images at places, (k,); empty without `shapes`."""
        return []

    @property
    def used_shapes(self) -> list[tuple[int, int]]:
        """The `shapes` of which there are samples."""
        return []

    @property
    def dropped(self) -> list[str]:
        """The names of buckets with samples that never come, because they fill no bucket batch."""
        return []

    def check_steps(self, ranks: int, batch_size: int, place: int = 0) -> None:
        """Raises ConfigError if steps of this size from a place on are impossible, or an epoch would have none."""
        return

    def state(self, begun: int) -> dict[str, Any]:
        """Returns what a state has of the order after so many places of the row, in plain JSON types."""
        return {}

    def keep(self: AnyOrder, state: Mapping[str, Any]) -> AnyOrder:
        """Returns the order with what `KEPT` names as in a state.

        Raises:
            ConfigError: this order has another value, and it is fixed.
        """
        if self.KEPT is None or (mine := getattr(self, self.KEPT[1])) is None:
            return self
        argument, name, most = self.KEPT
        kept = state.get(name)
        if not is_integer(kept, 1, most + 1) or kept == mine:
            return self
        if self.fixed:
            raise ConfigError(
                f"the state has {name}={kept}, this loader has {argument}({name}={mine}): leave {name} out, or give "
                f"{kept}"
            )
        changes: dict[str, Any] = {name: kept}
        return replace(self, **changes)  # type: ignore[type-var]

    def resume(
        self: AnyOrder, state: Mapping[str, Any], begun: int, epoch: int, place_of: Callable[[float], int]
    ) -> AnyOrder:
        """Returns the order of a run that goes on from a state.

        Args:
            begun: the places of the row before the state's.
            epoch: the first epoch that begins at or after the state's place.
            place_of: see `at_places`.

        Raises:
            ConfigError: the order had other samples before the state.
        """
        return self

    def at_places(self: AnyOrder, place_of: Callable[[float], int]) -> AnyOrder:
        """Returns the row of a run, in which changes by epoch are changes by place.

        Args:
            place_of: returns the place where an epoch begins; of 2.5, its middle.
        """
        return self
