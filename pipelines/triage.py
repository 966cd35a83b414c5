"""Which samples of a batch DALI cannot decode. Its own error loses the whole batch and does not always name them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.pipelines.graph import build
from gpuloader.recipe import Preset


def undecodable(
    preset: Preset, images: Sequence[NDArray[np.uint8]], arrays: Mapping[str, NDArray[Any]], device_id: int | None
) -> dict[int, str]:
    """Runs the samples one by one through the recipe's graph: the rows that fail, with DALI's cause.

    On a GPU each has a pipeline of its own: nvJPEG's decoders may keep what they read of the image before.
    """
    causes: dict[int, str] = {}
    rows = iter(range(len(images)))
    row = -1

    def source() -> tuple[Any, ...]:
        nonlocal row
        row = next(rows)
        return ([images[row]], *(array[row : row + 1] for array in arrays.values()))

    pipeline = None
    while row < len(images) - 1:
        if pipeline is None:
            pipeline = build(preset, arrays, source, batch_size=1, num_threads=1, device_id=device_id, prefetch=1)
        try:
            pipeline.run()
        except RuntimeError as error:
            if not is_decode_failure(str(error)):
                raise
            causes[row] = cause_of(str(error))
        if device_id is not None:
            pipeline = None
    return causes


def is_decode_failure(message: str) -> bool:
    """Whether an error of DALI's blames an image, not the machine: memory, the driver or another operator."""
    return "fn.decoders" in message and not re.search("alloc|memory|cuda", message.partition("encountered:")[2], re.I)


def cause_of(message: str) -> str:
    """What went wrong, out of DALI's message, which counts samples in its own way."""
    line = message.partition("encountered:\n\n")[2].partition("\n")[0]
    detail = re.sub(r"Failed to decode sample #\d+ ?:?", "", line)
    return f"DALI's decoder fails on it{f': {detail.strip()}' if detail.strip() else ''}"
