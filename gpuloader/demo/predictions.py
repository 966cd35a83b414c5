"""Draws pictures with the classes that a net predicts."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image, ImageDraw

from gpuloader.demo.pictures import CLASSES

ROWS, COLUMNS = 4, 6
GAP, FRAME, TITLE, CAPTION = 14, 4, 44, 26
RIGHT, WRONG, TEXT = "#1a7f37", "#c62828", "#1d1d1f"


def draw_predictions(images: torch.Tensor, predicted: torch.Tensor, truth: torch.Tensor, picture: Path) -> None:
    """Draws some images as a grid; each has its prediction below, and a frame that shows whether it is right.

    Args:
        images: (N, 3, side, side) float32 in [0, 1].
        predicted, truth: (N,) int64, indices into `CLASSES`.
        picture: the file to write.
    """
    right = predicted == truth
    side, height = images.shape[-1], images.shape[-1] + CAPTION + GAP
    grid = Image.new("RGB", (GAP + COLUMNS * (side + GAP), TITLE + ROWS * height), "white")
    canvas = ImageDraw.Draw(grid)
    title = f"Predictions for pictures that the net had not seen: {int(right.sum())} of {len(right)} are right."
    if not right.all():
        title += " Wrong ones come first, in red."
    canvas.text((GAP, GAP), title, fill=TEXT, font_size=18)
    for place, number in enumerate(choose_shown(right)):
        row, column = divmod(place, COLUMNS)
        left, top = GAP + column * (side + GAP), TITLE + row * height
        colour = RIGHT if right[number] else WRONG
        pixels = (255 * images[number]).round().byte().permute(1, 2, 0).numpy()
        grid.paste(Image.fromarray(pixels), (left, top))
        canvas.rectangle((left, top, left + side - 1, top + side - 1), outline=colour, width=FRAME)
        caption = CLASSES[predicted[number]]
        if not right[number]:
            caption += f" (truth: {CLASSES[truth[number]]})"
        canvas.text((left, top + side + 3), caption, fill=colour, font_size=15)
    grid.save(picture)


def choose_shown(right: torch.Tensor) -> list[int]:
    """The indices to draw: first wrong ones, at most a row, then right ones, and more wrong ones if there are few."""
    wrong = (~right).nonzero().flatten().tolist()
    return [*wrong[:COLUMNS], *right.nonzero().flatten().tolist(), *wrong[COLUMNS:]][: ROWS * COLUMNS]
