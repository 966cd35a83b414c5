"""Measures and reads the smaller copies beside pictures."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuloader.images.limits import cause_in_bytes
from gpuloader.images.mipmaps import side_of
from gpuloader.shards import Index, ShardSet


def mipmap_bytes(index: Index) -> NDArray[np.int64]:
    """Returns the bytes of each sample's mipmaps, (n,); 0 without mipmaps."""
    numbers = [number for number, extension in enumerate(index.extensions) if side_of(extension)]
    if not numbers:
        return np.zeros(len(index), np.int64)
    rows = np.repeat(np.arange(len(index)), np.diff(index.column("component_end"), prepend=0))
    chosen = np.isin(index.column("component_extension"), numbers)
    sizes = index.column("component_size")[chosen]
    return np.bincount(rows[chosen], sizes, minlength=len(index)).astype(np.int64)


def read_mipmaps(shards: ShardSet, sample: int) -> tuple[dict[int, NDArray[np.uint8]], dict[int, str]]:
    """Returns a sample's mipmaps by their shorter sides in pixels, and the causes for mipmaps that are too large."""
    mipmaps, causes = {}, {}
    for extension, _, size in shards.index.components(sample):
        if side := side_of(extension):
            if cause := cause_in_bytes(size):
                causes[side] = cause
            else:
                mipmaps[side] = np.frombuffer(shards.read_component(sample, extension) or b"", np.uint8)
    return mipmaps, causes
