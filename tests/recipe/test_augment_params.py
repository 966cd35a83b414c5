"""What is drawn for the parts of a batch, put together again, and in the pixels of smaller copies."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from gpuloader import transforms as T
from gpuloader.plan import Draws
from gpuloader.recipe import AugmentParams, Recipe, load_preset, preset_names

SIZES = np.array([[40, 60], [333, 500], [500, 333], [1, 900], [64, 64], [375, 500], [1200, 1600]])
ORIENTATIONS = np.array([1, 6, 3, 8, 0, 5, 2])
RECIPES = {name: load_preset(name) for name in preset_names()} | {
    "padded batches": Recipe([T.Resize(48), T.TrivialAugmentWide()], batch={"pad": 32}),
    "lists": Recipe([T.Resize(48), T.Pad((0, 5), padding_mode="reflect")], batch="list"),
    "turned": Recipe([T.RandomResizedCrop(32, interpolation="random")], orientation="apply", views=2),
    "five crops": Recipe([T.Resize(64), T.FiveCrop(32)]),
    "nothing": Recipe([], batch="list"),
    "by epoch": Recipe([T.RandomResizedCrop({0: 32, 2: 64})]),
}


def draw(recipe: Recipe, rows: slice) -> AugmentParams:
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


def on_mipmaps(params: AugmentParams, sizes: Any) -> AugmentParams:  # noqa: ANN401
    """On files of half the sides, or more, of each second picture."""
    files = sizes.copy()
    files[1::2] = (files[1::2] + 1) // 2
    return params.in_files(sizes, files)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("ends", [(0, 7), (0, 3, 7), (0, 1, 2, 3, 4, 5, 6, 7)])
def test_the_draws_of_a_batchs_parts_are_those_of_the_batch(name: str, ends: tuple[int, ...]) -> None:
    recipe = RECIPES[name]
    parts = [draw(recipe, slice(*pair)) for pair in pairwise(ends)]
    assert_equal(AugmentParams.joined(parts), draw(recipe, slice(0, 7)))


@pytest.mark.parametrize("name", RECIPES)
def test_on_other_files_only_the_place_in_the_file_and_its_region_change(name: str) -> None:
    recipe, all_rows = RECIPES[name], slice(0, 7)
    params = draw(recipe, all_rows)
    assert params.in_files(SIZES, SIZES) is params
    mapped = on_mipmaps(params, SIZES)
    for before, after in zip(params.views, mapped.views, strict=True):
        assert_equal(replace(after, mapped=None), before)
        assert_equal(after.crop(), before.crop())
    assert_equal(mapped.refused(), params.refused())
    stay, go = np.arange(0, 7, 2), np.arange(1, 7, 2)
    same = AugmentParams(
        tuple(replace(view, mapped=view.placement) for view in params.views), params.region, params.origin
    )
    assert_equal(mapped.take(stay), same.take(stay))
    assert (mapped.region[go, 2:] <= (SIZES[go] + 1) // 2).all()
    assert (mapped.region >= 0).all()


def test_parts_on_files_and_on_pictures_are_joined() -> None:
    recipe = RECIPES["turned"]
    parts = [draw(recipe, slice(0, 3)), on_mipmaps(draw(recipe, slice(3, 7)), SIZES[3:])]
    files = SIZES.copy()
    files[[4, 6]] = (files[[4, 6]] + 1) // 2
    assert_equal(AugmentParams.joined(parts), draw(recipe, slice(0, 7)).in_files(SIZES, files))


side = st.integers(1, 2**18 - 1)


@given(st.tuples(side, side), st.tuples(side, side))
def test_a_whole_picture_is_a_whole_file(picture: tuple[int, int], file: tuple[int, int]) -> None:
    params = Recipe([T.Resize((8, 8))]).draw(Draws(0, 0, np.zeros(1, np.int64)), np.array([picture]))
    params = params.in_files(np.array([picture]), np.array([file]))
    at = params.views[0].in_file
    for box in (at.part, at.window, at.canvas(), params.region):
        assert box.tolist() == [[0, 0, *file]]


@given(st.tuples(side, side), st.tuples(side, side), st.integers(0, 999))
def test_a_window_in_a_picture_is_in_its_file(picture: tuple[int, int], file: tuple[int, int], sample: int) -> None:
    params = Recipe([T.RandomResizedCrop(8, (0.001, 1))]).draw(Draws(0, 0, np.array([sample])), np.array([picture]))
    window = params.views[0].placement.window / [*picture, *picture]
    params = params.in_files(np.array([picture]), np.array([file]))
    mapped = params.views[0].in_file.window / [*file, *file]
    np.testing.assert_allclose(mapped, window, rtol=1e-14)
    for box in (params.views[0].in_file.canvas(), params.region):
        assert (box >= 0).all()
        assert (box[:, 2:] <= file).all()
        assert (box[:, 2:] > box[:, :2]).all()
