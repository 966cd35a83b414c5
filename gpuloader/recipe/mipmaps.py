"""Which copy of a picture a draw takes, as mipmaps of computer graphics: the smallest that is sharp enough."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuloader.images.mipmaps import mipmap_sizes
from gpuloader.recipe.augment_params import AugmentParams
from gpuloader.recipe.model import Ints


def choose_mipmaps(
    drawn: AugmentParams, pictures: Ints, sides: Sequence[int], there: NDArray[np.bool_], scale: float
) -> Ints:
    """Chooses from which file each of n samples is decoded: (n,) the shorter side of a copy, or 0 for the picture.

    It is the smallest copy that has, in each view and along both axes, at least `scale` pixels for one of the output:

        window * copy's side >= scale * resized window * picture's side

    Only products are compared, so every CPU chooses the same. The picture is taken if no copy has so many pixels, or if
    padding that is resized repeats pixels or is around a part of the picture, because its border is a pixel's.

    Args:
        drawn: for the pictures.
        pictures: (n, 2) their heights and widths; 0 where these are not known, which takes the picture.
        sides: k, the shorter sides of copies.
        there: (n, k) which of them the samples have.
        scale: the recipe's `mipmap_scale`.
    """
    chosen = np.zeros(len(pictures), np.int64)
    places = [view.placement for view in drawn.views]
    if any(at.repeats_before for at in places):
        return chosen
    whole = np.concatenate([np.zeros_like(pictures), pictures], 1)
    may = np.all([(at.part == whole).all(1) for at in places], 0)
    for side, has in sorted(zip(sides, there.T, strict=True), key=lambda each: -each[0]):
        copies = mipmap_sizes(pictures, np.full(len(pictures), side))
        sharp = [
            ((at.window[:, 2:] - at.window[:, :2]) * copies >= scale * at.resized * pictures).all(1) for at in places
        ]
        chosen[may & has & (side < pictures.min(1)) & np.all(sharp, 0)] = side
    return chosen
