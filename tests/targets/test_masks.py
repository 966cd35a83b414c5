"""What masks take: their bounds, and the memory of a batch."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making import encoded, write_shard
from PIL import Image
from scenes import loader

from gpuloader import BadImages, DataError, Mask
from gpuloader.plan import Draws
from gpuloader.recipe import Recipe
from gpuloader.recipe.model import Transform
from gpuloader.transforms import Pad, RandomPerspective, Resize

OUTLINES = {"objects": Mask("json:annotations")}


def sample_of(number: int, objects: int, side: int = 8) -> dict[str, bytes | str]:
    """A square picture with so many objects, each as large as the picture."""
    outline = {"segmentation": {"size": [side, side], "counts": [0, side * side]}}
    return {
        "__key__": f"{number}",
        "png": encoded(Image.new("RGB", (side, side)), "PNG"),
        "json": json.dumps({"annotations": [outline] * objects}).encode(),
        "mask.png": encoded(Image.fromarray(np.arange(side * side, dtype=np.uint16).reshape(side, side)), "PNG"),
    }


# --- at most 256 MiB of a sample, counted as the recipe delivers them


RESIZE: list[dict[str, Any]] = [{"Resize": {"size": [1000, 1000]}}]
RECIPES: dict[str, tuple[dict[str, Any], int]] = {
    "dense": ({"transforms": RESIZE}, 300_000_000),
    "a list": ({"transforms": RESIZE, "batch": "list"}, 300_000_000),
    "padded, which does not count": ({"transforms": RESIZE, "batch": {"pad": 1024}}, 300_000_000),
    "views together": ({"transforms": [{"Resize": {"size": [700, 700]}}], "views": 2}, 294_000_000),
}


@pytest.mark.parametrize(("preset", "pixels"), RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_sample_whose_masks_the_recipe_makes_too_large_is_bad(
    tmp_path: Path, preset: dict[str, Any], pixels: int, batch_size: int
) -> None:
    tar = write_shard(tmp_path / "a.tar", [sample_of(number, 300 if number == 1 else 1) for number in range(3)])
    options = {"preset": preset, "fields": OUTLINES, "on_error": BadImages(replace=True, max_share=1)}
    with loader(tar, batch_size, **options) as batches:
        assert all(1 not in batch["index"] for batch in batches)
        said = f"its 300 masks of objects have {pixels:,} pixels as the recipe makes them: allowed are 268,435,456"
        assert batches.stats().bad == {1: f"{said} in a sample"}


def test_masks_of_all_fields_count_together(tmp_path: Path) -> None:
    tar = write_shard(tmp_path / "a.tar", [sample_of(0, 0, 16), sample_of(1, 100, 16)])
    fields = {"numbers": Mask("mask.png", instances=True), **OUTLINES}  # 255 objects in the mask of each sample
    options = {"preset": {"transforms": RESIZE}, "on_error": BadImages(replace=True, max_share=1)}
    with loader(tar, 1, **options, fields=fields) as batches:
        assert [batch["index"].tolist() for batch in batches] == [[0], [0]]
        assert "its 355 masks of objects" in batches.stats().bad[1]


def test_whether_masks_are_too_large_depends_on_the_epoch(tmp_path: Path) -> None:
    tar = write_shard(tmp_path / "a.tar", [sample_of(0, 0), sample_of(1, 300)])
    preset = {"transforms": [{"RandomResizedCrop": {"size": {0: 100, 1: 1000}}}]}
    options = {"fields": OUTLINES, "on_error": BadImages(replace=True, max_share=1), "shuffle": "none"}
    with loader(tar, 2, preset=preset, **options) as batches:
        assert [batch["index"].tolist() for _ in range(2) for batch in batches] == [[0, 1], [0, 0]]


def test_masks_that_padding_makes_too_large_are_an_error(tmp_path: Path) -> None:
    tar = write_shard(tmp_path / "a.tar", [sample_of(0, 400), sample_of(1, 0, 1200)])
    preset = {"transforms": [{"Pad": {"padding": 1}}], "batch": {"pad": 1}}
    with loader(tar, 1, preset=preset, fields=OUTLINES) as alone:
        assert [len(batch["objects"][0]) for batch in alone] == [400, 0]
    with loader(tar, 2, preset=preset, fields=OUTLINES) as together, pytest.raises(DataError, match="padded to the"):
        next(iter(together))


# --- the memory of a batch: at most twice what is delivered


MOVES: dict[str, tuple[Sequence[Transform], dict[str, Any]]] = {
    "both sides change, and rows first would take 64 times as much": ([Resize((2048, 32))], {}),
    "columns first would": ([Resize((32, 2048)), Resize((2048, 32)), Resize((32, 2048))], {}),
    "padded": ([Resize((700, 90)), Pad((0, 1))], {"batch": {"pad": 64}}),
    "warped": ([Resize((256, 256)), RandomPerspective(0.3, p=1)], {}),
    "turned": ([Resize((256, 256))], {"orientation": "apply"}),
}


@pytest.mark.parametrize(("transforms", "options"), MOVES.values(), ids=MOVES)
@pytest.mark.parametrize("samples", [1, 2])
def test_the_masks_of_a_batch_are_written_once(
    transforms: Sequence[Transform], options: dict[str, Any], samples: int
) -> None:
    field, recipe = OUTLINES["objects"], Recipe(transforms, **options)
    masks = [np.ones((200, 32, 2048), np.uint8)] * samples
    turned = np.full(samples, 6) if options.get("orientation") else None
    stored = (2048, 32) if options.get("orientation") else (32, 2048)
    drawn = recipe.draw(Draws(7, 0, np.arange(samples)), np.array([stored] * samples), turned)
    field.collated(masks, drawn.take([]))  # so that caches are made
    tracemalloc.start()
    [moved] = field.collated(masks, drawn)[""]
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert moved.values.dtype == np.uint8
    assert moved.values.nbytes <= peak_bytes <= 2 * moved.values.nbytes
