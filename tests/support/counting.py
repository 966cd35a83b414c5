"""A mixture as one would count it by hand: position after position, from the beginning of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import reduce
from math import gcd


def at(schedule: Mapping[float, float], place: Fraction) -> float:
    """The number of a schedule at a place."""
    return schedule[max(start for start in schedule if Fraction(start) <= place)]


class Counted:
    """Takes a sample of one source after the other; `taken` counts those of each source."""

    def __init__(self, sources: int) -> None:
        self.taken = [0] * sources
        self._ratio: list[int] = []
        self._slots: list[int] = []
        self._slot = 0

    def take(self, weights: Sequence[int]) -> tuple[int, int]:
        """The source at the next position, and how many of its samples came before."""
        ratio = [weight // reduce(gcd, weights) for weight in weights]
        if ratio != self._ratio:  # a new round begins
            due = [(Fraction(2 * k + 1, 2 * part), source) for source, part in enumerate(ratio) for k in range(part)]
            self._ratio, self._slots, self._slot = ratio, [source for _, source in sorted(due)], 0
        source = self._slots[self._slot % len(self._slots)]
        self._slot += 1
        self.taken[source] += 1
        return source, self.taken[source] - 1
