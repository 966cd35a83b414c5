"""What targets do with annotations and masks: they are parsed as in a loader, and moved by what a recipe draws."""

from __future__ import annotations

from contextlib import suppress
from functools import cache

import numpy as np

from gpuloader import Boxes, Keypoints, Mask
from gpuloader.images.limits import RefusalError
from gpuloader.loading.fields import Ragged, parse_fields
from gpuloader.plan import Draws
from gpuloader.recipe import AugmentParams, Recipe
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
def _params() -> AugmentParams:
    """What is drawn for a few samples, the same for all mutants."""
    transforms = [RandomResizedCrop(_OUTPUT), RandomHorizontalFlip(), RandomRotation(40), RandomPerspective(0.8, 1)]
    return Recipe(transforms).draw(Draws(1, 2, np.arange(_SAMPLES)), np.tile(SIZE, (_SAMPLES, 1)))


def takes_annotations(data: bytes) -> bool:
    """Whether a target parses the data; what it then moves must be finite, and boxes must be in the output."""
    accepted = False
    for target in _TARGETS:
        with suppress(RefusalError):
            values = parse_fields({"": target}, lambda *_: data, SIZE, np.zeros(4))
            for name, (entry, *_) in target.collated([values[""]] * _SAMPLES, _params()).items():
                numbers = np.asarray(entry.values if isinstance(entry, Ragged) else entry)
                assert np.isfinite(numbers).all(), f"{name or 'a target'} is not finite"
                if isinstance(target, Boxes) and not name:
                    assert ((numbers >= 0) & (numbers <= np.tile(_OUTPUT[::-1], 2))).all(), "boxes outside of the image"
            accepted = True
    return accepted
