"""Crops: torchvision's geometry, as arithmetic on sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import transforms
from PIL import Image, ImageOps
from scipy import stats

from gpuloader import Compose
from gpuloader import transforms as T
from gpuloader.plan import Draw, Draws, Stream
from gpuloader.recipe import Recipe
from gpuloader.recipe.crops import random_windows, resized_shorter
from gpuloader.recipe.model import Transform
from gpuloader.recipe.placement import GeometricTransform, Placement, Size
from gpuloader.recipe.view import ViewPlan

v2 = transforms.v2
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def draw(count: int, stream: Stream = Stream.CROP) -> Draw:
    return Draws(5, 2, np.arange(count)).of(stream)


def windows(height: int, width: int, count: int, scale: tuple[float, float] = SCALE) -> np.ndarray:
    return random_windows(draw(count), np.full((count, 2), (height, width)), scale, RATIO)


def theirs(height: int, width: int, count: int, scale: tuple[float, float] = SCALE) -> np.ndarray:
    torch.manual_seed(0)
    image = torch.empty(3, height, width)
    get_params = transforms.RandomResizedCrop.get_params
    return np.array([get_params(image, list(scale), list(RATIO)) for _ in range(count)])


def placed(transform: GeometricTransform, height: int, width: int, count: int = 1) -> Placement:
    whole = Placement.whole(np.array([[height, width]] * count))
    return transform.place(whole, draw(count, transform.stream))


# Windows of random area.


# Of 100 x 400, most windows do not fit, so that the fallback is taken now and then.
@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 375), (224, 224), (100, 400), (60, 80)])
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
    scale = (1.0, 1.0) if (height, width) != (1, 1) else SCALE
    ours = windows(height, width, 50, scale)
    np.testing.assert_array_equal(np.unique(ours, axis=0), np.unique(theirs(height, width, 50, scale), axis=0))


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 2), (3, 500), (500, 3), (2, 2), (65_000, 1), (375, 500)])
def test_windows_lie_inside_the_image(height: int, width: int) -> None:
    top, left, h, w = windows(height, width, 2000).T
    assert top.min() >= 0
    assert left.min() >= 0
    assert h.min() >= 1
    assert w.min() >= 1
    assert (top + h).max() <= height
    assert (left + w).max() <= width


def test_random_resized_crop_resizes_its_window() -> None:
    crop = T.RandomResizedCrop((20, 30), (0.2, 0.6), (0.5, 2.0), "bicubic", antialias=False)
    at = placed(crop, 90, 70, 50)
    drawn = random_windows(draw(50), np.full((50, 2), (90, 70)), (0.2, 0.6), (0.5, 2.0))
    np.testing.assert_array_equal(at.window, np.concatenate([drawn[:, :2], drawn[:, :2] + drawn[:, 2:]], 1))
    assert (at.resized == (20, 30)).all()
    assert (at.interpolation, at.antialias) == ("bicubic", False)


def test_a_drawn_filter_leaves_the_windows_as_they_are() -> None:
    fixed, drawn = T.RandomResizedCrop(20), T.RandomResizedCrop(20, interpolation="random")
    one, other = placed(fixed, 90, 70, 2_000), placed(drawn, 90, 70, 2_000)
    np.testing.assert_array_equal(one.window, other.window)
    assert one.bicubic is None
    assert other.bicubic is not None
    assert abs(other.bicubic.mean() - 0.5) < 0.05
    assert (one.filters() == 1).all()
    assert (other.filters() == np.where(other.bicubic, 2, 1)).all()
    assert other.resize(other.shape, "nearest", True).bicubic is None  # a later resize has a filter of its own


def test_views_draw_their_filters_independently() -> None:
    view = Recipe([T.RandomResizedCrop(20, interpolation="random")], views=2)
    first, second = view.draw(Draws(5, 2, np.arange(2_000)), np.full((2_000, 2), 90)).views
    same = first.placement.bicubic == second.placement.bicubic
    assert abs(np.mean(same) - 0.5) < 0.05


# Sizes.


@pytest.mark.parametrize("max_size", [None, 300, 600])
def test_resize_gives_torchvisions_sizes(max_size: int | None) -> None:
    sizes = [(h, w) for h in (1, 3, 97, 224, 255, 256, 257, 375, 500, 1023) for w in (1, 2, 224, 256, 333, 500, 997)]
    for shorter in (1, 224, 256, 257):
        resize = transforms.Resize(shorter, max_size=max_size)
        for size, ours in zip(sizes, resized_shorter(np.array(sizes), shorter, max_size).tolist(), strict=True):
            if max(size) / min(size) > 100:
                continue  # torchvision makes the whole image, here of gigabytes, or of no pixels
            assert tuple(ours) == resize(Image.new("L", size[::-1])).size[::-1], (size, shorter)


@settings(deadline=None)
@given(*[st.integers(1, 90)] * 4)
def test_cover_gives_pils_sizes(height: int, width: int, rows: int, columns: int) -> None:
    view = ViewPlan([T.Resize("cover", "bicubic"), T.RandomHorizontalFlip(), T.CenterCrop((rows, columns))], 0)
    [_, at, *_] = view.draw(Draws(0, 0, np.zeros(1, np.int64)), np.array([[height, width]])).placements
    resized = ImageOps.cover(Image.new("L", (width, height)), (columns, rows))
    assert (at.shape.tolist(), at.interpolation) == ([[resized.height, resized.width]], "bicubic")


# Places.


@pytest.mark.parametrize(
    ("crop", "tops", "lefts"),
    [
        (T.RandomCrop(32, padding=2), range(-2, 3), range(-2, 3)),
        (T.RandomCrop((31, 30), padding=(0, 1)), range(-1, 3), range(3)),
        (T.RandomCrop(32, padding=(1, 0, 0, 2)), range(3), range(-1, 1)),
        (T.RandomCrop((32, 34)), range(1), range(-2, 1)),  # what the image lacks is added on both sides
    ],
    ids=str,
)
def test_corners_are_drawn_evenly_over_all_places(crop: T.RandomCrop, tops: range, lefts: range) -> None:
    places, counts = np.unique(placed(crop, 32, 32, 20_000).corner, axis=0, return_counts=True)
    assert places.tolist() == [[top, left] for top in tops for left in lefts]
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("flip", [T.RandomHorizontalFlip, T.RandomVerticalFlip])
@pytest.mark.parametrize("p", [0.0, 0.2, None, 1.0])
def test_flips_are_drawn_as_often_as_said(flip: type[T.RandomHorizontalFlip], p: float | None) -> None:
    mirrored = placed(flip() if p is None else flip(p), 3, 4, 4000).mirrored
    axis = int(flip is T.RandomHorizontalFlip)
    assert not mirrored[:, 1 - axis].any()
    assert stats.binomtest(int(mirrored[:, axis].sum()), 4000, 0.5 if p is None else p).pvalue > 1e-3


# Several views.


@pytest.mark.parametrize("size", [5, (4, 6)])
@pytest.mark.parametrize(
    ("ours", "others"),
    [
        (T.FiveCrop, v2.FiveCrop),
        (T.TenCrop, v2.TenCrop),
        (lambda size: T.TenCrop(size, vertical_flip=True), lambda size: v2.TenCrop(size, vertical_flip=True)),
    ],
    ids=["five", "ten", "ten upside down"],
)
def test_views_are_torchvisions(ours: Callable[..., Any], others: Callable[..., Any], size: Size) -> None:
    for height, width in ((5, 6), (6, 7), (12, 9), (30, 31)):
        image = torch.arange(height * width).reshape(1, height, width)
        expected = others(size)(image)
        variants = ours(size).variants()
        assert len(variants) == len(expected)
        for placing, view in zip(variants, expected, strict=True):
            at = Placement.whole(np.array([[height, width]]))
            for transform in placing:
                at = transform.place(at, draw(1, transform.stream))
            (y, x), (h, w) = at.corner[0], at.shape[0]
            down, right = np.where(at.mirrored[0], -1, 1)
            np.testing.assert_array_equal(image.numpy()[:, y : y + h, x : x + w][:, ::down, ::right], view)


# What a crop may be.


@pytest.mark.parametrize(
    "make",
    [
        lambda: T.Resize(8192, "lanczos"),
        lambda: T.Resize({0: 5, 10: 8}, max_size=9),
        lambda: T.RandomResizedCrop((1, 8192), (1, 1), (1, 1)),
        lambda: T.RandomCrop(3, (0, 1, 2, 8192), (0, 255, 1.5), "symmetric"),
    ],
)
def test_the_bounds_themselves_are_allowed(make: Callable[[], object]) -> None:
    make()


# A centre crop that is larger than what is left before it.


def least_padding(transforms_: Sequence[Transform], sides: Sequence[int]) -> float:
    """The least share of padding over pictures of these heights and widths, measured on white ones."""
    compose = Compose(transforms_, dtype="uint8")
    whites = [np.full((height, width, 3), 255, np.uint8) for height in sides for width in sides]
    return min(float((compose(white, device_id="cpu")[0] == 0).double().mean()) for white in whites)


@pytest.mark.parametrize(
    ("transforms_", "told"),
    [
        ([T.Resize(30), T.CenterCrop(40)], ("25.0%", "43.8%")),  # of any picture, of a square one
        ([T.Resize({0: 40, 5: 31}), T.CenterCrop(40)], ("22.5%",)),  # in a later epoch
        ([T.Resize(29), T.CenterCrop((40, 58))], ("27.5%",)),  # its shorter side decides
        ([T.Resize((30, 60)), T.CenterCrop((41, 50))], ("26.8%",)),
        ([T.Resize((60, 30)), T.RandomHorizontalFlip(), T.CenterCrop(42)], ("28.6%",)),
        ([T.RandomResizedCrop(24), T.CenterCrop(48)], ("75.0%",)),
        ([T.CenterCrop(28), T.CenterCrop(56)], ("75.0%",)),
        ([T.Resize(40), T.CenterCrop(40)], None),
        ([T.Resize(40), T.CenterCrop((40, 57))], None),  # a wide picture needs no padding
        ([T.Resize((40, 57)), T.CenterCrop((40, 57))], None),
        ([T.Resize("cover"), T.CenterCrop(57)], None),
        ([T.CenterCrop(57)], None),  # of pictures that may be large enough
        ([T.Resize(30), T.Pad(4), T.CenterCrop(57)], None),
        ([T.Pad(4), T.Resize(30), T.CenterCrop(57)], None),
        ([T.Resize((30, 30), pad=114), T.CenterCrop(57)], None),
        ([T.Resize(30), T.PadIfSmaller(57), T.CenterCrop(57)], None),
        ([T.Resize(30), T.Apply(lambda image: image, name="x", same_size=False), T.CenterCrop(57)], None),
        ([T.Resize(30), T.RandomCrop(57)], None),
    ],
)
def test_a_centre_crop_larger_than_what_is_left_is_told_once(
    caplog: pytest.LogCaptureFixture, transforms_: Sequence[Transform], told: Sequence[str] | None
) -> None:
    compose = Compose(transforms_)
    Compose.load(compose, dtype="float16").at(3)  # which make further recipes
    assert [record.levelname for record in caplog.records] == ["WARNING"] * (told is not None)
    assert all(share in caplog.text for share in told or ())


@pytest.mark.parametrize(
    ("resized", "share"), [(T.Resize(33), 0.25), (T.Resize((33, 50)), 0.25), (T.Resize((22, 33)), 0.625)]
)
def test_its_share_is_the_least(caplog: pytest.LogCaptureFixture, resized: T.Resize, share: float) -> None:
    assert least_padding([resized, T.CenterCrop(44)], (50, 66, 200)) == pytest.approx(share)
    assert f"at least {share:.1%}" in caplog.text
