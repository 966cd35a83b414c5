"""What a check is and gives: the subject that it looks at, rows, and all of them together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from gpuloader.loading.selection import Sources
from gpuloader.tools.machine import Machine


@dataclass(frozen=True)
class Row:
    """One thing that was looked at.

    Attributes:
        check: the name of its check.
        name: what was looked at.
        found: what was found.
        allowed: the allowed values; empty if there is no limit.
        ok: whether `found` is allowed.
    """

    check: str
    name: str
    found: str
    allowed: str = ""
    ok: bool = True


@dataclass(frozen=True)
class Verification:
    """What was found.

    Attributes:
        date: of the start, in UTC.
        device: what was verified, "cuda:N" or "cpu".
        machine: where that was.
        versions: of the driver, DALI, nvImageCodec, nvJPEG and nvTIFF.
        elapsed_seconds: what all of it took.
        rows: all that was looked at, in order.
    """

    date: str
    device: str
    machine: Machine
    versions: dict[str, str]
    elapsed_seconds: float
    rows: tuple[Row, ...]

    @property
    def all_well(self) -> bool:
        return all(row.ok for row in self.rows)


class Subject(NamedTuple):
    """What is verified.

    Attributes:
        tar: the shards.
        samples: how many they have.
        device_id: a GPU, or None for the CPU.
    """

    tar: Sources
    samples: int
    device_id: int | None


class Outcome(NamedTuple):
    """The result of one look.

    Attributes:
        found: what was found.
        allowed: what is allowed; empty if anything is.
        ok: whether that holds.
    """

    found: str
    allowed: str = ""
    ok: bool = True


Looks: TypeAlias = Iterator[tuple[str, Callable[[], Outcome]]]
"""The name of each row, and what finds it out."""
