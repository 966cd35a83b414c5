"""Normalising and erasing: torchvision's rectangles, drawn as it draws them."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from oracle import transforms
from scipy import stats

from gpuloader import transforms as T
from gpuloader.plan import Draws

v2 = transforms.v2
COUNT = 4000


def erased(transform: T.RandomErasing, height: int, width: int, count: int = COUNT) -> np.ndarray:
    """(n, 6): top, left, height, width; two words."""
    return transform.draw(Draws(5, 2, np.arange(count)).of(transform.stream), np.array([[height, width]]))


def theirs(transform: T.RandomErasing, height: int, width: int) -> np.ndarray:
    """(n, 4); all 0 where torchvision found no rectangle."""
    torch.manual_seed(0)
    others, image = v2.RandomErasing(1.0, transform.scale, transform.ratio), torch.empty(3, height, width)
    drawn = [others.make_params([image]) for _ in range(COUNT)]
    return np.array([[each[name] if each["v"] is not None else 0 for name in ("i", "j", "h", "w")] for each in drawn])


@pytest.mark.parametrize(
    ("scale", "ratio", "height", "width"),
    [
        ((0.02, 0.33), (0.3, 3.3), 224, 224),
        ((0.02, 1 / 3), (0.3, 1 / 0.3), 96, 160),
        ((0.1, 0.9), (0.5, 4.0), 160, 96),
        ((0.9, 1.0), (0.2, 5.0), 60, 60),  # now and then none of ten fits
        ((0.02, 0.33), (0.3, 3.3), 9, 14),
    ],
)
def test_rectangles_are_distributed_as_torchvisions(
    scale: tuple[float, float], ratio: tuple[float, float], height: int, width: int
) -> None:
    transform = T.RandomErasing(1.0, scale, ratio)
    ours, others = erased(transform, height, width)[:, :4], theirs(transform, height, width)
    found = [int((drawn[:, 2] > 0).sum()) for drawn in (ours, others)]
    if min(found) < COUNT:
        assert stats.chi2_contingency([[n, COUNT - n] for n in found]).pvalue > 1e-3

    def measures(drawn: np.ndarray) -> dict[str, np.ndarray]:
        top, left, h, w = drawn[drawn[:, 2] > 0].T
        return {
            "area": h * w,
            "ratio": h / w,
            "height": h,
            "width": w,
            "top within its range": (top + 0.5) / (height - h + 1),
            "left within its range": (left + 0.5) / (width - w + 1),
        }

    for name, values in measures(ours).items():
        assert stats.ks_2samp(values, measures(others)[name]).pvalue > 1e-3, name


def test_rectangles_are_smaller_than_the_image_and_within_it() -> None:
    for height, width in ((1, 1), (2, 2), (1, 50), (50, 3), (40, 60)):
        top, left, h, w, *_ = erased(T.RandomErasing(1.0, (0.01, 1.0)), height, width).T
        assert min(top.min(), left.min(), h.min(), w.min()) >= 0
        assert (top + h).max() <= height
        assert (left + w).max() <= width
        assert h.max() < height
        assert w.max() < width


@pytest.mark.parametrize("p", [0.0, 0.25, None, 1.0])
def test_p_says_only_whether(p: float | None) -> None:
    drawn = erased(T.RandomErasing() if p is None else T.RandomErasing(p), 64, 64)
    all_drawn = erased(T.RandomErasing(1.0), 64, 64)
    applied = drawn[:, 2] > 0
    assert stats.binomtest(int(applied.sum()), COUNT, 0.5 if p is None else p).pvalue > 1e-3
    np.testing.assert_array_equal(drawn[applied], all_drawn[applied])
    assert not drawn[~applied, :4].any()
    np.testing.assert_array_equal(drawn[:, 4:], all_drawn[:, 4:])


def test_several_rectangles_share_the_area_evenly_and_as_many_are_drawn_as_each_number() -> None:
    drawn = erased(T.RandomErasing(1.0, (0.2, 0.3), count=3), 400, 400).reshape(COUNT, 3, 6)
    found = (drawn[:, :, 2] > 0).sum(1)
    assert stats.chisquare(np.bincount(found, minlength=4)[1:]).pvalue > 1e-3
    areas = drawn[:, :, 2] * drawn[:, :, 3] / 400**2
    for count in (1, 2, 3):
        shares = areas[found == count][:, :count].ravel() * count
        assert ((shares > 0.195) & (shares < 0.305)).all()
    assert abs(np.corrcoef(drawn[found == 3][:, :, 0].T) - np.eye(3)).max() < 0.1  # they are drawn independently
    assert len(np.unique(drawn[:, :, 4].ravel())) == 3 * COUNT


def test_one_rectangle_is_drawn_as_before() -> None:
    digest = hashlib.sha256(np.ascontiguousarray(erased(T.RandomErasing(0.5), 64, 48)).tobytes()).hexdigest()
    assert digest == "3652d2fbbfa38f017d0bea1acb1f460413f572ae3ff5b77b7b9d1b0ed69ff23f"


def test_each_sample_has_a_key_of_64_even_bits() -> None:
    drawn = erased(T.RandomErasing(1.0, value="random"), 64, 64)
    assert drawn.dtype == np.int32
    keys = np.ascontiguousarray(drawn[:, 4:]).view(np.uint32)
    assert len(np.unique(keys, axis=0)) == COUNT
    for word in keys.T:
        assert stats.kstest(word / 2**32, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(drawn[:, :4].T, keys.T.astype(float))[:4, 4:]).max() < 0.06


def test_images_of_several_sizes_are_erased_as_those_of_one_size() -> None:
    sizes = np.array([[64, 48], [30, 70]] * 50)
    together = T.RandomErasing(1.0).draw(Draws(5, 2, np.arange(100)).of(T.RandomErasing.stream), sizes)
    for row, (height, width) in enumerate(sizes[:2].tolist()):
        np.testing.assert_array_equal(together[row::2], erased(T.RandomErasing(1.0), height, width)[row:100:2])
