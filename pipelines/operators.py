"""The graph's steps, each a function of DALI nodes. Names of inputs are those of `gpuloader.recipe`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from nvidia.dali import fn, math, types
from nvidia.dali.data_node import DataNode

from gpuloader.recipe import Preset
from gpuloader.recipe.jitter import CONTRAST, GRAY, HUE

Nodes: TypeAlias = Mapping[str, DataNode]
Rgb: TypeAlias = tuple[float, float, float]

_ZEROS: Rgb = (0.0, 0.0, 0.0)
_ONES: Rgb = (1.0, 1.0, 1.0)
_DTYPES = {"float32": types.FLOAT, "float16": types.FLOAT16, "uint8": types.UINT8}


def decode_region(
    encoded: DataNode, drawn: Nodes, device: str, fast_idct: bool, size_hint: tuple[int, int] = (0, 0)
) -> DataNode:
    """Only the rows and columns asked for, RGB uint8 HWC, not turned by EXIF, like torchvision."""
    return fn.decoders.image_slice(
        encoded,
        start=drawn["region_start"],
        shape=drawn["region_shape"],
        axes=(0, 1),
        device=device,
        output_type=types.RGB,
        adjust_orientation=False,
        use_fast_idct=fast_idct,
        preallocate_height_hint=size_hint[0],
        preallocate_width_hint=size_hint[1],
    )


def place_on_cpu(image: DataNode, drawn: Nodes, preset: Preset) -> DataNode:
    """Resized, cut and flipped; normalised too where nothing comes between."""
    from gpuloader.pipelines.resample import resample  # Numba is not for those who only use a GPU

    last = preset.jitter is None
    scale, offset = _normalising(preset) if last else (_ONES, _ZEROS)
    return resample(
        image,
        drawn["roi"],
        drawn["corner"],
        drawn["mirror"],
        size=preset.size,
        antialias=preset.antialias,
        scale=scale,
        offset=offset,
        dtype=preset.dtype if last else "float32",
        channels_first=last and preset.layout == "nchw",
    )


def place_on_gpu(image: DataNode, drawn: Nodes, preset: Preset) -> DataNode:
    """Resized, cut and flipped, uint8 HWC. DALI's filter repeats the border where PIL's and torch's cut it off."""
    size = [preset.size, preset.size]
    image = fn.resize(
        image,
        size=size,
        interp_type=types.INTERP_LINEAR,
        antialias=preset.antialias,
        roi_start=fn.cast(drawn["roi"][0:2], dtype=types.FLOAT),
        roi_end=fn.cast(drawn["roi"][2:4], dtype=types.FLOAT),
    )
    if preset.crop.kind == "random_padded":
        image = fn.slice(image, start=drawn["corner"], shape=size, axes=(0, 1), out_of_bounds_policy="pad")
    return fn.flip(image, horizontal=drawn["mirror"])


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


def normalise(image: DataNode, preset: Preset) -> DataNode:
    """HWC in [0, 255] to the recipe's range, dtype and layout: CHW, or HWC for channels_last."""
    scale, offset = _normalising(preset)
    return fn.crop_mirror_normalize(
        image,
        mean=[-shift / factor for shift, factor in zip(offset, scale)],
        std=[1 / factor for factor in scale],
        dtype=_DTYPES[preset.dtype],
        output_layout="CHW" if preset.layout == "nchw" else "HWC",
    )


def _normalising(preset: Preset) -> tuple[Rgb, Rgb]:
    """(scale, offset) by channel: a value x in [0, 255] becomes scale x + offset."""
    if preset.dtype == "uint8":
        return _ONES, _ZEROS
    mean, std = preset.mean or _ZEROS, preset.std or _ONES
    scale = (1 / (255 * std[0]), 1 / (255 * std[1]), 1 / (255 * std[2]))
    return scale, (-mean[0] / std[0], -mean[1] / std[1], -mean[2] / std[2])
