"""The recipe's key `oversampling`, and at which size a file is decoded for a draw."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from placing_recipes import RECIPES

from gpuloader import Compose
from gpuloader import transforms as T
from gpuloader.errors import PresetError
from gpuloader.plan import Draws
from gpuloader.recipe import AugmentParams, Recipe, choose_factors, load_preset

CROP = T.RandomResizedCrop(32)


@pytest.mark.parametrize("given", [None, "off", 1.5])
@pytest.mark.parametrize(
    "make",
    [
        lambda old, _: Recipe([CROP], mipmaps=old),
        lambda old, _: load_preset({"imagenet_train": {"mipmaps": old}}),
        lambda old, _: load_preset({"transforms": [CROP], "mipmaps": old}),
        lambda old, _: Compose.load("imagenet_train", mipmaps=old),
        lambda old, folder: load_preset(
            written(folder / "a.yaml", f"transforms: [CenterCrop: {{size: 8}}]\nmipmaps: {old}\n")
        ),
    ],
    ids=["Recipe", "overrides", "mapping", "Compose", "YAML"],
)
def test_the_old_key_names_the_new_one(make: Callable[[Any, Path], Any], given: Any, tmp_path: Path) -> None:  # noqa: ANN401
    with pytest.raises(PresetError, match="`oversampling`"):
        make(given, tmp_path)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


# The choice.


def draw(recipe: Recipe, size: tuple[int, int], samples: int = 1) -> AugmentParams:
    return recipe.graphs[0].draw(Draws(5, 0, np.arange(samples)), np.tile(size, (samples, 1)))


@pytest.mark.parametrize(
    ("transforms", "scale", "factor"),
    [
        # 3000 x 4000 pixels. The shorter side becomes 256: 11.7 pixels for each of these.
        ([T.Resize(256), T.CenterCrop(224)], 1, 8),
        ([T.Resize(256), T.CenterCrop(224)], 1.46, 8),
        ([T.Resize(256), T.CenterCrop(224)], 1.47, 4),
        ([T.Resize(256), T.CenterCrop(224)], 2.92, 4),
        ([T.Resize(256), T.CenterCrop(224)], 2.93, 2),
        ([T.Resize(256), T.CenterCrop(224)], 5.9, 1),
        ([T.Resize((250, 333))], 1.5, 8),  # 12 pixels, exactly
        ([T.Resize((250, 333))], 3, 4),
        ([T.Resize((250, 333))], 6, 2),
        ([T.Resize((250, 333))], 6.01, 1),
        # Both axes count: 4000 columns become 700.
        ([T.Resize((100, 700))], 1.42, 4),
        ([T.Resize((100, 700))], 1.43, 2),
        ([T.Resize((2000, 100))], 1, 1),
        # Nothing is resized, so all pixels are needed.
        ([T.CenterCrop(224)], 1, 1),
        # A canvas of 6000 x 8000 becomes 600 x 800: the picture is a quarter of it.
        ([T.RandomZoomOut(0, (2, 2), p=1.0), T.Resize((600, 800))], 1.25, 8),
        # Padding before a resize: of the whole picture, of a part, and of repeated pixels.
        ([T.Pad(100), T.Resize((100, 100))], 2, 8),
        ([T.CenterCrop(2500), T.Pad(100), T.Resize((100, 100))], 2, 1),
        ([T.Pad(100, padding_mode="reflect"), T.Resize((100, 100))], 2, 1),
        # Behind a resize it is of the output's pixels.
        ([T.Resize(100), T.RandomCrop(100, padding=8, padding_mode="reflect")], 2, 8),
        # With own code, what stands before it decides.
        ([T.Resize(250), T.Apply(np.flipud), T.RandomResizedCrop(8)], 3, 4),
        ([T.Apply(np.flipud), T.RandomResizedCrop(8)], 1, 1),
    ],
)
def test_the_smallest_size_with_enough_pixels_is_chosen(transforms: Any, scale: float, factor: int) -> None:  # noqa: ANN401
    assert choose_factors(draw(Recipe(transforms), (3000, 4000)), scale).tolist() == [factor]


side = st.integers(200, 8000)
scales = st.floats(1, 16)


@given(st.sampled_from([*RECIPES]), st.tuples(side, side), scales)
def test_the_chosen_size_is_sharp_in_all_views_and_half_of_it_is_not(
    name: str, size: tuple[int, int], scale: float
) -> None:
    params = draw(RECIPES[name], size)
    [chosen] = choose_factors(params, scale).tolist()
    ratios = []
    for view in params.views:
        [window], [resized] = view.placement.window.tolist(), view.placement.resized.tolist()
        ratios += [(Fraction(window[2 + k]) - Fraction(window[k])) / resized[k] for k in (0, 1)]
    least = float(min(ratios))  # pixels of the file for one of the output
    assert chosen in (1, 2, 4, 8)
    assert chosen == 1 or least / chosen >= scale * (1 - 1e-12)
    assert chosen == 8 or least / (2 * chosen) < scale * (1 + 1e-12)


def test_several_views_share_the_largest_of_their_sizes() -> None:
    params = draw(RECIPES["several views"], (3000, 4000), 50)
    each = [choose_factors(AugmentParams.of([view]), 1.5) for view in params.views]
    chosen = choose_factors(params, 1.5)
    assert chosen.tolist() == np.min(each, 0).tolist()
    assert len(set(chosen.tolist())) > 1


def test_of_a_smaller_copy_its_own_pixels_count() -> None:
    pictures, copies = np.array([[3000, 4000]] * 3), np.array([[3000, 4000], [1500, 2000], [512, 682]])
    params = draw(Recipe([T.Resize((100, 133))]), (3000, 4000), 3).in_files(pictures, copies)
    assert choose_factors(params, 1.5).tolist() == [8, 8, 2]  # 30, 15 and 5.1 pixels for one
    assert choose_factors(params, 2).tolist() == [8, 4, 2]


some_factors = st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=4)


@given(st.sampled_from([*RECIPES]), st.tuples(side, side), some_factors)
def test_coordinates_are_divided_exactly(name: str, size: tuple[int, int], factors: list[int]) -> None:
    params = draw(RECIPES[name], size, len(factors))
    decoded = params.decoded_at(np.array(factors))
    for before, after in zip(params.views, decoded.views, strict=True):
        assert after.placement is before.placement  # as targets and `show` need it
        for row, factor in enumerate(factors):
            assert (after.in_file.window[row] * factor).tolist() == before.placement.window[row].tolist()
            ends = before.placement.part[row, 2:].tolist()
            assert after.in_file.part[row].tolist() == [0, 0, *(-(-end // factor) for end in ends)]
            assert after.in_file.resized[row].tolist() == before.placement.resized[row].tolist()
    assert (decoded.region[:, 2:] <= -(-params.views[0].placement.part[:, 2:] // np.array(factors)[:, None])).all()
