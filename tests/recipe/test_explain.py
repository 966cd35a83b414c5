"""What a recipe draws, in words: against recipes that leave it no choice, and against the pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from making import encoded, picture
from oracle import transforms as theirs
from PIL import Image

from gpuloader import Compose
from gpuloader import transforms as T
from gpuloader.recipe import Recipe, Step, explain, load_preset, preset_names
from gpuloader.recipe.model import Transform

HEIGHT, WIDTH = 60, 80
WHOLE = T.Resize((HEIGHT, WIDTH))


def steps(*transforms: Transform, epoch: int = 0, sample: int = 0) -> list[tuple[str, str | None, dict[str, Any]]]:
    [view] = explain(Recipe(transforms), 0, epoch, sample, HEIGHT, WIDTH)
    return [(step.transform, step.operation, dict(step.parameters)) for step in view.steps]


@pytest.mark.parametrize(
    ("transform", "operation", "parameters"),
    [
        (T.ColorJitter(brightness=(1.5, 1.5)), "brightness", {"factor": 1.5}),
        (T.ColorJitter(hue=(-0.25, -0.25)), "hue", {"turn": -0.25}),
        (T.RandomSolarize(128, 1.0), "solarize", {"threshold": 128}),
        (T.GaussianBlur(5, 1.5), "blur", {"sigma": 1.5, "kernel_size": 5}),
        (T.RandomRotation((30, 30)), "warp", {"degrees": 30.0, "interpolation": "nearest"}),
        (T.RandomAffine(0, scale=(0.6, 0.6)), "warp", {"scale": 0.6, "interpolation": "nearest"}),
        (T.CenterCrop((20, 40)), "crop", {"top": 20, "left": 20, "height": 20, "width": 40}),
        (T.Pad((1, 2, 3, 4)), "pad", {"top": -2, "left": -1, "height": 66, "width": 84}),
        (T.RandomHorizontalFlip(1.0), "flip", {}),
    ],
    ids=repr,
)
def test_a_transform_that_has_no_choice_does_what_its_parameters_say(
    transform: Transform, operation: str | None, parameters: dict[str, Any]
) -> None:
    assert steps(WHOLE, transform) == [
        ("Resize", "resize", {"height": HEIGHT, "width": WIDTH}),
        (type(transform).__name__, operation, parameters),
    ]


@pytest.mark.parametrize(
    ("transform", "operation", "height", "width"),
    [
        (T.RandomShortestSize(30), "resize", 30, 40),
        (T.SmartResize(28), "resize", 56, 84),
        (T.ResizeToSequence(16, 12), "resize", 48, 64),
        (T.RandomZoomOut(side_range=(2, 2), p=1), "pad", 2 * HEIGHT, 2 * WIDTH),
        (T.SanitizeBoundingBoxes(), None, None, None),
    ],
    ids=repr,
)
def test_what_detectors_draw_is_named(
    transform: Transform, operation: str | None, height: int | None, width: int | None
) -> None:
    (_, found, parameters), _ = steps(transform, T.CenterCrop(9))
    assert (found, parameters.get("height"), parameters.get("width")) == (operation, height, width)


@pytest.mark.parametrize(("p", "operation"), [(1.0, "flip"), (0.0, None)])
def test_a_flip_behind_colours_is_a_flip(p: float, operation: str | None) -> None:
    assert steps(WHOLE, T.Grayscale(), T.RandomHorizontalFlip(p))[2] == ("RandomHorizontalFlip", operation, {})


@pytest.mark.parametrize("sample", range(8))
def test_a_picture_that_pillow_crops_and_flips_as_it_says_is_the_recipes(sample: int) -> None:
    recipe = Compose([T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.RandomResizedCrop(32)], dtype="uint8")
    image = picture(HEIGHT, WIDTH, sample)
    [view] = explain(recipe, 3, 2, sample, HEIGHT, WIDTH)
    box = view.steps[2].parameters
    top, left, bottom, right = view.window
    assert (box["top"], box["left"], box["height"], box["width"]) == (top, left, bottom - top, right - left)
    made = image.crop((left, top, right, bottom)).resize((32, 32), Image.Resampling.BILINEAR)
    for step, way in zip(view.steps, (Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.FLIP_TOP_BOTTOM)):
        made = made.transpose(way) if step.operation == "flip" else made
    ours = recipe(np.asarray(image), seed=3, epoch=2, sample=sample)
    assert isinstance(ours, torch.Tensor)
    assert np.abs(ours.permute(1, 2, 0).numpy().astype(int) - np.asarray(made, int)).max() <= 1


@pytest.mark.parametrize("sample", range(4))
def test_torchvisions_affine_with_the_parameters_is_the_recipes(sample: int) -> None:
    ranges = T.RandomAffine(30, (0.2, 0.2), (0.7, 1.3), interpolation="bilinear")
    recipe = Compose([WHOLE, ranges], dtype="uint8")
    image = picture(HEIGHT, WIDTH, sample)
    given = explain(recipe, 0, 0, sample, HEIGHT, WIDTH)[0].steps[1].parameters
    made = theirs.v2.functional.affine(
        torch.from_numpy(np.array(image)).permute(2, 0, 1),
        angle=-float(given["degrees"]),
        translate=[float(given.get("move_x", 0)), float(given.get("move_y", 0))],
        scale=float(given["scale"]),
        shear=[0.0, 0.0],
        interpolation=theirs.InterpolationMode.BILINEAR,
        fill=[0.0] * 3,
    )
    ours = recipe(np.asarray(image), sample=sample)
    assert isinstance(ours, torch.Tensor)
    assert (ours.int() - made.int()).abs().float().mean() < 0.5


@pytest.mark.parametrize("sample", range(8))
def test_what_is_erased_is_the_rectangle(sample: int) -> None:
    recipe = Compose([WHOLE, T.RandomErasing(0.7, value=5.0)])
    made = recipe(encoded(picture(HEIGHT, WIDTH, sample), "PNG"), sample=sample)
    assert isinstance(made, torch.Tensor)
    expected = np.zeros((HEIGHT, WIDTH), bool)
    [_, (_, operation, box)] = steps(WHOLE, T.RandomErasing(0.7, value=5.0), sample=sample)
    if operation == "erase":
        expected[box["top"] : box["top"] + box["height"], box["left"] : box["left"] + box["width"]] = True
    else:
        assert operation is None
    assert ((made == 5.0).all(0).numpy() == expected).all()


def test_each_view_has_its_own_draws() -> None:
    first, second = explain(Recipe(views=(T.View((T.RandomResizedCrop(32),), count=2),)), 0, 0, 0, HEIGHT, WIDTH)
    assert first.shape == second.shape == (32, 32)
    assert first.window != second.window


@pytest.mark.parametrize("name", preset_names())
def test_every_transform_of_a_preset_is_said_in_its_order(name: str) -> None:
    preset = load_preset(name)
    for plan, view in zip(preset.each_view, explain(preset, 1, 2, 3, 375, 500), strict=True):
        erasing = [] if plan.erasing is None else [plan.erasing]
        listed = dict.fromkeys(step.transform for step in view.steps)
        assert list(listed) == list(
            dict.fromkeys(type(each).__name__ for each in (*plan.placing, *plan.pixels, *erasing))
        )
        assert all(isinstance(step, Step) for step in view.steps)
