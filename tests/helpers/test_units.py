"""Numbers as people say them."""

import pytest

from gpuloader.helpers.units import format_bytes


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 B"), (999, "999 B"), (66_900, "66.9 kB"), (46_059_520, "46.1 MB"), (2e12, "2 TB")]
)
def test_bytes_are_said_in_three_digits(count: float, said: str) -> None:
    assert format_bytes(count) == said
