"""What a recipe's pipeline takes: batches of images, and what is drawn for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np

from gpuloader.pipelines.admission import admit_all
from gpuloader.pipelines.graph import Source
from gpuloader.plan import Draws
from gpuloader.recipe import Preset


def drawn_source(jpegs: Sequence[bytes], preset: Preset, batch_size: int, seed: int = 0) -> Source:
    """A source for `recipe_pipeline`: images at hand, in their order, and the random numbers of a run with that seed.

    It ends after each epoch with StopIteration, as DALI's iterators expect it; after their `reset()` the next epoch
    comes. In an epoch, image n gets the draws of sample n, as `Compose(...)(jpegs, seed=seed, epoch=epoch)` gives them.

    Args:
        jpegs: the files, of any format that the recipe has among its `formats`; at least one.
        preset: the recipe.
        batch_size: images in a batch; the last one of an epoch may have fewer.
        seed: in [0, 2**64).

    Raises:
        DataError: it names the first image that cannot be decoded.
    """
    files, sizes = admit_all(jpegs, preset)

    def batches() -> Iterator[tuple[Any, ...] | None]:
        for epoch in count():
            for first in range(0, len(files), batch_size):
                ids = np.arange(first, min(first + batch_size, len(files)))
                arrays = preset.arrays(Draws(seed, epoch, ids), *sizes[ids].T)
                yield [files[number] for number in ids], *arrays.values()
            yield None

    each = batches()

    def source() -> tuple[Any, ...]:
        batch = next(each)
        if batch is None:
            raise StopIteration
        return batch

    return source
