"""Crops: torchvision's geometry, as arithmetic on sizes."""

import numpy as np
import pytest
import torch
from oracle import transforms
from PIL import Image
from scipy import stats

from gpuloader.plan import Draws
from gpuloader.recipe import CenterCrop, RandomPaddedCrop, RandomResizedCrop
from gpuloader.recipe.crops import random_windows, resize_shorter

AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def windows(height: int, width: int, count: int, area: tuple[float, float] = AREA) -> np.ndarray:
    sizes = np.full(count, height), np.full(count, width)
    return random_windows(Draws(5, 2, np.arange(count)), *sizes, area, RATIO)


def theirs(height: int, width: int, count: int, area: tuple[float, float] = AREA) -> np.ndarray:
    torch.manual_seed(0)
    image = torch.empty(3, height, width)
    draw = transforms.RandomResizedCrop.get_params
    return np.array([draw(image, list(area), list(RATIO)) for _ in range(count)])


@pytest.mark.parametrize(
    ("height", "width"),
    [
        (375, 500),
        (500, 375),
        (224, 224),
        (100, 400),  # most windows do not fit, so that the fallback is taken now and then
        (60, 80),
    ],
)
def test_windows_are_distributed_as_torchvisions(height: int, width: int) -> None:
    count = 6000
    ours, others = windows(height, width, count), theirs(height, width, count)

    def measures(drawn: np.ndarray) -> dict[str, np.ndarray]:
        top, left, h, w = drawn.T
        return {
            "area": h * w,
            "ratio": w / h,
            "height": h,
            "width": w,
            "top": top,
            "left": left,
            "top within its range": (top + 0.5) / (height - h + 1),
            "left within its range": (left + 0.5) / (width - w + 1),
        }

    for name, values in measures(ours).items():
        assert stats.ks_2samp(values, measures(others)[name]).pvalue > 1e-3, name


@pytest.mark.parametrize(
    ("height", "width"),
    [(10, 1000), (1000, 10), (1, 1), (2, 20000), (1, 3), (7, 5)],  # here no window of the ratio fits
)
def test_the_fallback_is_torchvisions(height: int, width: int) -> None:
    area = (1.0, 1.0) if (height, width) != (1, 1) else AREA
    ours = windows(height, width, 50, area)
    np.testing.assert_array_equal(np.unique(ours, axis=0), np.unique(theirs(height, width, 50, area), axis=0))


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 2), (3, 500), (500, 3), (2, 2), (65_000, 1), (375, 500)])
def test_windows_lie_inside_the_image(height: int, width: int) -> None:
    top, left, h, w = windows(height, width, 2000).T
    assert top.min() >= 0
    assert left.min() >= 0
    assert h.min() >= 1
    assert w.min() >= 1
    assert (top + h).max() <= height
    assert (left + w).max() <= width


def test_a_window_depends_on_its_sample_alone() -> None:
    heights, widths = np.arange(50, 150), np.arange(250, 150, -1)
    together = random_windows(Draws(0, 0, np.arange(100)), heights, widths, AREA, RATIO)
    alone = [
        random_windows(Draws(0, 0, np.array([n])), heights[n : n + 1], widths[n : n + 1], AREA, RATIO)[0]
        for n in range(100)
    ]
    np.testing.assert_array_equal(together, alone)


def test_resize_gives_torchvisions_sizes() -> None:
    sizes = [(h, w) for h in (1, 3, 97, 224, 255, 256, 257, 375, 500, 1023) for w in (1, 2, 224, 256, 333, 500, 997)]
    for shorter in (1, 224, 256, 257):
        resize = transforms.Resize(shorter)
        heights, widths = resize_shorter(*(np.array(side) for side in zip(*sizes, strict=True)), shorter)
        for (height, width), ours in zip(sizes, zip(heights, widths, strict=True), strict=True):
            if max(height, width) / min(height, width) > 100:
                continue  # torchvision makes the whole image, here of gigabytes
            assert ours == resize(Image.new("L", (width, height))).size[::-1], (height, width, shorter)


def test_the_centre_needs_little_of_a_long_image() -> None:
    crop = CenterCrop(kind="center", resize=256)
    arrays = crop.arrays(224, Draws(0, 0, np.arange(1)), np.array([2]), np.array([20_000]))
    assert arrays["region_shape"].tolist() == [[2, 6]]  # resized whole it would be 256 x 2,560,000


def test_regions_lie_inside_the_image() -> None:
    rng = np.random.default_rng(0)
    heights, widths = rng.integers(1, 3000, 5000), rng.integers(1, 3000, 5000)
    draws = Draws(0, 0, np.arange(5000))
    for crop in (
        RandomResizedCrop(kind="random_resized"),
        CenterCrop(kind="center", resize=256),
        RandomPaddedCrop(kind="random_padded"),
    ):
        arrays = crop.arrays(224, draws, heights, widths)
        start, shape = arrays["region_start"], arrays["region_shape"]
        assert start.min() >= 0
        assert shape.min() >= 1
        assert (start + shape <= np.stack([heights, widths], 1)).all()
        for array in arrays.values():
            assert array.flags.c_contiguous


def test_padded_corners_are_drawn_evenly_over_all_places() -> None:
    size = np.full(20_000, 32)
    arrays = RandomPaddedCrop(kind="random_padded", padding=2).arrays(32, Draws(0, 0, np.arange(20_000)), size, size)
    places, counts = np.unique(arrays["corner"], axis=0, return_counts=True)
    assert places.tolist() == [[y, x] for y in range(-2, 3) for x in range(-2, 3)]
    assert stats.chisquare(counts).pvalue > 1e-3
