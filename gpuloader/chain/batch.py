"""`Batch`: rows of a step, the one value that the links of a chain hand on; each link fills in more of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import chain
from typing import Any, TypeAlias
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import Self

from gpuloader.plan import Cursor, Draws, PlannedBatch
from gpuloader.recipe import AugmentParams, Mixing, Shape
from gpuloader.recipe.model import Ints
from gpuloader.shards import Arena

Images: TypeAlias = "Sequence[NDArray[np.uint8]] | NDArray[np.uint8]"
"""The images of some rows: files (bytes,) or arrays (height, width, 3), or one array (n, height, width, 3)."""
_PER_ROW, _PER_VIEW = {"column": "rows"}, {"column": "views"}


class Lease:
    """Memory for files, which goes back to its pool when no batch holds it any more."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena


class Pool:
    """Memory that is leased to one batch after another. It has no `__del__`, which would swallow an interrupt."""

    def __init__(self) -> None:
        self._leases: list[tuple[Arena, ref[Lease]]] = []

    def lease(self) -> Lease:
        """Returns memory that no batch holds."""
        free = next((number for number, (_, lease) in enumerate(self._leases) if lease() is None), None)
        made = Lease(Arena() if free is None else self._leases.pop(free)[0])
        self._leases.append((made.arena, ref(made)))
        return made


@dataclass(frozen=True, eq=False)
class Step:
    """What belongs to a whole step, also in its parts.

    Attributes:
        cursor: the place of the step.
        count: the number of its rows.
        shape: (height, width) of its bucket; None without buckets or their sizes.
        parts: the rows of each part, which are decoded at once.
        mixing: the parameters for mixing neighbours, or None.
        fields: the entries of the fields by name, of the rows that stay. Without rows, only targets. Large targets for
            a GPU are tensors in pinned memory.
        tried: the suspects that were tried one by one when the step was opened.
        gating_seconds: the time for the plan, validation, random parameters, labels and fields.
        given: what a source gave beside the images.
    """

    cursor: Cursor = field(default_factory=Cursor)
    count: int = 0
    shape: Shape | None = None
    parts: Sequence[slice] = ()
    mixing: Mixing | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    tried: frozenset[int] = frozenset()
    gating_seconds: float = 0.0
    given: Sequence[Any] = ()


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of a step, on their way from the plan to the training loop.

    Attributes:
        step: the step.
        rows: the rows of the step that these are.
        planned: (n,) the plan's samples; of a source without a plan, the rows that it gave.
        places: (n,) the planned samples' places in the epoch, -1 for padding; without a plan, the rows.
        ids: (n,) the delivered samples: the planned ones, or their replacements.
        valid: (n,) bool, False for padding and for bad samples.
        stays: (n,) bool, False for rows that will not be delivered.
        draws: the random numbers.
        sides: (n,) the shorter sides of the smaller copies that are the images, 0 for pictures.
        factors: (n,) f, if a JPEG was decoded at 1/f of its height and width.
        sizes: (n, 2) the heights and widths of the pictures, 0 while they are not known.
        params: the random parameters of the next graph.
        delivered: the random parameters of the delivered images.
        values: the values of the fields of each row, by name.
        causes: why the planned sample is bad, or None.
        labels: (n,), or None without labels.
        images: for each source of the next graph, its images; None for those that are not read yet.
        views: for each view of the last graph, its images: arrays in DALI's memory, or tensors.
        targets: for each view, the targets of each row that own code returned.
        memory: holds the files in `images`.
        reading_seconds, own_code_seconds: the time for reading these rows, and that they waited for own code.
    """

    step: Step
    rows: slice
    planned: Ints = field(metadata=_PER_ROW)
    places: Ints = field(metadata=_PER_ROW)
    ids: Ints = field(metadata=_PER_ROW)
    valid: NDArray[np.bool_] = field(metadata=_PER_ROW)
    stays: NDArray[np.bool_] = field(metadata=_PER_ROW)
    draws: Draws = field(metadata=_PER_ROW)
    sides: Ints = field(metadata=_PER_ROW)
    factors: Ints = field(metadata=_PER_ROW)
    sizes: Ints = field(metadata=_PER_ROW)
    params: AugmentParams = field(metadata=_PER_ROW)
    delivered: AugmentParams = field(metadata=_PER_ROW)
    values: Sequence[Mapping[str, Any]] = field(metadata=_PER_ROW)
    causes: Sequence[str | None] = field(metadata=_PER_ROW)
    labels: Ints | None = field(default=None, metadata=_PER_ROW)
    images: Sequence[Sequence[Any]] = field(default=(), metadata=_PER_VIEW)
    views: Sequence[Any] = field(default=(), metadata=_PER_VIEW)
    targets: Sequence[Sequence[Mapping[str, Any]]] = field(default=(), metadata=_PER_VIEW)
    memory: Lease | None = None
    reading_seconds: float = 0.0
    own_code_seconds: float = 0.0

    @classmethod
    def of(cls, planned: PlannedBatch, params: AugmentParams, step: Step | None = None) -> Self:
        """Returns the rows of a planned step, before anything is read."""
        count = len(planned.ids)
        return cls(
            step=step or Step(planned.cursor, count, planned.shape),
            rows=slice(0, count),
            planned=planned.ids,
            places=planned.places,
            ids=planned.ids,
            valid=planned.valid,
            stays=np.ones(count, np.bool_),
            draws=planned.draws,
            sides=np.zeros(count, np.int64),
            factors=np.ones(count, np.int64),
            sizes=np.zeros((count, 2), np.int64),
            params=params,
            delivered=params,
            values=({},) * count,
            causes=(None,) * count,
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def bad(self) -> dict[int, str]:
        """The planned samples that are bad: sample id -> cause."""
        return {sample: cause for sample, cause in zip(self.planned.tolist(), self.causes) if cause is not None}

    @property
    def is_whole(self) -> bool:
        """Whether these are all rows of their step."""
        return self.rows == slice(0, self.step.count)

    def take(self, rows: Ints) -> Self:
        """Returns some of the rows, in any order. They have no place in their step any more."""
        columns: dict[str, Any] = {name: _taken(getattr(self, name), rows) for name in _columns("rows")}
        columns |= {name: [_taken(one, rows) for one in getattr(self, name)] for name in _columns("views")}
        return replace(self, **columns)

    def part(self, rows: slice) -> Self:
        """Returns neighbouring rows of a whole step; all of them are the batch itself."""
        return self if rows == self.rows else replace(self.take(np.arange(rows.start, rows.stop)), rows=rows)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Joins neighbouring parts, in their order; one part is returned unchanged.

        What belongs to the step is that of the part that was opened last.
        """
        if len(parts) == 1:
            return parts[0]
        columns: dict[str, Any] = {name: _joined([getattr(part, name) for part in parts]) for name in _columns("rows")}
        for name in _columns("views"):
            columns[name] = [_joined(of_view) for of_view in zip(*(getattr(part, name) for part in parts))]
        return replace(
            parts[0],
            step=max((part.step for part in parts), key=lambda step: len(step.tried)),
            rows=slice(parts[0].rows.start, parts[-1].rows.stop),
            memory=None,
            reading_seconds=sum(part.reading_seconds for part in parts),
            own_code_seconds=sum(part.own_code_seconds for part in parts),
            **columns,
        )


@cache
def _columns(kind: str) -> tuple[str, ...]:
    return tuple(each.name for each in fields(Batch) if each.metadata.get("column") == kind)


def _taken(column: Any, rows: Ints) -> Any:  # noqa: ANN401 - a column of any kind
    if column is None or isinstance(column, np.ndarray):
        return column if column is None else column[rows]
    if isinstance(column, (Draws, AugmentParams)):
        return column.take(rows)
    if isinstance(column, torch.Tensor):
        return column[torch.from_numpy(rows).to(column.device, non_blocking=True)]
    return [column[row] for row in rows.tolist()]


def _joined(columns: Sequence[Any]) -> Any:  # noqa: ANN401
    first = columns[0]
    if first is None or isinstance(first, np.ndarray):
        return None if first is None else np.concatenate(columns)
    if isinstance(first, (Draws, AugmentParams)):
        return type(first).joined(columns)
    return list(chain(*columns))
