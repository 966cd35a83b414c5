"""`ViewPlan`: the transforms that make one image of a sample, sorted by kind."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Sequence
from copy import copy
from functools import cache, cached_property
from typing import Any

import numpy as np

from gpuloader.plan import Draw, Draws
from gpuloader.plan.draws import OCCURRENCES
from gpuloader.recipe.apply import Apply
from gpuloader.recipe.augment_params import Batching, ViewParams
from gpuloader.recipe.crops import CenterCrop, Pad, RandomHorizontalFlip, Resize
from gpuloader.recipe.model import Ints, PixelTransform, Transform
from gpuloader.recipe.output import Normalize, RandomErasing
from gpuloader.recipe.placement import MAX_SIDE, GeometricTransform, Placement, Shape, sides
from gpuloader.recipe.program import Op, chain
from gpuloader.recipe.target_transforms import BoxTransform, Floats, boxes_after

_log = logging.getLogger("gpuloader")


class ViewPlan:
    """The steps of one view, in the graph's order.

    Args:
        transforms: in the recipe's order.
        number: of the view; each view draws different numbers.
        batch: the recipe's `batch`.
        shared: transforms that come first and are the same in several views: they draw the numbers of view 0.
        before: transforms that run elsewhere, before all of these. They are only counted, so that a second transform of
            a kind draws other numbers than the first.
        given: (height, width) of the input images, if all are equal.

    Attributes:
        number: of the view.
        placing: the transforms that decide where the pixels come from.
        pixels: the transforms that change pixels, and flips between them.
        normalize, erasing: the transforms of the finished image, or None.
        own: own code, or None. It may come anywhere before `normalize`. Then `placing` and `pixels` have the transforms
            on both sides of it, and it is assumed to keep each image's size.
        shares_place: whether all of `placing` is shared, so that other views may have the same placed pixels.

    Raises:
        ValueError: the order is not supported, or images differ in size and the batch is "dense".
    """

    def __init__(
        self,
        transforms: Sequence[Transform],
        number: int,
        batch: Batching = "dense",
        shared: Sequence[Transform] = (),
        before: Sequence[Transform] = (),
        given: Shape | None = None,
    ) -> None:
        # The same object may occur several times; each occurrence draws other numbers.
        self._transforms = [copy(each) for each in (*shared, *transforms)]
        self.number = number
        self._batch = batch
        self._shared, self._before, self._given = len(shared), tuple(before), given
        left = deque(self._transforms)
        self.placing: list[GeometricTransform] = _take(left, GeometricTransform)
        self.pixels: list[PixelTransform | RandomHorizontalFlip] = _take(left, PixelTransform, RandomHorizontalFlip)
        self.own: Apply | None = next(iter(_take(left, Apply, most=1)), None)
        self._placing_before = len(self.placing)
        if self.own is not None:
            self.placing += _take(left, GeometricTransform)
            self.pixels += _take(left, PixelTransform, RandomHorizontalFlip)
        self.normalize: Normalize | None = next(iter(_take(left, Normalize, most=1)), None)
        self.erasing: RandomErasing | None = next(iter(_take(left, RandomErasing, most=1)), None)
        if left and isinstance(left[0], Apply) and self.own is not None:
            raise ValueError("a view may have one Apply: join the functions into one, and apply this")
        if left:
            raise ValueError(
                f"{_name(left[0])} is in the wrong place: allowed are resizing, cropping, padding and flips first, "
                f"then what changes pixels, then Normalize once, then RandomErasing once"
            )
        self.shares_place = len(self.placing) <= len(shared) and bool(shared)
        streams = [each.stream for each in (*before, *self._transforms)]
        occurrences = [streams[:n].count(stream) for n, stream in enumerate(streams)][len(before) :]
        self._drawn_as = [(n, 0 if at < len(shared) else number) for at, n in enumerate(occurrences)]
        if max(occurrences, default=0) >= OCCURRENCES:
            raise ValueError(f"a view may have {OCCURRENCES} transforms of one kind; this has more")
        self._check_placing()

    def _check_placing(self) -> None:
        names = ", ".join(map(_name, self.placing))
        try:
            self._place(_NO_DRAWS, np.zeros((0, 2), np.int64))
        except ValueError as error:
            raise ValueError(f"{names}: {error}") from None
        if self.shape is None and self._batch == "dense":
            raise ValueError(
                f"{names or 'no crop'}: leaves images of different sizes: add CenterCrop or RandomCrop, or take "
                f"RandomResizedCrop, or Resize to [height, width]; or set the recipe's `batch` to list or {{pad: 32}}"
            )
        if self.shape is not None and max(self.shape) > MAX_SIDE:
            height, width = self.shape
            raise ValueError(f"makes images of {height} x {width} pixels: allowed are sides of up to {MAX_SIDE}")

    def warn_of_padding(self) -> None:
        """Logs a warning if a `CenterCrop` is larger than what is left before it; not behind a `Pad` or a letterbox."""
        left, known = self._given, True
        for number, each in enumerate(self.placing):
            if isinstance(each, Pad) or (isinstance(each, Resize) and each.pad is not None):
                return
            if number == self._placing_before and self._resizes:
                left = None
            if isinstance(each, CenterCrop) and left is not None:
                _warn_of_padding(left, known, sides(each.size))
            size = each.size if isinstance(each, Resize) else None
            left = sides(size) if isinstance(size, (int, dict)) else each.output_shape(left)
            known = not isinstance(size, (int, dict)) and (known or each.output_shape(None) is not None)

    @cached_property
    def steps(self) -> int:
        return sum(each.steps for each in self.pixels)

    @cached_property
    def choices(self) -> tuple[frozenset[Op], ...]:
        """The possible operations of each step of the pixels' program."""
        return self.of_none.program.choices

    @property
    def how_placed(self) -> Placement:
        """A placement with the filter, padding and fill of all samples."""
        return self.of_none.placement

    @cached_property
    def of_none(self) -> ViewParams:
        """The random parameters of no samples, with the values that all samples share."""
        return self.draw(_NO_DRAWS, np.zeros((0, 2), np.int64))

    @property
    def random(self) -> bool:
        return any(each.random for each in self._transforms)

    @property
    def by_boxes(self) -> str:
        """The names of the transforms that draw by boxes, or ""."""
        return ", ".join({_name(each): None for each in self.placing if isinstance(each, BoxTransform) and each.random})

    @property
    def in_one_pass(self) -> bool:
        """Whether the view only places and normalises pixels, and no other view has the same pixels."""
        return not (self.pixels or self.erasing or self.shares_place or self.is_placed)

    @property
    def is_placed(self) -> bool:
        """Whether the input images are already placed."""
        return bool(self._before) and not self.placing

    def shares_place_with(self, other: ViewPlan) -> bool:
        """Returns whether both have the same placed pixels; views of a shared `FiveCrop` do not."""
        return self.shares_place and other.shares_place and self.placing == other.placing

    @cached_property
    def shape(self) -> Shape | None:
        """(height, width) of the output; None if it depends on the image."""
        shape = self._given
        for number, transform in enumerate(self.placing):
            shape = transform.output_shape(None if number == self._placing_before and self._resizes else shape)
        return None if self._resizes and len(self.placing) == self._placing_before else shape

    @property
    def _resizes(self) -> bool:
        """Whether own code changes sizes."""
        return self.own is not None and not self.own.same_size

    @property
    def shared_own(self) -> list[Transform] | None:
        """The transforms up to own code, if all are shared: views with equal ones have the same result."""
        end = 0 if self.own is None else self._transforms.index(self.own) + 1
        return self._transforms[:end] if 0 < end <= self._shared else None

    def halves(self) -> tuple[ViewPlan, ViewPlan]:
        """Returns the plans before and after own code; without own code, the split is after the geometry."""
        end = len(self.placing) if self.own is None else self._transforms.index(self.own)
        done = self._transforms[: end + (self.own is not None)]
        behind, shared, left = self._transforms[len(done) :], self._shared, max(self._shared - len(done), 0)
        first = ViewPlan(done[shared:end], self.number, "list", done[: min(shared, end)], self._before)
        given = None if self._resizes else first.shape
        return first, ViewPlan(behind[left:], self.number, self._batch, behind[:left], (*self._before, *done), given)

    def draw(
        self, draws: Draws, sizes: Ints, orientations: Ints | None = None, boxes: Sequence[Floats] = ()
    ) -> ViewParams:
        """Draws for images of these heights and widths, (n, 2), turned upright if orientations are given."""
        placements = self._place(draws, sizes, orientations, boxes)
        size = placements[-1].shape if self.shape is None else np.array([self.shape])
        programs = [transform.program(self._draw(transform, draws), size) for transform in self.pixels]
        erased = None if self.erasing is None else self.erasing.draw(self._draw(self.erasing, draws), size)
        shape = self._shape_of_batch(size)
        return ViewParams(shape, placements, chain(programs, len(draws.ids)), erased, tuple(self.placing))

    def _shape_of_batch(self, sizes: Ints) -> Shape | None:
        if not isinstance(self._batch, dict):
            return self.shape if self._batch == "dense" else None
        multiple = self._batch["pad"]
        height, width = (-(-sizes.max(0, initial=0) // multiple) * multiple).tolist()
        return height, width

    def _place(
        self, draws: Draws, sizes: Ints, orientations: Ints | None = None, boxes: Sequence[Floats] = ()
    ) -> tuple[Placement, ...]:
        whole = Placement.whole(sizes)
        placements = [whole if orientations is None else whole.orient(orientations)]
        for number, transform in enumerate(self.placing):
            at, draw = placements[-1], self._draw(transform, draws)
            if isinstance(transform, Resize) and transform.size == "cover":
                placements.append(transform.cover(at, self._shape_behind(number)))
            elif isinstance(transform, BoxTransform):
                rows = np.repeat(np.arange(len(boxes)), [len(each) for each in boxes])
                now, stay = boxes_after(self.placing, placements, np.concatenate([np.zeros((0, 4)), *boxes]), rows)
                placements.append(transform.place_by_boxes(at, draw, now[stay], rows[stay]))
            else:
                placements.append(transform.place(at, draw))
        return tuple(placements)

    def _shape_behind(self, number: int) -> Shape:
        shapes = (each.output_shape(None) for each in self.placing[number + 1 :])
        if (shape := next(filter(None, shapes), None)) is None:
            raise ValueError('Resize("cover") needs a crop after it, such as CenterCrop, whose size it covers')
        return shape

    def _draw(self, transform: Transform, draws: Draws) -> Draw:
        [numbers] = [each for own, each in zip(self._transforms, self._drawn_as) if own is transform]
        return draws.of(transform.stream, *numbers)


def placed_by(views: Sequence[ViewPlan]) -> list[int]:
    """Returns for each view the index of the first view with the same placed pixels."""
    each = list(enumerate(views))
    return [next((at for at, other in each if view.shares_place_with(other)), own) for own, view in each]


@cache
def _warn_of_padding(left: Shape, known: bool, crop: Shape) -> None:
    """Logs a warning, once in a process, if a crop has padding; `left` is twice the shorter side unless `known`."""
    of_square = 1 - min(left[0], crop[0]) * min(left[1], crop[1]) / (crop[0] * crop[1])
    least = of_square if known else 1 - left[0] / min(crop)
    if least > 0:
        _log.warning(
            "the recipe's CenterCrop of %d x %d pixels is larger than the %s left before it: at least %.1f%% of each "
            "image is padding%s. Crop less, or resize to more",
            *crop,
            f"{left[0]} x {left[1]} pixels" if known else f"shorter side of {left[0]} pixels",
            100 * least,
            "" if known else f", {of_square:.1%} of a square picture",
        )


_NO_DRAWS = Draws(0, 0, np.zeros(0, np.int64))


def _take(left: deque[Transform], *kinds: type[Any], most: float = math.inf) -> list[Any]:
    """Pops transforms from the front while they are of these kinds."""
    taken: list[Any] = []
    while left and isinstance(left[0], kinds) and len(taken) < most:
        taken.append(left.popleft())
    return taken


def _name(transform: Transform) -> str:
    return type(transform).__name__
