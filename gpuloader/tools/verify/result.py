"""What a check is and gives: the subject that it looks at, rows, and all of them together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch

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
        picture: the name of the file with the images that differ; None if there is no such file.
    """

    date: str
    device: str
    machine: Machine
    versions: dict[str, str]
    elapsed_seconds: float
    rows: tuple[Row, ...]
    picture: str | None = None

    @property
    def all_well(self) -> bool:
        return all(row.ok for row in self.rows)


class Subject(NamedTuple):
    """What is verified.

    Attributes:
        tar: the shards.
        samples: how many they have.
        device_id: a GPU, or None for the CPU.
        seconds: how long to measure the speed.
    """

    tar: Sources
    samples: int
    device_id: int | None
    seconds: float

    @property
    def device(self) -> torch.device:
        return torch.device("cpu") if self.device_id is None else torch.device("cuda", self.device_id)


class Difference(NamedTuple):
    """An image that differs more than it may; of several views, the one that differs most.

    Attributes:
        key: the sample's.
        ours: (3, h, w) the device's, on the CPU.
        theirs: the same of the CPU.
    """

    key: str
    ours: torch.Tensor
    theirs: torch.Tensor


class Outcome(NamedTuple):
    """The result of one look.

    Attributes:
        found: what was found.
        allowed: what is allowed; empty if anything is.
        ok: whether that holds.
        difference: the image that differs most, if pixels are what does not hold.
    """

    found: str
    allowed: str = ""
    ok: bool = True
    difference: Difference | None = None


Looks: TypeAlias = Iterator[tuple[str, Callable[[], Outcome]]]
"""The name of each row, and what finds it out."""
