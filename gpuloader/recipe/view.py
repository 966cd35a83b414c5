"""`ViewPlan`: the transforms that make one image of a sample, sorted by what they do to it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from itertools import zip_longest

import numpy as np

from gpuloader.plan import Draw, Draws
from gpuloader.plan.draws import OCCURRENCES
from gpuloader.recipe.crops import (
    CenterCrop,
    CornerCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from gpuloader.recipe.drawn import DrawnView
from gpuloader.recipe.model import Ints, PixelTransform, Transform
from gpuloader.recipe.output import Normalize, RandomErasing
from gpuloader.recipe.placement import MAX_SIDE, Placement, PlacingTransform, Shape
from gpuloader.recipe.program import NEAREST, Op, Program, chain, sometimes
from gpuloader.recipe.warps import mirror, warp


class ViewPlan:
    """What one view does, in the graph's order.

    Args:
        transforms: as the recipe has them.
        number: of the view; each view draws different numbers.

    Attributes:
        number: of the view.
        placing: the transforms that say where the pixels come from.
        pixels: the transforms that change pixels, and flips between them.
        normalize, erasing: what is done to the finished image, or None.

    Raises:
        ValueError: their order cannot be run, or they leave images of different sizes.
    """

    def __init__(self, transforms: Sequence[Transform], number: int) -> None:
        # The same object may occur several times; each occurrence draws its own numbers.
        self._transforms = transforms = [copy(each) for each in transforms]
        self.number = number
        placing = next(
            (n for n, each in enumerate(transforms) if not isinstance(each, PlacingTransform)), len(transforms)
        )
        self.placing = [each for each in transforms[:placing] if isinstance(each, PlacingTransform)]
        behind = transforms[placing:]
        self.pixels = [each for each in behind if isinstance(each, (PixelTransform, RandomHorizontalFlip))]
        self.normalize = next((each for each in behind if isinstance(each, Normalize)), None)
        self.erasing = next((each for each in behind if isinstance(each, RandomErasing)), None)
        streams = [each.stream for each in transforms]
        self._occurrences = [streams[:n].count(stream) for n, stream in enumerate(streams)]
        self._check()

    def _check(self) -> None:
        in_order = [*self.placing, *self.pixels, *(each for each in (self.normalize, self.erasing) if each is not None)]
        for wanted, each in zip_longest(in_order, self._transforms):
            if each is not wanted:
                raise ValueError(
                    f"{_name(each)} is in the wrong place: allowed are resizing, cropping, padding and flips first, "
                    f"then what changes pixels, then Normalize once, then RandomErasing once"
                )
        if max(self._occurrences, default=0) >= OCCURRENCES:
            raise ValueError(f"a view may have {OCCURRENCES} transforms of one kind; this has more")
        names = [_name(each) for each in self.placing]
        resizing = [n for n, each in enumerate(self.placing) if isinstance(each, (Resize, RandomResizedCrop))]
        cutting = [n for n, each in enumerate(self.placing) if isinstance(each, _CROPS)]
        padding = [
            n
            for n, each in enumerate(self.placing)
            if isinstance(each, Pad) or (isinstance(each, RandomCrop) and each.pads)
        ]
        if len(resizing) > 1 or len(cutting) > 1 or len(padding) > 1:
            raise ValueError(
                f"{', '.join(names)}: allowed are one resize, one crop and one padding; fold them into one"
            )
        if resizing and min([*cutting, *padding, resizing[0]]) < resizing[0]:
            raise ValueError(f"{', '.join(names)}: {names[resizing[0]]} must come before cropping and padding")
        if cutting and padding and cutting[0] < padding[0]:
            raise ValueError(f"{', '.join(names)}: padding must come before the crop")
        if self._shape is None:
            raise ValueError(
                f"{', '.join(names) or 'no crop'}: leaves images of different sizes: add CenterCrop or RandomCrop, or "
                f"take RandomResizedCrop, or Resize to [height, width]"
            )

        if max(self._shape) > MAX_SIDE:
            height, width = self._shape
            raise ValueError(f"makes images of {height} x {width} pixels: allowed are sides of up to {MAX_SIDE}")

    @cached_property
    def steps(self) -> int:
        """How many steps its program has."""
        return sum(map(steps_of, self.pixels))

    @cached_property
    def choices(self) -> tuple[frozenset[Op], ...]:
        """All operations that each step of the pixels' program may be."""
        return self.of_none.program.choices

    @property
    def how_placed(self) -> Placement:
        """A placement with the filter, padding and fill that all samples share."""
        return self.of_none.placement

    @cached_property
    def of_none(self) -> DrawnView:
        """The draw of no samples: it has what all samples share."""
        return self.draw(Draws(0, 0, np.zeros(0, np.int64)), np.zeros((0, 2), np.int64))

    @property
    def random(self) -> bool:
        """Whether its output depends on random numbers."""
        return any(each.random for each in self._transforms)

    @property
    def in_one_pass(self) -> bool:
        """Whether the view only places and normalises pixels."""
        return not self.pixels and self.erasing is None

    @property
    def pads(self) -> bool:
        """Whether the output can show pixels outside of the image."""
        return any(isinstance(each, (Pad, *_CROPS)) for each in self.placing)

    @property
    def shape(self) -> Shape:
        """(height, width) of the output."""
        assert self._shape is not None
        return self._shape

    def draw(self, draws: Draws, sizes: Ints) -> DrawnView:
        """Draws for images of these heights and widths, (n, 2)."""
        placements = [Placement.whole(sizes)]
        for transform in self.placing:
            placements.append(transform.place(placements[-1], self._draw(transform, draws)))
        size = np.array([self.shape])
        programs = [_program(transform, self._draw(transform, draws), size) for transform in self.pixels]
        erased = None if self.erasing is None else self.erasing.draw(self._draw(self.erasing, draws), size)
        return DrawnView(self.shape, tuple(placements), chain(programs, len(draws.ids)), erased)

    @cached_property
    def _shape(self) -> Shape | None:
        shape = None
        for transform in self.placing:
            shape = transform.output_shape(shape)
        return shape

    def _draw(self, transform: Transform, draws: Draws) -> Draw:
        [occurrence] = [n for each, n in zip(self._transforms, self._occurrences) if each is transform]
        return draws.of(transform.stream, occurrence, self.number)


def steps_of(transform: PixelTransform | RandomHorizontalFlip) -> int:
    """How many steps a transform has in a view's program."""
    return transform.steps if isinstance(transform, PixelTransform) else 1


def _program(transform: PixelTransform | RandomHorizontalFlip, draw: Draw, sizes: Ints) -> Program:
    if isinstance(transform, PixelTransform):
        return transform.program(draw, sizes)
    horizontal = np.full(draw.samples, transform.axis == 1)
    flip = warp(mirror(horizontal, ~horizontal, sizes), NEAREST, None)
    return sometimes(flip, draw(1)[:, 0], transform.p)


_CROPS = (CenterCrop, RandomCrop, CornerCrop)


def _name(transform: Transform) -> str:
    return type(transform).__name__
