"""Procedural pictures of ten classes, written as JPEGs in WebDataset shards and in class folders.

A picture is two rough, unevenly coloured surfaces; the upper one is cut in the pattern of the picture's class. Colours,
texture, size, angle and position are drawn independently of the class, so only the pattern distinguishes classes.
"""

from __future__ import annotations

import io
import json
import math
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gpuloader.base.atomic_files import write_sample
from gpuloader.base.cores import available_cores
from gpuloader.shards.class_names import CLASSES_FILE

Floats = NDArray[np.floating]  # float32 throughout
Shape = Callable[[Floats, Floats], Floats]
Pattern = Callable[[Floats, Floats, np.random.Generator], Floats]

SQUARES = 8  # the sides of the plane, in units


def _radius(u: Floats, v: Floats) -> Floats:
    return np.sqrt(u * u + v * v)


def _spiral(u: Floats, v: Floats) -> Floats:
    radius = _radius(u, v)
    return np.minimum(0.12 * np.cos(np.arctan2(v, u) - 10 * radius), 1 - radius)


def _cross(u: Floats, v: Floats) -> Floats:
    u, v = abs(u), abs(v)
    return np.minimum(0.95 - np.maximum(u, v), 0.28 - np.minimum(u, v))


def _blobs(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """Outlines islands and lakes: ripples from six sides."""
    total = np.zeros_like(x)
    for turn in np.linspace(0, math.pi, 6, endpoint=False).tolist():
        length, phase = rng.uniform(6, 9), rng.uniform(0, 2 * math.pi)
        total += np.cos(length * (math.cos(turn) * x + math.sin(turn) * y) + phase)
    return total / 14


def _scatter(shape: Shape) -> Pattern:
    """Makes the pattern with one copy of `shape` in each unit square, turned, sized and placed at random."""

    def pattern(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
        row, column = np.divmod(np.arange(SQUARES**2), SQUARES)
        radius, turn = rng.uniform(0.36, 0.46, row.size), rng.uniform(0, 2 * math.pi, row.size)
        middle = np.array([column, row]) + 0.5 + (0.48 - radius) * rng.uniform(-1, 1, (2, row.size))
        table = np.array([*middle, np.cos(turn) / radius, np.sin(turn) / radius], np.float32)
        square = SQUARES * y.astype(np.intp) + x.astype(np.intp)
        middle_x, middle_y, cos, sin = (np.take(values, square) for values in table)
        u, v = x - middle_x, y - middle_y
        return 0.4 * shape(cos * u - sin * v, sin * u + cos * v)

    return pattern


# A pattern maps the coordinates x, y of the plane to roughly the distance to its outline, negative outside; it gets a
# generator for its free choices. A shape does so for u, v; it fits into the unit circle.
PATTERNS: dict[str, Pattern] = {
    "blobs": _blobs,
    "checks": lambda x, y, rng: np.cos(6 * x) * np.cos(6 * y) / 6,
    "crosses": _scatter(_cross),
    "disks": _scatter(lambda u, v: 0.9 - _radius(u, v)),
    "flowers": _scatter(lambda u, v: 0.65 + 0.35 * np.cos(5 * np.arctan2(v, u)) - _radius(u, v)),
    "rings": _scatter(lambda u, v: 0.22 - abs(0.75 - _radius(u, v))),
    "spirals": _scatter(_spiral),
    "stripes": lambda x, y, rng: np.cos(9 * x) / 9,
    "triangles": _scatter(lambda u, v: 0.5 - np.maximum(0.866 * abs(u) + 0.5 * v, -v)),
    "waves": lambda x, y, rng: np.cos(9 * (x + np.sin(6 * y) / 4.5)) / 14,
}
CLASSES: tuple[str, ...] = tuple(PATTERNS)


def plane(height: int, width: int, rng: np.random.Generator) -> tuple[Floats, Floats, float]:
    """Draws x, y of each pixel, both (height, width), turned and shifted at random, and the pixels to a unit."""
    unit = min(height, width) / rng.uniform(2.8, 4)
    turn, shift_x, shift_y = rng.uniform(0, 2 * math.pi), rng.uniform(-0.5, 0.5), rng.uniform(-0.5, 0.5)
    cos, sin = math.cos(turn) / unit, math.sin(turn) / unit
    columns = np.arange(width, dtype=np.float32) - width / 2
    rows = np.arange(height, dtype=np.float32)[:, None] - height / 2
    x = SQUARES / 2 + shift_x + cos * columns - sin * rows
    y = SQUARES / 2 + shift_y + sin * columns + cos * rows
    return x, y, unit


def stretch(planes: Floats, height: int, width: int) -> Floats:
    """Enlarges `planes`, of shape (C, h, w), smoothly to (C, height, width)."""
    images = (Image.fromarray(plane).resize((width, height), Image.Resampling.BICUBIC) for plane in planes)
    return np.stack([np.asarray(image) for image in images])


def surface(height: int, width: int, brightness: float, rng: np.random.Generator) -> Floats:
    """Draws (3, height, width) levels about 255 * `brightness`, drifting around a random hue, rough at three scales."""
    hue = rng.random() + rng.uniform(-0.1, 0.1, (3, 4)) + np.arange(3)[:, None, None] / 3
    light = 255 * brightness * rng.uniform(0.8, 1.2, (3, 4))
    colours = (light * (1 + rng.uniform(0.1, 0.7) * np.cos(2 * math.pi * hue))).astype(np.float32)
    for scale, most in ((24, 50), (5, 50), (1, 40)):
        grain = rng.random((height // scale, width // scale), dtype=np.float32) - 0.5
        grain *= rng.uniform(0.2, 1) * most
        colours = stretch(colours, *grain.shape)
        colours += grain
    return colours


def draw_size(rng: np.random.Generator) -> tuple[int, int]:
    """Draws a height and width: 300 to 640 pixels long, upright or lying."""
    long = rng.triangular(300, 500, 640)
    height, width = sorted((int(long), int(0.75 * long)), reverse=rng.random() < 0.3)
    return height, width


def draw(label: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draws a picture of class `CLASSES[label]`: (H, W, 3) RGB, of the size that `draw_size` gives."""
    height, width = draw_size(rng)
    throw = height // 50 + 1  # how many pixels the upper surface casts its shadow down and right
    x, y, unit = plane(height + throw, width + throw, rng)
    depth = PATTERNS[CLASSES[label]](x, y, rng) * unit
    shadow = np.clip(depth[:-throw, :-throw] / (2 * throw) + 0.5, 0, 1)
    depth = depth[throw:, throw:]
    dark, bright = rng.permutation([rng.uniform(0.2, 0.4), rng.uniform(0.6, 0.8)])
    lower, upper = surface(height, width, dark, rng), surface(height, width, bright, rng)
    lower *= 1 - 0.6 * shadow
    upper *= 0.7 + 0.3 * np.clip(depth / throw, 0, 1)
    upper -= lower
    upper *= np.clip(depth + 0.5, 0, 1)
    upper += lower
    return np.stack([*np.clip(upper, 0, 255).astype(np.uint8)], axis=-1)


def label_of(seed: int, index: int) -> int:
    """Returns the class of sample `index`; each block of ten samples has each class once."""
    block, place = divmod(index, len(CLASSES))
    return int(np.random.default_rng((seed, block)).permutation(len(CLASSES))[place])


def sample(seed: int, index: int) -> dict[str, bytes]:
    """Makes sample `index` from the arguments alone."""
    label = label_of(seed, index)
    jpeg = io.BytesIO()
    Image.fromarray(draw(label, np.random.default_rng((seed, index)))).save(jpeg, "JPEG", quality=90)
    return {"jpg": jpeg.getvalue(), "cls": str(label).encode()}


def write_shards(
    folder: Path,
    name: str,
    count: int,
    seed: int,
    per_shard: int = 500,
    progress: Callable[[int], None] | None = None,
    photos: Path | None = None,
) -> list[Path]:
    """Writes `count` samples to `folder`/`name`-0000.tar and following, `per_shard` in each; returns the shards' paths.

    A sample has a JPEG as `jpg` and its label, 0..9 in ASCII, as `cls`; `classes.json` names the classes. `progress` is
    called with the number of samples written so far. If `photos` is given, the JPEGs are also in `photos`/CLASS/, as
    000000.jpg and following. On the same machine, the same arguments write the same bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    class_folders = [photos / name for name in CLASSES] if photos else []
    for class_folder in class_folders:
        class_folder.mkdir(parents=True)
    (folder / CLASSES_FILE).write_text(json.dumps(CLASSES))
    shards = [folder / f"{name}-{number:04d}.tar" for number in range(-(-count // per_shard))]
    with ThreadPoolExecutor(available_cores()) as pool:
        samples = enumerate(pool.map(partial(sample, seed), range(count)))
        for shard in shards:
            with tarfile.open(shard, "w") as tar:
                for index, components in islice(samples, per_shard):
                    write_sample(tar, f"{index:06d}", components)
                    if class_folders:
                        (class_folders[int(components["cls"])] / f"{index:06d}.jpg").write_bytes(components["jpg"])
                    if progress:
                        progress(index + 1)
    return shards
