"""timm's augmentation policies (`timm.data.auto_augment`), which differ from torchvision's policies.

The operations compute as `program` describes, as for all transforms here; timm computes with PIL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gpuloader.plan import Draw, Stream
from gpuloader.recipe.auto_augment import POLICIES, V0, Trial
from gpuloader.recipe.colors import ColorJitter, GaussianBlur, Grayscale, RandomSolarize
from gpuloader.recipe.distributions import normal
from gpuloader.recipe.model import ByEpoch, Factor, Fill, Ints, PixelTransform, Probability, at_epoch
from gpuloader.recipe.part import part
from gpuloader.recipe.policies import OPERATIONS, Floats, RandomChoice, operation
from gpuloader.recipe.program import BICUBIC, BILINEAR, PARAMETERS, Op, Program, chain
from gpuloader.recipe.warps import INTERPOLATIONS, Interpolation

OPERATION_NAMES = (
    *("AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "SolarizeAdd"),
    *("Color", "Contrast", "Brightness", "Sharpness", "ShearX", "ShearY", "TranslateX", "TranslateY"),
)
PolicyName: TypeAlias = Literal["v0", "v0r", "original", "originalr"]
POLICY_NAMES: tuple[PolicyName, ...] = get_args(PolicyName)
_ENHANCING = ("Color", "Contrast", "Brightness", "Sharpness")
_INCREASING = {"Posterize", "Solarize", *_ENHANCING}
_GREATEST_STD = 100.0
"""The largest standard deviation; above it, magnitudes are drawn evenly."""
Std: TypeAlias = Annotated[float, Field(ge=0, le=1_000)]


def draw_levels(magnitude: Floats | float, std: float, numbers: tuple[Floats, Floats], most: float) -> Floats:
    """Draws levels, in tenths of the magnitude, from two columns of uniform numbers."""
    radius, angle = numbers
    drawn = magnitude + std * normal(radius, angle) if std <= _GREATEST_STD else magnitude * radius
    return np.clip(drawn, 0, most) / 10


_ARGUMENTS: Mapping[str, Callable[[Floats, Floats, Ints], Floats]] = {
    "Rotate": lambda level, sign, sizes: sign * level * 30,
    **dict.fromkeys(("ShearX", "ShearY"), lambda level, sign, sizes: sign * level * 0.3),
    "TranslateX": lambda level, sign, sizes: sign * level * 0.45 * sizes[:, 1],
    "TranslateY": lambda level, sign, sizes: sign * level * 0.45 * sizes[:, 0],
    **dict.fromkeys(_ENHANCING, lambda level, sign, sizes: level * 1.8 + 0.1),
    **{f"{each}Increasing": lambda level, sign, sizes: np.maximum(0.1, 1 + sign * level * 0.9) for each in _ENHANCING},
    "Posterize": lambda level, sign, sizes: np.minimum(8, np.trunc(level * 4)),
    "PosterizeIncreasing": lambda level, sign, sizes: np.maximum(0, 4 - np.trunc(level * 4)),
    "PosterizeOriginal": lambda level, sign, sizes: np.minimum(8, np.trunc(level * 4) + 4),
    "Solarize": lambda level, sign, sizes: np.minimum(256, np.trunc(level * 256)),
    "SolarizeIncreasing": lambda level, sign, sizes: 256 - np.minimum(256, np.trunc(level * 256)),
    "SolarizeAdd": lambda level, sign, sizes: np.minimum(128, np.trunc(level * 110)),
}


def argument(name: str, level: Floats, sign: Floats, sizes: Ints) -> Floats:
    """Computes the arguments of `operation` from timm's name, levels (n,), and signs (1 or -1)."""
    return _ARGUMENTS[name](level, sign, sizes) if name in _ARGUMENTS else np.zeros_like(level)


class _Timms(PixelTransform):
    """The base class of policies with timm's operations."""

    interpolation: Interpolation | Literal["random"]
    fill: Fill | None

    def _steps(
        self, names: Sequence[str], chosen: Ints, level: Floats, sign: Floats, interpolation: Floats, sizes: Ints
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Makes a program's operations and parameters.

        Args:
            names: timm's names of the operations.
            chosen: (n, k), indices of names; -1 for no operation.
            level: (n, k), in tenths of the magnitude.
            sign, interpolation: (n, k), random numbers from 0 to 1.
        """
        sign = np.where(sign < 0.5, -1.0, 1.0)
        if self.interpolation == "random":
            interpolation = np.where(interpolation < 0.5, BILINEAR, BICUBIC)
        else:
            interpolation = np.full(chosen.shape, INTERPOLATIONS[self.interpolation])
        ops = np.full(chosen.shape, Op.IDENTITY, np.int32)
        parameters = np.zeros((*chosen.shape, PARAMETERS), np.float32)
        for number, name in enumerate(names):
            at = np.nonzero(chosen == number)
            size = sizes if len(sizes) == 1 else sizes[at[0]]
            made = operation(
                _plain(name), argument(name, level[at], sign[at], size), size, interpolation[at], self.fill
            )
            ops[at], parameters[at] = made.ops[:, 0], made.parameters[:, 0]
        return ops, parameters


def _plain(name: str) -> str:
    return name.removesuffix("Increasing").removesuffix("Original")


@part
class TimmRandAugment(_Timms):
    """Applies random operations as timm's `rand_augment_transform`; the defaults are "rand-m9-mstd0.5-inc1".

    Attributes:
        magnitude: m, the mean of the operations' magnitudes, of 10; or by epoch, such as `{0: 5, 30: 9}`.
        num_ops: n, the number of operations, chosen with replacement.
        magnitude_std: mstd, the standard deviation of the magnitudes. Each is drawn independently and clipped to 0 and
            `magnitude_max`. Above 100, magnitudes are drawn evenly from 0 to `magnitude`, as by timm.
        increasing: inc, all operations grow stronger with the magnitude.
        prob: p, the probability that a chosen operation is applied.
        magnitude_max: mmax, the largest magnitude.
        interpolation: for operations that move pixels; "random" is bilinear or bicubic.
        fill: the level from 0 to 255 outside the image, or one for each channel; None is black.

    Example:
        >>> from gpuloader.transforms import TimmRandAugment
        >>> TimmRandAugment(magnitude=7).magnitude_std
        0.5
    """

    stream: ClassVar[Stream] = Stream.RAND_AUGMENT

    magnitude: ByEpoch[Annotated[float, Field(ge=0, le=1_000)]] = 9.0
    num_ops: Annotated[int, Field(ge=0, le=200)] = 2
    magnitude_std: Std = 0.5
    increasing: bool = True
    prob: Probability = 0.5
    magnitude_max: Annotated[float, Field(gt=0, le=1_000)] = 10.0
    interpolation: Interpolation | Literal["random"] = "random"
    fill: Fill | None = (124.0, 116.0, 104.0)

    @property
    def steps(self) -> int:
        return self.num_ops

    @property
    def names(self) -> Sequence[str]:
        """timm's names of the operations."""
        return [f"{each}Increasing" if self.increasing and each in _INCREASING else each for each in OPERATION_NAMES]

    def program(self, draw: Draw, sizes: Ints) -> Program:
        """Draws `num_ops` steps.

        Columns for each: the operation, whether it is applied, two for the magnitude, the sign, the interpolation.
        """
        numbers = draw(6 * self.num_ops).reshape(draw.samples, self.num_ops, 6)
        which, applied, radius, angle, sign, interpolation = np.moveaxis(numbers, 2, 0)
        chosen = np.where(applied < self.prob, (which * len(OPERATION_NAMES)).astype(np.int64), -1)
        level = draw_levels(at_epoch(self.magnitude), self.magnitude_std, (radius, angle), self.magnitude_max)
        steps = self._steps(self.names, chosen, level, sign, interpolation, sizes)
        names = frozenset(OPERATIONS[name] for name in OPERATION_NAMES) if self.prob > 0 else frozenset()
        choices = names | {Op.IDENTITY} if self.prob < 1 else names
        return Program(*steps, (choices,) * self.num_ops)


@part
class TimmAutoAugment(_Timms):
    """Applies one of 25 pairs of operations as timm's `auto_augment_transform`.

    Attributes:
        policy: "v0" is EfficientNet's policy, "original" is the AutoAugment paper's policy. In "v0r" and "originalr",
            posterizing grows stronger with the magnitude.
        magnitude_std: mstd, as for `TimmRandAugment`; 0 uses the policy's magnitudes.
        interpolation, fill: as for `TimmRandAugment`.

    Example:
        >>> from gpuloader.transforms import TimmAutoAugment
        >>> TimmAutoAugment("original").magnitude_std
        0.0
    """

    stream: ClassVar[Stream] = Stream.AUTO_AUGMENT
    steps: ClassVar[int] = 2

    policy: PolicyName = "v0"
    magnitude_std: Std = 0.0
    interpolation: Interpolation | Literal["random"] = "random"
    fill: Fill | None = (124.0, 116.0, 104.0)

    @property
    def pairs(self) -> Sequence[Sequence[Trial]]:
        """The policy's pairs of operations, with timm's names."""
        kind = {"v0": "", "original": "Original"}.get(self.policy, "Increasing")
        pairs = V0 if self.policy.startswith("v0") else POLICIES["imagenet"]
        return [[(f"{name}{kind if name == 'Posterize' else ''}", p, m) for name, p, m in pair] for pair in pairs]

    def program(self, draw: Draw, sizes: Ints) -> Program:
        """Draws two steps.

        Columns: the pair; for each operation, whether it is applied, two for the magnitude, the sign, the
        interpolation.
        """
        pairs = self.pairs
        names = sorted({name for pair in pairs for name, _, _ in pair})
        numbers = draw(11)
        pair = (numbers[:, 0] * len(pairs)).astype(np.int64)
        applied, radius, angle, sign, interpolation = np.moveaxis(numbers[:, 1:].reshape(-1, 2, 5), 2, 0)
        chosen = np.array([[names.index(name) for name, _, _ in each] for each in pairs])[pair]
        probabilities = np.array([[p for _, p, _ in each] for each in pairs])[pair]
        magnitudes = np.array([[magnitude or 0.0 for _, _, magnitude in each] for each in pairs])[pair]
        level = draw_levels(magnitudes, self.magnitude_std, (radius, angle), 10.0)
        chosen = np.where(applied < probabilities, chosen, -1)
        choices = tuple(
            frozenset({OPERATIONS[_plain(name)] for name, p, _ in trials if p > 0}) | {Op.IDENTITY}
            for trials in zip(*pairs)
        )
        return Program(*self._steps(names, chosen, level, sign, interpolation, sizes), choices)


@part
class ThreeAugment(PixelTransform):
    """Applies one of grayscale, solarizing and blur, then colour jitter: 3-Augment.

    Touvron, Cord, Jegou, "DeiT III: Revenge of the ViT", ECCV 2022. The blur's standard deviation is 0.1 to 2 pixels;
    its kernel has 13 pixels.

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
        """Draws one step, and three more if `color_jitter` is not 0."""
        transforms = (
            RandomChoice((Grayscale(), RandomSolarize(128, p=1), GaussianBlur(13, (0.1, 2.0)))),
            ColorJitter(self.color_jitter, self.color_jitter, self.color_jitter),
        )
        draws = draw.split(len(transforms))
        parts = [transform.program(part, sizes) for transform, part in zip(transforms, draws)]
        return chain(parts, draw.samples)
