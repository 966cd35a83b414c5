"""Recipes: the transforms from an image to a tensor, as validated values, without DALI."""

from gpuloader.recipe.augment_params import AugmentParams, ViewParams
from gpuloader.recipe.explain import ExplainedView, Step, explain, explain_params
from gpuloader.recipe.from_torchvision import recipe_from_torchvision
from gpuloader.recipe.graph import Graph, OwnCode
from gpuloader.recipe.mipmaps import choose_factors, choose_mipmaps
from gpuloader.recipe.mix import Mix, Mixing
from gpuloader.recipe.placement import Shape
from gpuloader.recipe.preset_files import (
    TRANSFORMS,
    AnyPreset,
    PresetName,
    is_recipe_mapping,
    load_preset,
    preset_names,
    preset_text,
    recipe_yaml,
)
from gpuloader.recipe.recipe import Recipe, View

__all__ = [
    "TRANSFORMS",
    "AnyPreset",
    "AugmentParams",
    "ExplainedView",
    "Graph",
    "Mix",
    "Mixing",
    "OwnCode",
    "PresetName",
    "Recipe",
    "Shape",
    "Step",
    "View",
    "ViewParams",
    "choose_factors",
    "choose_mipmaps",
    "explain",
    "explain_params",
    "is_recipe_mapping",
    "load_preset",
    "preset_names",
    "preset_text",
    "recipe_from_torchvision",
    "recipe_yaml",
]
