"""`Drawn`: everything that a recipe draws for a batch, as one value. The graph's numbers are made of nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuloader.recipe.model import Ints
from gpuloader.recipe.placement import Placement, PlacingTransform, Shape
from gpuloader.recipe.program import Program

Rows: TypeAlias = "Sequence[int] | Ints"


@dataclass(frozen=True, eq=False)
class DrawnView:
    """What is drawn for one view of n samples.

    Attributes:
        shape: (height, width) of the output.
        placements: where the pixels come from: at first, then after each of the view's `placing`.
        program: the steps that change pixels; it has none if the view has no such transforms.
        erased: (n, 6) int32, as `RandomErasing.draw` makes it; None if the view does not erase.
        placing: the transforms between the placements.
    """

    shape: Shape
    placements: tuple[Placement, ...]
    program: Program
    erased: NDArray[np.int32] | None
    placing: tuple[PlacingTransform, ...] = ()

    @property
    def placement(self) -> Placement:
        """Where the output's pixels come from."""
        return self.placements[-1]

    def take(self, rows: Rows) -> DrawnView:
        """Takes what is drawn for some of the samples, in that order."""
        return replace(
            self,
            placements=tuple(placement.take(rows) for placement in self.placements),
            program=self.program.take(rows),
            erased=None if self.erased is None else self.erased[rows],
        )


@dataclass(frozen=True, eq=False)
class Drawn:
    """What is drawn for n samples, in all views.

    Attributes:
        views: one for each view of the recipe.
        region: (n, 4) int64 top, left, bottom, right of the pixels that any view needs: the part to decode.
        origin: (n, 2) int64 top, left of what the files have of the images; 0, 0 unless they were cut.
    """

    views: tuple[DrawnView, ...]
    region: Ints
    origin: Ints

    @classmethod
    def of(cls, views: Sequence[DrawnView]) -> Drawn:
        """Joins what is drawn for each view of the same samples."""
        needed = np.stack([view.placement.needed() for view in views])
        region = np.concatenate([needed[:, :, :2].min(0), needed[:, :, 2:].max(0)], 1)
        return cls(tuple(views), region, np.zeros((len(region), 2), np.int64))

    def take(self, rows: Rows) -> Drawn:
        """Takes what is drawn for some of the samples, in that order."""
        return Drawn(tuple(view.take(rows) for view in self.views), self.region[rows], self.origin[rows])
