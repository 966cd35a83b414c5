"""Splits a recipe with `Apply` into two recipes with your own code between them: `SplitRecipe`.

The first recipe decodes images to levels, on the CPU; the second works on arrays. They draw the random numbers of the
whole recipe, so the split changes pixels only by rounding to levels in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpuloader.errors import PresetError
from gpuloader.recipe.apply import Apply
from gpuloader.recipe.part import values_of
from gpuloader.recipe.recipe import Recipe
from gpuloader.recipe.view import ViewPlan


@dataclass(frozen=True)
class SplitRecipe:
    """The parts of a recipe with own code.

    Attributes:
        first: makes lists of images, uint8 with channels last.
        own: the own code of each view; None for a view without own code.
        second: a recipe for each view, with the view's number and random parameters.
        same: for each view, the number of the first view with the same images after own code.
    """

    first: Recipe
    own: tuple[Apply | None, ...]
    second: tuple[Recipe, ...]
    same: tuple[int, ...]

    @property
    def takes_targets(self) -> bool:
        """Whether own code moves targets."""
        return any(own.targets for own in self.own if own is not None)

    @property
    def keeps_sizes(self) -> bool:
        """Whether all images keep their size."""
        return all(own.same_size for own in self.own if own is not None)


def cut(recipe: Recipe) -> SplitRecipe | None:
    """Splits a recipe at its own code; returns None without own code. Other views are split after their geometry.

    Raises:
        PresetError: own code has only a name, as in YAML, and no function.
    """
    views = recipe.each_view
    own = tuple(view.own for view in views)
    for each in own:
        if each is not None and each.function is None:
            raise PresetError(
                f"the recipe applies {each.called!r}, and a file holds no code: pass the function, such as "
                f"Compose.load(PATH, functions=[{each.called}])"
            )
    if not any(own):
        return None
    halves = [view.halves() for view in views]
    first = _of_plans(recipe, (half for half, _ in halves), dtype="uint8", layout="channels_last", batch="list")
    shared = [view.shared_own for view in views]
    same = tuple(number if each is None else shared.index(each) for number, each in enumerate(shared))
    second = tuple(_of_plans(recipe, [half], orientation="off", mipmaps=None) for _, half in halves)
    return SplitRecipe(first, own, second, same)


def _of_plans(recipe: Recipe, plans: Iterable[ViewPlan], **keys: Any) -> Recipe:  # noqa: ANN401
    """Makes a recipe from parts of another recipe, which was validated as a whole."""
    made = object.__new__(Recipe)
    vars(made).update({**values_of(recipe), "transforms": (), "views": 1, "mix": None, **keys})
    vars(made)["each_view"] = tuple(plans)
    return made
