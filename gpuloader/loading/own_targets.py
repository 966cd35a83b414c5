"""`OwnTargets`: the targets of a batch on their way through own code, as entries of a dictionary for each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import DataError, describe
from gpuloader.recipe import AugmentParams, ViewParams


class FieldTargets(Protocol):
    """A target, as far as own code concerns it."""

    def entries(self, value: Any, view: ViewParams) -> dict[str, NDArray[Any]]:  # noqa: ANN401
        """Moves a sample's value to a view of it alone: the entry itself under "", and its columns."""

    def value_of(self, entries: Mapping[str, NDArray[Any]]) -> Any:  # noqa: ANN401
        """Returns a value of such entries; raises ValueError if it is none."""


class OwnTargets:
    """The targets of a batch before own code, and behind it.

    Args:
        fields: by name.
        rows: the values of each image, by field; of one that is not delivered, they may be missing.
        drawn: what the recipe before own code draws for the images.
        box_field: the field by whose boxes the recipe draws, or None.
    """

    def __init__(
        self,
        fields: Mapping[str, FieldTargets],
        rows: Sequence[Mapping[str, Any]],
        drawn: AugmentParams,
        box_field: str | None,
    ) -> None:
        self._fields, self._rows, self._drawn, self._box_field = fields, rows, drawn, box_field

    def before(self, view: int, row: int) -> dict[str, NDArray[Any]]:
        """Returns those of an image as own code gets them; boxes and points are float64."""
        placed, given = self._drawn.views[view].take([row]), {}
        for name, field in self._fields.items():
            if name in self._rows[row]:
                for column, entry in field.entries(self._rows[row][name], placed).items():
                    wide = entry.astype(np.float64) if entry.dtype.kind == "f" and not column else entry
                    given[f"{name}_{column}" if column else name] = wide
        return given

    def boxes(self, made: Sequence[Mapping[str, Any]]) -> list[NDArray[np.float64]]:
        """Returns the boxes of a view's images behind own code."""
        if self._box_field is None:
            return []
        return [np.asarray(each.get(self._box_field, np.zeros((0, 4))), np.float64).reshape(-1, 4) for each in made]

    def value(self, name: str, made: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Returns the value of a field of what own code made.

        Raises:
            DataError: an entry is missing, or not what it should be.
        """
        begins = f"{name}_"
        entries = {each.removeprefix(begins): made[each] for each in made if each.startswith(begins)}
        try:
            if name not in made:
                raise ValueError(f"it is missing; there are {describe(sorted(made))}")
            return self._fields[name].value_of({"": made[name], **entries})
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"own code returned no target {name!r} that can be used: {error}") from error
