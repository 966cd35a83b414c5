"""Shards like those of `gpuloader demo`, made and read in a moment: the pages' snippets run on them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
from making import encoded, write_shard
from PIL import Image

from gpuloader.demo import run
from gpuloader.demo.pictures import CLASSES, draw_size, label_of

SMALLER = 6


def write_demo_shards(folder: Path) -> None:
    """Writes train/ and val/ with the demo's names, keys and labels, but with other pictures.

    Those of val/ have the size of the demo's; those of train/ are smaller, because many snippets read all of them.
    """
    write_shards(folder / run.TRAIN_FOLDER, run.TRAIN_PICTURES, 0, SMALLER)
    write_shards(folder / run.VAL_FOLDER, run.VAL_PICTURES, 1, 1)


def write_shards(folder: Path, count: int, seed: int, smaller: int) -> None:
    """Writes shards that are named as their folder is."""
    folder.mkdir(parents=True)
    (folder / "classes.json").write_text(json.dumps(CLASSES))
    for shard, first in enumerate(range(0, count, run.PICTURES_PER_SHARD)):
        indices = range(first, min(count, first + run.PICTURES_PER_SHARD))
        samples = [sample(seed, index, smaller) for index in indices]
        write_shard(folder / f"{folder.name}-{shard:04d}.tar", samples)


def sample(seed: int, index: int, smaller: int = 1) -> dict[str, bytes | str]:
    """Like the demo's sample of that seed and index."""
    height, width = draw_size(np.random.default_rng((seed, index)))
    jpeg = smooth_jpeg(height // smaller, width // smaller)
    return {"__key__": f"{index:06d}", "jpg": jpeg, "cls": b"%d" % label_of(seed, index)}


@cache
def smooth_jpeg(height: int, width: int) -> bytes:
    """A picture without detail."""
    few = np.random.default_rng((height, width)).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return encoded(Image.fromarray(few).resize((width, height), Image.Resampling.BILINEAR), "JPEG")
