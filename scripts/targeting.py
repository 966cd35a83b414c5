"""Draws docs/targets.jpg: what the page's loader delivers of a scene in six epochs, with boxes, outlines and points."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from snippets import snippets_of

PAGE = Path(__file__).resolve().parents[1] / "docs/targets.md"
ZOOM, EPOCHS, GAP = 2, 6, 12
COLORS = ((255, 120, 90), (255, 225, 120), (130, 230, 150))


def main() -> None:
    """Runs the page's snippets, and draws the first sample in six epochs."""
    names: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for snippet in snippets_of(PAGE):
            exec(snippet.code, names)
        pictures = []
        for epoch in range(EPOCHS):
            names["loader"].set_epoch(epoch)
            [found] = [row for batch in names["loader"] for row in rows(batch) if row["index"] == 0]
            pictures.append(drawn(found))
    side = pictures[0].width
    sheet = Image.new("RGB", (EPOCHS * (side + GAP) - GAP, side), "white")
    for number, picture in enumerate(pictures):
        sheet.paste(picture, (number * (side + GAP), 0))
    sheet.save(PAGE.with_suffix(".jpg"), quality=85)


def rows(batch: dict[str, Any]) -> list[dict[str, Any]]:
    """The samples of a batch."""
    return [
        {name: value[row] for name, value in batch.items() if value is not None} for row in range(len(batch["key"]))
    ]


def drawn(sample: dict[str, Any]) -> Image.Image:
    """The image with its targets: outlines lighter, boxes and points above them."""
    pixels = (255 * sample["image"]).permute(1, 2, 0) if sample["image"].is_floating_point() else sample["image"]
    shown = pixels.to(torch.float32).numpy()
    for outline in sample["outlines"].numpy().astype(bool):
        shown[outline] = 0.65 * shown[outline] + 0.35 * 255
    image = Image.fromarray(shown.astype(np.uint8))
    image = image.resize((ZOOM * image.width, ZOOM * image.height), Image.Resampling.LANCZOS)
    pen = ImageDraw.Draw(image)
    for box, label in zip(sample["boxes"].tolist(), sample["boxes_labels"].tolist()):
        pen.rectangle([ZOOM * side for side in box], outline=COLORS[label], width=3)
    for points, seen in zip(sample["points"].tolist(), sample["points_visibility"].tolist()):
        for number, ((x, y), visible) in enumerate(zip(points, seen)):
            if visible:
                place = [ZOOM * x - 5, ZOOM * y - 5, ZOOM * x + 5, ZOOM * y + 5]
                pen.ellipse(place, fill=["black", "white"][number], outline=["white", "black"][number], width=2)
    return image


if __name__ == "__main__":
    main()
