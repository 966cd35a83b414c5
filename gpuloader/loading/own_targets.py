"""`OwnTargets`: the targets of a batch for own code, a dictionary of entries for each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import DataError, describe
from gpuloader.recipe import AugmentParams, ViewParams


class FieldTargets(Protocol):
    """The protocol of a target that own code may change."""

    def entries(self, value: Any, view: ViewParams) -> dict[str, NDArray[Any]]:  # noqa: ANN401
        """Returns the entries of one sample in a view of this sample alone: the value under "", and its columns."""

    def value_of(self, entries: Mapping[str, NDArray[Any]]) -> Any:  # noqa: ANN401
        """Converts entries to a value; raises ValueError if they are invalid."""


class OwnTargets:
    """The targets of a batch before and after own code.

    Args:
        fields: the targets by name.
        rows: the values of each image, by field; an image that is not delivered may have none.
        params: the random parameters of the recipe before own code.
        box_field: the field whose boxes the recipe needs, or None.
    """

    def __init__(
        self,
        fields: Mapping[str, FieldTargets],
        rows: Sequence[Mapping[str, Any]],
        params: AugmentParams,
        box_field: str | None,
    ) -> None:
        self._fields, self._rows, self._params, self._box_field = fields, rows, params, box_field

    def before(self, view: int, row: int) -> dict[str, NDArray[Any]]:
        """Returns the targets of an image for own code; boxes and points are float64."""
        placed, given = self._params.views[view].take([row]), {}
        for name, field in self._fields.items():
            if name in self._rows[row]:
                for column, entry in field.entries(self._rows[row][name], placed).items():
                    wide = entry.astype(np.float64) if entry.dtype.kind == "f" and not column else entry
                    given[f"{name}_{column}" if column else name] = wide
        return given

    def boxes(self, made: Sequence[Mapping[str, Any]]) -> list[NDArray[np.float64]]:
        """Returns the boxes of a view's images after own code."""
        if self._box_field is None:
            return []
        return [np.asarray(each.get(self._box_field, np.zeros((0, 4))), np.float64).reshape(-1, 4) for each in made]

    def value(self, name: str, made: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Returns the value of a field from the targets that own code returned.

        Raises:
            DataError: an entry is missing or invalid.
        """
        begins = f"{name}_"
        entries = {each.removeprefix(begins): made[each] for each in made if each.startswith(begins)}
        try:
            if name not in made:
                raise ValueError(f"it is missing; there are {describe(sorted(made))}")
            return self._fields[name].value_of({"": made[name], **entries})
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"own code returned no target {name!r} that can be used: {error}") from error
