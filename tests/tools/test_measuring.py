"""The batch size that is measured."""

from __future__ import annotations

import pytest

from gpuloader.errors import ConfigError
from gpuloader.tools.measuring import fitting_batch_size


@pytest.mark.parametrize(
    ("asked", "samples", "measured"),
    [
        (None, 1_000_000, 128),
        (None, 128, 128),
        (None, 127, 64),
        (None, 40, 32),
        (None, 1, 1),
        (256, 1000, 256),  # what was asked for stays
        (40, 40, 40),
    ],
)
def test_a_batch_fits_the_samples(asked: int | None, samples: int, measured: int) -> None:
    assert fitting_batch_size(asked, samples) == measured


def test_a_batch_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(
        ConfigError, match="batch_size=41: the shards have 40 samples; give at most that, or leave it out"
    ):
        fitting_batch_size(41, 40)
