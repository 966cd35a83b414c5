"""Warns if a recipe and data do not agree on smaller pictures: copies (mipmaps), or JPEGs decoded smaller."""

from __future__ import annotations

import logging
from math import prod

import numpy as np

from gpuloader.base.text import counted
from gpuloader.images.mipmaps import are_made, extension_of
from gpuloader.plan import Draws
from gpuloader.recipe import Recipe, choose_factors, choose_mipmaps
from gpuloader.shards import ShardSet
from gpuloader.shards.index import Index

USUAL_SIDES, USUAL_SCALE = (1024, 512), 1.5  # of mipmaps, and of the recipe's `oversampling` for training
_DRAWN = 32
_MANY = 0.1  # of the pictures; one of 10 megapixels costs as much as 20 ordinary ones
_log = logging.getLogger("gpuloader")


def warn_of_oversampling(recipe: Recipe, shards: ShardSet, on_cpu: bool) -> None:
    """Logs a warning if a recipe does not take smaller pictures that there are, or asks for copies that are missing.

    Args:
        on_cpu: whether the CPU decodes, which decodes JPEGs at a part of their size.
    """
    index, sides = shards.index, shards.mipmap_sides
    if shards.decoded or recipe.oversampling == "off" or recipe.refuses_oversampling:
        return
    if recipe.min_oversampling is not None:
        if not (sides or on_cpu) and (large := _count_large(index, recipe.max_pixels)):
            _log.warning(
                "the recipe's `oversampling` finds no smaller copies, and a GPU decodes all of a JPEG: "
                "`gpuloader pack --mipmaps %s` would make copies of some of %s",
                ",".join(map(str, USUAL_SIDES)),
                counted(large, "picture"),
            )
        return
    sizes = np.tile(index.largest_image(recipe.max_pixels), (_DRAWN, 1))
    params = recipe.at(0).graphs[0].draw(Draws(0, 0, np.arange(_DRAWN)), np.maximum(sizes, 1))
    if choose_mipmaps(params, sizes, sides, np.ones((_DRAWN, len(sides)), np.bool_), USUAL_SCALE).any():
        having = max(index.facts["having"][index.extensions.index(extension_of(side))] for side in sides)
        _log.warning(
            "%s smaller copies, which need less decoding, but the recipe does not use them: set `oversampling: %g` in "
            "it, or 2 for evaluation; `oversampling: off` ignores them without this warning",
            f"{counted(having, 'picture')} {'has' if having == 1 else 'have'}",
            USUAL_SCALE,
        )
    elif on_cpu and min(_count_large(index, recipe.max_pixels), index.counts["jpegs"]) > _MANY * len(index):
        pixels = float(np.mean(1 / choose_factors(params, USUAL_SCALE) ** 2))
        if pixels < 1:
            _log.warning(
                "many pictures are large: `oversampling: %g` in the recipe decodes JPEGs at 1/2, 1/4 or 1/8 where that "
                "is sharp enough, about %.0f%% fewer pixels; `oversampling: off` silences this warning",
                USUAL_SCALE,
                100 * (1 - pixels),
            )


def _count_large(index: Index, max_pixels: int) -> int:
    """Counts the pictures that would get the usual mipmaps."""
    if prod(index.largest_image(max_pixels)) < max(USUAL_SIDES) ** 2:
        return 0  # without reading the sizes
    sizes = np.stack([index.column(name) for name in ("height", "width")], 1).astype(np.int64)
    return int(are_made(sizes, USUAL_SIDES).sum())
