"""Random numbers of other distributions, each from a fixed number of uniform numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_HALF_STEP = 2.0**-33  # shifts multiples of 2**-32 from [0, 1) into (0, 1)
_ATTEMPTS = 8


def normal(radius: NDArray[np.float64], angle: NDArray[np.float64]) -> NDArray[np.float64]:
    """Makes standard normal numbers from two uniform numbers each, by the Box-Muller transform."""
    return np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)


def beta(uniform: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Makes Beta(alpha, alpha) numbers, (n,), from (n, 2) uniform numbers.

    A Student t of 2 alpha degrees of freedom is mapped to [0, 1]. The t comes from the polar method of
    Bailey, "Polar generation of random variates with the t-distribution", Math. Comp. 62 (1994).
    """
    share = (uniform[:, 0] + _HALF_STEP) ** (1 / alpha)
    cosine = np.cos(2 * np.pi * uniform[:, 1])
    return (1 + cosine * np.sqrt((1 - share) / (share + (1 - share) * cosine**2))) / 2


def gamma_columns(alpha: float) -> int:
    """Returns the number of uniform numbers that `dirichlet` takes for each of its numbers."""
    return 1 if alpha == 1 else 1 + 3 * _ATTEMPTS


def dirichlet(uniform: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Makes Dirichlet(alpha, ..., alpha) numbers, (n, count), from (n, count, `gamma_columns(alpha)`) uniform numbers.

    Gamma numbers are divided by their sum.
    """
    logarithm = _log_gamma(uniform + _HALF_STEP, alpha)
    shares = np.exp(logarithm - logarithm.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


def _log_gamma(uniform: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Makes the logarithms of Gamma(alpha) numbers, which are too small for a float if alpha is small.

    Marsaglia and Tsang, "A simple method for generating gamma variables", ACM TOMS 26 (2000): the first accepted of 8
    attempts at Gamma(alpha + 1), times a root of a uniform number. Each attempt is accepted in more than 95 of 100
    cases, so all 8 fail less than once in 2**32.
    """
    if alpha == 1:
        return np.log(-np.log(uniform[..., 0]))
    attempts = uniform[..., 1:].reshape(*uniform.shape[:-1], _ATTEMPTS, 3)
    shape = alpha + 2 / 3
    x = normal(attempts[..., 0], attempts[..., 1])
    v = np.maximum(1 + x / np.sqrt(9 * shape), 1e-9) ** 3
    accepted = np.log(attempts[..., 2]) < x**2 / 2 + shape * (1 - v + np.log(v))
    first = accepted.argmax(axis=-1)[..., None]
    return np.log(shape * np.take_along_axis(v, first, -1)[..., 0]) + np.log(uniform[..., 0]) / alpha
