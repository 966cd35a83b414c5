"""`Given`: the head of a chain for images in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.chain.batch import Batch
from gpuloader.chain.link import Causes
from gpuloader.errors import DataError
from gpuloader.pipelines import admit_images, prepare
from gpuloader.plan import Cursor, Draws, PlannedBatch
from gpuloader.recipe import Recipe


class Given:
    """The head of a chain: hands on given batches, at most one loop at a time."""

    def __init__(self) -> None:
        self._batches: Iterator[Batch] = iter(())

    def seek(self, place: Iterable[Batch]) -> None:
        self._batches = iter(place)

    def next(self) -> Batch | None:
        return next(self._batches, None)

    def again(self, batch: Batch, causes: Causes) -> Batch | None:
        """Raises DataError, as there is no other image."""
        refuse(causes)
        return None

    def close(self) -> None:
        self._batches = iter(())


def given_batch(
    recipe: Recipe,
    images: Sequence[Any],
    draws: Draws,
    boxes: Sequence[NDArray[np.float64]] = (),
    targets: Sequence[Mapping[str, Any]] | None = None,
) -> Batch:
    """Returns given images as a batch, validated and drawn; those that are refused, also as too large, have causes."""
    files, sizes, turned, refused = admit_images(recipe, images)
    params = recipe.at(draws.epoch).graphs[0].draw(draws, sizes, turned, boxes)
    causes = {**params.refused(), **refused}
    rows = np.arange(len(files))
    batch = Batch.of(PlannedBatch(Cursor(draws.epoch), draws.ids, rows, draws), params)
    return replace(
        batch,
        planned=rows,
        images=[files],
        causes=[causes.get(row) for row in range(len(files))],
        values=batch.values if targets is None else targets,
    )


def prepare_images(batch: Batch, oversampling: float | None, num_threads: int) -> Batch:
    """Prepares copies of files for the graph, as the bytes are the caller's, see `prepare`; arrays do not change."""
    [images] = batch.images
    if not len(batch) or images[0].ndim == 3:
        return batch
    files, params, factors = prepare([file.copy() for file in images], batch.params, oversampling, num_threads)
    return replace(batch, images=[files], params=params, factors=factors)


def refuse(causes: Causes) -> None:
    """Raises DataError if there are causes."""
    if causes:
        raise DataError("; ".join(f"image {number} cannot be decoded: {cause}" for number, cause in causes.items()))
