"""The steps of `gpuloader.recipe.program` as DALI operators, on the image's device.

They are pure functions of their inputs. `gpuloader.recipe.program` says what each operation does; where DALI's
operators differ, the function here says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from nvidia.dali import fn, math, types
from nvidia.dali.data_node import DataNode

from gpuloader.base.dali import change_where
from gpuloader.errors import ConfigError
from gpuloader.pipelines.inputs import GRAY
from gpuloader.recipe import Recipe
from gpuloader.recipe.colors import GaussianBlur
from gpuloader.recipe.model import with_inner
from gpuloader.recipe.program import Op

Nodes: TypeAlias = Mapping[str, DataNode]

_SMOOTHING = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
_FAR_BELOW = np.array(-1e6, np.float32)
_MOST_BLUR_TAPS = 171  # on a GPU, DALI's convolution refuses windows if half of one, times 3 channels, is 256 or more
_WHITE = types.Constant(255, dtype=types.UINT8)


def check_for_gpu(preset: Recipe) -> None:
    """Checks that DALI's operators for a GPU can do what the recipe asks for.

    Raises:
        ConfigError: a blur's kernel is too large for them.
    """
    for view in preset.each_view:
        for each in with_inner(view.pixels):
            if isinstance(each, GaussianBlur) and each.kernel_size > _MOST_BLUR_TAPS:
                raise ConfigError(
                    f"GaussianBlur's kernel_size {each.kernel_size}: DALI's blur on a GPU allows up to "
                    f"{_MOST_BLUR_TAPS}; use a smaller kernel, or device_id=None for the CPU"
                )


def run_steps(image: DataNode, given: Sequence[Nodes], choices: Sequence[frozenset[Op]]) -> DataNode:
    """Returns the image after its steps. A sample goes through all of a step's operations, and only one changes it.

    Args:
        image: RGB, uint8 HWC, on either device.
        given: for each step, what `inputs.step_inputs` makes; on the CPU.
        choices: as in `Program`; only operations in it get nodes.
    """
    noted, total = image, None
    for p, possible in zip(given, choices, strict=True):
        if Op.MIX_BEGIN in possible:
            noted, total = image, None
        if Op.MIX_ADD in possible:
            share = _times(image, p["share"])
            total = share if total is None else total + share
            image = _if(p.get("is_MIX_ADD"), _other, image, noted)
        if Op.MIX_END in possible:
            image = _if(p.get("is_MIX_END"), _other, image, _levels(total))
        for operations, change in _CHANGES:
            if operations & possible:
                image = change(image, p)
    return image


def to_device_of(image: DataNode, numbers: DataNode) -> DataNode:
    """Numbers for a branch, on the image's device: on the CPU, DALI would sort them into branches there."""
    return numbers.gpu() if image.device == "gpu" else numbers


def _if(condition: DataNode | None, change: Callable[..., DataNode], image: DataNode, *others: DataNode) -> DataNode:
    """Changes only samples for which the condition is true; without a condition, all."""
    return change(image, *others) if condition is None else change_where(condition, change, image, *others)


def _other(image: DataNode, other: DataNode) -> DataNode:
    return other


def _levels(values: DataNode) -> DataNode:
    """Clamps and truncates, because `cast` alone would round."""
    return fn.cast(math.floor(values), dtype=types.UINT8)


def _times(image: DataNode, factor: DataNode) -> DataNode:
    return fn.brightness(image, brightness=factor, dtype=types.FLOAT)


def _warp(image: DataNode, p: Nodes) -> DataNode:
    """Uses bilinear if the program says bicubic, which DALI does not have."""
    if "fill" not in p:
        return _warps(image, p)
    # The operators fill all channels with the same number: 0.
    return fn.cast(_warps(image - p["fill"], p) + p["fill"], dtype=types.UINT8)


def _warps(image: DataNode, p: Nodes) -> DataNode:
    for name, interpolation in (("nearest", types.INTERP_NN), ("linear", types.INTERP_LINEAR)):
        if f"affine_{name}" in p:
            image = fn.warp_affine(image, matrix=p[f"affine_{name}"], interp_type=interpolation, fill_value=0.0)
        if f"perspective_{name}" in p:
            image = fn.experimental.warp_perspective(image, matrix=p[f"perspective_{name}"], interp_type=interpolation)
    return image


def _colors(image: DataNode, p: Nodes) -> DataNode:
    """Does all operations that are a weighted sum, truncated; POSTERIZE truncates a fraction of the level."""
    total = fn.coord_transform(image, M=p["linear"]) if "linear" in p else image
    if "gray" in p or "mean" in p:
        gray = math.floor(fn.coord_transform(image, M=GRAY))
        if "gray" in p:
            total = total + _times(gray, p["gray"])
        if "mean" in p:
            total = total + _times(fn.reductions.mean(gray, keep_dims=True), p["mean"])
    if "added" in p:
        total = total + (image < 128) * p["added"]
    if "power" not in p:
        return _levels(total)
    return fn.brightness(math.floor(total), brightness=p["power"], dtype=types.UINT8)


def _turn(image: DataNode, turn: DataNode) -> DataNode:
    """Turns the hue: a channel is v - c max(0, min(k, 4 - k, 1)), k = (n + h) mod 6, n = 5, 3, 1 for red, green, blue.

    v is the largest channel, c the largest minus the smallest, and h the hue in sixths of a circle (Wikipedia, "HSL and
    HSV", "HSV to RGB alternative").
    """
    value = fn.reductions.max(image, axes=2, keep_dims=True)
    chroma = value - fn.reductions.min(image, axes=2, keep_dims=True)
    # For each channel, the hue if this channel is the largest; if several are, their hues agree.
    differences = fn.coord_transform(image, M=[0.0, 1.0, -1.0, -1.0, 0.0, 1.0, 1.0, -1.0, 0.0])
    hues = fn.coord_transform(differences / math.max(chroma, 1), T=[6.0, 2.0, 4.0])
    hue = fn.reductions.max((image == value) * hues, axes=2, keep_dims=True) + turn
    k = fn.coord_transform(hue, M=[1.0, 1.0, 1.0], T=[5.0, 3.0, 1.0])
    k = k - 6.0 * math.floor(k / 6.0)
    turned = value - chroma * math.clamp(math.min(k, 4.0 - k), 0.0, 1.0)
    return _levels(turned * (255.999 / 255.0))


def _sharpness(image: DataNode, p: Nodes) -> DataNode:
    # If the window reaches beyond the image, the mean is far below 0.
    window, outside = (types.Constant(value, device=image.device) for value in (_SMOOTHING, _FAR_BELOW))
    return _if(p.get("is_SHARPNESS"), _sharpen, image, to_device_of(image, p["edges"]), window, outside)


def _sharpen(image: DataNode, edges: DataNode, window: DataNode, outside: DataNode) -> DataNode:
    image = fn.cast(image, dtype=types.FLOAT)
    smooth = fn.filter(image, window, outside, border="constant")
    change = edges * (math.floor(smooth + 0.5) - image)
    return _levels(image + (smooth >= 0.0) * change)


def _stretch(image: DataNode) -> DataNode:
    least = fn.reductions.min(image, axes=[0, 1], keep_dims=True)
    span = fn.reductions.max(image, axes=[0, 1], keep_dims=True) - least
    flat = span == 0
    return _levels((image - least) / (span * (1.0 / 255.0) + flat) + least * flat)


def _even_out(image: DataNode) -> DataNode:
    """Differs from PIL by at most 1 level, because both round.

    In PIL, a level's share is the number of pixels below it, divided by the number of pixels not at the highest level.
    DALI counts the pixels up to a level, both times without those at the lowest: the same on the inverted image.
    PIL divides the number by 255 and truncates, which matters for small images; if it is 0, the channel is unchanged.
    """
    below = image < fn.reductions.max(image, axes=[0, 1], keep_dims=True)
    pixels = fn.reductions.sum(fn.cast(below, dtype=types.FLOAT), axes=[0, 1], keep_dims=True) / 255.0
    whole = math.floor(pixels)
    even = (fn.equalize(image ^ _WHITE) ^ _WHITE) * (pixels / math.max(whole, 1.0))
    return fn.cast((whole > 0.0) * even + (whole == 0.0) * image, dtype=types.UINT8)


_CHANGES: list[tuple[set[Op], Callable[[DataNode, Nodes], DataNode]]] = [
    ({Op.WARP}, _warp),
    (
        {Op.BRIGHTNESS, Op.CONTRAST, Op.SATURATION, Op.GRAYSCALE, Op.POSTERIZE, Op.SOLARIZE_ADD, Op.PERMUTE},
        _colors,
    ),
    ({Op.SOLARIZE, Op.INVERT}, lambda image, p: image ^ ((image >= p["threshold"]) * _WHITE)),
    ({Op.HUE}, lambda image, p: _if(p.get("is_HUE"), _turn, image, to_device_of(image, p["turn"]))),
    ({Op.SHARPNESS}, _sharpness),
    ({Op.AUTOCONTRAST}, lambda image, p: _if(p.get("is_AUTOCONTRAST"), _stretch, image)),
    ({Op.EQUALIZE}, lambda image, p: _if(p.get("is_EQUALIZE"), _even_out, image)),
    ({Op.BLUR}, lambda image, p: fn.gaussian_blur(image, sigma=p["sigma"], window_size=p["window"])),
]
"""Each takes the image and what `inputs.step_inputs` makes for the step, and returns the image."""
