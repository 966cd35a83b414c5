"""What the parts of a recipe share: their parameters' types, and the kinds of transforms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from gpuloader.plan import Draw, Stream
from gpuloader.recipe.program import Program

Pair: TypeAlias = Annotated[tuple[float, float], Field(strict=False)]
Triple: TypeAlias = Annotated[tuple[float, float, float], Field(strict=False)]
Probability: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Interpolation: TypeAlias = Literal["nearest", "bilinear", "bicubic", "lanczos"]


class Transform:
    """An operation of a recipe, named as torchvision names it.

    Attributes:
        stream: which random numbers it draws.
    """

    stream: ClassVar[Stream] = Stream.NONE

    @property
    def random(self) -> bool:
        """Whether what it does to an image depends on random numbers."""
        return self.stream is not Stream.NONE


class PixelTransform(Transform, ABC):
    """An operation on the pixels of the output's size, behind the crop and before normalising."""

    @abstractmethod
    def program(self, draw: Draw, height: int, width: int) -> Program:
        """The steps for images of height x width, drawn for each sample."""
