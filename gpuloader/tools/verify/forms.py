"""The check of the forms of recipes and batches that no preset has, of targets, and of a `Stage`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gpuloader import transforms as T  # noqa: N812
from gpuloader.loading.loader import GPULoader
from gpuloader.recipe import Recipe
from gpuloader.stage import Stage
from gpuloader.targets.boxes import Boxes
from gpuloader.targets.keypoints import Keypoints
from gpuloader.targets.masks import Mask
from gpuloader.tools.verify.comparing import ALONE, BATCH_SIZE, WIDER, Images, compare, compare_loads, load
from gpuloader.tools.verify.pictures import jpeg, tar_of, turned
from gpuloader.tools.verify.result import Looks, Outcome, Subject

_RESIZE = T.Resize(80, max_size=100)
_CHANGES = (T.RandomHorizontalFlip(), T.ColorJitter(0.4), T.RandomErasing(1.0, value=0.5))
_CROP = Recipe((T.RandomResizedCrop(96), T.RandomHorizontalFlip()))
_RECIPES: Mapping[str, Recipe] = {
    "turned upright": Recipe((T.RandomResizedCrop(96), T.RandomVerticalFlip()), orientation="apply"),
    "list, bfloat16": Recipe((_RESIZE, *_CHANGES), batch="list", dtype="bfloat16"),
    "padded, channels_last, float16": Recipe(
        (_RESIZE, *_CHANGES), batch={"pad": 32}, dtype="float16", layout="channels_last"
    ),
}
_TARGETS = {
    "boxes": Boxes("json:annotations", format="xywh"),
    "points": Keypoints("json:annotations"),
    "masks": Mask("json:annotations"),
}


def forms(subject: Subject) -> Looks:
    """Compares pictures that EXIF turns in each way; their targets; and what a Stage makes of the same files."""
    files = [jpeg(number, exif=turned(1 + number % 8)) for number in range(BATCH_SIZE)]
    with tar_of(files) as tar:
        for name, recipe in _RECIPES.items():
            yield name, partial(compare_loads, subject, tar, WIDER, preset=recipe)
        yield "boxes, masks, key points", partial(_targets, subject, tar)
        yield "Stage", partial(_stage, subject, tar, files)


def _targets(subject: Subject, tar: Path) -> Outcome:
    """Compares targets. They move on the CPU, so they must be equal."""
    ours, theirs = (_load_targets(tar, device_id) for device_id in (subject.device_id, None))
    off = [name for name in _TARGETS if not _are_equal(ours[name], theirs[name])]
    return Outcome(f"{', '.join(off)} differ" if off else "all are equal", "equal, on the device", not off)


def _are_equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


def _load_targets(tar: Path, device_id: int | None) -> dict[str, list[torch.Tensor]]:
    """Returns the targets of a batch, on the CPU; none if they come on another device than the loader's."""
    options: dict[str, Any] = {"preset": _CROP, "output": "dict", "label_from": None, "world": ALONE}
    with GPULoader(tar, BATCH_SIZE, device_id, fields=_TARGETS, shuffle="none", **options) as loader:
        batch = next(iter(loader))
        return {name: [each.cpu() for each in batch[name] if each.device == loader.device] for name in _TARGETS}


def _stage(subject: Subject, tar: Path, files: list[bytes]) -> Outcome:
    batches = Stage(_CROP, subject.device_id)([(files, range(len(files)))])
    ours: Images = {f"{number:02d}": [image.cpu()] for images, ids in batches for number, image in zip(ids, images)}
    theirs, _ = load(tar, None, preset=_CROP)
    return compare(subject, ours, theirs, 1.0)
