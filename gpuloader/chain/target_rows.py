"""Finds the entries of an image's targets with a row for each box, and selects rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_OF_IMAGES = ("mask", "image_id", "size", "orig_size")  # no rows of boxes, even with the same length


def has_rows(name: str, value: Any, count: int) -> bool:  # noqa: ANN401
    """Returns whether an entry, in the format of torchvision's detection models, has a row for each box."""
    is_array = isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim > 0
    return name not in _OF_IMAGES and (is_array or isinstance(value, list)) and len(value) == count


def take_rows(value: Any, rows: NDArray[np.int64]) -> Any:  # noqa: ANN401
    """Returns the given rows of a list, an array or a tensor."""
    if isinstance(value, list):
        return [value[row] for row in rows]
    return value[torch.from_numpy(rows)] if isinstance(value, torch.Tensor) else value[rows]
