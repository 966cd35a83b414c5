"""The transforms of a recipe, with torchvision's names; `docs/operations.md` shows each of them."""

from gpuloader.recipe.apply import Apply
from gpuloader.recipe.budgets import ResizeToSequence, SmartResize
from gpuloader.recipe.colors import (
    ColorJitter,
    GaussianBlur,
    Grayscale,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPhotometricDistort,
    RandomPosterize,
    RandomSolarize,
)
from gpuloader.recipe.crops import (
    CenterCrop,
    CornerCrop,
    FiveCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    TenCrop,
)
from gpuloader.recipe.detection import (
    FixedSizeCrop,
    PadIfSmaller,
    RandomIoUCrop,
    RandomResize,
    RandomShortestSize,
    RandomSizeCrop,
    RandomZoomOut,
    SanitizeBoundingBoxes,
    ScaleJitter,
)
from gpuloader.recipe.mix import Mix
from gpuloader.recipe.output import Normalize, RandomErasing
from gpuloader.recipe.policies import AugMix, AutoAugment, RandAugment, RandomApply, RandomChoice, TrivialAugmentWide
from gpuloader.recipe.recipe import View
from gpuloader.recipe.timm import ThreeAugment, TimmAutoAugment, TimmRandAugment
from gpuloader.recipe.warps import RandomAffine, RandomPerspective, RandomRotation

__all__ = [
    "Apply",
    "AugMix",
    "AutoAugment",
    "CenterCrop",
    "ColorJitter",
    "CornerCrop",
    "FiveCrop",
    "FixedSizeCrop",
    "GaussianBlur",
    "Grayscale",
    "Mix",
    "Normalize",
    "Pad",
    "PadIfSmaller",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomIoUCrop",
    "RandomPerspective",
    "RandomPhotometricDistort",
    "RandomPosterize",
    "RandomResize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomShortestSize",
    "RandomSizeCrop",
    "RandomSolarize",
    "RandomVerticalFlip",
    "RandomZoomOut",
    "Resize",
    "ResizeToSequence",
    "SanitizeBoundingBoxes",
    "ScaleJitter",
    "SmartResize",
    "TenCrop",
    "ThreeAugment",
    "TimmAutoAugment",
    "TimmRandAugment",
    "TrivialAugmentWide",
    "View",
]
