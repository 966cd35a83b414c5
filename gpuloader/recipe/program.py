"""A program: the steps that change a sample's pixels, each an operation and its parameters as numbers.

Every transform that changes pixels writes steps; a policy such as RandAugment draws them. The graph runs the steps on
RGB images of uint8 levels. Each step's result is rounded to levels, as in torchvision for uint8 tensors
(`torchvision.transforms.v2.functional`). With x a level, f the first parameter, and
gray = floor(0.2989 R + 0.587 G + 0.114 B):

    IDENTITY
    WARP          an output pixel is the input at M (column + 1/2, row + 1/2, 1), divided by its third component;
                  parameters: M row by row (9), interpolation (NEAREST, BILINEAR, BICUBIC), fill (3), s (1).
                  If a share m of a pixel lies in the input, the fill's weight is 1 - m. The weights of the input's
                  pixels do not change if s is 0; if s is 1, they are multiplied by m, as torchvision does with a fill
    BRIGHTNESS    trunc(f x)
    CONTRAST      trunc(f x + (1 - f) mean(gray of the whole image))
    SATURATION    trunc(f x + (1 - f) gray)
    HUE           the hue turned by f full circles, value and saturation kept
    SHARPNESS     trunc(f x + (1 - f) round(mean of 3 x 3 with weights 1, the middle 5)); the border stays as it is
    POSTERIZE     keeps only the highest f bits
    SOLARIZE      255 - x where x >= f
    SOLARIZE_ADD  min(x + f, 255) where x < 128
    INVERT        255 - x
    AUTOCONTRAST  by channel, stretched from its least and greatest level to 0 and 255
    EQUALIZE      by channel, the histogram made even, as PIL's `ImageOps.equalize`
    GRAYSCALE     R = G = B = gray
    BLUR          a Gaussian of standard deviation f in pixels, in a kernel whose side is the second parameter (odd) in
                  pixels; the border is reflected without repeating it; round
    PERMUTE       the channels are those with the numbers of the first three parameters
    MIX_BEGIN     saves the image, and begins a sum of images with 0
    MIX_ADD       adds f times the image to the sum, and continues with the saved image
    MIX_END       the image is trunc(the sum)

All results are clamped to [0, 255] before rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

NEAREST, BILINEAR, BICUBIC = 0, 1, 2
PARAMETERS = 14


class Op(IntEnum):
    """The operations; the module's docstring defines them."""

    IDENTITY = 0
    WARP = 1
    BRIGHTNESS = 2
    CONTRAST = 3
    SATURATION = 4
    HUE = 5
    SHARPNESS = 6
    POSTERIZE = 7
    SOLARIZE = 8
    SOLARIZE_ADD = 9
    INVERT = 10
    AUTOCONTRAST = 11
    EQUALIZE = 12
    GRAYSCALE = 13
    BLUR = 14
    PERMUTE = 15
    MIX_BEGIN = 16
    MIX_ADD = 17
    MIX_END = 18


@dataclass(frozen=True, eq=False)
class Program:
    """The steps of n samples, k each.

    Attributes:
        ops: (n, k) int32, the operations.
        parameters: (n, k, PARAMETERS) float32; unused parameters are 0.
        choices: the possible operations of each step; the graph contains only these.
    """

    ops: NDArray[np.int32]
    parameters: NDArray[np.float32]
    choices: tuple[frozenset[Op], ...]

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> Program:
        return Program(self.ops[rows], self.parameters[rows], self.choices)

    @staticmethod
    def joined(parts: Sequence[Program]) -> Program:
        """Joins the samples of several programs with the same choices."""
        ops, parameters = (np.concatenate(each) for each in zip(*((part.ops, part.parameters) for part in parts)))
        return Program(ops, parameters, parts[0].choices)

    def where(self, applied: NDArray[np.bool_]) -> Program:
        """Keeps the program for samples where `applied`, (n,), is true; the others get no operation."""
        ops = np.where(applied[:, None], self.ops, np.int32(Op.IDENTITY))
        return Program(ops, self.parameters, tuple(choices | {Op.IDENTITY} for choices in self.choices))


def step(op: Op, samples: int, *parameters: ArrayLike) -> Program:
    """Makes one step with the same operation for all samples; each parameter is a number or (n,)."""
    values = np.zeros((samples, 1, PARAMETERS), np.float32)
    for number, parameter in enumerate(parameters):
        values[:, 0, number] = parameter
    return Program(np.full((samples, 1), op, np.int32), values, (frozenset({op}),))


def chain(programs: Sequence[Program], samples: int) -> Program:
    """Joins programs, one after the other."""
    return Program(
        np.concatenate([np.zeros((samples, 0), np.int32), *(program.ops for program in programs)], 1),
        np.concatenate(
            [np.zeros((samples, 0, PARAMETERS), np.float32), *(program.parameters for program in programs)], 1
        ),
        tuple(choices for program in programs for choices in program.choices),
    )


def choose(programs: Sequence[Program], chosen: NDArray[np.int64]) -> Program:
    """Takes each sample's steps from the program with the index `chosen`, (n,); all programs have the same length."""
    rows = np.arange(len(chosen))
    return Program(
        np.stack([program.ops for program in programs])[chosen, rows],
        np.stack([program.parameters for program in programs])[chosen, rows],
        tuple(frozenset().union(*choices) for choices in zip(*(program.choices for program in programs))),
    )


def sometimes(program: Program, uniform: NDArray[np.float64], p: float) -> Program:
    """Applies a program to a share `p` of the samples; the others get no operation. `uniform` is (n,) in [0, 1)."""
    if p == 1:
        return program
    if p == 0:
        return chain([step(Op.IDENTITY, len(uniform))] * len(program.choices), len(uniform))
    return program.where(uniform < p)
