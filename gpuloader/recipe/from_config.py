"""The rows for models' configurations, which describe an evaluation: timm's data config, Hugging Face's processors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from gpuloader.errors import PresetError, describe
from gpuloader.recipe.budgets import ResizeToSequence, SmartResize
from gpuloader.recipe.crops import CenterCrop, Resize
from gpuloader.recipe.from_others import PIL_FILTERS, evaluation, like, square
from gpuloader.recipe.output import Normalize

_OF_TIMM = {"input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode"}
_OF_HUGGING_FACE = "image_processor_type"
_CONVNEXT_CROPS_BELOW = 384


def as_config(given: object) -> Mapping[str, Any] | None:
    """Returns a configuration, or an image processor's configuration, as a mapping; None for anything else."""
    if type(given).__module__.startswith("transformers.") and hasattr(given, "to_dict"):
        given = given.to_dict()
    return given if isinstance(given, Mapping) else None


def of_config(config: Mapping[str, Any]) -> list[Any]:
    """Converts a configuration to transforms of this library, and `ToTensor` where levels become floats.

    Raises:
        PresetError: the configuration is incomplete, or has no counterpart.
    """
    try:
        if _OF_HUGGING_FACE in config:
            return _of_hugging_face(config)
        if set(config) == _OF_TIMM:
            return _of_timm(config)
    except KeyError as error:
        advice = "load it with AutoImageProcessor.from_pretrained, which adds the defaults"
        raise PresetError(f"it has no {error}: {advice}") from None
    except PresetError:
        raise
    except (TypeError, ValueError) as error:
        raise PresetError(f"it cannot be read: {error}") from None
    raise PresetError(
        f"its keys are {describe(sorted(map(str, config)), 200)}: allowed are the mapping that timm's "
        f"resolve_model_data_config(model) returns, and an image processor of Hugging Face or its to_dict()"
    )


def _of_timm(config: Mapping[str, Any]) -> list[Any]:
    """Converts a configuration as timm's `create_transform(**config)` does."""
    channels, height, width = config["input_size"]
    if channels != 3:
        raise PresetError(f"input_size={config['input_size']!r}: only 3 channels are supported")
    resized = math.floor(height / config["crop_pct"]), math.floor(width / config["crop_pct"])
    squashes = config["crop_mode"] == "squash"
    if not squashes and (config["crop_mode"] != "center" or resized[0] != resized[1]):
        raise PresetError(
            f"crop_mode={config['crop_mode']!r} with input_size={config['input_size']!r} has no counterpart: use "
            f'"squash", or "center" with a square input_size'
        )
    resize = Resize(resized if squashes else resized[0], config["interpolation"])
    return evaluation(resize, square(height, width), config["mean"], config["std"])


def _of_hugging_face(config: Mapping[str, Any]) -> list[Any]:
    """Converts an image processor. Its crop may begin a pixel earlier, because it rounds down."""
    kind = str(config[_OF_HUGGING_FACE])
    resizing = _RESIZING.get(kind.removesuffix("Fast").removesuffix("Pil").removesuffix("ImageProcessor"))
    if resizing is None:
        allowed = ", ".join(sorted(_RESIZING))
        raise PresetError(f"{kind} is not supported: allowed are {allowed}, and recipes of your own")
    made: list[Any] = []
    if config["do_resize"]:
        if config["resample"] not in PIL_FILTERS:
            raise PresetError(f"resample={config['resample']!r}: allowed are {PIL_FILTERS}")
        made += resizing(config, PIL_FILTERS[config["resample"]])
    if config.get("do_center_crop"):
        made.append(CenterCrop(square(**config["crop_size"])))
    if config.get("do_pad"):
        raise PresetError("do_pad=True: padding is not supported")
    if config["do_rescale"] and not math.isclose(config["rescale_factor"], 1 / 255):
        raise PresetError(f"rescale_factor={config['rescale_factor']!r}: only 1/255 is supported")
    if config["do_rescale"]:
        made.append(like("ToTensor"))
    elif config["do_normalize"]:
        raise PresetError("do_normalize without do_rescale: mean and std must be for values from 0 to 1")
    if config["do_normalize"]:
        made.append(Normalize(tuple(config["image_mean"]), tuple(config["image_std"])))
    return made


def _to_size(config: Mapping[str, Any], filter_: Any) -> list[Any]:  # noqa: ANN401
    size = config["size"]
    sides = {*size} if isinstance(size, Mapping) else set()
    if sides not in ({"shortest_edge"}, {"height", "width"}):
        raise PresetError(f"size={size!r}: allowed are a shortest_edge, or a height and a width")
    return [Resize(size["shortest_edge"] if len(sides) == 1 else (size["height"], size["width"]), filter_)]


def _to_size_of_convnext(config: Mapping[str, Any], filter_: Any) -> list[Any]:  # noqa: ANN401
    [resize] = _to_size(config, filter_)
    if not isinstance(resize.size, int):
        return [resize]
    if resize.size >= _CONVNEXT_CROPS_BELOW:
        return [Resize((resize.size, resize.size), filter_)]
    return [Resize(int(resize.size / config["crop_pct"]), filter_), CenterCrop(resize.size)]


def _to_budget(config: Mapping[str, Any], filter_: Any) -> list[Any]:  # noqa: ANN401
    """Reads the numbers of pixels; older configurations use the names of smart_resize, in `size` or beside it."""
    given = {**(config.get("size") or {}), **{key: value for key, value in config.items() if value is not None}}
    names = ("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")
    least, most = (given[new] if old not in given else given[old] for new, old in names)
    return [SmartResize(config["patch_size"] * config["merge_size"], least, most, filter_)]


_SAME = ("Bit", "Blip", "CLIP", "ChineseCLIP", "DeiT", "MobileNetV1", "Pvt", "Siglip", "ViT")
_RESIZING: Mapping[str, Callable[[Mapping[str, Any], Any], list[Any]]] = {
    **dict.fromkeys(_SAME, _to_size),
    "ConvNext": _to_size_of_convnext,
    "Qwen2VL": _to_budget,
    "Siglip2": lambda config, filter_: [ResizeToSequence(config["patch_size"], config["max_num_patches"], filter_)],
}
"""How an image processor resizes; the others do more than resizing, cropping and normalising."""
