"""The steps of `gpuloader.recipe.program` as DALI operators, on the image's device.

They are pure functions of their inputs, and must be traced by a pipeline with conditionals. `gpuloader.recipe.program`
says what each operation does; if DALI's operators cannot do exactly this, the function here says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from nvidia.dali import fn, math, types
from nvidia.dali.data_node import DataNode

from gpuloader.errors import ConfigError
from gpuloader.recipe import Preset
from gpuloader.recipe.colors import GaussianBlur
from gpuloader.recipe.model import with_inner
from gpuloader.recipe.program import NEAREST, Op

_GRAY = [0.2989, 0.587, 0.114]
_SMOOTHING = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
_MOST_BLUR_TAPS = 171  # on a GPU, DALI's convolution refuses windows if half of one, times 3 channels, is 256 or more
_WHITE = types.Constant(255, dtype=types.UINT8)


def check_for_gpu(preset: Preset) -> None:
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


def run_steps(image: DataNode, ops: DataNode, parameters: DataNode, choices: Sequence[frozenset[Op]]) -> DataNode:
    """Returns the image after its steps. Each sample goes only through the operations that were drawn for it.

    Args:
        image: RGB, uint8 HWC, on either device.
        ops, parameters: a sample's rows of `Program`'s arrays: (k,) int32 and (k, PARAMETERS) float32, on the CPU.
        choices: as in `Program`; only operations in it get nodes. A choice with one of MIX_BEGIN, MIX_ADD and MIX_END
            has nothing else except IDENTITY.
    """
    # DALI warns of unused inputs, and not every recipe uses these.
    ops, parameters = fn.copy(ops, preserve=True), fn.copy(parameters, preserve=True)
    noted, total = image, None
    for step, possible in enumerate(choices):
        op, p = ops[step], parameters[step]
        changing = possible - {Op.IDENTITY}
        if changing == {Op.MIX_BEGIN}:
            noted, total = image, None
        elif changing == {Op.MIX_ADD}:
            share = p[0] * image
            total = share if total is None else total + share
            image = _unless_identity(op, possible, noted, image)
        elif changing == {Op.MIX_END}:
            image = _unless_identity(op, possible, _levels(total), image)
        else:
            image = _one_of(sorted(possible), op, image, p)
    return image


def _unless_identity(op: DataNode, possible: frozenset[Op], changed: DataNode, image: DataNode) -> DataNode:
    if Op.IDENTITY not in possible:
        return changed
    if op == int(Op.IDENTITY):
        return image
    else:
        return changed


def _one_of(possible: list[Op], op: DataNode, image: DataNode, p: DataNode) -> DataNode:
    """Returns the image after the operation `op`, which is one of the `possible`, a sorted list."""
    if len(possible) == 1:
        return _OPERATIONS[possible[0]](image, p)
    half = len(possible) // 2
    if op < int(possible[half]):
        return _one_of(possible[:half], op, image, p)
    else:
        return _one_of(possible[half:], op, image, p)


def _levels(values: DataNode) -> DataNode:
    """Clamped and truncated, because `cast` alone would round."""
    return fn.cast(math.floor(values), dtype=types.UINT8)


def _gray(image: DataNode) -> DataNode:
    return math.floor(fn.coord_transform(image, M=_GRAY))


def _identity(image: DataNode, p: DataNode) -> DataNode:
    return image


def _warp(image: DataNode, p: DataNode) -> DataNode:
    """Uses bilinear if the program says bicubic, which DALI does not have."""
    matrix = fn.reshape(p[0:9], shape=[3, 3])
    affine = (p[6] == 0.0) & (p[7] == 0.0) & (p[8] == 1.0)
    nearest = p[9] == float(NEAREST)
    fill = p[10:13]
    # The operators fill all channels with the same number: 0.
    warped = _warp_of(image - fill, matrix, affine, nearest)
    return fn.cast(warped + fill, dtype=types.UINT8)


def _warp_of(image: DataNode, matrix: DataNode, affine: DataNode, nearest: DataNode) -> DataNode:
    if affine:
        matrix = matrix[0:2]
        if nearest:
            return fn.warp_affine(image, matrix=matrix, interp_type=types.INTERP_NN, fill_value=0.0)
        else:
            return fn.warp_affine(image, matrix=matrix, interp_type=types.INTERP_LINEAR, fill_value=0.0)
    elif nearest:
        return fn.experimental.warp_perspective(image, matrix=matrix, interp_type=types.INTERP_NN)
    else:
        return fn.experimental.warp_perspective(image, matrix=matrix, interp_type=types.INTERP_LINEAR)


def _brightness(image: DataNode, p: DataNode) -> DataNode:
    return _levels(p[0] * image)


def _contrast(image: DataNode, p: DataNode) -> DataNode:
    factor = p[0]
    return _levels(factor * image + (1.0 - factor) * fn.reductions.mean(_gray(image)))


def _saturation(image: DataNode, p: DataNode) -> DataNode:
    factor = p[0]
    return _levels(factor * image + (1.0 - factor) * _gray(image))


def _hue(image: DataNode, p: DataNode) -> DataNode:
    """A channel is v - c max(0, min(k, 4 - k, 1)), with k = (n + h) mod 6 and n = 5, 3, 1 for red, green, blue.

    v is the largest channel, c the largest minus the smallest, and h the hue in sixths of a circle (Wikipedia, "HSL and
    HSV", "HSV to RGB alternative").
    """
    value = fn.reductions.max(image, axes=2, keep_dims=True)
    chroma = value - fn.reductions.min(image, axes=2, keep_dims=True)
    # For each channel, the hue if this channel is the largest; if several are, their hues agree.
    differences = fn.coord_transform(image, M=[0.0, 1.0, -1.0, -1.0, 0.0, 1.0, 1.0, -1.0, 0.0])
    hues = fn.coord_transform(differences / math.max(chroma, 1), T=[6.0, 2.0, 4.0])
    hue = fn.reductions.max((image == value) * hues, axes=2, keep_dims=True) + 6.0 * p[0]
    k = fn.coord_transform(hue, M=[1.0, 1.0, 1.0], T=[5.0, 3.0, 1.0])
    k = k - 6.0 * math.floor(k / 6.0)
    turned = value - chroma * math.clamp(math.min(k, 4.0 - k), 0.0, 1.0)
    return _levels(turned * (255.999 / 255.0))


def _sharpness(image: DataNode, p: DataNode) -> DataNode:
    image = fn.cast(image, dtype=types.FLOAT)
    # If the window reaches beyond the image, the mean is far below 0.
    outside = types.Constant(-1e6, dtype=types.FLOAT, device=image.device)
    smooth = fn.filter(image, types.Constant(_SMOOTHING, device=image.device), outside, border="constant")
    change = (1.0 - p[0]) * (math.floor(smooth + 0.5) - image)
    return _levels(image + (smooth >= 0.0) * change)


def _posterize(image: DataNode, p: DataNode) -> DataNode:
    return image & fn.cast(256.0 - math.pow(2.0, 8.0 - p[0]), dtype=types.UINT8)


def _solarize(image: DataNode, p: DataNode) -> DataNode:
    return image ^ ((image >= p[0]) * _WHITE)


def _solarize_add(image: DataNode, p: DataNode) -> DataNode:
    return _levels(image + (image < 128) * p[0])


def _invert(image: DataNode, p: DataNode) -> DataNode:
    return image ^ _WHITE


def _autocontrast(image: DataNode, p: DataNode) -> DataNode:
    least = fn.reductions.min(image, axes=[0, 1], keep_dims=True)
    span = fn.reductions.max(image, axes=[0, 1], keep_dims=True) - least
    flat = span == 0
    return _levels((image - least) / (span * (1.0 / 255.0) + flat) + least * flat)


def _equalize(image: DataNode, p: DataNode) -> DataNode:
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


def _grayscale(image: DataNode, p: DataNode) -> DataNode:
    return _levels(fn.coord_transform(image, M=_GRAY * 3))


def _blur(image: DataNode, p: DataNode) -> DataNode:
    return fn.gaussian_blur(image, sigma=p[0], window_size=fn.cast(p[1], dtype=types.INT32))


# Each takes the image and the step's parameters, and returns the image.
_OPERATIONS: dict[Op, Callable[[DataNode, DataNode], DataNode]] = {
    Op.IDENTITY: _identity,
    Op.WARP: _warp,
    Op.BRIGHTNESS: _brightness,
    Op.CONTRAST: _contrast,
    Op.SATURATION: _saturation,
    Op.HUE: _hue,
    Op.SHARPNESS: _sharpness,
    Op.POSTERIZE: _posterize,
    Op.SOLARIZE: _solarize,
    Op.SOLARIZE_ADD: _solarize_add,
    Op.INVERT: _invert,
    Op.AUTOCONTRAST: _autocontrast,
    Op.EQUALIZE: _equalize,
    Op.GRAYSCALE: _grayscale,
    Op.BLUR: _blur,
}
