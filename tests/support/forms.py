"""What a GPU must make as the CPU does: every preset, and each form that a recipe or its batch can have."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from making import encoded, picture, write_shard
from PIL import Image

from gpuloader import Boxes, Compose
from gpuloader.recipe import Recipe, load_preset, preset_names
from gpuloader.transforms import (
    CenterCrop,
    ColorJitter,
    Pad,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomInvert,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
)


def without_normalize(name: str) -> Recipe:
    """A preset whose values are levels, in [0, 1]; of views that are drawn alike, one: tracing them takes seconds."""
    preset = load_preset(name)
    if any(view.normalize for view in preset.each_view):
        preset = load_preset(preset, {"Normalize": None})
    if not isinstance(preset.views, tuple):
        return preset
    return replace(preset, views=tuple(replace(view, count=1) for view in preset.views))


CHANGES = [RandomHorizontalFlip(), ColorJitter(0.4, 0.4, 0.4), RandomErasing(1.0, value="random")]
FORMS: Mapping[str, Recipe] = {
    **{name: without_normalize(name) for name in preset_names()},
    "list": Compose([Resize(40, max_size=64), *CHANGES], batch="list"),
    "list, bfloat16": Compose([Resize(40, max_size=64), *CHANGES], batch="list", dtype="bfloat16"),
    "padded": Compose([Resize(40, max_size=64), *CHANGES], batch={"pad": 32}),
    "padded, channels_last": Compose(
        [Resize(40, max_size=64), *CHANGES], batch={"pad": 32}, layout="channels_last", dtype="float16"
    ),
    "bfloat16": Compose([RandomResizedCrop(32), *CHANGES], dtype="bfloat16"),
    "channels_last": Compose([RandomResizedCrop(32), *CHANGES], layout="channels_last"),
    "upright": Compose([RandomResizedCrop((24, 32)), RandomHorizontalFlip(), ColorJitter(0.4)], orientation="apply"),
    "upright, list": Compose([Resize(40)], batch="list", orientation="apply"),
    **{
        f"padded before a resize, {mode}": Compose([Pad(20, 124, mode), RandomCrop(100), Resize((40, 48))])  # type: ignore[arg-type]
        for mode in ("constant", "edge", "reflect", "symmetric")
    },
    "cropped, resized, cropped": Compose([CenterCrop(90), Resize(50), RandomCrop(32)]),
    "flips between pixel operations": Compose(
        [
            Resize((40, 48)),
            ColorJitter(0.4),
            RandomHorizontalFlip(),
            RandomInvert(),
            RandomVerticalFlip(),
            RandomRotation(10, "bilinear", fill=90),
            RandomHorizontalFlip(),
        ]
    ),
}


def write_forms(folder: Path, sizes: Sequence[tuple[int, int]], count: int) -> Path:
    """A shard whose pictures are turned in each way that EXIF knows, with boxes and classes."""
    samples = []
    for number, (height, width) in zip(range(count), cycle(sizes), strict=False):
        exif = Image.Exif()
        exif[0x0112] = 1 + number % 8
        boxes = [[width / 8, height / 9, width / 2, height / 3], [width / 2, height / 2, width, height]]
        samples.append(
            {
                "__key__": f"{number:03d}",
                "jpg": encoded(picture(height, width, number), "JPEG", quality=90, exif=exif),
                "cls": b"%d" % (number % 10),
                "json": json.dumps({"boxes": boxes}).encode(),
            }
        )
    return write_shard(folder / "forms.tar", samples)


def options_of(recipe: Recipe) -> dict[str, Any]:
    """What a loader of such samples needs beside `output="dict"`."""
    fields = {"boxes": Boxes("json:boxes", format="xyxy")} if recipe.by_boxes else {}
    return {"preset": recipe, "fields": fields}


def differences(
    recipe: Recipe, device: torch.device, ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Iterator[tuple[bool, torch.Tensor]]:
    """For each view of two batches, whether its pixels are changed, and (n,) its images' mean differences in levels.

    The images must have the same shapes, types and strides; ours are on the device.
    """
    several = len(recipe.each_view) > 1
    levels = 1 if recipe.dtype == "uint8" else 255
    for number, view in enumerate(recipe.each_view):
        one, other = (batch["image"][number] if several else batch["image"] for batch in (ours, theirs))
        assert type(one) is type(other)
        means = []
        for image, expected in zip(one, other, strict=True):
            assert image.device == device
            assert (image.shape, image.dtype, image.stride()) == (expected.shape, expected.dtype, expected.stride())
            means.append((image.cpu().float() - expected.float()).abs().mean() * levels)
        yield bool(view.pixels), torch.stack(means)
