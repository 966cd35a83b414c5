"""Recipes that place pictures in all ways, for which a smaller copy or size of a file is chosen."""

from __future__ import annotations

from gpuloader import transforms as T
from gpuloader.recipe import Recipe

RECIPES = {
    "crops": Recipe([T.RandomResizedCrop(224)]),
    "evaluation": Recipe([T.Resize(256), T.CenterCrop(224)]),
    "several views": Recipe(
        views=[T.View([T.RandomResizedCrop(224, (0.4, 1))], 2), T.View([T.RandomResizedCrop(96)], 3)]
    ),
    "letterbox": Recipe([T.Resize((640, 640), pad=114)]),
    "zoomed out": Recipe([T.RandomZoomOut(), T.RandomResizedCrop((160, 320))]),
    "turned": Recipe([T.RandomResizedCrop((160, 320))], orientation="apply"),
}
