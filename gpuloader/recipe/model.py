"""What all parts of a recipe share: frozen, strict, no unknown keys."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field


class Model(BaseModel):
    """A part of a recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


Pair: TypeAlias = Annotated[tuple[float, float], Field(strict=False)]
Triple: TypeAlias = Annotated[tuple[float, float, float], Field(strict=False)]
