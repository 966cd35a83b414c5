"""Pictures like those of `gpuloader demo`, made and read in a moment: the pages' snippets run on them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
from making import encoded, write_shard, write_tree
from PIL import Image

from gpuloader.demo import run
from gpuloader.demo.pictures import CLASSES, draw_size, label_of

SMALLER = 6
PARTS = (  # the folder's name, the number of pictures, the seed, how many times smaller they are
    (run.TRAIN_FOLDER, run.TRAIN_PICTURES, 0, SMALLER),
    (run.VAL_FOLDER, run.VAL_PICTURES, 1, 1),
)


def write_demo_shards(folder: Path) -> None:
    """Writes train/ and val/ with the demo's names, keys and labels, but with other pictures.

    Those of val/ have the size of the demo's; those of train/ are smaller, because many snippets read all of them.
    """
    for name, *of_part in PARTS:
        write_shards(folder / name, *of_part)


def write_demo_photos(folder: Path) -> None:
    """Writes the pictures of these shards as the demo does: train/CLASS/000000.jpg and so on."""
    for name, count, seed, smaller in PARTS:
        samples = (sample(seed, index, smaller) for index in range(count))
        files = {f"{CLASSES[int(each['cls'])]}/{each['__key__']}.jpg": each["jpg"] for each in samples}
        write_tree(folder / name, files)


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
