"""Draws of pictures, on smaller copies of them: the pixels are those of the pictures."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from making import encoded
from PIL import Image
from running import as_arrays, run_views

from gpuloader import transforms as T
from gpuloader.pipelines import cut_to_region
from gpuloader.plan import Draws
from gpuloader.recipe import AugmentParams, Recipe

SIDES = (617, 999)
MIPMAPS = [(308, 499), (200, 324), (411, 666)]  # size_of(617, 999, N), where each side has a ratio of its own
SAMPLES = 9
RNG = np.random.default_rng(0)


def smooth(height: int, width: int) -> Image.Image:
    """Waves of at least 70 pixels' length, which a copy of a third of the sides shows as well."""
    y, x = np.mgrid[:height, :width] / 100
    waves = [(*RNG.uniform(-1, 1, 2), RNG.uniform(0, 6)) for _ in range(12)]
    values = [np.sin(2 * np.pi * (a * x + b * y) + phase) for a, b, phase in waves]
    levels = np.stack([np.sum(values[channel::3], 0) for channel in range(3)], 2)
    return Image.fromarray(np.rint(127 + 31 * levels).astype(np.uint8))


PICTURE = smooth(*SIDES)


def draw(recipe: Recipe) -> AugmentParams:
    """Of samples with all of EXIF's orientations, for a recipe that turns them."""
    return recipe.draw(Draws(1, 0, np.arange(SAMPLES)), np.tile(SIDES, (SAMPLES, 1)), np.arange(SAMPLES))


def on_mipmaps(params: AugmentParams) -> tuple[list[Image.Image], AugmentParams]:
    """Copies of three sizes, and for one row in four the picture itself."""
    sizes = ([*MIPMAPS, SIDES] * SAMPLES)[:SAMPLES]
    files = {size: PICTURE.resize(size[::-1], Image.Resampling.LANCZOS) for size in MIPMAPS} | {SIDES: PICTURE}
    return [files[size] for size in sizes], params.in_files(np.tile(SIDES, (SAMPLES, 1)), np.array(sizes))


RECIPES: dict[str, Callable[[], list[Any]]] = {
    "crops and flips": lambda: [T.RandomResizedCrop(48, (0.3, 1)), T.RandomHorizontalFlip(), T.RandomVerticalFlip()],
    "bicubic": lambda: [T.RandomResizedCrop(48, (0.3, 1), interpolation="bicubic")],
    "bilinear or bicubic": lambda: [T.RandomResizedCrop(48, (0.3, 1), interpolation="random")],
    "lanczos": lambda: [T.RandomResizedCrop(48, (0.3, 1), interpolation="lanczos")],
    "evaluation": lambda: [T.Resize(64), T.CenterCrop(48)],
    "whole": lambda: [T.Resize((48, 80))],
    "letterbox": lambda: [T.Resize((64, 64), pad=114)],
    "padding before": lambda: [T.Pad(100, fill=128), T.RandomResizedCrop(48, (0.3, 1))],
    "padding behind": lambda: [T.Resize(50), T.RandomCrop(48, padding=8, fill=9)],
    "reflection behind": lambda: [T.Resize(50), T.RandomCrop(48, padding=8, padding_mode="reflect")],
    "zoomed out": lambda: [T.RandomZoomOut(50, (1.5, 2), p=1.0), T.Resize((64, 64))],
}


@pytest.mark.parametrize(("name", "orientation"), [*((name, "off") for name in RECIPES), ("crops and flips", "apply")])
def test_a_mipmap_shows_what_the_picture_shows(name: str, orientation: Any) -> None:  # noqa: ANN401
    recipe = Recipe(RECIPES[name](), orientation=orientation, dtype="uint8")
    on_pictures = draw(recipe)
    files, params = on_mipmaps(on_pictures)
    images = {id(each): encoded(each, "PNG", compress_level=0) for each in files}
    both = [images[id(each)] for each in [PICTURE] * SAMPLES + files]
    for view in run_views(recipe, both, AugmentParams.joined([on_pictures, params])):
        theirs, ours = view[:SAMPLES], view[SAMPLES:]
        assert torch.equal(ours[3::4], theirs[3::4])  # those that are decoded from the picture
        difference = (ours - theirs).abs()
        # A pixel of a copy that a border of the window divides counts whole. If windows were rounded to pixels of the
        # copies, random crops would differ by 6 to 10, and by 0.4 to 0.7 on average.
        assert difference.max() <= 4
        assert difference.mean() <= 0.12


def jpeg(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90, subsampling=0, restart_marker_rows=1)
    return file.getvalue()


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe([T.RandomResizedCrop(48, (0.1, 0.6), interpolation="random"), T.Normalize((0, 0, 0), (1, 1, 1))]),
        Recipe([T.RandomResizedCrop(48, (0.1, 0.6), interpolation="bicubic")], orientation="apply"),
        Recipe(views=[T.View([T.RandomResizedCrop(32, (0.1, 0.3))], 3)]),
        Recipe([T.Pad(60), T.RandomResizedCrop(48, (0.1, 0.3))]),
    ],
    ids=["one view", "turned", "several views", "padded"],
)
def test_of_a_mipmap_the_region_and_what_is_left_of_the_file_have_the_pixels_of_all_of_it(recipe: Recipe) -> None:
    files, params = on_mipmaps(draw(recipe))
    encoded_files = [jpeg(each) for each in files]
    whole, region = (run_views(recipe, encoded_files, params, region=each) for each in (False, True))
    left, cut = cut_to_region([each.copy() for each in as_arrays(encoded_files)], params)
    assert any(len(one) < len(other) for one, other in zip(left, encoded_files, strict=True))
    from_left = run_views(recipe, [each.tobytes() for each in left], cut, region=False)
    for views in zip(whole, region, from_left, strict=True):
        assert torch.equal(views[0], views[1])
        assert torch.equal(views[0], views[2])
