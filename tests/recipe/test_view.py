"""`ViewPlan`: the order of a recipe's transforms, and who draws which numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from drawn_numbers import all_numbers_of, numbers_of
from oracle import functional
from reference import run_program

from gpuloader import transforms as T
from gpuloader.errors import PresetError
from gpuloader.plan import Draws
from gpuloader.recipe import Recipe
from gpuloader.recipe.model import Transform
from gpuloader.recipe.program import Op
from gpuloader.recipe.view import ViewPlan

COUNT = 2000
DRAWS = Draws(3, 1, np.arange(COUNT))
SIZES = np.array([[40, 50]] * COUNT)
CROP, FLIP, UPSIDE_DOWN = T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.RandomVerticalFlip()
JITTER, GRAY, BLUR = T.ColorJitter(0.4), T.RandomGrayscale(), T.GaussianBlur(3)
NORMAL, ERASE = T.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), T.RandomErasing()


def plan(*transforms: Transform, number: int = 0) -> ViewPlan:
    return ViewPlan(transforms, number)


def factors(view: ViewPlan, step: int) -> np.ndarray:
    """The first parameters of a step, (n,)."""
    return view.draw(DRAWS, SIZES).program.parameters[:, step, 0]


def assert_unrelated(one: np.ndarray, other: np.ndarray) -> None:
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.08


# The order.


def test_transforms_are_sorted_by_what_they_do() -> None:
    view = plan(UPSIDE_DOWN, CROP, FLIP, JITTER, FLIP, BLUR, NORMAL, ERASE)
    assert view.placing == [UPSIDE_DOWN, CROP, FLIP]
    assert view.pixels == [JITTER, FLIP, BLUR]  # a flip behind a change of pixels is one itself
    assert (view.normalize, view.erasing) == (NORMAL, ERASE)


@pytest.mark.parametrize(
    "transforms",
    [
        [T.Resize((3, 4))],
        [T.CenterCrop(9), UPSIDE_DOWN],
        [T.Resize((9, 9)), T.RandomCrop(8, 2)],
        [FLIP, T.Resize(9, max_size=99), UPSIDE_DOWN, T.CornerCrop(9, "top left"), FLIP],
        [CROP, ERASE],
        [T.Resize(20), CROP],
        [T.CenterCrop(9), T.Resize((4, 5)), JITTER, NORMAL],
        [T.Pad(9), CROP],
    ],
    ids=str,
)
def test_orders_that_can_be_run(transforms: Sequence[Transform]) -> None:
    view = ViewPlan(transforms, 0)
    assert [*view.placing, *view.pixels, *filter(None, (view.normalize, view.erasing))] == transforms


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        ([CROP, JITTER, T.CenterCrop(9)], "CenterCrop is in the wrong place"),
        ([CROP, NORMAL, JITTER], "ColorJitter is in the wrong place"),
        ([CROP, ERASE, NORMAL], "Normalize is in the wrong place"),
        ([CROP, ERASE, T.RandomErasing(0.1)], "RandomErasing is in the wrong place"),
        ([T.Pad(1), T.RandomCrop(9, fill=9)], "Pad, RandomCrop: padded twice, 'constant'"),
        ([T.CenterCrop(9), T.Resize(4)], "CenterCrop, Resize: leaves images of different sizes"),
        ([JITTER], "no crop: leaves images of different sizes"),
    ],
    ids=str,
)
def test_orders_that_cannot_be_run_are_refused(transforms: Sequence[Transform], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        ViewPlan(transforms, 0)


# Who draws which numbers.


def test_an_object_that_stands_there_twice_draws_twice() -> None:
    two = plan(CROP, JITTER, JITTER)
    assert_unrelated(factors(two, 0), factors(two, 1))
    mirrored = plan(CROP, FLIP, FLIP).draw(DRAWS, SIZES).placement.mirrored[:, 1]
    assert 0.4 < mirrored.mean() < 0.6  # equal draws would cancel each other


def test_an_additional_transform_changes_no_draws_of_the_others() -> None:
    few, more = plan(CROP, JITTER, ERASE), plan(CROP, FLIP, GRAY, JITTER, BLUR, JITTER, NORMAL, ERASE)
    one, other = few.draw(DRAWS, SIZES), more.draw(DRAWS, SIZES)
    np.testing.assert_array_equal(one.placement.window, other.placement.window)
    np.testing.assert_array_equal(one.placement.shape, other.placement.shape)
    np.testing.assert_array_equal(factors(few, 0), factors(more, 1))
    np.testing.assert_array_equal(one.erased, other.erased)


def test_views_draw_different_numbers_of() -> None:
    one, other = Recipe([CROP, JITTER, ERASE], views=2).each_view
    assert [one.number, other.number] == [0, 1]
    placed = [view.draw(DRAWS, SIZES).placement.window[:, 0] for view in (one, other)]
    assert_unrelated(*placed)
    assert_unrelated(factors(one, 0), factors(other, 0))
    assert_unrelated(one.draw(DRAWS, SIZES).erased[:, 4], other.draw(DRAWS, SIZES).erased[:, 4])


def test_more_views_change_no_draws_of_the_first() -> None:
    [alone] = Recipe([CROP, JITTER]).each_view
    for preset in (Recipe([CROP, JITTER], views=3), Recipe(views=[T.View([CROP, JITTER]), T.View([CROP, GRAY], 2)])):
        first = preset.each_view[0]
        np.testing.assert_array_equal(
            first.draw(DRAWS, SIZES).placement.window, alone.draw(DRAWS, SIZES).placement.window
        )
        np.testing.assert_array_equal(factors(first, 0), factors(alone, 0))


def test_shared_transforms_draw_the_numbers_of_view_0_and_count() -> None:
    shared = ViewPlan([JITTER, NORMAL], 2, shared=[CROP, JITTER])
    of_view_0, of_view_2 = (plan(CROP, JITTER, JITTER, NORMAL, number=number) for number in (0, 2))
    windows = [view.draw(DRAWS, SIZES).placement.window for view in (shared, of_view_0)]
    np.testing.assert_array_equal(*windows)
    np.testing.assert_array_equal(factors(shared, 0), factors(of_view_0, 0))
    np.testing.assert_array_equal(factors(shared, 1), factors(of_view_2, 1))


def test_transforms_before_the_plan_only_count() -> None:
    behind = ViewPlan([CROP, JITTER], 1, before=[CROP, JITTER])
    assert behind.steps == 1
    whole = plan(CROP, CROP, JITTER, JITTER, number=1).draw(DRAWS, SIZES)
    np.testing.assert_array_equal(factors(behind, 0), whole.program.parameters[:, 1, 0])


# What is drawn.


def test_a_recipe_draws_what_its_views_draw_and_the_region_that_they_need() -> None:
    preset = Recipe(views=[T.View([CROP, JITTER]), T.View([T.Resize(20), T.CenterCrop(8), NORMAL, ERASE], count=2)])
    params = preset.draw(DRAWS, SIZES)
    for view, of_view in zip(preset.each_view, params.views, strict=True):
        for one, other in zip(numbers_of(view.draw(DRAWS, SIZES)), numbers_of(of_view), strict=True):
            np.testing.assert_array_equal(one, other)
    needed = np.stack([view.placement.needed() for view in params.views])
    np.testing.assert_array_equal(params.region[:, :2], needed[:, :, :2].min(0))
    np.testing.assert_array_equal(params.region[:, 2:], needed[:, :, 2:].max(0))


def test_what_is_drawn_for_some_samples_are_their_rows() -> None:
    params, rows = Recipe([CROP, JITTER, ERASE], views=2).draw(DRAWS, SIZES), [7, 7, 3]
    some = params.take(rows)
    np.testing.assert_array_equal(some.region, params.region[rows])
    for one, other in zip(some.views, params.views, strict=True):
        for few, all_of_them in zip(numbers_of(one), numbers_of(other), strict=True):
            np.testing.assert_array_equal(few, all_of_them[rows])


@pytest.mark.parametrize(
    ("transforms", "choices"),
    [
        ([CROP, JITTER], [{Op.BRIGHTNESS}]),
        ([CROP, T.RandomInvert(1), FLIP, UPSIDE_DOWN], [{Op.INVERT}, {Op.WARP, Op.IDENTITY}, {Op.WARP, Op.IDENTITY}]),
        ([CROP, T.RandomInvert(0), T.RandomVerticalFlip(0)], [{Op.IDENTITY}, {Op.IDENTITY}]),
        ([CROP, T.RandomApply([BLUR, JITTER])], [{Op.BLUR, Op.IDENTITY}, {Op.BRIGHTNESS, Op.IDENTITY}]),
    ],
    ids=str,
)
def test_the_operations_that_can_come_are_known(transforms: Sequence[Transform], choices: list[set[Op]]) -> None:
    view = ViewPlan(transforms, 0)
    assert [set(step) for step in view.choices] == choices
    assert [set(step.tolist()) for step in view.draw(DRAWS, SIZES).program.ops.T] == choices


@pytest.mark.parametrize(
    ("flip", "theirs"), [(T.RandomHorizontalFlip, functional.hflip), (T.RandomVerticalFlip, functional.vflip)]
)
@pytest.mark.parametrize("size", [(5, 8), (6, 7)])
def test_flips_behind_a_change_of_pixels_are_torchvisions(
    flip: type[T.RandomHorizontalFlip], theirs: Callable[[torch.Tensor], torch.Tensor], size: tuple[int, int]
) -> None:
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, *size), np.uint8))
    program = plan(T.Resize(size), T.RandomInvert(0), flip(0.4)).draw(DRAWS, SIZES).program
    flipped = program.ops[:, 1] == Op.WARP
    in_place = plan(T.Resize(size), flip(0.4)).draw(DRAWS, SIZES).placement.mirrored.any(1)
    np.testing.assert_array_equal(flipped, in_place)  # the same draws, wherever it stands
    assert torch.equal(run_program(program, int(flipped.argmax()), image), theirs(image))


@pytest.mark.parametrize(
    ("transforms", "in_one_pass", "overlapping"),
    [
        ([CROP, FLIP, NORMAL], True, (False, False)),
        ([T.Resize(9), T.CenterCrop(8), NORMAL], True, (False, True)),
        ([T.RandomCrop(8), JITTER], False, (False, True)),
        ([CROP, ERASE], False, (False, False)),
        ([T.Pad(1), CROP], True, (True, False)),
        ([T.CenterCrop(8), T.Resize((4, 4)), T.Pad(1)], True, (True, True)),
    ],
    ids=str,
)
def test_what_the_graph_can_leave_out(
    transforms: Sequence[Transform], in_one_pass: bool, overlapping: tuple[bool, bool]
) -> None:
    view = ViewPlan(transforms, 0)
    assert (view.in_one_pass, view.how_placed.overlapping) == (in_one_pass, overlapping)


# Sizes by epoch.


def test_shapes_follow_the_epoch() -> None:
    growing = [T.RandomResizedCrop({0: 8, 3: 12}), T.RandAugment(), NORMAL, T.RandomErasing(1.0)]
    preset = Recipe(views=[T.View(growing), T.View([T.Resize((4, 6))], count=2)])
    assert preset.at(2).shapes == [(8, 8), (4, 6), (4, 6)]
    assert preset.at(3).shapes == [(12, 12), (4, 6), (4, 6)]
    for epoch, side in ((2, 8), (3, 12)):
        draws = Draws(0, epoch, np.arange(COUNT))
        drawn = preset.draw(draws, SIZES).views[0]
        assert drawn.shape == (side, side)
        assert (drawn.placement.shape == side).all()
        top, left, height, width, *_ = drawn.erased.T
        assert (top + height).max() == (left + width).max() == side
        warps = drawn.program.parameters[drawn.program.ops == Op.WARP]
        turned = warps[warps[:, 1] * warps[:, 3] < 0, :9].reshape(-1, 3, 3)
        middle = turned @ [side / 2, side / 2, 1]
        np.testing.assert_allclose(middle[:, :2], side / 2, atol=1e-4)  # about the middle of that size


def test_the_recipe_of_an_epoch_has_no_sizes_by_epoch() -> None:
    growing = Recipe(
        views=[T.View([T.Resize({0: 20, 5: 30}), T.RandomCrop({0: 8, 3: 12}, 2), FLIP], count=2), T.View([CROP])]
    )
    at_4 = Recipe(views=[T.View([T.Resize(20), T.RandomCrop(12, 2), FLIP], count=2), T.View([CROP])])
    assert growing.at(4) == at_4
    assert growing.at(4).at(99) is growing.at(4)
    assert growing.at(4) is growing.at(3)  # made once, as a run asks for it at every batch
    assert [growing.at(epoch).shapes[0] for epoch in (0, 2, 3, 5)] == [(8, 8), (8, 8), (12, 12), (12, 12)]
    assert growing.shapes == growing.at(0).shapes
    params, of_4 = (preset.draw(Draws(0, 4, np.arange(9)), SIZES[:9]) for preset in (growing, at_4))
    for one, other in zip(all_numbers_of(params), all_numbers_of(of_4), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("transforms", "at_a_shape"),
    [
        ([T.RandomResizedCrop({0: 8, 2: 9}, (0.5, 1)), FLIP], [T.RandomResizedCrop((4, 6), (0.5, 1)), FLIP]),
        ([T.Resize((8, 8)), FLIP], [T.Resize((4, 6)), FLIP]),
        ([T.Resize({0: 9, 2: 20}), T.CenterCrop(8), JITTER], [T.Resize(20), T.CenterCrop((4, 6)), JITTER]),
        ([T.Resize((20, 20)), T.FiveCrop(8)], [T.Resize((20, 20)), T.FiveCrop((4, 6))]),
    ],
    ids=str,
)
def test_another_shape_takes_the_place_of_the_last_size(
    transforms: Sequence[Transform], at_a_shape: Sequence[Transform]
) -> None:
    assert Recipe(transforms, views=2).at(2, (4, 6)) == Recipe(at_a_shape, views=2)


def test_another_shape_is_that_of_shared_transforms() -> None:
    shared = Recipe([T.RandomResizedCrop({0: 8, 2: 9}), FLIP], [T.View([JITTER]), T.View([GRAY])])
    assert shared.at(2, (4, 6)) == Recipe([T.RandomResizedCrop((4, 6)), FLIP], [T.View([JITTER]), T.View([GRAY])])
    assert shared.at(2).shapes == [(9, 9), (9, 9)]


@pytest.mark.parametrize(
    "preset",
    [Recipe([CROP, T.Pad(2)]), Recipe(views=[T.View([CROP])]), Recipe([CROP], [T.View([]), T.View([T.CenterCrop(8)])])],
    ids=str,
)
def test_a_shape_without_a_place_is_refused(preset: Recipe) -> None:
    with pytest.raises(PresetError, match=r"shape \(4, 6\) cannot replace the recipe's"):
        preset.at(0, (4, 6))


# Other values by epoch.

BY_EPOCH: list[tuple[Any, Any, Any]] = [  # in epochs 0 to 4, and from 5 on
    (T.RandomErasing({0: 1.0, 5: 0.3}), T.RandomErasing(1.0), T.RandomErasing(0.3)),
    (T.RandomApply([BLUR], {0: 1.0, 5: 0.0}), T.RandomApply([BLUR], 1.0), T.RandomApply([BLUR], 0.0)),
    (T.RandAugment(magnitude={0: 3, 5: 9}), T.RandAugment(magnitude=3), T.RandAugment(magnitude=9)),
    (T.TimmRandAugment({0: 3, 5: 9.5}), T.TimmRandAugment(3), T.TimmRandAugment(9.5)),
    (T.AugMix({0: 1, 5: 3}), T.AugMix(1), T.AugMix(3)),
    (T.RandomApply([T.RandomChoice([GRAY, T.RandAugment(magnitude={0: 3, 5: 9})])], 0.4),
     T.RandomApply([T.RandomChoice([GRAY, T.RandAugment(magnitude=3)])], 0.4),
     T.RandomApply([T.RandomChoice([GRAY, T.RandAugment(magnitude=9)])], 0.4)),
]  # fmt: skip


@pytest.mark.parametrize("given", BY_EPOCH, ids=lambda given: type(given[0]).__name__)
@pytest.mark.parametrize("as_views", [False, True])
def test_values_follow_the_epoch(given: tuple[Any, Any, Any], as_views: bool) -> None:
    preset, early, late = (Recipe([CROP], [T.View([each])]) if as_views else Recipe([CROP, each]) for each in given)
    for epoch, of_epoch in ((0, early), (4, early), (5, late), (900, late)):
        assert preset.at(epoch) == of_epoch
        params, expected = (each.draw(Draws(3, epoch, np.arange(200)), SIZES[:200]) for each in (preset, of_epoch))
        for one, other in zip(all_numbers_of(params), all_numbers_of(expected), strict=True):
            np.testing.assert_array_equal(one, other)


def test_the_operations_are_those_of_all_epochs() -> None:
    """So one graph does them all: it has an identity, although nothing but the blur is drawn in epoch 0."""
    [view] = Recipe([CROP, T.RandomApply([BLUR], {0: 1.0, 5: 0.0})]).each_view
    assert [set(step) for step in view.choices] == [{Op.BLUR, Op.IDENTITY}]


@pytest.mark.parametrize(
    ("transform", "random"),
    [
        (T.RandomErasing({0: 0, 5: 0.5}), True),
        (T.RandomErasing({0: 0, 5: 0.0}), False),
        (T.RandomApply([T.RandomInvert(1)], {0: 0, 5: 0.5}), True),
        (T.RandomApply([T.RandomInvert(1)], {0: 0, 5: 1}), False),  # in each epoch all images, or none
        (T.RandomApply([JITTER], {0: 0, 5: 1}), True),
        (T.RandomApply([JITTER], {0: 0, 5: 0.0}), False),
    ],
    ids=str,
)
def test_what_is_random_in_any_epoch_is_for_training(transform: Any, random: bool) -> None:  # noqa: ANN401
    assert Recipe([T.CenterCrop(8), transform]).random == random


# Several crops of one image.


@pytest.mark.parametrize(
    ("preset", "views"),
    [
        (Recipe([T.Resize(20), T.FiveCrop(8)]), 5),
        (Recipe([T.Resize(20), T.TenCrop((8, 9)), JITTER, NORMAL]), 10),
        (Recipe([T.Resize(20), T.FiveCrop(8)], views=2), 10),
        (Recipe(views=[T.View([T.Resize(20), T.TenCrop(8)]), T.View([CROP], count=3)]), 13),
    ],
    ids=str,
)
def test_five_and_ten_crops_are_views(preset: Recipe, views: int) -> None:
    assert [view.number for view in preset.each_view] == list(range(views))
    assert len(preset.shapes) == views


def test_each_of_ten_crops_is_in_its_place() -> None:
    at = [view.draw(DRAWS, SIZES).placement for view in Recipe([T.Resize((20, 30)), T.TenCrop(8)]).each_view]
    corners = [(0, 0), (0, 22), (12, 0), (12, 22), (6, 11)]
    assert [tuple(each.corner[0].tolist()) for each in at[:5]] == corners
    assert not any(each.mirrored.any() for each in at[:5])
    mirrored = [(0, 22), (0, 0), (12, 22), (12, 0), (6, 11)]  # as they lie in the image that is not flipped
    assert [tuple(each.corner[0].tolist()) for each in at[5:]] == mirrored
    assert all((each.mirrored == (False, True)).all() for each in at[5:])
