"""Chooses what is decoded of a picture: the smallest that is sharp enough, as mipmaps in computer graphics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuloader.images.mipmaps import mipmap_sizes
from gpuloader.recipe.augment_params import AugmentParams
from gpuloader.recipe.model import Ints


def choose_mipmaps(
    params: AugmentParams, pictures: Ints, sides: Sequence[int], there: NDArray[np.bool_], scale: float
) -> Ints:
    """Chooses the file to decode for each of n samples: (n,) the shorter side of a mipmap, or 0 for the picture.

    It is the smallest mipmap with at least `scale` pixels for each pixel of the output, in all views and along both
    axes:

        window * mipmap's side >= scale * resized window * picture's side

    Only products are compared, so every CPU chooses the same. The picture is taken if no mipmap has enough pixels. It
    is also taken if resized padding repeats pixels or surrounds a part of the picture, because then its border matters.

    Args:
        params: the random parameters for the pictures.
        pictures: (n, 2) heights and widths; 0 if unknown, which takes the picture.
        sides: the shorter sides of the k mipmaps.
        there: (n, k) whether the samples have them.
        scale: the recipe's `min_oversampling`.
    """
    chosen, may = np.zeros(len(pictures), np.int64), _may_be_smaller(params)
    places = [view.placement for view in params.views]
    for side, has in sorted(zip(sides, there.T, strict=True), key=lambda each: -each[0]):
        mipmaps = mipmap_sizes(pictures, np.full(len(pictures), side))
        sharp = [
            ((at.window[:, 2:] - at.window[:, :2]) * mipmaps >= scale * at.resized * pictures).all(1) for at in places
        ]
        chosen[may & has & (side < pictures.min(1)) & np.all(sharp, 0)] = side
    return chosen


def choose_factors(params: AugmentParams, scale: float) -> Ints:
    """Chooses the size at which each of n files is decoded, if it is a JPEG: (n,) f, for 1/f of its height and width.

    It is the largest of 1, 2, 4 and 8 for which, in pixels of the file, in all views and along both axes:

        window >= scale * f * resized window

    It is 1 where `choose_mipmaps` takes the picture because of its border.

    Args:
        params: the random parameters for the files, which may be mipmaps.
        scale: the recipe's `min_oversampling`.
    """
    chosen, may = np.ones(len(params.region), np.int64), _may_be_smaller(params)
    places = [view.in_file for view in params.views]
    for factor in (2, 4, 8):
        sharp = [(at.window[:, 2:] - at.window[:, :2] >= scale * factor * at.resized).all(1) for at in places]
        chosen[may & np.all(sharp, 0)] = factor
    return chosen


def _may_be_smaller(params: AugmentParams) -> NDArray[np.bool_]:
    """Returns for which samples, (n,), no view's resized padding repeats pixels or surrounds a part of the picture."""
    may = [
        (view.placement.part == view.placements[0].part).all(1) & (not view.placement.repeats_before)
        for view in params.views
    ]
    return np.asarray(np.all(may, 0))
