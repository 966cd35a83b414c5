"""Chooses the copy of a picture to decode: the smallest that is sharp enough, as mipmaps in computer graphics."""

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
        scale: the recipe's `mipmap_scale`.
    """
    chosen = np.zeros(len(pictures), np.int64)
    places = [view.placement for view in params.views]
    if any(at.repeats_before for at in places):
        return chosen
    whole = np.concatenate([np.zeros_like(pictures), pictures], 1)
    may = np.all([(at.part == whole).all(1) for at in places], 0)
    for side, has in sorted(zip(sides, there.T, strict=True), key=lambda each: -each[0]):
        mipmaps = mipmap_sizes(pictures, np.full(len(pictures), side))
        sharp = [
            ((at.window[:, 2:] - at.window[:, :2]) * mipmaps >= scale * at.resized * pictures).all(1) for at in places
        ]
        chosen[may & has & (side < pictures.min(1)) & np.all(sharp, 0)] = side
    return chosen
