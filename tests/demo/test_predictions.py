"""The picture of predictions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image, ImageColor

from gpuloader.demo.predictions import COLUMNS, GAP, RIGHT, ROWS, TITLE, WRONG, choose_shown, draw_predictions

PLACES = ROWS * COLUMNS


@pytest.mark.parametrize(
    ("right", "drawn"),
    [
        ([True, False, True, False], [1, 3, 0, 2]),  # wrong ones come first
        ([True] * 30, list(range(PLACES))),
        ([False] * 28 + [True] * 2, [0, 1, 2, 3, 4, 5, 28, 29, *range(6, 22)]),  # but where there are few others
    ],
)
def test_which_are_drawn(right: list[bool], drawn: list[int]) -> None:
    assert choose_shown(torch.tensor(right)) == drawn


def test_a_frame_says_whether_a_prediction_is_right(tmp_path: Path) -> None:
    side, blue = 40, (0, 0, 255)
    images = torch.tensor([0.0, 0.0, 1.0]).view(1, 3, 1, 1).expand(3, 3, side, side)
    draw_predictions(images, torch.tensor([0, 1, 2]), torch.tensor([0, 1, 5]), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as grid:
        for column, colour in enumerate([WRONG, RIGHT, RIGHT]):
            left = GAP + column * (side + GAP)
            assert grid.getpixel((left, TITLE)) == ImageColor.getrgb(colour)
            assert grid.getpixel((left + side // 2, TITLE + side // 2)) == blue
