"""Policies of `timm.data.auto_augment`: other operations, magnitudes and probabilities than torchvision's.

The arithmetic of the operations is that of `program`, as for all transforms here; timm uses PIL's.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from gpuloader.plan import Draw, Stream
from gpuloader.recipe.colors import ColorJitter, GaussianBlur, Grayscale, RandomSolarize
from gpuloader.recipe.distributions import normal
from gpuloader.recipe.model import Factor, Fill, Ints, PixelTransform, Probability
from gpuloader.recipe.part import part
from gpuloader.recipe.policies import OPERATIONS, Floats, RandomChoice, operation
from gpuloader.recipe.program import BICUBIC, BILINEAR, PARAMETERS, Op, Program, chain
from gpuloader.recipe.warps import INTERPOLATIONS, Interpolation

OPERATION_NAMES = (
    *("AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "SolarizeAdd"),
    *("Color", "Contrast", "Brightness", "Sharpness", "ShearX", "ShearY", "TranslateX", "TranslateY"),
)


@part
class TimmRandAugment(PixelTransform):
    """timm's `rand_augment_transform`; "rand-m9-mstd0.5-inc1" are the defaults.

    Attributes:
        magnitude: m, the mean of the operations' magnitudes, of 10.
        num_ops: n, how many operations are chosen, with replacement.
        magnitude_std: mstd, the standard deviation of the magnitudes; each is drawn independently and cut off at 0 and
            at `magnitude_max`.
        increasing: inc, whether all operations grow stronger with the magnitude.
        prob: p, the probability that a chosen operation is applied.
        magnitude_max: mmax, the greatest magnitude.
        interpolation: of the operations that move pixels; "random" is bilinear or bicubic.
        fill: the level from 0 to 255 outside of the image, or one for each channel; None is black.

    Example:
        >>> from gpuloader.transforms import TimmRandAugment
        >>> TimmRandAugment(magnitude=7).magnitude_std
        0.5
    """

    stream: ClassVar[Stream] = Stream.RAND_AUGMENT

    magnitude: Annotated[float, Field(ge=0, le=1_000)] = 9.0
    num_ops: Annotated[int, Field(ge=0, le=200)] = 2
    magnitude_std: Annotated[float, Field(ge=0, le=100)] = 0.5
    increasing: bool = True
    prob: Probability = 0.5
    magnitude_max: Annotated[float, Field(gt=0, le=1_000)] = 10.0
    interpolation: Interpolation | Literal["random"] = "random"
    fill: Fill | None = (124.0, 116.0, 104.0)

    @property
    def steps(self) -> int:
        return self.num_ops

    def program(self, draw: Draw, sizes: Ints) -> Program:
        """Draws `num_ops` steps.

        Columns for each: the operation, whether it is applied, two for the magnitude, the sign, the interpolation.
        """
        n, k = draw.samples, self.num_ops
        which, applied, radius, angle, sign, interpolation = draw(6 * k).reshape(n * k, 6).T
        chosen = np.where(applied < self.prob, (which * len(OPERATION_NAMES)).astype(np.int64), -1)
        level = np.clip(self.magnitude + self.magnitude_std * normal(radius, angle), 0, self.magnitude_max) / 10
        sign = np.where(sign < 0.5, -1.0, 1.0)
        if self.interpolation == "random":
            interpolation = np.where(interpolation < 0.5, BILINEAR, BICUBIC)
        else:
            interpolation = np.full(n * k, INTERPOLATIONS[self.interpolation])
        ops = np.full(n * k, Op.IDENTITY, np.int32)
        parameters = np.zeros((n * k, PARAMETERS), np.float32)
        for number, name in enumerate(OPERATION_NAMES):
            rows = np.flatnonzero(chosen == number)
            size = sizes if len(sizes) == 1 else sizes[rows // k]
            argument = self.argument(name, level[rows], sign[rows], size)
            part = operation(name, argument, size, interpolation[rows], self.fill)
            ops[rows], parameters[rows] = part.ops[:, 0], part.parameters[:, 0]
        names = frozenset(OPERATIONS[name] for name in OPERATION_NAMES) if self.prob > 0 else frozenset()
        choices = names | {Op.IDENTITY} if self.prob < 1 else names
        return Program(ops.reshape(n, k), parameters.reshape(n, k, PARAMETERS), (choices,) * k)

    def argument(self, name: str, level: Floats, sign: Floats, sizes: Ints) -> Floats:
        """Computes `operation`'s arguments for levels, (n,), in tenths of the magnitude, and signs that are 1 or -1."""
        match name:
            case "Rotate":
                return sign * level * 30
            case "ShearX" | "ShearY":
                return sign * level * 0.3
            case "TranslateX":
                return sign * level * 0.45 * sizes[:, 1]
            case "TranslateY":
                return sign * level * 0.45 * sizes[:, 0]
            case "Color" | "Contrast" | "Brightness" | "Sharpness":
                return np.maximum(0.1, 1 + sign * level * 0.9) if self.increasing else level * 1.8 + 0.1
            case "Posterize":
                bits = np.trunc(level * 4)
                return np.maximum(0, 4 - bits) if self.increasing else np.minimum(8, bits)
            case "Solarize":
                threshold = np.minimum(256, np.trunc(level * 256))
                return 256 - threshold if self.increasing else threshold
            case "SolarizeAdd":
                return np.minimum(128, np.trunc(level * 110))
            case _:
                return np.zeros_like(level)


@part
class ThreeAugment(PixelTransform):
    """3-Augment: one of grayscale, solarizing and blur, then colour jitter.

    Touvron, Cord, Jegou, "DeiT III: Revenge of the ViT", ECCV 2022. The blur's standard deviation is 0.1 to 2 pixels;
    its kernel reaches three times the greatest.

    Attributes:
        color_jitter: the strength of brightness, contrast and saturation.

    Example:
        >>> from gpuloader.transforms import ThreeAugment
        >>> ThreeAugment()
        ThreeAugment(color_jitter=0.3)
    """

    stream: ClassVar[Stream] = Stream.CHOICE

    color_jitter: Factor = 0.3

    @property
    def steps(self) -> int:
        return 4 if self.color_jitter else 1

    def program(self, draw: Draw, sizes: Ints) -> Program:
        """Draws one step, and the three of the jitter where it is not 0."""
        transforms = (
            RandomChoice((Grayscale(), RandomSolarize(128, p=1), GaussianBlur(13, (0.1, 2.0)))),
            ColorJitter(self.color_jitter, self.color_jitter, self.color_jitter),
        )
        draws = draw.split(len(transforms))
        parts = [transform.program(part, sizes) for transform, part in zip(transforms, draws)]
        return chain(parts, draw.samples)
