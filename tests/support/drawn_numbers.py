"""All numbers of what a recipe draws."""

from __future__ import annotations

import numpy as np

from gpuloader.recipe import AugmentParams, ViewParams


def numbers_of(drawn: ViewParams) -> list[np.ndarray]:
    """All that is drawn for a view, a row for each sample."""
    at, program = drawn.placement, drawn.program
    erased = [] if drawn.erased is None else [drawn.erased]
    return [at.window, at.resized, at.corner, at.shape, at.mirrored, program.ops, program.parameters, *erased]


def all_numbers_of(params: AugmentParams) -> list[np.ndarray]:
    """The same for all views, and the region."""
    return [params.region, *(array for view in params.views for array in numbers_of(view))]
