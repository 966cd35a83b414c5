"""What a program does to an image, by torchvision's own operations: the oracle of the kernels and of the policies.

It shares nothing with the library but the numbers of the operations.
"""

from __future__ import annotations

import io

import numpy as np
import torch
from oracle import functional, transforms
from PIL import Image
from torchvision.transforms.v2.functional._geometry import _apply_grid_transform

from gpuloader.recipe import AugmentParams
from gpuloader.recipe.placement import GeometricTransform
from gpuloader.recipe.program import Op, Program

_MODES = ("nearest", "bilinear", "bicubic")


def run_program(program: Program, row: int, image: torch.Tensor) -> torch.Tensor:
    """The image, (3, height, width) uint8, after the steps of one sample."""
    noted, total = image, torch.zeros(image.shape)
    for op, values in zip(program.ops[row].tolist(), program.parameters[row].tolist(), strict=True):
        if op == Op.MIX_BEGIN:
            noted, total = image, torch.zeros(image.shape)
        elif op == Op.MIX_ADD:
            image, total = noted, total + values[0] * image
        elif op == Op.MIX_END:
            image = total.clamp(0, 255).to(torch.uint8)
        else:
            image = run_step(Op(op), values, image)
    return image


def run_step(op: Op, values: list[float], image: torch.Tensor) -> torch.Tensor:
    """The image after one step that is not of a mix."""
    f = values[0]
    match op:
        case Op.IDENTITY:
            return image
        case Op.WARP:
            return _warp(
                image,
                torch.tensor(values[:9], dtype=torch.float64),
                _MODES[int(values[9])],
                values[10:13] if values[13] else None,
            )
        case Op.BRIGHTNESS:
            return functional.adjust_brightness(image, f)
        case Op.CONTRAST:
            return functional.adjust_contrast(image, f)
        case Op.SATURATION:
            return functional.adjust_saturation(image, f)
        case Op.HUE:
            return functional.adjust_hue(image, f)
        case Op.SHARPNESS:
            return functional.adjust_sharpness(image, f)
        case Op.POSTERIZE:
            return functional.posterize(image, int(f))
        case Op.SOLARIZE:
            return functional.solarize(image, f) if f <= 255 else image
        case Op.SOLARIZE_ADD:
            return torch.where(image < 128, (image + f).clamp(max=255), image).to(torch.uint8)
        case Op.INVERT:
            return functional.invert(image)
        case Op.AUTOCONTRAST:
            return functional.autocontrast(image)
        case Op.EQUALIZE:
            return functional.equalize(image)
        case Op.GRAYSCALE:
            return functional.rgb_to_grayscale(image, 3)
        case Op.BLUR:
            return functional.gaussian_blur(image, [int(values[1])] * 2, [f, f])
        case Op.PERMUTE:
            return functional.permute_channels(image, [int(value) % 3 for value in (3 * values)[:3]])
        case _:
            raise ValueError(f"{op!r} is no step of its own")


def _warp(image: torch.Tensor, matrix: torch.Tensor, mode: str, fill: list[float] | None) -> torch.Tensor:
    """In float64, so that the places are those of the matrix; torchvision's own are float32."""
    height, width = image.shape[-2:]
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    mapped = torch.stack([x, y, torch.ones_like(x)], -1).double() @ matrix.reshape(3, 3).T
    grid = mapped[..., :2] / mapped[..., 2:] / torch.tensor([width / 2, height / 2]).double() - 1
    warped = _apply_grid_transform(image.double(), grid[None], mode, fill)
    return warped.round().clamp(0, 255).to(torch.uint8)


def placed_by_torchvision(transform: GeometricTransform, image: bytes, params: AugmentParams, row: int) -> torch.Tensor:
    """What resizing, cropping, padding and flipping a Pillow image gives, float32 (3, h, w) levels, as was drawn."""
    image_functional = transforms.functional
    picture = Image.open(io.BytesIO(image)).convert("RGB")
    at = params.views[0].placement
    top, left, bottom, right = at.canvas()[row].tolist()
    height, width = at.resized[row].tolist()
    first_row, first_column, last_row, last_column = at.shown[row].tolist()
    upside_down, mirrored = at.mirrored[row].tolist()
    rows, columns = at.shape[row].tolist()
    filter_name = getattr(transform, "interpolation", "bilinear")
    picture = image_functional.resized_crop(
        picture, top, left, bottom - top, right - left, [height, width], transforms.InterpolationMode(filter_name)
    )
    height, width = last_row - first_row, last_column - first_column
    picture = image_functional.crop(picture, first_row, first_column, height, width)
    first_row, first_column = (at.corner[row] - at.shown[row, :2]).tolist()
    room = [max(0, -first_column), max(0, -first_row)]
    room += [max(0, first_column + columns - width), max(0, first_row + rows - height)]
    fill = getattr(transform, "fill", getattr(transform, "pad", None)) or 0.0
    colour = tuple(map(int, fill)) if isinstance(fill, tuple) else (int(fill),) * 3
    mode = getattr(transform, "padding_mode", "constant")
    picture = image_functional.pad(picture, room, colour if mode == "constant" else 0, mode)
    picture = image_functional.crop(picture, first_row + room[1], first_column + room[0], rows, columns)
    picture = image_functional.hflip(picture) if mirrored else picture
    picture = image_functional.vflip(picture) if upside_down else picture
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float()
