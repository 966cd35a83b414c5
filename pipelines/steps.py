"""The steps of `gpuloader.recipe.program` in DALI's operators, on the device where the image is.

Pure functions of their inputs, which a pipeline with conditionals must trace. What an operation does stands in
`gpuloader.recipe.program`; where DALI's operators cannot do just that, its function says so.
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
_MOST_BLUR_TAPS = 171  # DALI's convolution on a GPU refuses windows of which half, times 3 channels, is 256 or more
_WHITE = types.Constant(255, dtype=types.UINT8)


def check_for_gpu(preset: Preset) -> None:
    """Sees that DALI's operators for a GPU take what the recipe asks for.

    Raises:
        ConfigError: a blur's kernel is too large for them.
    """
    for view in preset.each_view:
        for each in with_inner(view.pixels):
            if isinstance(each, GaussianBlur) and each.kernel_size > _MOST_BLUR_TAPS:
                raise ConfigError(
                    f"GaussianBlur's kernel_size {each.kernel_size}: allowed is up to {_MOST_BLUR_TAPS} on a GPU, "
                    f"which DALI's blur can do; take a smaller kernel, or device_id=None for the CPU"
                )


def run_steps(image: DataNode, ops: DataNode, parameters: DataNode, choices: Sequence[frozenset[Op]]) -> DataNode:
    """The image after its steps. Each sample goes through the operation that was drawn for it, and no other.

    Args:
        image: RGB, uint8 HWC, on either device.
        ops, parameters: a sample's rows of `Program`'s arrays: (k,) int32 and (k, PARAMETERS) float32, on the CPU.
        choices: as in `Program`; only what they name gets nodes. One of MIX_BEGIN, MIX_ADD and MIX_END comes alone or
            with IDENTITY.
    """
    # DALI warns of inputs that nothing takes, and not every recipe looks at these.
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
    """The image after the operation `op`, which is one of the `possible`; those are in their order."""
    if len(possible) == 1:
        return _OPERATIONS[possible[0]](image, p)
    half = len(possible) // 2
    if op < int(possible[half]):
        return _one_of(possible[:half], op, image, p)
    else:
        return _one_of(possible[half:], op, image, p)


def _levels(values: DataNode) -> DataNode:
    """Clamped and truncated: `cast` alone would round."""
    return fn.cast(math.floor(values), dtype=types.UINT8)


def _gray(image: DataNode) -> DataNode:
    return math.floor(fn.coord_transform(image, M=_GRAY))


def _identity(image: DataNode, p: DataNode) -> DataNode:
    return image


def _warp(image: DataNode, p: DataNode) -> DataNode:
    """Bilinear where the program says bicubic, which DALI has not."""
    matrix = fn.reshape(p[0:9], shape=[3, 3])
    affine = (p[6] == 0.0) & (p[7] == 0.0) & (p[8] == 1.0)
    nearest = p[9] == float(NEAREST)
    fill = p[10:13]
    # The operators fill with one number for all: 0.
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
    """With v the largest, c the largest less the smallest channel and h the hue in sixths of a circle, a channel is
    v - c max(0, min(k, 4 - k, 1)), k = (n + h) mod 6, n = 5, 3, 1 for red, green, blue (Wikipedia, "HSL and HSV",
    "HSV to RGB alternative").
    """
    value = fn.reductions.max(image, axes=2, keep_dims=True)
    chroma = value - fn.reductions.min(image, axes=2, keep_dims=True)
    # The hue as each channel has it where it is the largest; where several are, they agree.
    differences = fn.coord_transform(image, M=[0.0, 1.0, -1.0, -1.0, 0.0, 1.0, 1.0, -1.0, 0.0])
    hues = fn.coord_transform(differences / math.max(chroma, 1), T=[6.0, 2.0, 4.0])
    hue = fn.reductions.max((image == value) * hues, axes=2, keep_dims=True) + 6.0 * p[0]
    k = fn.coord_transform(hue, M=[1.0, 1.0, 1.0], T=[5.0, 3.0, 1.0])
    k = k - 6.0 * math.floor(k / 6.0)
    turned = value - chroma * math.clamp(math.min(k, 4.0 - k), 0.0, 1.0)
    return _levels(turned * (255.999 / 255.0))


def _sharpness(image: DataNode, p: DataNode) -> DataNode:
    image = fn.cast(image, dtype=types.FLOAT)
    # Where the window leaves the image, the mean is far below 0.
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
    """To PIL a level's share is the pixels below it, of all but those at the highest level. DALI takes the pixels up to
    it, of all but those at the lowest, both without the lowest: the same on the inverted image. PIL's 255th of all is a
    whole number of pixels, which tells on small images; where it is 0, the channel stays. Both round: a level can
    differ by 1.
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


# From the image and the step's parameters to the image.
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
