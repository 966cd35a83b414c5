"""Resizes under a budget: the sizes of transformers' and timm's functions, written out here; PIL's pixels; what is bad.

tests/integrations/test_model_recipes.py has these functions themselves.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from making import encoded, picture, write_shard
from PIL import Image

from gpuloader import BadImages, Compose, GPULoader
from gpuloader import transforms as T
from gpuloader.errors import BadImageError, DataError
from gpuloader.recipe.budgets import BudgetResize

SIZES = np.concatenate(
    [
        np.random.default_rng(0).integers(1, 6000, (2000, 2)),
        np.random.default_rng(1).integers(1, 60, (1000, 2)),  # they grow, or a side is less than half a patch
        [[14, 14], [42, 70], [98, 56], [28, 5600], [5600, 28], [1, 1], [1, 200], [8192, 8192], [65_000, 400]],
    ]
)


def smartly_resized(height: int, width: int, factor: int, least: int, most: int) -> tuple[int, int]:
    """As Qwen2-VL resizes an image of any ratio."""
    rows, columns = round(height / factor), round(width / factor)  # half a patch goes to the even number
    if rows * columns * factor**2 > most:
        shrink = math.sqrt(height * width / most)
        rows, columns = (max(1, math.floor(side / shrink / factor)) for side in (height, width))
    elif rows * columns * factor**2 < least:
        grow = math.sqrt(least / (height * width))
        rows, columns = (math.ceil(side * grow / factor) for side in (height, width))
    return rows * factor, columns * factor


def resized_to_sequence(height: int, width: int, patch: int, most: int) -> tuple[int, int]:
    """As NaFlex and SigLIP2 resize an image."""

    def patches(scale: float) -> tuple[int, int]:
        return max(1, math.ceil(height * scale / patch)), max(1, math.ceil(width * scale / patch))

    low, high = 1e-6, 100.0
    while high - low >= 1e-5:
        middle = (low + high) / 2
        low, high = (middle, high) if math.prod(patches(middle)) <= most else (low, middle)
    rows, columns = patches(low)
    return rows * patch, columns * patch


def fitted(transform: BudgetResize, sizes: np.ndarray) -> list[list[int]]:
    made: list[list[int]] = transform.fit(sizes).tolist()
    return made


@pytest.mark.parametrize(
    ("factor", "least", "most"),
    [
        (28, 56 * 56, 1280 * 28 * 28),  # the defaults
        (28, 4 * 28 * 28, 16_384 * 28 * 28),  # as Qwen2-VL is published
        (32, 65_536, 16_777_216),  # as Qwen3-VL is
        (28, 1, 28),  # less than a patch: one patch stays
        (14, 40_000, 40_000),
    ],
)
def test_a_smart_resize_has_transformers_sizes(factor: int, least: int, most: int) -> None:
    expected = [[*smartly_resized(height, width, factor, least, most)] for height, width in SIZES.tolist()]
    assert fitted(T.SmartResize(factor, least, most), SIZES) == expected


@pytest.mark.parametrize(("patch", "most"), [(16, 256), (16, 1024), (14, 576), (32, 1), (1, 7)])
def test_a_sequence_has_timms_and_transformers_sizes(patch: int, most: int) -> None:
    expected = [[*resized_to_sequence(height, width, patch, most)] for height, width in SIZES.tolist()]
    assert fitted(T.ResizeToSequence(patch, most), SIZES) == expected


@pytest.mark.parametrize(
    ("transform", "size", "resized"),
    [
        (T.SmartResize(), (480, 640), (476, 644)),  # rounded: 17.1 and 22.9 patches
        (T.SmartResize(), (42, 98), (56, 112)),  # 1.5 and 3.5 patches go to the even numbers
        (T.SmartResize(), (20, 30), (56, 84)),  # grows to 56 x 56 pixels
        (T.SmartResize(max_pixels=256 * 28 * 28), (3000, 4000), (364, 504)),
        (T.ResizeToSequence(16, 256), (480, 640), (224, 288)),
        (T.ResizeToSequence(16, 256), (10, 10), (256, 256)),  # it enlarges
        (T.ResizeToSequence(16, 9), (1, 1), (48, 48)),
        (T.ResizeToSequence(16, 1), (1000, 1), (16, 16)),
    ],
    ids=str,
)
def test_some_sizes_by_hand(transform: BudgetResize, size: tuple[int, int], resized: tuple[int, int]) -> None:
    assert fitted(transform, np.array([size])) == [[*resized]]


def test_no_images_have_no_sizes() -> None:
    none = np.zeros((0, 2), np.int64)
    assert T.SmartResize().fit(none).shape == T.ResizeToSequence(16, 256).fit(none).shape == (0, 2)


def test_a_crop_behind_it_has_one_size_and_a_list_needs_none() -> None:
    for resize in (T.SmartResize(), T.ResizeToSequence(16, 256)):
        assert Compose([resize, T.CenterCrop(56)]).shapes == [(56, 56)]
        assert not Compose([resize], batch="list").random


@pytest.mark.parametrize("transform", [T.SmartResize(max_pixels=100 * 28 * 28), T.ResizeToSequence(16, 256)], ids=str)
def test_the_pixels_are_those_of_a_bicubic_resize_to_that_size(transform: BudgetResize) -> None:
    sizes = np.array([(300, 400), (97, 53), (501, 333), (30, 40)])
    images = [picture(height, width, seed) for seed, (height, width) in enumerate(sizes)]
    delivered = Compose([transform], batch="list", dtype="uint8")([np.asarray(image) for image in images])
    for image, pixels, (height, width) in zip(images, delivered, fitted(transform, sizes), strict=True):
        resize = Compose([T.Resize((height, width), "bicubic")], dtype="uint8")
        assert torch.equal(resize(np.asarray(image)), pixels)
        expected = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC), np.int16)
        apart = np.abs(pixels.permute(1, 2, 0).numpy() - expected)
        assert apart.max() <= 13  # PIL rounds and clips between its two passes
        assert apart.mean() <= 0.25


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of several sizes; that of number 2 has sides of 201 to 1, that of number 3 of 200 to 1."""
    sizes = [(60, 90), (120, 40), (2, 402), (400, 2), (28, 28), (33, 77)]
    samples = [{"__key__": str(n), "jpg": encoded(picture(*size, seed=n), "JPEG")} for n, size in enumerate(sizes)]
    return write_shard(tmp_path_factory.mktemp("ratios") / "a.tar", samples)


@pytest.mark.parametrize(
    "recipe",
    [
        Compose([T.SmartResize()], batch="list"),
        Compose([T.SmartResize()], batch={"pad": 28}),
        Compose([T.SmartResize(), T.CenterCrop(56)]),  # the output has one size; the cause stays
    ],
    ids=["list", "pad", "dense"],
)
def test_an_image_of_a_ratio_that_qwen_refuses_is_bad(tar: Path, recipe: Compose) -> None:
    options: dict[str, Any] = {"preset": recipe, "label_from": None, "output": "dict"}
    with GPULoader(tar, 3, "cpu", on_error=BadImages(skip=True, max_share=1), **options) as loader:
        assert [number for batch in loader for number in batch["index"].tolist()] == [0, 1, 3, 4, 5]
        cause = "SmartResize gets 402x2 pixels of it: allowed are sides of up to 200 times the other"
        assert loader.stats().bad == {2: cause}
    with GPULoader(tar, 3, "cpu", **options) as loader, pytest.raises(BadImageError, match="SmartResize gets 402x2"):
        list(loader)
    with pytest.raises(DataError, match="SmartResize gets 402x2"):
        recipe(np.zeros((2, 402, 3), np.uint8))


def test_a_batch_has_the_sizes_of_its_images(tar: Path) -> None:
    with GPULoader(
        tar,
        3,
        "cpu",
        preset=Compose([T.ResizeToSequence(16, 64)], batch="list"),
        label_from=None,
        output=("image", "size"),
    ) as loader:
        batches = list(loader)
    for images, sizes in batches:
        assert [[*image.shape[1:]] for image in images] == sizes.tolist()
        assert all(image.shape[1] * image.shape[2] <= 64 * 16 * 16 for image in images)
        assert torch.equal(sizes % 16, torch.zeros_like(sizes))
