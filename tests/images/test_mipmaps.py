"""Names and sizes of copies, as rows, and sizes against fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.images.mipmaps import are_made, extension_of, side_of, size_of


@pytest.mark.parametrize(
    ("extension", "side"),
    [
        ("mip1024", 1024),
        ("mip1", 1),
        ("mip65500", 65_500),
        ("mip65501", None),  # no JPEG is larger
        ("mip0", None),
        ("mip0512", None),  # a copy has one name
        ("mip", None),
        ("mip-1", None),
        ("mip\uff15", None),  # a digit, but not ASCII
        ("mip512\n", None),
        ("MIP512", None),  # scans make extensions lower case
        ("xmip512", None),
        ("mip512.jpg", None),
        ("jpg", None),
        ("", None),
    ],
)
def test_side_of_an_extension(extension: str, side: int | None) -> None:
    assert side_of(extension) == side
    assert side is None or extension_of(side) == extension


@pytest.mark.parametrize(
    ("height", "width", "side", "expected"),
    [
        (3024, 4032, 1024, (1024, 1365)),  # 1365.33
        (4032, 3024, 1024, (1365, 1024)),
        (3024, 4032, 512, (512, 682)),
        (2000, 2000, 512, (512, 512)),
        (640, 65_500, 512, (512, 52_400)),
        (3, 10, 1, (1, 3)),
    ],
)
def test_size_of_a_mipmap(height: int, width: int, side: int, expected: tuple[int, int]) -> None:
    assert size_of(height, width, side) == expected


@given(st.integers(1, 65_500), st.integers(1, 65_500), st.integers(1, 65_500))
def test_a_mipmaps_size_is_exact(height: int, width: int, side: int) -> None:
    size = size_of(height, width, side)
    assert min(size) == side
    assert max(size) == int(Fraction(side * max(height, width), min(height, width)))
    assert size == size_of(width, height, side)[::-1]


@pytest.mark.parametrize(
    ("height", "width", "sides", "made"),
    [
        (1280, 1280, (1024, 512), True),
        (1279, 4000, (1024, 512), False),
        (4000, 1279, (512, 1024), False),  # in any order
        (1280, 4000, (1024,), True),
        (2, 9, (1,), True),
        (1, 9, (1,), False),
        (9, 9, (), False),
        (500, 200_000, (100,), True),
        (500, 200_000, (300,), False),  # 120,000 pixels are too many for a JPEG
    ],
)
def test_pictures_that_get_mipmaps(height: int, width: int, sides: tuple[int, ...], made: bool) -> None:
    assert are_made(np.array([[height, width]]), sides).tolist() == [made]
