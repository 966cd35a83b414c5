"""A graph that ends before its end, for measuring: its images are those of the whole graph at that place."""

from __future__ import annotations

import io
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from gpu_graph import GPU, gpu_graph
from making import jpeg
from PIL import Image
from running import as_arrays, draw

from gpuloader.pipelines import LastStep, recipe_pipeline
from gpuloader.recipe import Recipe, load_preset

IMAGES = [jpeg(60, 80, seed=n) for n in range(4)]


def rows(preset: Recipe, last_step: LastStep, device_id: int | None = None) -> list[list[np.ndarray]]:
    """Each view's images."""
    batch = (as_arrays(IMAGES), draw(preset, IMAGES))
    options: Any = {"batch_size": 4, "num_threads": 2, "device_id": device_id, "prefetch_queue_depth": 1}
    with gpu_graph() if device_id == GPU else nullcontext():
        outputs = recipe_pipeline(preset=preset, source=lambda: batch, last_step=last_step, **options).run()
    return [[np.array(output.at(n)) for n in range(4)] for output in outputs]


@pytest.mark.parametrize("device_id", [None, GPU])
def test_decode_ends_with_the_regions(device_id: int | None) -> None:
    preset = load_preset("imagenet_train")
    params = draw(preset, IMAGES)
    [decoded] = rows(preset, "decode", device_id)
    for image, (top, left, _, right), row in zip(IMAGES, params.region, decoded, strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(image)))
        np.testing.assert_array_equal(row[0], pixels[top, left:right])


@pytest.mark.parametrize("device_id", [None, GPU])
def test_resize_ends_before_pixels_are_changed(device_id: int | None) -> None:
    placed = {"Normalize": None, "RandAugment": None, "dtype": "uint8", "layout": "channels_last"}
    [part] = rows(load_preset("imagenet_randaugment"), "resize", device_id)
    [whole] = rows(load_preset("imagenet_randaugment", placed), "all", device_id)
    for row, image in zip(part, whole, strict=True):
        np.testing.assert_array_equal(row, image[:1])
