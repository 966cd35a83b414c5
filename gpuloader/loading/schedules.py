"""Numbers by epoch, as recipes give sizes: `{0: 1, 10: 3}` is 1 at first and 3 from epoch 10 on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeGuard

import numpy as np

from gpuloader.errors import ConfigError, describe

ByEpoch: TypeAlias = Mapping[float, float]
"""A number from each epoch on; 2.5 is in the middle of epoch 2."""

_MOST = 1000


def is_number(value: object) -> TypeGuard[float]:
    """Returns whether it is a finite number of at least 0."""
    if isinstance(value, (np.integer, np.floating)):
        value = value.item()  # a float32 cannot be compared with the largest float
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


def check_by_epoch(
    name: str, numbers: object, is_allowed: Callable[[object], bool], allowed: str
) -> dict[float, float]:
    """Returns numbers by epoch, sorted.

    Raises:
        ConfigError: they are no such mapping; the message names them by `name` and says what is `allowed` as a number.
    """
    if (
        not isinstance(numbers, Mapping)
        or 0 not in numbers
        or len(numbers) > _MOST
        or not all(is_number(epoch) and epoch < 2**32 and is_allowed(number) for epoch, number in numbers.items())
    ):
        raise ConfigError(
            f"{name}={describe(numbers)}: allowed is {{epoch: number}}, such as {{0: 0.5, 10: 1}}, with at most "
            f"{_MOST} epochs from 0 on, 0 among them, and {allowed}"
        )
    return {float(epoch): float(numbers[epoch]) for epoch in sorted(numbers)}


def number_at(numbers: ByEpoch, epoch: float) -> float:
    """Returns the number at a place: the one that began last."""
    return numbers[max(start for start in numbers if start <= epoch)]
