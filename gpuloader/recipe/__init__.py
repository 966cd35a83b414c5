"""Recipes: how an image becomes a tensor, as validated values; no DALI."""

from gpuloader.recipe.crops import CenterCrop, RandomPaddedCrop, RandomResizedCrop
from gpuloader.recipe.jitter import ColorJitter
from gpuloader.recipe.preset import Preset, load_preset, preset_names, preset_text

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Preset",
    "RandomPaddedCrop",
    "RandomResizedCrop",
    "load_preset",
    "preset_names",
    "preset_text",
]
