"""What is drawn for the parts of a batch, put together again, and in the pixels of smaller copies."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gpuloader.plan import Draws
from gpuloader.recipe import Drawn, Recipe, load_preset, preset_names
from gpuloader.transforms import FiveCrop, Pad, RandomResizedCrop, Resize, TrivialAugmentWide

SIZES = np.array([[40, 60], [333, 500], [500, 333], [1, 900], [64, 64], [375, 500], [1200, 1600]])
ORIENTATIONS = np.array([1, 6, 3, 8, 0, 5, 2])
RECIPES = {name: load_preset(name) for name in preset_names()} | {
    "padded batches": Recipe([Resize(48), TrivialAugmentWide()], batch={"pad": 32}),
    "lists": Recipe([Resize(48), Pad((0, 5), padding_mode="reflect")], batch="list"),
    "turned": Recipe([RandomResizedCrop(32, interpolation="random")], orientation="apply", views=2),
    "five crops": Recipe([Resize(64), FiveCrop(32)]),
    "nothing": Recipe([], batch="list"),
    "by epoch": Recipe([RandomResizedCrop({0: 32, 2: 64})]),
}


def draw(recipe: Recipe, rows: slice) -> Drawn:
    ids = np.arange(len(SIZES))[rows]
    boxes = [np.array([[5.0, 0, 20, 1], [0, 0, width, height]]) for height, width in SIZES[rows].tolist()]
    turned = ORIENTATIONS[rows] if recipe.orientation == "apply" else None
    return recipe.draw(Draws(3, 2, ids), SIZES[rows], turned, boxes if recipe.by_boxes else ())


def assert_equal(one: Any, other: Any) -> None:  # noqa: ANN401
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert_array_equal(one, other)
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_equal(*pair)
    elif is_dataclass(one):
        for field in fields(one):
            assert_equal(getattr(one, field.name), getattr(other, field.name))
    else:
        assert one == other


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("ends", [(0, 7), (0, 3, 7), (0, 1, 2, 3, 4, 5, 6, 7)])
def test_the_draws_of_a_batchs_parts_are_those_of_the_batch(name: str, ends: tuple[int, ...]) -> None:
    recipe = RECIPES[name]
    parts = [draw(recipe, slice(*pair)) for pair in pairwise(ends)]
    assert_equal(Drawn.joined(parts), draw(recipe, slice(0, 7)))
