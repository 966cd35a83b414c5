"""The picture of buckets: it is what the script draws, and its bars are the pictures of each bucket."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict

import pytest
from drawing import BUCKETS, COLORS, PICTURE, draw_buckets, made_up_sizes


def test_the_picture_is_the_scripts() -> None:
    assert PICTURE.read_text() == draw_buckets(made_up_sizes(), BUCKETS), "run scripts/operations"


def test_the_bars_have_the_pictures_of_the_nearest_buckets() -> None:
    expected: Counter[str] = Counter()
    for height, width in made_up_sizes().tolist():
        distances = [abs(math.log(width / height * tall / wide)) for tall, wide in BUCKETS.shapes]
        expected[COLORS[distances.index(min(distances)) % 2]] += 1
    drawn: defaultdict[str, float] = defaultdict(float)
    for height, color in re.findall(r'height="([\d.]+)" fill="(.*?)"', PICTURE.read_text()):
        drawn[color] += float(height)
    share = expected[COLORS[0]] / expected.total()
    assert drawn[COLORS[0]] / sum(drawn.values()) == pytest.approx(share, abs=0.003)  # heights are rounded
    assert 0.2 < share < 0.8
