"""`Collate`: makes the entries of the fields from the values of the rows that stay."""

from __future__ import annotations

from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gpuloader.base.text import counted
from gpuloader.chain.batch import Batch
from gpuloader.collators import wrong_rows
from gpuloader.errors import DataError
from gpuloader.loading.blending import paste_neighbours
from gpuloader.loading.fields import Component, Ragged, cause_of
from gpuloader.loading.own_targets import OwnTargets
from gpuloader.loading.run import Run
from gpuloader.recipe import AugmentParams
from gpuloader.recipe.model import Ints

STAGED_BYTES = 64 << 10  # CUDA itself stages smaller copies from pageable memory


class Collate:
    """A function that sets the entries of the fields of a whole step.

    Attributes:
        is_behind_own_code: whether own code changes targets or sizes, so that entries are made behind it.
    """

    def __init__(self, run: Run) -> None:
        self._run, own = run, run.recipe.own_code
        self._own_targets = OwnTargets(run)
        self.is_behind_own_code = own is not None and bool(self._own_targets.fields or not own.keeps_sizes)

    def __call__(self, batch: Batch) -> Batch:
        run, stay = self._run, np.flatnonzero(batch.stays)
        params = batch.delivered if len(stay) == len(batch) else batch.delivered.take(stay)
        values = [batch.values[row] for row in stay.tolist()]
        fields = {
            name: self._collated(name, field, [each[name] for each in values], batch, stay, params)
            for name, field in run.fields.items()
            if (len(stay) or field.is_target) and name not in self._own_targets.fields
        }
        for name, field in self._own_targets.fields.items():
            of_views = []
            for view, targets in zip(params.views, batch.targets):
                moved = [self._own_targets.value(name, targets[row]) for row in stay.tolist()]
                of_views.append(self._collated(name, field, moved, batch, stay, AugmentParams.of([view])))
            fields[name] = {part: [each for view in of_views for each in view[part]] for part in ("", *field.columns)}
        return replace(batch, step=replace(batch.step, fields=fields))

    def _collated(
        self, name: str, field: Component, values: list[Any], batch: Batch, stay: Ints, params: AugmentParams
    ) -> Any:  # noqa: ANN401
        try:
            collated = field.collated(values, params)
        except CancelledError:  # as itself, as SystemExit
            raise
        except Exception as error:
            components = [self._run.component_name(sample, field.extension) for sample in batch.ids[stay].tolist()]
            where = f"the field {name}: of {counted(len(values), 'sample')},"
            for row, value in enumerate(values):
                try:
                    field.collated([value], params.take([row]))
                except Exception as its_error:
                    raise DataError(f"{where} {components[row]}: {cause_of(its_error)}") from its_error
            raise DataError(f"{where} the batch that begins with {components[0]}: {cause_of(error)}") from error
        if not field.is_target and (wrong := wrong_rows(name, collated, len(values))):
            raise DataError(wrong)
        if (
            field.is_target and (mixing := batch.step.mixing) is not None
        ):  # a class mask; recipes with CutMix have one view
            [masks] = collated[""]
            collated = {"": [paste_neighbours(masks, mixing)]}
        if field.is_target and self._run.device.type == "cuda":  # here, as the training loop does not wait for this
            with torch.cuda.device(self._run.device):  # else the first pinning takes memory of GPU 0
                return {part: list(map(_pin, of_views)) for part, of_views in collated.items()}
        return collated


def _pin(entry: Any) -> Any:  # noqa: ANN401
    """Returns an array or a `Ragged` with a tensor in pinned memory; small ones do not change."""
    if isinstance(entry, Ragged):
        return replace(entry, values=_pin(entry.values))
    return torch.from_numpy(entry).pin_memory() if entry.nbytes > STAGED_BYTES else entry
