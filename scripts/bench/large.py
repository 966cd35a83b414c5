"""Makes shards of large photographs: 3648 x 2736 pixels, 10 megapixels, JPEGs of about 2 MB.

Each is a mosaic of parts of small photographs, which keep their pixels: enlarged ones would have too little detail.
"""

from __future__ import annotations

import argparse
import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from systems.tars import Images
from webdataset import ShardWriter

WIDTH, HEIGHT = 3648, 2736
TILE_WIDTH, TILE_HEIGHT = WIDTH // 8, HEIGHT // 8
QUALITY = 92


def main(command_line: Sequence[str] | None = None) -> None:
    """Writes large-0000.tar and on."""
    parser = argparse.ArgumentParser(prog="scripts/bench/make_large", description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder for the shards")
    parser.add_argument("--count", type=int, default=256)
    parser.add_argument("--per-shard", type=int, default=128)
    parser.add_argument(
        "--from",
        dest="source",
        nargs="+",
        type=Path,
        required=True,
        help=f"shards of photographs; those of at least {TILE_WIDTH} x {TILE_HEIGHT} pixels are used",
    )
    arguments = parser.parse_args(command_line)
    photographs = [image for image in Images(arguments.source) if _is_enough(image)]
    if not photographs:
        parser.error(f"--from: no photograph there has {TILE_WIDTH} x {TILE_HEIGHT} pixels")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    pattern = str(arguments.folder / "large").replace("%", "%%") + "-%04d.tar"
    with (
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads,
        ShardWriter(pattern, arguments.per_shard, verbose=0, mtime=0) as writer,
    ):
        for number, large in enumerate(threads.map(partial(mosaic, photographs), range(arguments.count))):
            writer.write({"__key__": f"{number:06d}", "jpg": large, "cls": b"%d" % (number % 10)})


def _is_enough(photograph: bytes) -> bool:
    width, height = Image.open(io.BytesIO(photograph)).size
    return width >= TILE_WIDTH and height >= TILE_HEIGHT


def mosaic(photographs: Sequence[bytes], number: int) -> bytes:
    """A large JPEG of parts of the photographs, at random by its number."""
    draw = np.random.default_rng(number)
    large = Image.new("RGB", (WIDTH, HEIGHT))
    for top in range(0, HEIGHT, TILE_HEIGHT):
        for left in range(0, WIDTH, TILE_WIDTH):
            small = Image.open(io.BytesIO(photographs[draw.integers(len(photographs))]))
            x, y = draw.integers((small.width - TILE_WIDTH + 1, small.height - TILE_HEIGHT + 1)).tolist()
            large.paste(small.crop((x, y, x + TILE_WIDTH, y + TILE_HEIGHT)), (left, top))
    file = io.BytesIO()
    large.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


if __name__ == "__main__":
    main()
