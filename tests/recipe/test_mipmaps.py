"""The recipe's key `oversampling`, and which copy a draw takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from placing_recipes import RECIPES

from gpuloader import Compose
from gpuloader import transforms as T
from gpuloader.errors import PresetError
from gpuloader.images.mipmaps import mipmap_sizes, size_of
from gpuloader.plan import Draws
from gpuloader.recipe import AugmentParams, Recipe, choose_mipmaps, load_preset, preset_names

CROP, PLAIN = T.RandomResizedCrop(32), T.RandomResizedCrop(32, antialias=False)


def negate(image: Any) -> Any:  # noqa: ANN401
    return 255 - image


@pytest.mark.parametrize("given", [None, "off", False, 1, 1.5, 16])
def test_it_is_off_or_says_how_sharp_a_mipmap_has_to_be(given: Any) -> None:  # noqa: ANN401
    recipe = Recipe([CROP], oversampling=given)
    assert recipe.min_oversampling == (given or None if given != "off" else None)
    assert load_preset({"imagenet_train": {"oversampling": given}}).min_oversampling == recipe.min_oversampling
    assert ("oversampling" in recipe.pixels) == (recipe.min_oversampling is not None)
    assert load_preset({"transforms": [CROP], "oversampling": given}) == recipe


@pytest.mark.parametrize("given", [0.99, 16.1, float("nan"), float("inf"), True, "on", "1.5", [1.5]])
def test_another_value_is_refused(given: Any) -> None:  # noqa: ANN401
    with pytest.raises(PresetError, match=r"`Recipe\.oversampling`: found"):
        Recipe([CROP], oversampling=given)


def test_it_is_shown_as_the_other_keys() -> None:
    assert str(Compose([CROP], oversampling=1.5)).splitlines()[-1] == "oversampling: 1.5"
    assert repr(Recipe([CROP], oversampling="off")).endswith(", oversampling='off')")
    assert "oversampling" not in str(Compose([CROP]))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda m: Recipe([T.Resize((32, 32), antialias=False)], oversampling=m), "without antialiasing"),
        (lambda m: Recipe([T.Resize((32, 32), "nearest")], oversampling=m), "without antialiasing"),
        (lambda m: Recipe(views=[T.View([CROP]), T.View([PLAIN])], oversampling=m), "without antialiasing"),
        (lambda m: Recipe([T.RandomIoUCrop(), T.Resize((32, 32))], oversampling=m), "RandomIoUCrop draws by boxes"),
        (lambda m: load_preset("ssd", {"oversampling": m}), "draws by boxes"),
        # What stands in front of own code gets the files.
        (lambda m: Recipe([PLAIN, T.Apply(negate), CROP], oversampling=m), "without antialiasing"),
    ],
)
def test_recipes_that_can_take_no_mipmaps_say_why(make: Callable[[Any], Recipe], says: str) -> None:
    with pytest.raises(
        PresetError, match=rf"`oversampling` 1.5 is not for this recipe: .*{says}.*, or leave `oversampling` out"
    ):
        make(1.5)
    for off in (None, "off"):
        assert says in make(off).refuses_oversampling


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(
            [CROP, T.Apply(negate), T.Resize((16, 16), antialias=False)], oversampling=2
        ),  # behind it there are no files
        Recipe(views=[T.View([CROP, T.Apply(negate)]), T.View([CROP])], oversampling=2),
    ],
)
def test_with_own_code_the_recipe_before_it_takes_mipmaps(recipe: Recipe) -> None:
    assert recipe.min_oversampling == 2
    assert recipe.refuses_oversampling == ""


def test_all_presets_may_take_mipmaps_but_those_without_antialiasing() -> None:
    refused = {name for name in preset_names() if load_preset(name).refuses_oversampling}
    assert refused == {"detection", "detection_eval", "ssd", "ssd_eval", "ssdlite", "ssdlite_eval"}


def test_a_call_on_images_takes_the_images() -> None:
    image = np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8)
    one, other = (Compose([T.CenterCrop(64), T.Resize((32, 32))], oversampling=m)(image, seed=1) for m in (None, 1.5))
    assert one.equal(other)


# The choice.

SIDES = (512, 1024, 300)  # in any order


def choose(
    recipe: Recipe,
    size: tuple[int, int],
    scale: float,
    sides: Sequence[int] = SIDES,
    there: Any = True,  # noqa: ANN401
    samples: int = 1,
    turned: int = 0,
) -> list[int]:
    sizes = np.tile(size, (samples, 1))
    params = recipe.draw(Draws(5, 0, np.arange(samples)), sizes, np.full(samples, turned))
    return choose_mipmaps(params, sizes, sides, np.broadcast_to(there, (samples, len(sides))), scale).tolist()


@pytest.mark.parametrize(
    ("transforms", "size", "scale", "side"),
    [
        # The shorter side becomes 256: 512 has 2 pixels for each of these, exactly.
        ([T.Resize(256), T.CenterCrop(224)], (3000, 4000), 2, 512),
        ([T.Resize(256), T.CenterCrop(224)], (3000, 4000), 2.01, 1024),
        ([T.Resize(256), T.CenterCrop(224)], (3000, 4000), 4, 1024),
        ([T.Resize(256), T.CenterCrop(224)], (3000, 4000), 4.01, 0),
        ([T.Resize(256), T.CenterCrop(224)], (3000, 4000), 1, 300),
        ([T.Resize(256), T.CenterCrop(224)], (512, 700), 2, 0),  # a copy is smaller than its picture
        ([T.Resize(256), T.CenterCrop(224)], (513, 700), 2, 512),
        # Both axes count: 700 of the 4,000 columns, of which a copy of 1024 has 1365.
        ([T.Resize((200, 700))], (3000, 4000), 1.9, 1024),
        ([T.Resize((200, 700))], (3000, 4000), 1.96, 0),
        ([T.Resize((200, 700))], (4000, 3000), 1.4, 1024),
        ([T.Resize((200, 700))], (4000, 3000), 1.5, 0),
        # Nothing is resized, so the picture's pixels are needed.
        ([T.CenterCrop(224)], (3000, 4000), 1, 0),
        # A canvas of 6000 x 8000 becomes 600 x 800: the picture is a quarter of it.
        ([T.RandomZoomOut(0, (2, 2), p=1.0), T.Resize((600, 800))], (3000, 4000), 1, 300),
        # Padding before a resize: of the whole picture, of a part, and of repeated pixels.
        ([T.Pad(100), T.Resize((100, 100))], (3000, 4000), 2, 300),
        ([T.CenterCrop(2500), T.Pad(100), T.Resize((100, 100))], (3000, 4000), 2, 0),
        ([T.Pad(100, padding_mode="reflect"), T.Resize((100, 100))], (3000, 4000), 2, 0),
        # Behind a resize it is of the output's pixels.
        ([T.Resize(100), T.RandomCrop(100, padding=8, padding_mode="reflect")], (3000, 4000), 2, 300),
    ],
)
def test_the_smallest_mipmap_with_enough_pixels_is_chosen(
    transforms: Any,  # noqa: ANN401
    size: tuple[int, int],
    scale: float,
    side: int,
) -> None:
    assert choose(Recipe(transforms), size, scale) == [side]


def test_only_mipmaps_that_are_there_are_chosen() -> None:
    recipe = Recipe([T.Resize(100), T.CenterCrop(100)])
    there = [[True, True, True], [True, True, False], [False, True, False], [False, False, False]]
    assert choose(recipe, (3000, 4000), 2, there=there, samples=4) == [300, 512, 1024, 0]
    assert choose(recipe, (3000, 4000), 2, sides=(), samples=2) == [0, 0]
    assert choose(recipe, (3000, 4000), 2, samples=0) == []


def test_of_a_picture_of_unknown_size_no_mipmap_is_chosen() -> None:
    params = Recipe([T.Resize((9, 9))]).draw(Draws(0, 0, np.arange(2)), np.array([[1, 1], [2000, 3000]]))
    sizes = np.array([[0, 0], [2000, 3000]])
    assert choose_mipmaps(params, sizes, [512], np.ones((2, 1), np.bool_), 1.0).tolist() == [0, 512]


side = st.integers(200, 8000)
scales = st.floats(1, 16)


@given(st.sampled_from([*RECIPES]), st.tuples(side, side), scales, st.integers(0, 8))
def test_a_chosen_mipmap_is_sharp_in_all_views_and_no_smaller_one_is(
    name: str, size: tuple[int, int], scale: float, turned: int
) -> None:
    recipe, sizes = RECIPES[name], np.array([size])
    params = recipe.draw(Draws(5, 0, np.arange(1)), sizes)
    [chosen] = choose_mipmaps(params, sizes, SIDES, np.ones((1, 3), np.bool_), scale).tolist()

    def sharpness(side: int) -> float:
        """The fewest pixels of a copy for one of an output, along any axis."""
        each = []
        for view in params.views:
            [window], [resized] = view.placement.window.tolist(), view.placement.resized.tolist()
            pixels = [Fraction(end) - Fraction(start) for start, end in zip(window[:2], window[2:], strict=True)]
            ratios = map(Fraction, size_of(*size, side), size)
            each += [a * ratio / n for a, ratio, n in zip(pixels, ratios, resized, strict=True)]
        return float(min(each))

    smaller = [each for each in SIDES if each < min(size) and (each < chosen or not chosen)]
    assert all(sharpness(each) < scale * (1 + 1e-12) for each in smaller)
    if chosen:
        assert chosen < min(size)
        assert sharpness(chosen) >= scale * (1 - 1e-12)
    # A picture that is stored turned has the same draws, windows and copies.
    upright = Recipe(recipe.transforms, recipe.views, orientation="apply")
    stored = size[::-1] if turned >= 5 else size
    assert choose(upright, stored, scale, turned=turned) == [chosen]


@given(st.sampled_from([*RECIPES]), st.tuples(side, side), scales, scales)
def test_a_larger_number_never_takes_a_smaller_mipmap(
    name: str, size: tuple[int, int], one: float, other: float
) -> None:
    pairs = zip(*(choose(RECIPES[name], size, scale, samples=4) for scale in sorted((one, other))), strict=True)
    assert all((small or 10**9) <= (large or 10**9) for small, large in pairs)


def test_several_views_share_the_largest_of_their_mipmaps() -> None:
    sizes, there = np.tile((3000, 4000), (50, 1)), np.ones((50, 3), np.bool_)
    params = RECIPES["several views"].draw(Draws(5, 0, np.arange(50)), sizes)
    each = [choose_mipmaps(AugmentParams.of([view]), sizes, SIDES, there, 1.5) for view in params.views]
    largest = np.max([np.where(chosen, chosen, 9999) for chosen in each], 0)
    chosen = choose_mipmaps(params, sizes, SIDES, there, 1.5)
    assert np.where(chosen, chosen, 9999).tolist() == largest.tolist()
    assert {512, 1024} <= set(chosen.tolist())


@given(st.tuples(side, side), st.integers(1, 200))
def test_the_sizes_of_mipmaps_are_those_that_pack_makes(size: tuple[int, int], copy: int) -> None:
    sizes = mipmap_sizes(np.array([size, size]), np.array([copy, 0]))
    assert sizes.tolist() == [[*size_of(*size, copy)], [*size]]
