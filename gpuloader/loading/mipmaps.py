"""Warns if a recipe and data do not agree on smaller copies (mipmaps)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import prod

import numpy as np

from gpuloader.base.text import counted
from gpuloader.images.mipmaps import are_made, extension_of
from gpuloader.plan import Draws
from gpuloader.recipe import Recipe, choose_mipmaps
from gpuloader.shards import ShardSet
from gpuloader.shards.index import Index

USUAL_SIDES, USUAL_SCALE = (1024, 512), 1.5  # of mipmaps, and of the recipe's `mipmaps` for training
_DRAWN = 32
_log = logging.getLogger("gpuloader")


def warn_of_mipmaps(recipe: Recipe, shards: ShardSet) -> None:
    """Logs a warning if a recipe uses mipmaps but the data has none, or if it does not use existing ones."""
    index, sides = shards.index, shards.mipmap_sides
    if (
        recipe.min_oversampling is not None
        and not sides
        and not shards.decoded
        and (large := _count_large(index, recipe.max_pixels))
    ):
        _log.warning(
            "the recipe's `mipmaps` finds no smaller copies: `gpuloader pack --mipmaps %s` would make some of %s",
            ",".join(map(str, USUAL_SIDES)),
            counted(large, "picture"),
        )
    if recipe.oversampling is None and sides and not recipe.refuses_oversampling and _would_take(recipe, index, sides):
        having = max(index.facts["having"][index.extensions.index(extension_of(side))] for side in sides)
        _log.warning(
            "%s smaller copies, which need less decoding, but the recipe does not use them: set `mipmaps: %g` in it, "
            "or 2 for evaluation; `mipmaps: off` ignores them without this warning",
            f"{counted(having, 'picture')} {'has' if having == 1 else 'have'}",
            USUAL_SCALE,
        )


def _count_large(index: Index, max_pixels: int) -> int:
    """Counts the pictures that would get the usual mipmaps."""
    if prod(index.largest_image(max_pixels)) < max(USUAL_SIDES) ** 2:
        return 0  # without reading the sizes
    sizes = np.stack([index.column(name) for name in ("height", "width")], 1).astype(np.int64)
    return int(are_made(sizes, USUAL_SIDES).sum())


def _would_take(recipe: Recipe, index: Index, sides: Sequence[int]) -> bool:
    """Returns whether some random parameters for the largest picture would use a mipmap."""
    sizes = np.tile(index.largest_image(recipe.max_pixels), (_DRAWN, 1))
    params = recipe.at(0).graphs[0].draw(Draws(0, 0, np.arange(_DRAWN)), np.maximum(sizes, 1))
    return choose_mipmaps(params, sizes, sides, np.ones((_DRAWN, len(sides)), np.bool_), USUAL_SCALE).any().item()
