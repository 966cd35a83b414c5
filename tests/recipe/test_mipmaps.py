"""The recipe's key `mipmaps`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpuloader import Compose
from gpuloader.errors import PresetError
from gpuloader.recipe import Recipe, load_preset, preset_names
from gpuloader.transforms import Apply, CenterCrop, RandomIoUCrop, RandomResizedCrop, Resize, View

CROP = RandomResizedCrop(32)


def negate(image: Any) -> Any:  # noqa: ANN401
    return 255 - image


@pytest.mark.parametrize("given", [None, "off", False, 1, 1.5, 16])
def test_it_is_off_or_says_how_sharp_a_copy_has_to_be(given: Any) -> None:  # noqa: ANN401
    recipe = Recipe([CROP], mipmaps=given)
    assert recipe.mipmap_scale == (given or None if given != "off" else None)
    assert load_preset({"imagenet_train": {"mipmaps": given}}).mipmap_scale == recipe.mipmap_scale
    assert ("mipmaps" in recipe.pixels) == (recipe.mipmap_scale is not None)
    assert load_preset({"transforms": [CROP], "mipmaps": given}) == recipe


@pytest.mark.parametrize("given", [0.99, 16.1, float("nan"), float("inf"), True, "on", "1.5", [1.5]])
def test_another_value_is_refused(given: Any) -> None:  # noqa: ANN401
    with pytest.raises(PresetError, match=r"`Recipe\.mipmaps`: found"):
        Recipe([CROP], mipmaps=given)


def test_it_is_shown_as_the_other_keys() -> None:
    assert str(Compose([CROP], mipmaps=1.5)).splitlines()[-1] == "mipmaps: 1.5"
    assert repr(Recipe([CROP], mipmaps="off")).endswith(", mipmaps='off')")
    assert "mipmaps" not in str(Compose([CROP]))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda m: Recipe([Resize((32, 32), antialias=False)], mipmaps=m), "without antialiasing"),
        (lambda m: Recipe([Resize((32, 32), "nearest")], mipmaps=m), "without antialiasing"),
        (
            lambda m: Recipe(views=[View([CROP]), View([RandomResizedCrop(32, antialias=False)])], mipmaps=m),
            "without antialiasing",
        ),
        (lambda m: Recipe([RandomIoUCrop(), Resize((32, 32))], mipmaps=m), "RandomIoUCrop draws by boxes"),
        (lambda m: load_preset("ssd", {"mipmaps": m}), "draws by boxes"),
        # What stands in front of own code gets the files.
        (
            lambda m: Recipe([Resize((99, 99), antialias=False), Apply(negate), CROP], mipmaps=m),
            "without antialiasing",
        ),
    ],
)
def test_recipes_that_can_take_no_copies_say_why(make: Callable[[Any], Recipe], says: str) -> None:
    with pytest.raises(PresetError, match=rf"`mipmaps` 1.5 is not for this recipe: .*{says}.*, or leave `mipmaps` out"):
        make(1.5)
    for off in (None, "off"):
        assert says in make(off).refuses_mipmaps


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe([CROP, Apply(negate), Resize((16, 16), antialias=False)], mipmaps=2),  # behind it there are no files
        Recipe(views=[View([CROP, Apply(negate)]), View([CROP])], mipmaps=2),
    ],
)
def test_with_own_code_the_recipe_before_it_takes_copies(recipe: Recipe) -> None:
    assert recipe.links is not None
    assert recipe.links.first.mipmap_scale == 2
    assert {each.mipmap_scale for each in recipe.links.second} == {None}


def test_all_presets_may_take_copies_but_those_without_antialiasing() -> None:
    refused = {name for name in preset_names() if load_preset(name).refuses_mipmaps}
    assert refused == {"detection", "detection_eval", "ssd", "ssd_eval", "ssdlite", "ssdlite_eval"}


def test_a_call_on_images_takes_the_images() -> None:
    image = np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8)
    one, other = (Compose([CenterCrop(64), Resize((32, 32))], mipmaps=m)(image, seed=1) for m in (None, 1.5))
    assert one.equal(other)
