"""Draws pictures with the classes that a net predicts."""

from __future__ import annotations

from pathlib import Path

import torch

from gpuloader.demo.pictures import CLASSES
from gpuloader.tools.sheet import Sheet, as_picture, fitting_tile

ROWS, COLUMNS = 4, 6
RIGHT, WRONG = "#1a7f37", "#c62828"


def draw_predictions(images: torch.Tensor, predicted: torch.Tensor, truth: torch.Tensor, picture: Path) -> None:
    """Draws some images as a grid; each has its prediction below, and a frame that shows whether it is right.

    Args:
        images: (N, 3, side, side) float32 in [0, 1].
        predicted, truth: (N,) int64, indices into `CLASSES`.
        picture: the file to write.
    """
    right = predicted == truth
    title = f"Predictions for pictures that the net had not seen: {int(right.sum())} of {len(right)} are right."
    if not right.all():
        title += " Wrong ones come first, in red."
    sheet = Sheet(fitting_tile(images.shape[2:]), COLUMNS, ROWS, [title])
    for place, number in enumerate(choose_shown(right)):
        is_right = bool(right[number])
        caption = [CLASSES[predicted[number]], *([] if is_right else [f"truth: {CLASSES[truth[number]]}"])]
        row, column = divmod(place, COLUMNS)
        sheet.put(row, column, as_picture(images[number]), caption, frame=RIGHT if is_right else WRONG)
    sheet.image.save(picture)


def choose_shown(right: torch.Tensor) -> list[int]:
    """Chooses indices to draw: at most a row of wrong ones, then right ones, and more wrong ones if few are right."""
    wrong = (~right).nonzero().flatten().tolist()
    return [*wrong[:COLUMNS], *right.nonzero().flatten().tolist(), *wrong[COLUMNS:]][: ROWS * COLUMNS]
