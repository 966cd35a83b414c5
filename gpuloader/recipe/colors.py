"""Transforms that change colours, as in torchvision, with random parameters from the plan."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, model_validator

from gpuloader.errors import ConfigError
from gpuloader.plan import Draw, Stream
from gpuloader.recipe.model import Factor, Ints, Number, Pair, PixelTransform, Probability, check_range
from gpuloader.recipe.part import part
from gpuloader.recipe.program import PARAMETERS, Op, Program, chain, sometimes, step

# The operation, and the parameter that changes nothing.
_JITTERS = {
    "brightness": (Op.BRIGHTNESS, 1.0),
    "contrast": (Op.CONTRAST, 1.0),
    "saturation": (Op.SATURATION, 1.0),
    "hue": (Op.HUE, 0.0),
}
_GREATEST_FACTOR = 101.0  # of a strength of 100


class _RandomOperation(PixelTransform):
    """The base class of one operation with probability p; the operation's parameters are the fields before p."""

    op: ClassVar[Op]
    p: Probability

    @property
    def random(self) -> bool:
        return 0 < self.p < 1

    def program(self, draw: Draw, sizes: Ints) -> Program:
        parameters = [value for name, value in vars(self).items() if name != "p"]
        return sometimes(step(self.op, draw.samples, *parameters), draw(1)[:, 0], self.p)


@part
class ColorJitter(PixelTransform):
    """Changes brightness, contrast, saturation and hue, in random order, as torchvision's `ColorJitter`.

    A strength of 0 drops the operation.

    On the CPU its levels equal torchvision's.

    Attributes:
        brightness, contrast, saturation: each factor is drawn from [max(0, 1 - strength), 1 + strength], or from
            [low, high].
        hue: the turn is drawn from [-hue, hue] full circles, or from [low, high].

    Example:
        >>> from gpuloader.transforms import ColorJitter
        >>> ColorJitter(0.4, 0.4, 0.4, 0.1)
        ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    """

    stream: ClassVar[Stream] = Stream.JITTER

    brightness: Number | Pair = 0.0
    contrast: Number | Pair = 0.0
    saturation: Number | Pair = 0.0
    hue: Number | Pair = 0.0

    @model_validator(mode="after")
    def _check(self) -> ColorJitter:
        for name in _JITTERS:
            least, most = (-0.5, 0.5) if name == "hue" else (0.0, _GREATEST_FACTOR)
            low, high = self.bounds(name)
            if not least <= low <= high <= most:
                allowed = (
                    "a number from 0 to 0.5, or [low, high] with -0.5 <= low <= high <= 0.5"
                    if name == "hue"
                    else f"a number from 0, or [low, high] with 0 <= low <= high <= {_GREATEST_FACTOR:g}"
                )
                raise ValueError(f"{name} {getattr(self, name)}: allowed is {allowed}")
        return self

    def bounds(self, name: str) -> tuple[float, float]:
        """Returns the least and greatest parameter of an operation."""
        strength: Number | Pair = getattr(self, name)
        if not isinstance(strength, (int, float)):
            return strength[0], strength[1]
        return (-strength, strength) if name == "hue" else (max(0.0, 1 - strength), 1 + strength)

    @property
    def random(self) -> bool:
        on = self._on()
        return len(on) > 1 or any(low < high for low, high in map(self.bounds, on))

    def _on(self) -> list[str]:
        """Lists the operations in use; the order of several operations is drawn."""
        return [name for name, (_, neutral) in _JITTERS.items() if self.bounds(name) != (neutral, neutral)]

    @property
    def steps(self) -> int:
        return len(self._on())

    def program(self, draw: Draw, sizes: Ints) -> Program:
        """Draws a step for each operation in use.

        Columns of random numbers: four that sort brightness, contrast, saturation and hue; then their parameters.
        """
        on = self._on()
        columns = [list(_JITTERS).index(name) for name in on]
        ops = [_JITTERS[name][0] for name in on]
        low, high = np.array([self.bounds(name) for name in on]).reshape(-1, 2).T
        uniform = draw(8)
        order = np.argsort(uniform[:, :4][:, columns], axis=1, kind="stable")
        parameters = np.zeros((draw.samples, len(on), PARAMETERS), np.float32)
        parameters[:, :, 0] = np.take_along_axis(low + uniform[:, 4:][:, columns] * (high - low), order, 1)
        return Program(np.array(ops, np.int32)[order], parameters, (frozenset(ops),) * len(on))


@part
class RandomPhotometricDistort(PixelTransform):
    """Changes brightness, contrast, saturation, hue and channel order, as torchvision's `RandomPhotometricDistort`.

    Each of the five changes has probability p. Contrast comes before saturation and hue in half of the images, and
    after them in the others.

    On the CPU its levels equal torchvision's.

    Attributes:
        brightness, contrast, saturation: [low, high] of the factor.
        hue: [low, high] of the turn, in full circles.

    Example:
        >>> from gpuloader.transforms import RandomPhotometricDistort
        >>> RandomPhotometricDistort().hue
        (-0.05, 0.05)
    """

    stream: ClassVar[Stream] = Stream.JITTER
    steps: ClassVar[int] = 6

    brightness: Pair = (0.875, 1.125)
    contrast: Pair = (0.5, 1.5)
    saturation: Pair = (0.5, 1.5)
    hue: Pair = (-0.05, 0.05)
    p: Probability = 0.5

    @model_validator(mode="after")
    def _check(self) -> RandomPhotometricDistort:
        for name in _JITTERS:
            check_range(name, getattr(self, name), *((-0.5, 0.5) if name == "hue" else (0.0, _GREATEST_FACTOR)))
        return self

    @property
    def random(self) -> bool:
        return self.p > 0

    def program(self, draw: Draw, sizes: Ints) -> Program:
        """Draws six steps; one of the two for contrast does nothing.

        Columns: whether brightness, contrast, saturation, hue and the order of channels are changed; the parameters of
        the first four; the order; whether contrast comes first.
        """
        uniform, ranges = draw(11), (self.brightness, self.contrast, self.saturation, self.hue)
        brightness, contrast, saturation, hue = (
            sometimes(step(op, draw.samples, low + uniform[:, 5 + n] * (high - low)), uniform[:, n], self.p)
            for n, ((op, _), (low, high)) in enumerate(zip(_JITTERS.values(), ranges))
        )
        orders = np.array([*permutations(range(3))])[(uniform[:, 9] * 6).astype(np.int64)]
        order = sometimes(step(Op.PERMUTE, draw.samples, *orders.T), uniform[:, 4], self.p)
        first = uniform[:, 10] < 0.5
        return chain([brightness, contrast.where(first), saturation, hue, contrast.where(~first), order], draw.samples)


@part
class Grayscale(PixelTransform):
    """Converts the image to gray, R = G = B, as torchvision's `Grayscale(num_output_channels=3)`.

    On the CPU its levels equal torchvision's.

    Example:
        >>> from gpuloader.transforms import Grayscale
        >>> Grayscale()
        Grayscale()
    """

    stream: ClassVar[Stream] = Stream.GRAYSCALE

    @property
    def random(self) -> bool:
        return False

    def program(self, draw: Draw, sizes: Ints) -> Program:
        return step(Op.GRAYSCALE, draw.samples)


@part
class RandomGrayscale(_RandomOperation):
    """Converts the image to gray with probability p, as torchvision's `RandomGrayscale`.

    On the CPU its levels equal torchvision's.

    Example:
        >>> from gpuloader.transforms import RandomGrayscale
        >>> RandomGrayscale(0.2)
        RandomGrayscale(p=0.2)
    """

    stream: ClassVar[Stream] = Stream.GRAYSCALE
    op: ClassVar[Op] = Op.GRAYSCALE

    p: Probability = 0.1


@part
class GaussianBlur(PixelTransform):
    """Blurs the image with a Gaussian kernel, as torchvision's `GaussianBlur`.

    On the CPU its levels differ from torchvision's by at most 1.

    Pillow approximates this blur with three box blurs. For sigma from 0.1 to 5, Pillow's levels differ on drawn
    pictures by at most 6, and by 0.8 on average.

    Attributes:
        kernel_size: the kernel's side in pixels, odd; half of it must fit into the image. On a GPU at most 171.
        sigma: the standard deviation in pixels, or [low, high] to draw it from.

    Example:
        >>> from gpuloader.transforms import GaussianBlur
        >>> GaussianBlur(23, sigma=(0.1, 2))
        GaussianBlur(kernel_size=23, sigma=(0.1, 2.0))
    """

    stream: ClassVar[Stream] = Stream.BLUR

    kernel_size: Annotated[int, Field(ge=1, le=2_300)]
    sigma: Number | Pair = (0.1, 2.0)

    @model_validator(mode="after")
    def _check(self) -> GaussianBlur:
        if self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size {self.kernel_size}: allowed are odd numbers")
        low, high = self._bounds
        if not 0.001 <= low <= high <= 200:
            raise ValueError(
                f"sigma {self.sigma}: allowed is a number from 0.001 to 200, or [low, high] with "
                f"0.001 <= low <= high <= 200"
            )
        return self

    @property
    def random(self) -> bool:
        low, high = self._bounds
        return low < high

    @property
    def _bounds(self) -> Pair:
        return (self.sigma, self.sigma) if isinstance(self.sigma, (int, float)) else self.sigma

    def program(self, draw: Draw, sizes: Ints) -> Program:
        """Draws one step.

        Raises:
            ConfigError: the kernel is too large for the image.
        """
        too_small = sizes[sizes.min(axis=1) <= self.kernel_size // 2]
        if len(too_small):
            height, width = too_small[0]
            raise ConfigError(
                f"GaussianBlur's kernel_size {self.kernel_size} does not fit into images of {height} x {width} pixels: "
                f"allowed is up to {2 * min(height, width) - 1}"
            )
        low, high = self._bounds
        return step(Op.BLUR, draw.samples, low + draw(1)[:, 0] * (high - low), self.kernel_size)


@part
class RandomSolarize(_RandomOperation):
    """Inverts levels of `threshold` (0 to 255) and above, with probability p, as torchvision's `RandomSolarize`.

    On the CPU its levels equal torchvision's.

    Example:
        >>> from gpuloader.transforms import RandomSolarize
        >>> RandomSolarize(128, p=0.2)
        RandomSolarize(threshold=128.0, p=0.2)
    """

    stream: ClassVar[Stream] = Stream.SOLARIZE
    op: ClassVar[Op] = Op.SOLARIZE

    threshold: Annotated[float, Field(ge=0, le=255)]
    p: Probability = 0.5

    @model_validator(mode="after")
    def _check(self) -> RandomSolarize:
        if 0 < self.threshold <= 1:  # as a level, 1 inverts all but black, and 0 inverts everything
            raise ValueError(
                f"threshold {self.threshold} is a share of 1, but levels are 0 to 255 here: write threshold "
                f"{math.ceil(255 * self.threshold)}"
            )
        return self


@part
class RandomPosterize(_RandomOperation):
    """Keeps the highest `bits` of each level's 8 bits, with probability p, as torchvision's `RandomPosterize`.

    On the CPU its levels equal torchvision's.

    Example:
        >>> from gpuloader.transforms import RandomPosterize
        >>> RandomPosterize(4)
        RandomPosterize(bits=4, p=0.5)
    """

    stream: ClassVar[Stream] = Stream.POSTERIZE
    op: ClassVar[Op] = Op.POSTERIZE

    bits: Annotated[int, Field(ge=0, le=8)]
    p: Probability = 0.5


@part
class RandomEqualize(_RandomOperation):
    """Equalises the histogram of each channel, with probability p, as torchvision's `RandomEqualize`.

    On the CPU its levels equal torchvision's.

    Example:
        >>> from gpuloader.transforms import RandomEqualize
        >>> RandomEqualize()
        RandomEqualize(p=0.5)
    """

    stream: ClassVar[Stream] = Stream.EQUALIZE
    op: ClassVar[Op] = Op.EQUALIZE

    p: Probability = 0.5


@part
class RandomAutocontrast(_RandomOperation):
    """Stretches the levels of each channel to 0 to 255, with probability p, as torchvision's `RandomAutocontrast`.

    On the CPU its levels equal torchvision's.

    Example:
        >>> from gpuloader.transforms import RandomAutocontrast
        >>> RandomAutocontrast()
        RandomAutocontrast(p=0.5)
    """

    stream: ClassVar[Stream] = Stream.AUTOCONTRAST
    op: ClassVar[Op] = Op.AUTOCONTRAST

    p: Probability = 0.5


@part
class RandomAdjustSharpness(_RandomOperation):
    """Changes the sharpness with probability p, as torchvision's `RandomAdjustSharpness`.

    A factor of 0 blurs, 1 changes nothing, and 2 sharpens.

    On the CPU its levels equal torchvision's.

    Example:
        >>> from gpuloader.transforms import RandomAdjustSharpness
        >>> RandomAdjustSharpness(2)
        RandomAdjustSharpness(sharpness_factor=2.0, p=0.5)
    """

    stream: ClassVar[Stream] = Stream.SHARPNESS
    op: ClassVar[Op] = Op.SHARPNESS

    sharpness_factor: Factor
    p: Probability = 0.5


@part
class RandomInvert(_RandomOperation):
    """Inverts all levels with probability p, as torchvision's `RandomInvert`.

    On the CPU its levels equal torchvision's.

    Example:
        >>> from gpuloader.transforms import RandomInvert
        >>> RandomInvert()
        RandomInvert(p=0.5)
    """

    stream: ClassVar[Stream] = Stream.INVERT
    op: ClassVar[Op] = Op.INVERT

    p: Probability = 0.5
