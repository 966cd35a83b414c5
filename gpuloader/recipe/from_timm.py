"""Converts timm's transforms to parts of a recipe. It reads their attributes, and does not import timm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from gpuloader.recipe.crops import CenterCrop, RandomResizedCrop
from gpuloader.recipe.from_config import square
from gpuloader.recipe.model import Transform
from gpuloader.recipe.output import RandomErasing
from gpuloader.recipe.timm import POLICY_NAMES, ThreeAugment, TimmAutoAugment, TimmRandAugment

_PIL_FILTERS = {0: "nearest", 2: "bilinear", 3: "bicubic"}
_WITHOUT_MAGNITUDE = ("AutoContrast", "Equalize", "Invert")
_3A = [[("Solarize", 1.0, 5)], [("Desaturate", 1.0, 10)], [("GaussianBlurRand", 1.0, 10)]]
_OF_ONE_SIZE = "give create_transform a square input_size, or crop_mode='squash'; to train, train_crop_mode='rrc'"
ADVICE = {
    "AugMixAugment": "leave auto_augment out, and put gpuloader's AugMix into the recipe",
    "Patchify": "leave patchify out: batches are images",
    "RandomCropOrPad": _OF_ONE_SIZE,
    "RandomResizedCropToSequence": "leave naflex out: the images of a batch have one size",
    "ResizeToSequence": "leave naflex out: the images of a batch have one size",
    "ToTensor": "it gives levels of 0 to 255 as float32: use MaybeToTensor, or none",
    "TrimBorder": "leave crop_border_pixels out",
}


class NoCounterpartError(Exception):
    """A transform of another library has no counterpart; the message follows the name of its class."""


def _crop(leaf: Any) -> Transform:  # noqa: ANN401
    interpolation: Any = "random" if isinstance(leaf.interpolation, (list, tuple)) else leaf.interpolation.value
    return RandomResizedCrop(square(*leaf.size), tuple(leaf.scale), tuple(leaf.ratio), interpolation)


def centre_crop(leaf: Any) -> Transform:  # noqa: ANN401
    """Converts a `CenterCropOrPad` that does not follow a `ResizeKeepRatio`."""
    mode = getattr(leaf, "padding_mode", "constant")
    if mode != "constant" or set(_each(leaf.fill)) != {0}:
        raise NoCounterpartError(f"with fill={leaf.fill!r}, padding_mode={mode!r} has no counterpart: {_OF_ONE_SIZE}")
    return CenterCrop(square(*leaf.size))


def _rand_augment(leaf: Any) -> Transform:  # noqa: ANN401
    first, names = leaf.ops[0], [op.name for op in leaf.ops]
    alike = {(op.prob, op.magnitude, op.magnitude_std, op.magnitude_max) for op in leaf.ops}
    increasing = "PosterizeIncreasing" in names
    expected = [_with_rel(each) for each in TimmRandAugment(increasing=increasing).names]
    if leaf.choice_weights is not None or len(alike) > 1 or names != expected:
        raise NoCounterpartError(
            "has other operations than timm's own two sets: leave 't' out of auto_augment='rand-...'"
        )
    return TimmRandAugment(
        magnitude=first.magnitude,
        num_ops=leaf.num_layers,
        increasing=increasing,
        prob=first.prob,
        magnitude_max=first.magnitude_max or 10,
        **_of_all(first),
    )


def _of_all(op: Any) -> dict[str, Any]:  # noqa: ANN401
    """Returns the parameters that all operations of a policy have in common."""
    if op.hparams.get("translate_pct", 0.45) != 0.45:
        raise NoCounterpartError("with another translate_pct than 0.45 has no counterpart: leave it out")
    if 100 < op.magnitude_std < math.inf:
        raise NoCounterpartError(f"with mstd{op.magnitude_std:g} has no counterpart: allowed is at most 100")
    std = min(op.magnitude_std, 101.0)  # infinity draws evenly; here each value above 100 does
    filters = sorted(_PIL_FILTERS[int(each)] for each in _each(op.kwargs["resample"]))
    interpolation = "random" if filters == ["bicubic", "bilinear"] else filters[0]
    return {"magnitude_std": std, "interpolation": interpolation, "fill": tuple(op.kwargs["fillcolor"])}


def _with_rel(operation: str) -> str:
    """Returns timm's name of an operation, whose moves are shares of the image."""
    return f"{operation}Rel" if operation.startswith("Translate") else operation


def _auto_augment(leaf: Any) -> Transform:  # noqa: ANN401
    first = leaf.policy[0][0]
    theirs = [
        [(op.name, op.prob, None if op.name in _WITHOUT_MAGNITUDE else op.magnitude) for op in operations]
        for operations in leaf.policy
    ]
    if theirs == _3A and first.magnitude_std == 0:
        return ThreeAugment(color_jitter=0.0)  # the jitter is a separate transform
    for policy in POLICY_NAMES:
        ours = TimmAutoAugment(policy, **_of_all(first))
        if theirs == [[(_with_rel(name), p, magnitude) for name, p, magnitude in pair] for pair in ours.pairs]:
            return ours
    raise NoCounterpartError("has other operations than timm's own: give auto_augment='v0', 'original' or '3a'")


def _erasing(leaf: Any) -> Transform:  # noqa: ANN401
    if leaf.min_count != 1:
        raise NoCounterpartError(f"with min_count={leaf.min_count}: only 1 is supported")
    low, high = (float(f"{math.exp(bound):.12g}") for bound in leaf.log_aspect_ratio)
    value: Any = {"pixel": "random", "rand": "random_color"}.get(leaf.mode, 0.0)
    return RandomErasing(leaf.probability, (leaf.min_area, leaf.max_area), (low, high), value, leaf.max_count)


def _each(value: Any) -> tuple[Any, ...]:  # noqa: ANN401
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


TIMMS: Mapping[str, Callable[[Any], Transform]] = {
    "AutoAugment": _auto_augment,
    "CenterCropOrPad": centre_crop,
    "RandAugment": _rand_augment,
    "RandomErasing": _erasing,
    "RandomResizedCropAndInterpolation": _crop,
}
