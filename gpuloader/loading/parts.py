"""Cuts a step into parts: the rows that are read, decoded and resampled at once. So large batches need little memory.

The rows that a rank gets do not depend on it, nor do their pixels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuloader.loading.run import Run

ROWS_OF_A_THREAD = 2  # no core waits for the last picture of a part
_MOST_BYTES = {"cpu": 128 << 20, "cuda": 1 << 30}
_COMPRESSION = 10  # of a picture whose size is not known
_MOST_AHEAD = 4


def cut(decoded_bytes: NDArray[np.int64], most_bytes: int, least_rows: int) -> list[slice]:
    """Cuts rows into parts: as many as have at most so many bytes, but at least so many rows, except for the last part.

    Example:
        >>> cut(np.array([6, 6, 6, 1, 1]), most_bytes=13, least_rows=1)
        [slice(0, 2, None), slice(2, 5, None)]
    """
    ends = np.cumsum(decoded_bytes)
    parts: list[slice] = []
    first = 0
    while first < len(ends):
        before = ends[first - 1] if first else 0
        fitting = int(np.searchsorted(ends, before + most_bytes, "right"))
        end = min(max(fitting, first + least_rows), len(ends))
        parts.append(slice(first, end))
        first = end
    return parts


def parts_of(run: Run, samples: NDArray[np.int64]) -> list[slice]:
    """Returns the parts of a step with these samples, in their order."""
    if run.decoder.hw_load:  # a JPEG engine's share of a batch depends on its rows
        return [slice(0, len(samples))]
    return cut(_decoded_bytes(run, samples), most_bytes(run), least_rows(run))


def most_bytes(run: Run) -> int:
    """The most bytes that the decoded pictures of a part have, if it has more than `least_rows`."""
    return _MOST_BYTES[run.device.type]


def least_rows(run: Run) -> int:
    """The rows that a part has however large its pictures are, unless the step ends."""
    return ROWS_OF_A_THREAD * run.num_threads


def parts_ahead(run: Run) -> int:
    """How many parts are decoded ahead for each batch of the decoder's `prefetch`."""
    some = np.linspace(0, len(run.shards) - 1, min(run.plan.batch_size, len(run.shards))).astype(np.int64)
    return min(len(parts_of(run, some)), _MOST_AHEAD)


def _decoded_bytes(run: Run, samples: NDArray[np.int64]) -> NDArray[np.int64]:
    height, width, size_bytes = (
        run.shards.index.at(name, samples).astype(np.int64) for name in ("height", "width", "image_size")
    )
    return np.where(height > 0, 3 * height * width, _COMPRESSION * size_bytes)
