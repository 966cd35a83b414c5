"""Colour jitter: torchvision's `ColorJitter`, its factors and the order of its operations drawn by the plan.

The operations that a recipe has are applied one after the other, in an order drawn for each sample. On RGB values in
[0, 255], each followed by clamping to that range, with gray = 0.299 R + 0.587 G + 0.114 B:

    brightness   f x
    contrast     f x + (1 - f) mean(gray of the whole image)
    saturation   f x + (1 - f) gray
    hue          the hue turned by f of a full circle

The first three are one matrix, and for contrast a share of the mean. So each step of a sample is:

    jitter_kind       (n, k) int32        what the step is: MATRIX, CONTRAST or HUE
    jitter_matrix     (n, k, 3, 3) float32
    jitter_mean       (n, k) float32      the share of the mean that CONTRAST adds
    jitter_hue        (n, k) float32      the turn of HUE, in full circles
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from gpuloader.plan import Draws, Stream
from gpuloader.recipe.crops import Arrays
from gpuloader.recipe.model import Model

MATRIX, CONTRAST, HUE = 0, 1, 2
GRAY = (0.299, 0.587, 0.114)

Strength = Annotated[float, Field(ge=0)]
_OPERATIONS = ("brightness", "contrast", "saturation", "hue")


class ColorJitter(Model):
    """torchvision's `ColorJitter`; a strength of 0 leaves the operation out.

    Attributes:
        brightness, contrast, saturation: the factor is drawn from [max(0, 1 - strength), 1 + strength].
        hue: the turn is drawn from [-hue, hue] full circles, at most 0.5.
    """

    brightness: Strength = 0.0
    contrast: Strength = 0.0
    saturation: Strength = 0.0
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.0

    @model_validator(mode="after")
    def _check(self) -> ColorJitter:
        if not self.operations:
            raise ValueError(f"no strength of {', '.join(_OPERATIONS)} is above 0: set one, or leave `jitter` out")
        return self

    @property
    def operations(self) -> tuple[str, ...]:
        """The operations with a strength above 0."""
        return tuple(name for name in _OPERATIONS if getattr(self, name) > 0)

    def arrays(self, draws: Draws) -> Arrays:
        """See the module's text; k is the number of operations."""
        names = self.operations
        uniform = draws.uniform(Stream.JITTER, 8)
        order = np.argsort(uniform[:, : len(names)], axis=1, kind="stable")
        kinds, matrices, means, hues = [], [], [], []
        for number, name in enumerate(names):
            factor = self._factor(name, uniform[:, 4 + number])
            kinds.append(np.full(len(factor), {"contrast": CONTRAST, "hue": HUE}.get(name, MATRIX)))
            matrices.append(_matrix(name, factor))
            means.append(1 - factor if name == "contrast" else np.zeros_like(factor))
            hues.append(factor if name == "hue" else np.zeros_like(factor))
        return {
            "jitter_kind": np.take_along_axis(np.stack(kinds, 1), order, 1).astype(np.int32),
            "jitter_matrix": np.take_along_axis(np.stack(matrices, 1), order[..., None, None], 1).astype(np.float32),
            "jitter_mean": np.take_along_axis(np.stack(means, 1), order, 1).astype(np.float32),
            "jitter_hue": np.take_along_axis(np.stack(hues, 1), order, 1).astype(np.float32),
        }

    def _factor(self, name: str, uniform: NDArray[np.float64]) -> NDArray[np.float64]:
        strength: float = getattr(self, name)
        low, high = (-strength, strength) if name == "hue" else (max(0.0, 1 - strength), 1 + strength)
        return low + uniform * (high - low)


def _matrix(name: str, factor: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, 3, 3): what an operation does to the colour of one pixel."""
    factor = factor[:, None, None]
    if name == "hue":
        return np.broadcast_to(np.eye(3), (len(factor), 3, 3))
    if name == "saturation":
        return factor * np.eye(3) + (1 - factor) * np.array([GRAY] * 3)
    return factor * np.eye(3)
