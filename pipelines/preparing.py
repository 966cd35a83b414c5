"""Prepares files for the graph: cuts them, and decodes those of which less than all pixels are needed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from gpuloader.images.scaled import decode_scaled
from gpuloader.pipelines.kernels.cutting import cut_to_region
from gpuloader.recipe import AugmentParams, choose_factors
from gpuloader.recipe.model import Ints


def prepare(
    files: Sequence[NDArray[np.uint8]], params: AugmentParams, oversampling: float | None, num_threads: int = 1
) -> tuple[list[NDArray[np.uint8]], AugmentParams, Ints]:
    """Cuts JPEGs in place to the regions in their random parameters, and decodes them at 1/2, 1/4 or 1/8.

    Which files are decoded depends only on their bytes and parameters. The graph gets the others as files, also those
    that cannot be decoded here: its decoder may still do so.

    Args:
        files: (bytes,) each, which passed validation; see `cut_jpegs`.
        oversampling: the recipe's, see `choose_factors`; None decodes nothing here.
        num_threads: the number of threads that decode.

    Returns:
        The files (bytes,) and arrays (height, width, 3); the random parameters for these; and (n,) int64 f, if a file
        was decoded at 1/f.
    """
    images, params = cut_to_region(files, params)
    factors = np.ones(len(images), np.int64) if oversampling is None else choose_factors(params, oversampling)
    rows = np.flatnonzero(factors > 1)
    if not len(rows):
        return images, params, factors
    scaled = params.decoded_at(factors)
    bottoms = factors * (scaled.region[:, 2] - scaled.origin[:, 0])
    with ThreadPoolExecutor(num_threads, "gpuloader-decoding") as threads:
        of_rows = [images[row] for row in rows.tolist()], factors[rows].tolist(), bottoms[rows].tolist()
        decoded = list(threads.map(decode_scaled, *of_rows))
    for row, image in zip(rows.tolist(), decoded):
        if image is None:
            factors[row] = 1
        else:
            images[row] = image
    return images, params.decoded_at(factors), factors
