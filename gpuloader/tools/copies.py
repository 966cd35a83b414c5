"""The smaller copies that are beside pictures: how many bytes they have, and reading them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuloader.images.limits import cause_in_bytes
from gpuloader.images.mipmaps import side_of
from gpuloader.shards import Index, ShardSet


def copy_bytes(index: Index) -> NDArray[np.int64]:
    """Returns (n,) the bytes of all copies of each sample; 0 if it has none."""
    numbers = [number for number, extension in enumerate(index.extensions) if side_of(extension)]
    if not numbers:
        return np.zeros(len(index), np.int64)
    rows = np.repeat(np.arange(len(index)), np.diff(index.column("component_end"), prepend=0))
    chosen = np.isin(index.column("component_extension"), numbers)
    sizes = index.column("component_size")[chosen]
    return np.bincount(rows[chosen], sizes, minlength=len(index)).astype(np.int64)


def read_copies(shards: ShardSet, sample: int) -> tuple[dict[int, NDArray[np.uint8]], dict[int, str]]:
    """Reads a sample's copies, by the pixels of their shorter sides; and says which are too large, and why."""
    copies, causes = {}, {}
    for extension, _, size in shards.index.components(sample):
        if side := side_of(extension):
            if cause := cause_in_bytes(size):
                causes[side] = cause
            else:
                copies[side] = np.frombuffer(shards.read_component(sample, extension) or b"", np.uint8)
    return copies, causes
