"""Normal, Beta and Dirichlet numbers, against scipy."""

import numpy as np
import pytest
from scipy import stats

from gpuloader.plan import Draws, Stream
from gpuloader.recipe.distributions import beta, dirichlet, gamma_columns, normal

SAMPLES = 20_000
LAST = 1 - 2.0**-32  # the greatest uniform number


def uniform(count: int) -> np.ndarray:
    return Draws(7, 1, np.arange(SAMPLES)).of(Stream.MIX)(count)


def test_normal_numbers() -> None:
    assert stats.kstest(normal(*uniform(2).T), "norm").pvalue > 1e-3


@pytest.mark.parametrize("alpha", [0.2, 0.4, 0.8, 1.0, 3.0, 50.0])
def test_beta_numbers(alpha: float) -> None:
    assert stats.kstest(beta(uniform(2), alpha), "beta", (alpha, alpha)).pvalue > 1e-3


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("alpha", [0.2, 0.5, 1.0, 1.5, 20.0])
def test_dirichlet_numbers(alpha: float, count: int) -> None:
    columns = gamma_columns(alpha)
    drawn = dirichlet(uniform(count * columns).reshape(SAMPLES, count, columns), alpha)
    np.testing.assert_allclose(drawn.sum(axis=1), 1)
    for number in drawn.T:
        assert stats.kstest(number, "beta", (alpha, (count - 1) * alpha)).pvalue > 1e-3
    if count > 2:  # they hang together as they should: the sum of two is Beta, too
        assert stats.kstest(drawn[:, 0] + drawn[:, 1], "beta", (2 * alpha, (count - 2) * alpha)).pvalue > 1e-3


@pytest.mark.parametrize("alpha", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("number", [0.0, LAST])
def test_the_least_and_greatest_uniform_numbers_are_no_exception(number: float, alpha: float) -> None:
    assert np.isfinite(normal(np.array([number]), np.array([number]))).all()
    assert 0 <= beta(np.full((1, 2), number), alpha)[0] <= 1
    np.testing.assert_allclose(dirichlet(np.full((1, 3, gamma_columns(alpha)), number), alpha), 1 / 3)
