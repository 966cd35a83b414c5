"""Colour jitter's draws: torchvision's factors and order. The arithmetic is tested with the graph."""

import numpy as np
import pytest
from scipy import stats

from gpuloader.plan import Draws
from gpuloader.recipe import ColorJitter
from gpuloader.recipe.jitter import CONTRAST, HUE, MATRIX

ALL = ColorJitter(brightness=0.4, contrast=1.5, saturation=0.3, hue=0.1)


def arrays(jitter: ColorJitter, count: int = 4000) -> dict[str, np.ndarray]:
    return jitter.arrays(Draws(3, 1, np.arange(count)))


def test_every_order_of_the_operations_is_drawn_equally_often() -> None:
    drawn = arrays(ALL)
    # Brightness and saturation are both matrices: brightness's is diagonal.
    diagonal = (drawn["jitter_matrix"] * (1 - np.eye(3)) == 0).all(axis=(2, 3))
    kinds = np.where((drawn["jitter_kind"] == MATRIX) & ~diagonal, 3, drawn["jitter_kind"])
    orders, counts = np.unique(kinds, axis=0, return_counts=True)
    assert len(orders) == 24
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("brightness", 0.6, 1.4),
        ("contrast", 0.0, 2.5),  # 1 - 1.5 is cut at 0, as torchvision does
        ("saturation", 0.7, 1.3),
        ("hue", -0.1, 0.1),
    ],
)
def test_factors_are_even_over_torchvisions_range(name: str, low: float, high: float) -> None:
    jitter = ColorJitter(**{name: getattr(ALL, name)})
    drawn = arrays(jitter)
    if name == "hue":
        factors = drawn["jitter_hue"][:, 0]
    elif name == "saturation":  # f + (1 - f) 0.299 stands at the red of red
        factors = (drawn["jitter_matrix"][:, 0, 0, 0] - 0.299) / 0.701
    else:
        factors = drawn["jitter_matrix"][:, 0, 0, 0]
    assert stats.kstest(factors, "uniform", (low, high - low)).pvalue > 1e-3


@pytest.mark.parametrize(
    ("jitter", "kinds"),
    [
        (ColorJitter(hue=0.5), {HUE}),
        (ColorJitter(contrast=0.1), {CONTRAST}),
        (ColorJitter(brightness=0.1, saturation=0.1), {MATRIX}),
        (ALL, {MATRIX, CONTRAST, HUE}),
    ],
)
def test_only_what_the_recipe_has_is_a_step(jitter: ColorJitter, kinds: set[int]) -> None:
    drawn = arrays(jitter, 50)
    assert set(drawn["jitter_kind"].ravel().tolist()) == kinds
    assert {array.shape[1] for array in drawn.values()} == {len(jitter.operations)}
    assert all(array.flags.c_contiguous for array in drawn.values())
