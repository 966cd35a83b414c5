"""The digest of what a loader delivered: a sum of hashes, in which the order of its terms does not matter."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuloader.chain.batch import Batch
from gpuloader.recipe.model import Ints


def digest_of(batch: Batch) -> int:
    """Computes the digest of a decoded batch, without its padding and the rows that do not stay."""
    rows = np.flatnonzero(batch.stays & (batch.places >= 0))
    sizes = batch.params.views[0].placement.shape
    return digest(batch.step.cursor.epoch, batch.places[rows], batch.ids[rows], sizes[rows])


def digest(epoch: int, places: Ints, ids: Ints, sizes: Ints) -> int:
    """Computes the sum of the samples' hashes, modulo 2**64, in [-2**63, 2**63); 0 without samples.

    A hash begins with 0 and becomes `splitmix64(hash + word)` for each of the words epoch, place, id, height, width.

    Args:
        epoch: in [0, 2**32).
        places: (n,) the samples' places in the epoch, not negative.
        ids: (n,) the delivered samples.
        sizes: (n, 2) the heights and widths of the first view's images, without padding.
    """
    hashes = np.zeros(1, np.uint64)
    for word in (np.array([epoch]), places, ids, *sizes.T):
        hashes = splitmix64(hashes + word.astype(np.uint64))
    return int(hashes.view(np.int64).sum())


def splitmix64(seeds: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Computes the first number of a SplitMix64 generator for each seed.

    SplitMix64 is from Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA'14; with the
    constants of Vigna's splitmix64.c.
    """
    mixed = seeds + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return mixed ^ mixed >> np.uint64(31)
