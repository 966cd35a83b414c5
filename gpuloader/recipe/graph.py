"""`Graph`: what DALI runs for a recipe. A recipe with own code has two graphs, with its `OwnCode` between them.

The first graph decodes images to levels, on the CPU; the second works on arrays. They draw the random numbers of the
whole recipe, so own code changes pixels only by what it does, and by rounding to levels before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from gpuloader.errors import PresetError
from gpuloader.plan import Draws
from gpuloader.recipe.apply import Apply
from gpuloader.recipe.augment_params import AugmentParams, Batching
from gpuloader.recipe.model import Ints
from gpuloader.recipe.target_transforms import Floats
from gpuloader.recipe.view import ViewPlan

GraphDtype: TypeAlias = Literal["float32", "float16", "uint8"]
Layout: TypeAlias = Literal["nchw", "channels_last"]


@dataclass(frozen=True, eq=False)
class Graph:
    """What DALI runs: the views that it makes of images, and the form of its output.

    Attributes:
        parts: (source, views) of what is made together: the number of an image among those of a row, and the views that
            are made of it. Files are one image for all views; behind own code, each view is made of an image of its
            own, or views that share their code of the same one.
        dtype, layout, batch: the form of the output, as in a recipe.
        upright: whether pictures are turned upright by their EXIF orientation.
        mixed: whether a batch on the CPU may have files and arrays, which are files that were decoded at a part of
            their size.
    """

    parts: tuple[tuple[int, tuple[ViewPlan, ...]], ...]
    dtype: GraphDtype
    layout: Layout
    batch: Batching
    upright: bool = False
    mixed: bool = False

    @cached_property
    def views(self) -> tuple[ViewPlan, ...]:
        """All views, in their order."""
        return tuple(view for _, views in self.parts for view in views)

    @property
    def sources(self) -> int:
        """The number of images of a row."""
        return 1 + max(source for source, _ in self.parts)

    @cached_property
    def of_none(self) -> AugmentParams:
        """The random parameters of no samples: the names, types and operations that all samples share."""
        return self.draw(Draws(0, 0, np.zeros(0, np.int64)), np.zeros((0, 2), np.int64))

    def draw(
        self, draws: Draws, sizes: Ints, orientations: Ints | None = None, boxes: Sequence[Floats] = ()
    ) -> AugmentParams:
        """Draws the random parameters of n images of these sizes, see `Recipe.draw`."""
        if not self.upright:
            orientations = None
        elif orientations is None:
            orientations = np.zeros(len(sizes), np.int64)
        return AugmentParams.of([view.draw(draws, sizes, orientations, boxes) for view in self.views])


@dataclass(frozen=True)
class OwnCode:
    """The own code of a recipe.

    Attributes:
        functions: the own code of each view; None for a view without own code.
        same: for each view, the number of the first view with the same images after own code.
    """

    functions: tuple[Apply | None, ...]
    same: tuple[int, ...]

    @property
    def views(self) -> list[int]:
        """The views whose images are made, in the order of the second graph's sources."""
        return sorted(set(self.same))

    @property
    def takes_targets(self) -> bool:
        """Whether own code moves targets."""
        return any(own.targets for own in self.functions if own is not None)

    @property
    def keeps_sizes(self) -> bool:
        """Whether all images keep their size."""
        return all(own.same_size for own in self.functions if own is not None)

    @classmethod
    def of(cls, views: Sequence[ViewPlan]) -> OwnCode | None:
        """Returns the own code of these views; None if they have none.

        Raises:
            PresetError: own code has only a name, as in YAML, and no function.
        """
        own = tuple(view.own for view in views)
        for each in own:
            if each is not None and each.function is None:
                raise PresetError(
                    f"the recipe applies {each.called!r}, and a file holds no code: pass the function, such as "
                    f"Compose.load(PATH, functions=[{each.called}])"
                )
        if not any(own):
            return None
        shared = [view.shared_own for view in views]
        return cls(own, tuple(number if each is None else shared.index(each) for number, each in enumerate(shared)))

    def graphs(self, whole: Graph) -> tuple[Graph, Graph]:
        """Splits the graph of all transforms at the own code; views without own code after their geometry."""
        halves = [view.halves() for view in whole.views]
        before = ((0, tuple(first for first, _ in halves)),)
        behind = tuple((self.views.index(at), (second,)) for at, (_, second) in zip(self.same, halves))
        return (
            Graph(before, "uint8", "channels_last", "list", whole.upright, whole.mixed),
            Graph(behind, whole.dtype, whole.layout, whole.batch),
        )
