"""Own code in a recipe: its name, what is written of it, and the two recipes before and behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torchvision.transforms import v2

from gpuloader import Compose
from gpuloader import transforms as T
from gpuloader.errors import PresetError
from gpuloader.plan import Draws, Stream
from gpuloader.recipe import Recipe, load_preset, recipe_yaml
from gpuloader.recipe.model import Transform

Levels = NDArray[np.uint8]
CROP, FLIP, JITTER = T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ColorJitter(0.4)
NORMAL, ERASE = T.Normalize([0.5] * 3, [0.5] * 3), T.RandomErasing()
DRAWS = Draws(3, 1, np.arange(5))


def film(image: Levels, rng: np.random.Generator) -> Levels:
    return image


def invert(image: Levels) -> Levels:
    return 255 - image


def with_boxes(image: Levels, targets: Any, rng: np.random.Generator) -> Any:  # noqa: ANN401
    return image, targets


class Grain:
    def __call__(self, image: Levels, rng: np.random.Generator) -> Levels:
        return image


# Its name.


@pytest.mark.parametrize(
    ("apply", "name"),
    [
        (lambda: T.Apply(film), "film"),
        (lambda: T.Apply(np.flipud), "flipud"),
        (lambda: T.Apply(v2.RandomPosterize(3)), "RandomPosterize"),  # that of its class
        (lambda: T.Apply(partial(film, rng=None), name="film"), "film"),
        (lambda: T.Apply(name="film"), "film"),  # which a file names, and a program passes
    ],
)
def test_it_has_the_name_of_its_function_or_its_own(apply: Callable[[], T.Apply], name: str) -> None:
    assert as_yaml([CROP, apply()]) == as_yaml([CROP, T.Apply(name=name)])


def as_yaml(transforms: Sequence[Transform]) -> str:
    return recipe_yaml(Recipe(transforms))


# Whether it draws.


@pytest.mark.parametrize(
    ("apply", "draws"),
    [
        (T.Apply(film), True),
        (T.Apply(invert), False),
        (T.Apply(np.rot90), False),  # its further parameters have defaults
        (T.Apply(lambda image, strength=1, rng=None: image, name="x"), True),  # one is called rng
        (T.Apply(with_boxes, targets=True), True),
        (T.Apply(lambda image, targets: (image, targets), name="x", targets=True), False),
        (T.Apply(v2.RandomPosterize(3)), True),  # nobody knows
        (T.Apply(name="film"), True),
    ],
)
def test_a_function_that_takes_no_numbers_draws_none(apply: T.Apply, draws: bool) -> None:
    recipe = Recipe([T.CenterCrop(9), apply])
    assert (recipe.random, recipe.default_shuffle) == (draws, "full" if draws else "none")


# Fingerprint and YAML.


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (T.Apply(film), T.Apply(name="film"), True),
        (T.Apply(film), T.Apply(invert, name="film"), True),  # the code is not in it
        (T.Apply(film), T.Apply(film, name="film 2"), False),
        (T.Apply(film), T.Apply(film, targets=True), False),
        (T.Apply(film), T.Apply(film, same_size=False), False),
        (T.Apply(v2.RandomPosterize(3)), T.Apply(v2.RandomPosterize(3)), True),
        (
            T.Apply(v2.RandomPosterize(3)),
            T.Apply(v2.RandomPosterize(4)),
            False,
        ),  # a library's transform says what it does
    ],
)
def test_the_fingerprint_has_its_name(one: T.Apply, other: T.Apply, same: bool) -> None:
    prints = [
        Recipe([T.Apply(each.function, each.name, each.targets, each.same_size), CROP]).fingerprint
        for each in (one, other)
    ]
    assert (prints[0] == prints[1]) == same


def test_a_file_names_it_and_the_program_passes_it(tmp_path: Path) -> None:
    whole = Compose([CROP], views=[T.View([T.Apply(film, targets=True), JITTER, NORMAL]), T.View([NORMAL])])
    path = tmp_path / "recipe.yaml"
    path.write_text(str(whole))
    assert "Apply: {name: film, targets: true}" in str(whole)
    assert load_preset(str(path)).fingerprint == whole.fingerprint
    assert Compose.load(str(path), functions=[invert, film]) == whole


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        (
            [],
            "the recipe applies 'film', and a file holds no code: pass the function, such as Compose.load(PATH, funct",
        ),
        ([invert], "the recipe applies 'film': functions has invert"),
    ],
)
def test_a_function_that_is_missing_is_named(functions: list[Callable[..., Any]], message: str) -> None:
    with pytest.raises(PresetError) as caught:
        Compose.load(
            {"transforms": [{"RandomResizedCrop": {"size": 8}}, {"Apply": {"name": "film"}}]}, functions=functions
        )(np.zeros((9, 9, 3), np.uint8))
    assert message in str(caught.value)


# The recipes before and behind it.


@pytest.mark.parametrize("at", range(5))
def test_both_halves_draw_what_the_whole_draws(at: int) -> None:
    transforms = [CROP, FLIP, JITTER, T.GaussianBlur(3), JITTER]  # of a kind on both sides, the second draws its own
    whole = Recipe([*transforms, NORMAL, ERASE])
    first, second = Recipe([*transforms[:at], T.Apply(film), *transforms[at:], NORMAL, ERASE], batch="list").graphs
    sizes = np.array([[40, 50]] * 5)
    before = first.draw(DRAWS, sizes).views[0]
    [behind] = second.draw(DRAWS, before.placement.shape).views
    [expected] = whole.draw(DRAWS, sizes).views
    programs = np.concatenate([before.program.ops, behind.program.ops], 1)
    parameters = np.concatenate([before.program.parameters, behind.program.parameters], 1)
    assert np.array_equal(programs, expected.program.ops)
    assert np.array_equal(parameters, expected.program.parameters)
    assert behind.erased is not None
    assert np.array_equal(behind.erased, expected.erased)
    assert np.array_equal(behind.placement.shape, expected.placement.shape)


def test_a_view_without_own_code_is_cut_behind_its_geometry() -> None:
    recipe = Recipe(views=[T.View([CROP, T.Apply(film), NORMAL]), T.View([T.Pad(1), CROP, JITTER, NORMAL])])
    assert recipe.own_code is not None
    assert [None if own is None else own.called for own in recipe.own_code.functions] == ["film", None]
    first, second = recipe.graphs
    assert [[type(each).__name__ for each in view.placing] for view in first.views] == [
        ["RandomResizedCrop"],
        ["Pad", "RandomResizedCrop"],
    ]
    assert [view.shape for view in second.views] == [(16, 16)] * 2
    assert [view.number for view in second.views] == [0, 1]


@pytest.mark.parametrize(
    ("shared", "own", "same"),
    [
        ([CROP, T.Apply(film)], [[NORMAL], [JITTER, NORMAL]], (0, 0)),  # it runs once for both
        ([CROP], [[T.Apply(film), NORMAL], [T.Apply(film), NORMAL]], (0, 1)),  # drawn for each
        ([T.Apply(film)], [[CROP, NORMAL], [CROP, NORMAL]], (0, 0)),
    ],
)
def test_own_code_that_views_share_runs_once(
    shared: list[Transform], own: list[list[Transform]], same: tuple[int, ...]
) -> None:
    own_code = Recipe(shared, views=[T.View(each) for each in own]).own_code
    assert own_code is not None
    assert own_code.same == same


def test_a_recipe_without_own_code_is_not_cut() -> None:
    assert Recipe([CROP, NORMAL]).own_code is None
    assert len(Recipe([CROP, NORMAL]).graphs) == 1


@pytest.mark.parametrize(
    ("recipe", "shapes"),
    [
        (Recipe([CROP, T.Apply(film)]), [(16, 16)]),
        (Recipe([CROP, T.Apply(film, same_size=False), T.Resize((4, 6))]), [(4, 6)]),
        (Recipe([CROP, T.Apply(film, same_size=False)], batch="list"), [None]),
        (Recipe([T.Apply(film), CROP]), [(16, 16)]),
    ],
)
def test_the_size_behind_it(recipe: Recipe, shapes: list[Any]) -> None:
    assert recipe.shapes == shapes


def test_its_key_depends_on_seed_pass_sample_and_view_alone() -> None:
    keys = DRAWS.of(Stream.OWN).keys()
    assert keys.shape == (5, 2)
    assert len(np.unique(keys)) == keys.size
    assert np.array_equal(keys[[3, 1]], DRAWS.take(np.array([3, 1])).of(Stream.OWN).keys())
    others = [
        Draws(4, 1, DRAWS.ids).of(Stream.OWN),
        Draws(3, 2, DRAWS.ids).of(Stream.OWN),
        DRAWS.of(Stream.OWN, view=1),
    ]
    assert not any((other.keys() == keys).any() for other in others)
