"""`AugmentParams`: all random parameters of a batch, the only input of the graph beside the images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator

from gpuloader.base.text import did_you_mean
from gpuloader.base.values import is_integer
from gpuloader.errors import describe
from gpuloader.recipe.model import Ints
from gpuloader.recipe.placement import MAX_SIDE, GeometricTransform, Placement, Shape
from gpuloader.recipe.program import Program

Rows: TypeAlias = "Sequence[int] | Ints"


def _check_batching(batch: object) -> object:
    pads = isinstance(batch, dict) and [*batch] == ["pad"] and is_integer(batch["pad"], 1, MAX_SIDE + 1)
    if pads or batch in ("dense", "list"):
        return batch
    name = next(iter(batch), None) if isinstance(batch, dict) else batch
    hint = did_you_mean(name, {"dense", "list", "pad"} - {name}) if isinstance(name, str) else ""
    raise ValueError(
        f"found {describe(batch)}{hint}; allowed are dense, list and {{pad: N}}, with N from 1 to {MAX_SIDE}"
    )


Batching: TypeAlias = Annotated[Literal["dense", "list"] | dict[str, int], BeforeValidator(_check_batching)]
"""The form of a batch of images: a tensor, a list, or a tensor with padded images."""


@dataclass(frozen=True, eq=False)
class ViewParams:
    """The random parameters of one view of n samples.

    Attributes:
        shape: (height, width) of the batch's tensor, to which smaller images are padded; None for a list of images.
        placements: the origin of the pixels: at first, then after each transform of `placing`.
        program: the steps that change pixels; empty without such transforms.
        erased: (n, 6 * count) int32, from `RandomErasing.draw`; None if the view does not erase.
        placing: the transforms between the placements.
        mapped: the last placement in the pixels of the files, if some are mipmaps of the pictures or decoded smaller.
    """

    shape: Shape | None
    placements: tuple[Placement, ...]
    program: Program
    erased: NDArray[np.int32] | None
    placing: tuple[GeometricTransform, ...] = ()
    mapped: Placement | None = None

    @property
    def placement(self) -> Placement:
        """The origin of the output's pixels in the picture."""
        return self.placements[-1]

    @property
    def in_file(self) -> Placement:
        """The origin of the output's pixels in the decoded file."""
        return self.placement if self.mapped is None else self.mapped

    def crop(self) -> Ints:
        """Computes (n, 2) int64 top, left of the output in the whole picture, resized and flipped as the output is."""
        top, left, bottom, right = self.placements[0].part.T
        corners = np.stack([np.stack([left, top], 1), np.stack([right, bottom], 1)], 1).astype(np.float64)
        return -np.rint(self.placement.to_output(corners).min(1)).astype(np.int64)[:, ::-1]

    def take(self, rows: Rows) -> ViewParams:
        return replace(
            self,
            placements=tuple(placement.take(rows) for placement in self.placements),
            program=self.program.take(rows),
            erased=None if self.erased is None else self.erased[rows],
            mapped=None if self.mapped is None else self.mapped.take(rows),
        )

    @staticmethod
    def joined(parts: Sequence[ViewParams]) -> ViewParams:
        """Joins one view's parameters for the parts of a batch; padded images get the largest height and width."""
        shapes = [part.shape for part in parts if part.shape is not None]
        erased = [part.erased for part in parts if part.erased is not None]
        return replace(
            parts[0],
            shape=(max(height for height, _ in shapes), max(width for _, width in shapes)) if shapes else None,
            placements=tuple(map(Placement.joined, zip(*(part.placements for part in parts), strict=True))),
            program=Program.joined([part.program for part in parts]),
            erased=np.concatenate(erased) if erased else None,
            mapped=Placement.joined([part.in_file for part in parts]) if any(part.mapped for part in parts) else None,
        )


@dataclass(frozen=True, eq=False)
class AugmentParams:
    """The random parameters of n samples, in all views.

    Attributes:
        views: one for each view of the recipe.
        region: (n, 4) int64 top, left, bottom, right of the part to decode, which some view needs. It is in pixels of
            the files, which may be mipmaps of the pictures, or decoded at a part of their size.
        origin: (n, 2) int64 top, left of the remaining part of the files; 0, 0 unless the files were cut.
    """

    views: tuple[ViewParams, ...]
    region: Ints
    origin: Ints

    @classmethod
    def of(cls, views: Sequence[ViewParams]) -> AugmentParams:
        """Joins the parameters of each view of the same samples."""
        needed = np.stack([view.in_file.needed() for view in views])
        region = np.concatenate([needed[:, :, :2].min(0), needed[:, :, 2:].max(0)], 1)
        return cls(tuple(views), region, np.zeros((len(region), 2), np.int64))

    def in_files(self, pictures: Ints, files: Ints) -> AugmentParams:
        """Converts parameters for pictures of these heights and widths, (n, 2), to files of other sizes.

        Only the last placement, the region and the origin are for the files.
        """
        if (pictures == files).all():
            return self
        return AugmentParams.of([replace(view, mapped=view.placement.scaled(pictures, files)) for view in self.views])

    def decoded_at(self, factors: Ints) -> AugmentParams:
        """Converts parameters for files to the same files decoded at 1/f of their height and width, for f of (n,)."""
        if (factors == 1).all():
            return self
        views = [replace(view, mapped=view.in_file.divided(factors)) for view in self.views]
        return replace(AugmentParams.of(views), origin=self.origin // factors[:, None])

    @property
    def pixels(self) -> Ints:
        """(n,) int64, the number of pixels of each sample's output in all views, without a batch's padding."""
        return np.sum([view.placement.shape.prod(1) for view in self.views], 0)

    def refused(self) -> dict[int, str]:
        """Returns the causes, by row, of samples that a transform cannot take or whose output would be too large."""
        causes = {
            row: f"the recipe makes {width}x{height} pixels of it: allowed are sides of up to {MAX_SIDE}"
            for view in self.views
            for row in np.flatnonzero((view.placement.shape > MAX_SIDE).any(1)).tolist()
            for height, width in [view.placement.shape[row]]
        }
        for view in self.views:
            for transform, before in zip(view.placing, view.placements):
                causes |= transform.refused(before.shape)
        return causes

    def take(self, rows: Rows) -> AugmentParams:
        return AugmentParams(tuple(view.take(rows) for view in self.views), self.region[rows], self.origin[rows])

    @staticmethod
    def joined(parts: Sequence[AugmentParams]) -> AugmentParams:
        """Joins the parameters of the parts of a batch; they equal the parameters of the whole batch."""
        views = map(ViewParams.joined, zip(*(part.views for part in parts), strict=True))
        region, origin = (np.concatenate(each) for each in zip(*((part.region, part.origin) for part in parts)))
        return AugmentParams(tuple(views), region, origin)
