"""`OwnTargets`: the targets of a batch for own code, a dictionary of entries for each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.chain.batch import Batch
from gpuloader.chain.own import OwnCodeTargets
from gpuloader.errors import DataError, describe
from gpuloader.loading.run import Run


class OwnTargets(OwnCodeTargets):
    """The targets of a loader's samples before and after own code.

    Attributes:
        fields: the targets that own code changes, by name.
    """

    def __init__(self, run: Run) -> None:
        self._run, own = run, run.recipe.own_code
        takes = own is not None and own.takes_targets
        self.fields: Mapping[str, Any] = {name: each for name, each in run.fields.items() if each.is_target and takes}

    def before(self, batch: Batch, view: int, row: int) -> dict[str, NDArray[Any]]:
        """Returns the targets of an image; boxes and points are float64. One that is not delivered may have none."""
        given: dict[str, NDArray[Any]] = {}
        if not self.fields:
            return given
        placed = batch.params.views[view].take([row])
        for name, field in self.fields.items():
            if name in batch.values[row]:
                for column, entry in field.entries(batch.values[row][name], placed).items():
                    wide = entry.astype(np.float64) if entry.dtype.kind == "f" and not column else entry
                    given[f"{name}_{column}" if column else name] = wide
        return given

    def boxes(self, made: Sequence[Mapping[str, Any]]) -> list[NDArray[np.float64]]:
        name = self._run.box_field
        if name is None:
            return []
        return [np.asarray(each.get(name, np.zeros((0, 4))), np.float64).reshape(-1, 4) for each in made]

    def name(self, batch: Batch, row: int) -> str:
        return "{0.key!r} in {0.shard}".format(self._run.shards.locate(int(batch.ids[row])))

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
            return self.fields[name].value_of({"": made[name], **entries})
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"own code returned no target {name!r} that can be used: {error}") from error
