"""Makes shards of photographs with boxes and masks, for the recipes `detect` and `segment`.

The photographs stay as they are. Boxes and masks are drawn at random, as many as COCO's pictures have: what they show
costs no time, only how many they are and how large.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from systems.tars import Images
from webdataset import ShardWriter

BOXES = 7  # on the average
REGIONS = 20
CLASSES = 80
SIDES = (0.05, 0.6)  # shares of the image's


def main(command_line: Sequence[str] | None = None) -> None:
    """Writes targets-0000.tar and on."""
    parser = argparse.ArgumentParser(prog="scripts/bench/make_targets", description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder for the shards")
    parser.add_argument("--per-shard", type=int, default=220)
    parser.add_argument(
        "--from", dest="source", nargs="+", type=Path, required=True, help="shards of photographs: key.jpg"
    )
    arguments = parser.parse_args(command_line)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    pattern = str(arguments.folder / "targets").replace("%", "%%") + "-%04d.tar"
    photographs = Images(arguments.source)
    with ShardWriter(pattern, arguments.per_shard, verbose=0, mtime=0) as writer:
        for number in range(len(photographs)):
            photograph = photographs[number]
            writer.write({"__key__": f"{number:06d}", "jpg": photograph, **targets(photograph, number)})


def targets(photograph: bytes, number: int) -> dict[str, Any]:
    """Boxes as COCO has them, and a mask of regions, at random by the photograph's number."""
    draw = np.random.default_rng(number)
    size = np.array(Image.open(io.BytesIO(photograph)).size)
    count = max(1, draw.poisson(BOXES))
    annotations = [
        {"bbox": [*start, *(end - start).round(2)], "category_id": int(label)}
        for start, end, label in zip(*_places(draw, size, count), draw.integers(CLASSES, size=count), strict=True)
    ]
    mask = Image.new("L", tuple(size.tolist()))
    for start, end in zip(*_places(draw, size, REGIONS), strict=True):
        ImageDraw.Draw(mask).ellipse([*start, *end], int(draw.integers(1, CLASSES)))
    file = io.BytesIO()
    mask.save(file, "PNG")
    return {"json": json.dumps({"annotations": annotations}, default=float).encode(), "mask.png": file.getvalue()}


def _places(
    draw: np.random.Generator, size: NDArray[np.int64], count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The upper left and the lower right corners, (count, 2) each; small places are as frequent as large ones."""
    sides = size * np.exp(draw.uniform(*np.log(SIDES), (count, 2)))
    start = draw.uniform(size=(count, 2)) * (size - sides)
    return start.round(2), (start + sides).round(2)


if __name__ == "__main__":
    main()
