"""The types of parameters, and the base classes of transforms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from operator import length_hint
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, Field, GetPydanticSchema
from pydantic_core import PydanticCustomError, core_schema

from gpuloader.base.values import as_python_number
from gpuloader.errors import describe
from gpuloader.plan import EPOCHS, Draw, Stream
from gpuloader.recipe.program import Program

# Each bound is a hundred times larger than recipes need.
_MAX_TRANSFORMS = 1_000
_MAX_NESTED = 16
MAX_STEPS = 1_000
_MOST_EPOCHS = 1_000

Value = TypeVar("Value")


def kept_as(kind: Any, form: str = "", *, min_length: int = 0, max_length: int | None = None) -> GetPydanticSchema:  # noqa: ANN401
    """Makes the type of a parameter that takes any sequence, and is kept as a tuple of this type.

    Type checkers see the sequence, so that they allow a list. Errors show `form`, such as "[low, high]".
    """

    def check(given: Any) -> Any:  # noqa: ANN401
        if form and length_hint(given, -1) != form.count(",") + 1:
            raise PydanticCustomError("form_type", form)
        return given

    checked = Annotated[kind, Field(strict=False, min_length=min_length, max_length=max_length), BeforeValidator(check)]
    return GetPydanticSchema(lambda _, schema_of: schema_of(checked))


UNCHECKED = GetPydanticSchema(lambda _, __: core_schema.any_schema())
"""Marks a field whose value is checked at its use, because the allowed values depend on the data."""

Flag: TypeAlias = Annotated[bool, BeforeValidator(as_python_number)]
Integer: TypeAlias = Annotated[int, BeforeValidator(as_python_number)]
Natural: TypeAlias = Annotated[Integer, Field(ge=0, lt=2**63)]
Positive: TypeAlias = Annotated[Integer, Field(ge=1, lt=2**63)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]

Number: TypeAlias = Annotated[float, Field(ge=-1e6, le=1e6)]
Factor: TypeAlias = Annotated[float, Field(ge=0, le=100)]
Pair: TypeAlias = Annotated[Sequence[float], kept_as(tuple[Number, Number], "[low, high]")]
XY: TypeAlias = Annotated[Sequence[float], kept_as(tuple[Number, Number], "[x, y]")]
Triple: TypeAlias = Annotated[Sequence[float], kept_as(tuple[Number, Number, Number], "[red, green, blue]")]
Probability: TypeAlias = Share
Level: TypeAlias = Annotated[float, Field(ge=0, le=255)]
Fill: TypeAlias = Level | Annotated[Sequence[float], kept_as(tuple[Level, Level, Level], "[red, green, blue]")]
"""A level of 0 to 255, or one for each channel."""
ResizeFilter: TypeAlias = Literal["nearest", "bilinear", "bicubic", "lanczos"]
CropFilter: TypeAlias = Literal["nearest", "bilinear", "bicubic", "lanczos", "random"]

Ints: TypeAlias = NDArray[np.int64]


def _check_epochs(values: dict[int, Value]) -> dict[int, Value]:
    if 0 not in values or min(values) < 0 or max(values) >= EPOCHS or len(values) > _MOST_EPOCHS:
        raise ValueError(
            f"values by epoch {describe(values)}: allowed are epochs from 0 on, and 0 must be among them; at most "
            f"{_MOST_EPOCHS} epochs"
        )
    return dict(sorted(values.items()))


ByEpoch: TypeAlias = Value | Annotated[dict[int, Value], AfterValidator(_check_epochs)]
"""A value, or values by epoch: `{0: 128, 30: 224}` is 128 from epoch 0 and 224 from epoch 30 on.

A part uses the values of epoch 0; `Recipe.at` resolves the values of another epoch.
"""


def at_epoch(given: ByEpoch[Value], epoch: int = 0) -> Value:
    """Returns the value of an epoch: of values by epoch, the latest that has begun."""
    return given[max(start for start in given if start <= epoch)] if isinstance(given, dict) else given


def in_all_epochs(given: ByEpoch[Value]) -> tuple[Value, ...]:
    """Lists the values, if they change by epoch, or the only value."""
    return tuple(given.values()) if isinstance(given, dict) else (given,)


class Transform:
    """The base class of a recipe's transforms, which have torchvision's names.

    Attributes:
        stream: the stream of its random numbers.
    """

    stream: ClassVar[Stream] = Stream.NONE

    @property
    def random(self) -> bool:
        """Whether the effect on an image depends on random numbers."""
        return self.stream is not Stream.NONE


class PixelTransform(Transform, ABC):
    """The base class of transforms that change pixels, between the crop and `Normalize`, and keep the image's size."""

    @property
    def steps(self) -> int:
        """The number of steps of the program."""
        return 1

    @abstractmethod
    def program(self, draw: Draw, sizes: Ints) -> Program:
        """Draws the steps of each sample.

        Args:
            draw: the numbers of n samples.
            sizes: the images' heights and widths, (n, 2); or (1, 2) if all are equal.
        """


def check_transforms(transforms: Sequence[Transform]) -> None:
    """Raises ValueError if there are too many transforms, nested ones included, or if the nesting is too deep."""
    level, count = list(transforms), 0
    for _ in range(_MAX_NESTED + 1):
        count += len(level)
        if count > _MAX_TRANSFORMS:
            raise ValueError(f"more than {_MAX_TRANSFORMS} transforms, counting those within others: leave some out")
        level = [inner for each in level for inner in getattr(each, "transforms", ())]
        if not level:
            return
    raise ValueError(f"transforms nested more than {_MAX_NESTED} deep: nest fewer transforms")


def with_inner(transforms: Sequence[Transform]) -> Iterator[Transform]:
    """Yields the transforms, each followed by the transforms nested in it."""
    for each in transforms:
        yield each
        yield from with_inner(getattr(each, "transforms", ()))


def check_range(name: str, values: Pair, least: float, most: float) -> None:
    """Raises ValueError unless the values are [low, high] within the bounds."""
    if not least <= values[0] <= values[1] <= most:
        raise ValueError(f"{name} {list(values)}: allowed is [low, high] with {least:g} <= low <= high <= {most:g}")


def of_others(kind: type) -> str:
    """Writes how a recipe takes transforms of other libraries, such as this class."""
    if kind.__module__.startswith("albumentations"):
        return "albumentations' transforms run as own code, by Apply(transform) among the transforms"
    return "Compose.from_torchvision translates those of torchvision"
