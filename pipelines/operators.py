"""The graph's steps, each a function of DALI nodes. Names of inputs are those of `gpuloader.recipe`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from nvidia.dali import fn, math, types
from nvidia.dali.data_node import DataNode

from gpuloader.recipe import Preset
from gpuloader.recipe.jitter import CONTRAST, GRAY, HUE

Nodes: TypeAlias = Mapping[str, DataNode]
Device: TypeAlias = Literal["cpu", "mixed"]

_DTYPES = {"float32": types.FLOAT, "float16": types.FLOAT16, "uint8": types.UINT8}


def decode_region(encoded: DataNode, drawn: Nodes, device: Device, largest_image: tuple[int, int]) -> DataNode:
    """Only the rows and columns asked for, RGB uint8 HWC. Like torchvision, it does not turn by the EXIF orientation."""
    return fn.decoders.image_slice(
        encoded,
        start=drawn["region_start"],
        shape=drawn["region_shape"],
        axes=(0, 1),
        device=device,
        output_type=types.RGB,
        adjust_orientation=False,
        preallocate_height_hint=largest_image[0],
        preallocate_width_hint=largest_image[1],
    )


def resize(image: DataNode, drawn: Nodes, preset: Preset) -> DataNode:
    """Bilinear to size x size, uint8 HWC; of a part of the region where the recipe gives `roi_*`."""
    part = {name: drawn[name] for name in ("roi_start", "roi_end") if name in drawn}
    return fn.resize(
        image,
        size=[preset.size, preset.size],
        interp_type=types.INTERP_LINEAR,
        antialias=preset.antialias,
        **part,
    )


def cut(image: DataNode, drawn: Nodes, preset: Preset) -> DataNode:
    """size x size from a corner that may lie outside, where it is black."""
    return fn.slice(
        image, start=drawn["corner"], shape=[preset.size, preset.size], axes=(0, 1), out_of_bounds_policy="pad"
    )


def jitter(image: DataNode, drawn: Nodes, preset: Preset) -> DataNode:
    """Colour jitter, float HWC in [0, 255]; the arithmetic stands in `gpuloader.recipe.jitter`.

    Must be traced by a pipeline with conditionals: only what a sample's step is gets computed.
    """
    assert preset.jitter is not None
    operations = preset.jitter.operations
    for step in range(len(operations)):
        kind = drawn["jitter_kind"][step]
        if kind == HUE:
            image = turn_hue(image, drawn["jitter_hue"][step])
        else:
            mean = drawn["jitter_mean"][step] * mean_gray(image)
            image = fn.coord_transform(image, M=drawn["jitter_matrix"][step])
            if kind == CONTRAST:
                image = image + mean
        image = math.clamp(image, 0.0, 255.0)
    return image


def mean_gray(image: DataNode) -> DataNode:
    """The mean of the image's gray values, a scalar."""
    red, green, blue = (fn.reductions.mean(image[:, :, channel]) for channel in range(3))
    return GRAY[0] * red + GRAY[1] * green + GRAY[2] * blue


def turn_hue(image: DataNode, turn: DataNode) -> DataNode:
    """The hue turned by `turn` full circles, value and saturation kept.

    With v the largest, c the largest less the smallest channel and h the hue in sixths of a circle, a channel is
    v - c max(0, min(k, 4 - k, 1)), k = (n + h) mod 6, n = 5, 3, 1 for red, green, blue (Wikipedia, "HSL and HSV",
    "HSV to RGB alternative").
    """
    image = fn.cast(image, dtype=types.FLOAT)
    red, green, blue = (image[:, :, channel : channel + 1] for channel in range(3))
    value = math.max(math.max(red, green), blue)
    chroma = value - math.min(math.min(red, green), blue)
    unit = 1.0 / math.max(chroma, 1e-6)
    is_red = fn.cast(value == red, dtype=types.FLOAT)
    is_green = fn.cast(value == green, dtype=types.FLOAT) * (1.0 - is_red)
    is_blue = 1.0 - is_red - is_green
    hue = (
        is_red * ((green - blue) * unit)
        + is_green * ((blue - red) * unit + 2.0)
        + is_blue * ((red - green) * unit + 4.0)
        + turn * 6.0
    )
    return fn.cat(*(_hsv_channel(value, chroma, hue + offset) for offset in (5.0, 3.0, 1.0)), axis=2)


def _hsv_channel(value: DataNode, chroma: DataNode, k: DataNode) -> DataNode:
    k = k - 6.0 * math.floor(k / 6.0)
    return value - chroma * math.clamp(math.min(k, 4.0 - k), 0.0, 1.0)


def finish(image: DataNode, drawn: Nodes, preset: Preset) -> DataNode:
    """Flip, normalise, and lay out as CHW, or HWC for channels_last."""
    scale = 255.0 if preset.dtype != "uint8" else 1.0
    mean, std = preset.mean or (0.0, 0.0, 0.0), preset.std or (1.0, 1.0, 1.0)
    return fn.crop_mirror_normalize(
        image,
        mirror=drawn.get("mirror", 0),
        mean=[scale * value for value in mean],
        std=[scale * value for value in std],
        dtype=_DTYPES[preset.dtype],
        output_layout="CHW" if preset.layout == "nchw" else "HWC",
    )
