"""Augmentation policies: transforms that draw their operations for each sample.

AutoAugment, RandAugment, TrivialAugmentWide and AugMix follow torchvision. Each policy has a table of steps, with a row
for every operation, magnitude and sign, so that a sample draws only row numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, InstanceOf, model_validator

from gpuloader.base.text import counted
from gpuloader.plan import Draw, Stream
from gpuloader.recipe.auto_augment import POLICIES
from gpuloader.recipe.distributions import beta, dirichlet, gamma_columns
from gpuloader.recipe.model import (
    ByEpoch,
    Fill,
    Ints,
    PixelTransform,
    Probability,
    at_epoch,
    in_all_epochs,
    kept_as,
)
from gpuloader.recipe.part import part
from gpuloader.recipe.program import PARAMETERS, Op, Program, chain, choose, sometimes, step
from gpuloader.recipe.warps import INTERPOLATIONS, Interpolation, middle, rotation, shear, translate, warp

Floats: TypeAlias = NDArray[np.float64]

_WARPS = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
OPERATIONS = {
    "Identity": Op.IDENTITY,
    **dict.fromkeys(_WARPS, Op.WARP),
    "Brightness": Op.BRIGHTNESS,
    "Color": Op.SATURATION,
    "Contrast": Op.CONTRAST,
    "Sharpness": Op.SHARPNESS,
    "Posterize": Op.POSTERIZE,
    "Solarize": Op.SOLARIZE,
    "SolarizeAdd": Op.SOLARIZE_ADD,
    "AutoContrast": Op.AUTOCONTRAST,
    "Equalize": Op.EQUALIZE,
    "Invert": Op.INVERT,
}


def operation(name: str, argument: Floats, sizes: Ints, interpolation: ArrayLike, fill: Fill | None) -> Program:
    """Makes one step for each argument, (n,), of the operation with this name in the papers.

    The argument is a shear in pixels per pixel, a move in pixels to the right or down, degrees counter-clockwise, or
    the parameter of the operation in `program`; 0 without parameters.
    """
    match name:
        case "ShearX":
            return warp(shear(argument, 0), interpolation, fill)
        case "ShearY":
            return warp(shear(0, argument), interpolation, fill)
        case "TranslateX":
            return warp(translate(argument, 0), interpolation, fill)
        case "TranslateY":
            return warp(translate(0, argument), interpolation, fill)
        case "Rotate":
            return warp(rotation(argument, middle(sizes)), interpolation, fill)
        case _:
            return step(OPERATIONS[name], len(argument), argument)


@dataclass(frozen=True)
class Space:
    """The operations of a policy, and their largest magnitudes.

    Attributes:
        names: of the operations.
        shear: pixels per pixel.
        move: pixels, as a function of the image's width or height.
        degrees: of a rotation.
        factor: the largest distance from 1 of the factors of brightness, colour, contrast and sharpness.
        bits: the bits that posterizing keeps at magnitude 0 and at the largest magnitude.
    """

    names: tuple[str, ...]
    shear: float
    move: Callable[[int], float]
    degrees: float
    factor: float
    bits: tuple[int, int]

    def arguments(self, name: str, bins: int, height: int, width: int) -> Floats:
        """Returns an operation's arguments by magnitude, (bins, 2); the second column is for the negative sign."""
        signs = np.array([1.0, -1.0])
        match name:
            case "ShearX" | "ShearY":
                return _linspace(0.0, self.shear, bins) * signs
            case "TranslateX":
                return np.trunc(_linspace(0.0, self.move(width), bins)) * signs
            case "TranslateY":
                return np.trunc(_linspace(0.0, self.move(height), bins)) * signs
            case "Rotate":
                return _linspace(0.0, self.degrees, bins) * signs
            case "Brightness" | "Color" | "Contrast" | "Sharpness":
                return 1 + _linspace(0.0, self.factor, bins) * signs
            case "Posterize":
                most, least = self.bits
                bits = most - np.arange(bins) / ((bins - 1) / (most - least))
                return np.rint(bits)[:, None] * np.ones(2)
            case "Solarize":
                return 255 * _linspace(1.0, 0.0, bins) * np.ones(2)
            case _:
                return np.zeros((bins, 2))


def _linspace(start: float, end: float, count: int) -> Floats:
    """Returns torch.linspace of float32, (count, 1), bit for bit, because the integer part of a move depends on it.

    torch computes from both ends to the middle, with fused multiply-add; float64, rounded once, gives the same.
    """
    index = np.arange(count)
    step_size = np.float64((np.float32(end) - np.float32(start)) / np.float32(count - 1))
    from_start = np.float32(start) + step_size * index
    from_end = np.float32(end) - step_size * (count - 1 - index)
    return np.where(index < count // 2, from_start, from_end).astype(np.float32).astype(np.float64)[:, None]


def _paper_move(size: int) -> float:
    return 150.0 / 331.0 * size


_FACTORS = ("Brightness", "Color", "Contrast", "Sharpness")
_TABLES = ("Posterize", "Solarize", "AutoContrast", "Equalize")

AUTO_SPACE = Space((*_WARPS, *_FACTORS, *_TABLES, "Invert"), 0.3, _paper_move, 30.0, 0.9, (8, 4))
RAND_SPACE = Space(("Identity", *_WARPS, *_FACTORS, *_TABLES), 0.3, _paper_move, 30.0, 0.9, (8, 4))
WIDE_SPACE = Space(("Identity", *_WARPS, *_FACTORS, *_TABLES), 0.99, lambda size: 32.0, 135.0, 0.99, (8, 2))
MIX_SPACE = Space((*_WARPS, *_TABLES, *_FACTORS), 0.3, lambda size: size / 3.0, 30.0, 0.9, (4, 0))
PARTIAL_MIX_SPACE = Space((*_WARPS, *_TABLES), 0.3, lambda size: size / 3.0, 30.0, 0.9, (4, 0))


@dataclass(frozen=True)
class Table:
    """All steps of a space: row ((operation * bins) + magnitude) * 2 + sign, 1 for negative; the last is a no-op."""

    space: Space
    bins: int
    interpolation: Interpolation
    fill: Fill | None

    def rows(self, operations: Ints, magnitudes: Ints, negative: NDArray[np.bool_]) -> Ints:
        """Returns the rows of operations (by index in the space), magnitudes and signs."""
        return (operations * self.bins + magnitudes) * 2 + negative

    def program(self, rows: Ints, sizes: Ints, choices: tuple[frozenset[Op], ...]) -> Program:
        """Returns the steps in these rows, (n, k), for images of these sizes; -1 is a no-op."""
        if len(sizes) == 1:
            steps = all_steps(self, *sizes[0].tolist())
            return Program(steps.ops[rows, 0], steps.parameters[rows, 0], choices)
        made = Program(np.empty(rows.shape, np.int32), np.empty((*rows.shape, PARAMETERS), np.float32), choices)
        for size in {*map(tuple, sizes.tolist())}:
            same, steps = (sizes == size).all(1), all_steps(self, *size)
            made.ops[same], made.parameters[same] = steps.ops[rows[same], 0], steps.parameters[rows[same], 0]
        return made


@lru_cache(maxsize=64)
def all_steps(table: Table, height: int, width: int) -> Program:
    """Makes all steps of a table for images of one size, one step a row."""
    sizes, interpolation = np.array([[height, width]]), INTERPOLATIONS[table.interpolation]
    parts = [
        operation(
            name, table.space.arguments(name, table.bins, height, width).ravel(), sizes, interpolation, table.fill
        )
        for name in table.space.names
    ]
    parts.append(step(Op.IDENTITY, 1))
    return Program(
        np.concatenate([part.ops for part in parts]), np.concatenate([part.parameters for part in parts]), ()
    )


def _ops(names: tuple[str, ...]) -> frozenset[Op]:
    return frozenset(OPERATIONS[name] for name in names)


def _below(count: int, uniform: Floats) -> Ints:
    """Converts uniform numbers to integers in [0, count)."""
    return (uniform * count).astype(np.int64)


@part
class AutoAugment(PixelTransform):
    """Applies one of 25 pairs of operations, with given probabilities and magnitudes, as torchvision's `AutoAugment`.

    Attributes:
        policy: the data set that the pairs were found for.
        interpolation, fill: for operations that move pixels; see `RandomAffine`.

    Example:
        >>> from gpuloader.transforms import AutoAugment
        >>> AutoAugment("cifar10")
        AutoAugment(policy='cifar10', interpolation='nearest', fill=None)
    """

    stream: ClassVar[Stream] = Stream.AUTO_AUGMENT
    steps: ClassVar[int] = 2

    policy: Literal["imagenet", "cifar10", "svhn"] = "imagenet"
    interpolation: Interpolation = "nearest"
    fill: Fill | None = None

    def program(self, draw: Draw, sizes: Ints) -> Program:
        """Draws two steps. Columns: the pair; for each operation, whether it is applied, and the sign."""
        policies, names = POLICIES[self.policy], AUTO_SPACE.names
        steps = Table(AUTO_SPACE, 10, self.interpolation, self.fill)
        operations = np.array([[names.index(name) for name, _, _ in pair] for pair in policies])
        magnitudes = np.array([[magnitude or 0 for _, _, magnitude in pair] for pair in policies])
        probabilities = np.array([[p for _, p, _ in pair] for pair in policies])
        uniform = draw(5)
        pair = _below(len(policies), uniform[:, 0])
        rows = steps.rows(operations[pair], magnitudes[pair], uniform[:, [2, 4]] < 0.5)
        applied = uniform[:, [1, 3]] < probabilities[pair]
        choices = tuple(
            frozenset({OPERATIONS[name] for name, p, _ in trials if p > 0}) | {Op.IDENTITY} for trials in zip(*policies)
        )
        return steps.program(np.where(applied, rows, -1), sizes, choices)


@part
class RandAugment(PixelTransform):
    """Applies `num_ops` random operations, all with the same magnitude, as torchvision's `RandAugment`.

    Attributes:
        magnitude: from 0 to `num_magnitude_bins` - 1; or by epoch, such as `{0: 5, 30: 9}`.
        num_magnitude_bins: the number of magnitudes, at least 2.
        interpolation, fill: for operations that move pixels; see `RandomAffine`.

    Example:
        >>> from gpuloader.transforms import RandAugment
        >>> RandAugment(magnitude=5)
        RandAugment(num_ops=2, magnitude=5, num_magnitude_bins=31, interpolation='nearest', fill=None)
    """

    stream: ClassVar[Stream] = Stream.RAND_AUGMENT

    num_ops: Annotated[int, Field(ge=0, le=200)] = 2
    magnitude: ByEpoch[Annotated[int, Field(ge=0)]] = 9
    num_magnitude_bins: Annotated[int, Field(ge=2, le=3_100)] = 31
    interpolation: Interpolation = "nearest"
    fill: Fill | None = None

    @model_validator(mode="after")
    def _check(self) -> RandAugment:
        if (greatest := max(in_all_epochs(self.magnitude))) >= self.num_magnitude_bins:
            raise ValueError(
                f"magnitude {greatest}: allowed is 0 to {self.num_magnitude_bins - 1}, below num_magnitude_bins"
            )
        return self

    @property
    def steps(self) -> int:
        return self.num_ops

    def program(self, draw: Draw, sizes: Ints) -> Program:
        """Draws `num_ops` steps. Columns for each: the operation, the sign."""
        steps = Table(RAND_SPACE, self.num_magnitude_bins, self.interpolation, self.fill)
        uniform = draw(2 * self.num_ops).reshape(draw.samples, self.num_ops, 2)
        operations = _below(len(RAND_SPACE.names), uniform[..., 0])
        rows = steps.rows(operations, np.full_like(operations, at_epoch(self.magnitude)), uniform[..., 1] < 0.5)
        return steps.program(rows, sizes, (_ops(RAND_SPACE.names),) * self.num_ops)


@part
class TrivialAugmentWide(PixelTransform):
    """Applies one random operation with a random magnitude, as torchvision's `TrivialAugmentWide`.

    Attributes:
        num_magnitude_bins: the number of magnitudes, at least 2.
        interpolation, fill: for operations that move pixels; see `RandomAffine`.

    Example:
        >>> from gpuloader.transforms import TrivialAugmentWide
        >>> TrivialAugmentWide()
        TrivialAugmentWide(num_magnitude_bins=31, interpolation='nearest', fill=None)
    """

    stream: ClassVar[Stream] = Stream.TRIVIAL_AUGMENT

    num_magnitude_bins: Annotated[int, Field(ge=2, le=3_100)] = 31
    interpolation: Interpolation = "nearest"
    fill: Fill | None = None

    def program(self, draw: Draw, sizes: Ints) -> Program:
        """Draws one step. Columns: the operation, the magnitude, the sign."""
        steps = Table(WIDE_SPACE, self.num_magnitude_bins, self.interpolation, self.fill)
        uniform = draw(3)
        operations, magnitudes = _below(len(WIDE_SPACE.names), uniform[:, 0]), _below(steps.bins, uniform[:, 1])
        rows = steps.rows(operations, magnitudes, uniform[:, 2] < 0.5)
        return steps.program(rows[:, None], sizes, (_ops(WIDE_SPACE.names),))


@part
class AugMix(PixelTransform):
    """Mixes the image with the results of random chains of operations, as torchvision's `AugMix`.

    Attributes:
        severity: magnitudes are drawn from the lowest `severity` of 10; or by epoch, such as `{0: 1, 30: 3}`.
        mixture_width: the number of chains.
        chain_depth: the number of operations in a chain; 0 or less draws 1, 2 or 3.
        alpha: the parameter of the Dirichlet distribution of the chains' weights, and of the Beta distribution of the
            image's weight.
        all_ops: also use brightness, colour, contrast and sharpness.
        interpolation, fill: for operations that move pixels; see `RandomAffine`.

    Example:
        >>> from gpuloader.transforms import AugMix
        >>> AugMix(severity=5).mixture_width
        3
    """

    stream: ClassVar[Stream] = Stream.AUG_MIX

    severity: ByEpoch[Annotated[int, Field(ge=1, le=10)]] = 3
    mixture_width: Annotated[int, Field(ge=1, le=300)] = 3
    chain_depth: Annotated[int, Field(ge=-300, le=300)] = -1
    alpha: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    all_ops: bool = True
    interpolation: Interpolation = "bilinear"
    fill: Fill | None = None

    @property
    def _depth(self) -> int:
        return self.chain_depth if self.chain_depth > 0 else 3

    @property
    def steps(self) -> int:
        return 3 + self.mixture_width * (self._depth + 1)

    def program(self, draw: Draw, sizes: Ints) -> Program:
        """Draws 3 + `mixture_width` (depth + 1) steps; a drawn depth counts as 3.

        Columns: two for the image's weight; for each chain its depth, and the operation, magnitude and sign of each of
        its operations; then the columns of the chains' weights.
        """
        space = MIX_SPACE if self.all_ops else PARTIAL_MIX_SPACE
        steps = Table(space, 10, self.interpolation, self.fill)
        n, chains, depth = draw.samples, self.mixture_width, self._depth
        in_chains = 2 + chains * (1 + 3 * depth)
        columns = gamma_columns(self.alpha)
        uniform = draw(in_chains + chains * columns)
        image_weight = beta(uniform[:, :2], self.alpha)
        weights = dirichlet(uniform[:, in_chains:].reshape(n, chains, columns), self.alpha) * (
            1 - image_weight[:, None]
        )
        drawn = uniform[:, 2:in_chains].reshape(n, chains, 1 + 3 * depth)
        chosen, level, sign = np.moveaxis(drawn[..., 1:].reshape(n, chains, depth, 3), 3, 0)
        operations, magnitudes = _below(len(space.names), chosen), _below(at_epoch(self.severity), level)
        rows = steps.rows(operations, magnitudes, sign < 0.5)
        ops = _ops(space.names)
        choices = (ops,) * depth
        if self.chain_depth <= 0:
            rows = np.where(np.arange(depth) <= _below(depth, drawn[..., :1]), rows, -1)
            choices = (ops, ops | {Op.IDENTITY}, ops | {Op.IDENTITY})
        parts = [step(Op.MIX_BEGIN, n), step(Op.MIX_ADD, n, image_weight)]
        for number in range(chains):
            parts += [steps.program(rows[:, number], sizes, choices), step(Op.MIX_ADD, n, weights[:, number])]
        return chain([*parts, step(Op.MIX_END, n)], n)


PixelTransforms: TypeAlias = Annotated[
    Sequence[PixelTransform], kept_as(tuple[InstanceOf[PixelTransform], ...], min_length=1)
]
Weight: TypeAlias = Annotated[float, Field(ge=0, le=1e6)]


@part
class RandomApply(PixelTransform):
    """Applies all of the transforms with probability p, otherwise none, as torchvision's `RandomApply`.

    Attributes:
        transforms: one or more that change pixels.
        p: the probability; or by epoch, such as `{0: 0.8, 90: 0}`.

    Example:
        >>> from gpuloader.transforms import ColorJitter, RandomApply
        >>> RandomApply([ColorJitter(0.4)], p=0.8)
        RandomApply(transforms=(ColorJitter(brightness=0.4, contrast=0.0, saturation=0.0, hue=0.0),), p=0.8)
    """

    stream: ClassVar[Stream] = Stream.APPLY

    transforms: PixelTransforms
    p: ByEpoch[Probability] = 0.5

    @property
    def steps(self) -> int:
        return sum(each.steps for each in self.transforms)

    @property
    def random(self) -> bool:
        some = in_all_epochs(self.p)
        return any(0 < p < 1 for p in some) or (1 in some and any(each.random for each in self.transforms))

    def program(self, draw: Draw, sizes: Ints) -> Program:
        own, *draws = draw.split(1 + len(self.transforms))
        parts = [transform.program(part, sizes) for transform, part in zip(self.transforms, draws)]
        of_epochs = [sometimes(chain(parts, draw.samples), own(1)[:, 0], p) for p in in_all_epochs(self.p)]
        choices = tuple(frozenset().union(*each) for each in zip(*(program.choices for program in of_epochs)))
        return replace(of_epochs[0], choices=choices)


@part
class RandomChoice(PixelTransform):
    """Applies one of the transforms at random, as torchvision's `RandomChoice`.

    Attributes:
        transforms: one or more that change pixels.
        p: weights of the transforms, not negative; None means equal weights.

    Example:
        >>> from gpuloader.transforms import GaussianBlur, Grayscale, RandomChoice
        >>> RandomChoice([GaussianBlur(9), Grayscale()], p=[1, 2])
        RandomChoice(transforms=(GaussianBlur(kernel_size=9, sigma=(0.1, 2.0)), Grayscale()), p=(1.0, 2.0))
    """

    stream: ClassVar[Stream] = Stream.CHOICE

    transforms: PixelTransforms
    p: Annotated[Sequence[float], kept_as(tuple[Weight, ...])] | None = None

    @model_validator(mode="after")
    def _check(self) -> RandomChoice:
        if self.p is not None and (len(self.p) != len(self.transforms) or sum(self.p) <= 0):
            raise ValueError(
                f"p {list(self.p)}: allowed is a weight for each of {counted(len(self.transforms), 'transform')}, "
                "not all of them 0"
            )
        return self

    @property
    def steps(self) -> int:
        return max(each.steps for each, weight in zip(self.transforms, self._weights) if weight > 0)

    @property
    def random(self) -> bool:
        possible = [each for each, weight in zip(self.transforms, self._weights) if weight > 0]
        return len(possible) > 1 or possible[0].random

    @property
    def _weights(self) -> Sequence[float]:
        return self.p or (1.0,) * len(self.transforms)

    def program(self, draw: Draw, sizes: Ints) -> Program:
        weights = np.array(self._weights)
        own, *draws = draw.split(1 + len(self.transforms))
        programs = [
            transform.program(part, sizes)
            for transform, part, weight in zip(self.transforms, draws, weights)
            if weight > 0
        ]
        steps = max(len(program.choices) for program in programs)
        padded = [
            chain([program, *[step(Op.IDENTITY, draw.samples)] * (steps - len(program.choices))], draw.samples)
            for program in programs
        ]
        bounds = np.cumsum(weights[weights > 0])
        return choose(padded, np.searchsorted(bounds[:-1] / bounds[-1], own(1)[:, 0], side="right"))
