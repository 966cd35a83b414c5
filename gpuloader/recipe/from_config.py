"""Converts a model's configuration to a recipe for evaluation: timm's data config, Hugging Face's image processor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gpuloader.errors import PresetError, describe
from gpuloader.recipe.budgets import ResizeToSequence, SmartResize
from gpuloader.recipe.crops import CenterCrop, Resize
from gpuloader.recipe.model import Transform
from gpuloader.recipe.output import Normalize

_OF_TIMM = {"input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode"}
_OF_HUGGING_FACE = "image_processor_type"
_PLAIN = {
    *("Bit", "Blip", "CLIP", "ChineseCLIP", "ConvNext", "DeiT", "MobileNetV1", "Pvt", "Qwen2VL", "Siglip", "Siglip2"),
    "ViT",
}
"""The image processors that only resize, crop and normalise."""
_PIL_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
_CONVNEXT_CROPS_BELOW = 384
_PIXELS = (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels"))


def as_config(given: object) -> Mapping[str, Any] | None:
    """Returns a configuration, or an image processor's configuration, as a mapping; None for anything else."""
    if isinstance(given, Mapping):
        return given
    if type(given).__module__.startswith("transformers.") and hasattr(given, "to_dict"):
        content = given.to_dict()
        return content if isinstance(content, Mapping) else None
    return None


def translate_config(config: Mapping[str, Any], problems: list[str]) -> tuple[tuple[Transform, ...], str]:
    """Returns (the transforms, the dtype after them); empty if a problem was added."""
    try:
        if _OF_HUGGING_FACE in config:
            return _of_hugging_face(config)
        if set(config) == _OF_TIMM:
            return _of_timm(config)
        raise PresetError(
            f"its keys are {describe(sorted(map(str, config)), 200)}: allowed are the mapping that timm's "
            f"resolve_model_data_config(model) returns, and an image processor of Hugging Face or its to_dict()"
        )
    except KeyError as error:
        problems.append(f"it has no {error}: load it with AutoImageProcessor.from_pretrained, which adds the defaults")
    except PresetError as error:
        problems.extend(str(error).splitlines())
    except (TypeError, ValueError) as error:
        problems.append(f"it cannot be read: {error}")
    return (), "float32"


def _of_timm(config: Mapping[str, Any]) -> tuple[tuple[Transform, ...], str]:
    """Converts a configuration as timm's `create_transform(**config)` does."""
    channels, height, width = config["input_size"]
    if channels != 3:
        raise PresetError(f"input_size={config['input_size']!r}: only 3 channels are supported")
    resized = math.floor(height / config["crop_pct"]), math.floor(width / config["crop_pct"])
    if config["crop_mode"] == "squash":
        size: int | tuple[int, int] = resized
    elif config["crop_mode"] == "center" and resized[0] == resized[1]:
        size = resized[0]
    else:
        raise PresetError(
            f"crop_mode={config['crop_mode']!r} with input_size={config['input_size']!r} has no counterpart: use "
            f'"squash", or "center" with a square input_size'
        )
    normalize = Normalize(tuple(config["mean"]), tuple(config["std"]))
    return (Resize(size, config["interpolation"]), CenterCrop(square(height, width)), normalize), "float32"


def _of_hugging_face(config: Mapping[str, Any]) -> tuple[tuple[Transform, ...], str]:
    """Converts an image processor. Its crop may begin a pixel earlier, because it rounds down."""
    kind = str(config[_OF_HUGGING_FACE])
    name = kind.removesuffix("Fast").removesuffix("Pil").removesuffix("ImageProcessor")
    if name not in _PLAIN:
        raise PresetError(f"{kind} is not supported: allowed are {', '.join(sorted(_PLAIN))}, and recipes of your own")
    transforms: list[Transform] = []
    if config["do_resize"]:
        transforms += _resizing(config, name)
    if config.get("do_center_crop"):
        transforms.append(CenterCrop(square(**config["crop_size"])))
    if config.get("do_pad"):
        raise PresetError("do_pad=True: padding is not supported")
    if config["do_rescale"] and not math.isclose(config["rescale_factor"], 1 / 255):
        raise PresetError(f"rescale_factor={config['rescale_factor']!r}: only 1/255 is supported")
    if config["do_normalize"]:
        if not config["do_rescale"]:
            raise PresetError("do_normalize without do_rescale: mean and std must be for values from 0 to 1")
        transforms.append(Normalize(tuple(config["image_mean"]), tuple(config["image_std"])))
    return tuple(transforms), "float32" if config["do_rescale"] else "uint8"


def _resizing(config: Mapping[str, Any], name: str) -> list[Transform]:
    filter_ = _PIL_FILTERS.get(config["resample"])
    if filter_ is None:
        raise PresetError(f"resample={config['resample']!r}: allowed are {_PIL_FILTERS}")
    if name == "Siglip2":
        return [ResizeToSequence(config["patch_size"], config["max_num_patches"], filter_)]  # type: ignore[arg-type]
    if name == "Qwen2VL":
        # Both are in pixels; older configurations use the names of smart_resize, in `size` or beside it.
        given = {**(config.get("size") or {}), **{key: value for key, value in config.items() if value is not None}}
        least, most = (given[new] if old not in given else given[old] for new, old in _PIXELS)
        return [SmartResize(config["patch_size"] * config["merge_size"], least, most, filter_)]  # type: ignore[arg-type]
    size = config["size"]
    sides = set(size) if isinstance(size, Mapping) else set()
    if sides == {"height", "width"}:
        return [Resize((size["height"], size["width"]), filter_)]  # type: ignore[arg-type]
    if sides != {"shortest_edge"}:
        raise PresetError(f"size={size!r}: allowed are a shortest_edge, or a height and a width")
    shorter = size["shortest_edge"]
    if name != "ConvNext":
        return [Resize(shorter, filter_)]  # type: ignore[arg-type]
    if shorter >= _CONVNEXT_CROPS_BELOW:
        return [Resize((shorter, shorter), filter_)]  # type: ignore[arg-type]
    return [Resize(int(shorter / config["crop_pct"]), filter_), CenterCrop(shorter)]  # type: ignore[arg-type]


def square(height: int, width: int) -> int | tuple[int, int]:
    """Returns a size as in recipes: only the side of a square."""
    return height if height == width else (height, width)
