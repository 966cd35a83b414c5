"""Makes a source for a recipe's pipeline: batches of images with their random parameters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from gpuloader.errors import DataError
from gpuloader.pipelines.admitted_images import admit_images
from gpuloader.pipelines.graph import Source
from gpuloader.plan import Draws
from gpuloader.recipe import AnyPreset, AugmentParams, load_preset


def drawn_source(jpegs: Sequence[bytes], preset: AnyPreset, batch_size: int, seed: int = 0) -> Source:
    """Makes a source for `recipe_pipeline` from images in memory, in order, with the random parameters of this seed.

    It ends each epoch with StopIteration, as DALI's iterators expect; after their `reset()` the next epoch begins.
    Image n gets the random parameters of sample n, as in `Compose(...)(jpegs, seed=seed, epoch=epoch)`.

    Args:
        jpegs: the files, at least one, JPEG, PNG or WebP.
        preset: the recipe, as a `GPULoader` takes it. `oversampling` has no effect.
        batch_size: images in a batch; the last one of an epoch may have fewer.
        seed: an integer in [0, 2**64).

    Raises:
        DataError: an image cannot be decoded; the message names the first one.
    """
    recipe = load_preset(preset)
    files, sizes, turned, refused = admit_images(recipe, jpegs)
    for number, cause in refused.items():
        raise DataError(f"image {number} cannot be decoded: {cause}")

    steps = ((epoch, first) for epoch in count() for first in (*range(0, len(files), batch_size), None))

    def source() -> tuple[list[Any], AugmentParams]:
        epoch, first = next(steps)
        if first is None:
            raise StopIteration
        ids = np.arange(first, min(first + batch_size, len(files)))
        params = recipe.draw(Draws(seed, epoch, ids), sizes[ids], None if turned is None else turned[ids])
        return [files[number] for number in ids], params

    return source
