"""`Curriculum`: an epoch begins with the samples that are first by a number, such as the smallest images."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import ConfigError
from gpuloader.helpers.text import did_you_mean
from gpuloader.loading.schedules import check_by_epoch, is_number
from gpuloader.recipe.model import UNCHECKED
from gpuloader.recipe.part import argument

Scores: TypeAlias = Callable[[dict[str, Any]], Collection[float]]
"""A function of the columns of the index that returns a number for each sample."""

COLUMNS = ("label", "height", "width", "size_bytes", "shard")
"""The columns of the index that functions get."""


@argument
class Curriculum:
    """The share of the samples that epochs go through, first those with the smallest numbers.

    An epoch has as many samples as without it: those of a share below 1 are repeated, in passes, each in another order.

    Attributes:
        by: a column of the index, "label", "height", "width", "size_bytes" or "shard"; or a function that takes these
            columns (arrays by name) and returns a number for each sample. Equal numbers are in the order of the data.
        shares: {epoch: share}, shares above 0 and at most 1: {0: 0.3, 10: 1} is the first 30% of the samples, and all
            of them from epoch 10 on. 2.5 is the middle of epoch 2.
        descending: whether the largest numbers come first.

    Example:
        >>> from gpuloader import Curriculum
        >>> Curriculum("height", {0: 0.3, 10: 1}, descending=True).shares
        {0.0: 0.3, 10.0: 1.0}
    """

    by: Annotated[str | Scores, UNCHECKED]
    shares: Annotated[Mapping[float, float], UNCHECKED]
    descending: Annotated[bool, UNCHECKED] = False

    def __post_init__(self) -> None:
        if not (callable(self.by) or self.by in COLUMNS):
            raise ConfigError(
                f"Curriculum(by={self.by!r}){did_you_mean(str(self.by), COLUMNS)}: allowed are {', '.join(COLUMNS)}, "
                f"and a function of these columns"
            )
        if not isinstance(self.descending, (bool, np.bool_)):
            raise ConfigError(f"Curriculum(descending={self.descending!r}): allowed are True and False")
        shares = check_by_epoch("Curriculum: shares", self.shares, _is_share, "shares above 0, at most 1")
        object.__setattr__(self, "shares", shares)

    def sort(self, numbers: NDArray[Any]) -> NDArray[np.int64]:
        """Returns the places of (n,) numbers in their order, (n,) int64; equal ones stay in the order they have."""
        if not self.descending:
            return np.argsort(numbers, kind="stable")
        return len(numbers) - 1 - np.argsort(numbers[::-1], kind="stable")[::-1]


def _is_share(value: object) -> bool:
    return is_number(value) and 0 < value <= 1
