"""What targets do with annotations and masks: they are parsed as in a loader, and moved by what a recipe draws."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from gpuloader import Boxes, Keypoints, Mask
from gpuloader.images.limits import Refused
from gpuloader.loading.fields import Ragged, parse_fields
from gpuloader.plan import Draws
from gpuloader.recipe import Drawn, Recipe
from gpuloader.targets.target import Target
from gpuloader.transforms import RandomHorizontalFlip, RandomPerspective, RandomResizedCrop, RandomRotation

SIZE = (48, 64)
"""The height and width of the image that the annotations belong to."""
_OUTPUT = (24, 40)
_SAMPLES = 3
_TARGETS = (
    Boxes("json:annotations", format="xywh", labels="category_id", keys=("iscrowd", "area")),
    Boxes("json:boxes", format="cxcywh", relative=True, labels="json:labels", min_visibility=0.2, required=False),
    Keypoints("json:annotations", flip_pairs=[(0, 1)]),
    Keypoints("json:points", required=False),
    Mask("json:annotations"),
    Mask("png", fill=255),
    Mask("png", instances=True),
)


@cache
def _drawn() -> Drawn:
    """What is drawn for a few samples, the same for all mutants."""
    transforms = [RandomResizedCrop(_OUTPUT), RandomHorizontalFlip(), RandomRotation(40), RandomPerspective(0.8, 1)]
    return Recipe(transforms).draw(Draws(1, 2, np.arange(_SAMPLES)), np.tile(SIZE, (_SAMPLES, 1)))


def takes_annotations(data: bytes) -> bool:
    """Whether a target parses the data; what it then moves must be in the output."""
    accepted = False
    for target in _TARGETS:
        with suppress(Refused):
            values = parse_fields({"": target}, lambda *_: data, SIZE, np.zeros(4))
            _check(target, values[""])
            accepted = True
    return accepted


def _check(target: Target, value: Any) -> None:  # noqa: ANN401
    entries = {name: views[0] for name, views in target.collated([value] * _SAMPLES, _drawn()).items()}
    moved = [_rows(entries[""], row) for row in range(_SAMPLES)]
    if isinstance(target, Boxes):
        for row, boxes in enumerate(moved):
            assert (boxes >= 0).all(), "boxes left of the image"
            assert (boxes[:, 2:] <= _OUTPUT[::-1]).all(), "boxes right of the image"
            assert (boxes[:, 2:] > boxes[:, :2]).all(), "boxes without pixels"
            columns = {name: _rows(entries[name], row) for name in target.columns}
            assert {len(column) for column in columns.values()} == {len(boxes)}, "columns of another length"
            assert all(np.isfinite(column).all() for column in columns.values()), "a column that is not finite"
    elif isinstance(target, Keypoints):
        for row, points in enumerate(moved):
            seen = points[_rows(entries["visibility"], row) > 0]
            assert ((seen >= 0) & (seen < _OUTPUT[::-1])).all(), "points outside of the image can be seen"
    else:
        assert {masks.shape[-2:] for masks in moved} == {_OUTPUT}, "masks of another size"
        assert target.may_be_pasted or all(masks.max(initial=0) <= 1 for masks in moved), "masks of other numbers"


def _rows(entry: Any, row: int) -> Any:  # noqa: ANN401
    """A sample's part of an entry."""
    if not isinstance(entry, Ragged):
        return entry[row]
    end: Sequence[int] = entry.counts.cumsum().tolist()
    rows = entry.values[end[row] - entry.counts[row] : end[row]]
    return rows if entry.shapes is None else rows.reshape(entry.shapes[row])
