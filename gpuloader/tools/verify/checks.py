"""The checks of `verify`: functions of the subject that yield rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from gpuloader import transforms as T  # noqa: N812
from gpuloader.chain.settings import Decoder
from gpuloader.errors import BadImageError
from gpuloader.pipelines import taken_by_engines
from gpuloader.plan import Draw
from gpuloader.recipe import Recipe, load_preset, preset_names
from gpuloader.recipe.model import Ints, PixelTransform, Transform
from gpuloader.recipe.program import Op, Program, chain, step
from gpuloader.stage import Stage
from gpuloader.targets.boxes import Boxes
from gpuloader.targets.keypoints import Keypoints
from gpuloader.targets.masks import Mask
from gpuloader.tools.verify.comparison import (
    BATCH_SIZE,
    IMAGES,
    NARROWER,
    PLAIN,
    WIDER,
    Bad,
    Comparisons,
    Images,
    Outcome,
    Subject,
    compare,
    compare_loads,
    load,
    load_both,
)
from gpuloader.tools.verify.pictures import LARGE, MIPMAP, SMALL, encoded, jpeg, picture, tar_of, turned

_AS_IT_IS = T.Resize(SMALL)
_RESIZE = T.Resize(80, max_size=100)
_CHANGES = (T.RandomHorizontalFlip(), T.ColorJitter(0.4), T.RandomErasing(1.0, value=0.5))
_CROP = Recipe((T.RandomResizedCrop(96), T.RandomHorizontalFlip()))
# It takes mipmaps, but no picture has twice the pixels, which the CPU alone would decode at 1/2.
_ON_MIPMAPS = Recipe((T.RandomResizedCrop(41, (0.6, 1)), *_CROP.transforms[1:]), orientation="apply", oversampling=1.5)
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
    "masks": Mask("mask.png"),
}


def recipes(subject: Subject) -> Comparisons:
    """Compares the pixels of each preset; and MixUp with CutMix."""
    for name in preset_names():
        yield name, partial(_recipe, subject, name)
    mix = {"num_classes": 10, "mixup_alpha": 0.8, "cutmix_alpha": 1.0}
    options = {"preset": {"imagenet_train": {"Normalize": None, "mix": mix}}, "label_from": "cls", "last_batch": "pad"}
    with tar_of(map(jpeg, range(BATCH_SIZE))) as tar:
        yield "MixUp and CutMix", partial(compare_loads, subject, tar, 1.0, **options)


def _recipe(subject: Subject, name: str) -> Outcome:
    preset = load_preset(name, {"mix": None})
    if any(view.normalize for view in preset.each_view):
        preset = load_preset(preset, {"Normalize": None})
    factor = WIDER if any(view.pixels for view in preset.each_view) else 1.0
    if not preset.by_boxes:
        return compare_loads(subject, subject.tar, factor, preset=preset, sampling={"subset": range(subject.samples)})
    with tar_of(map(jpeg, range(BATCH_SIZE))) as tar:
        return compare_loads(subject, tar, factor, preset=preset, fields={"boxes": _TARGETS["boxes"]})


def forms(subject: Subject) -> Comparisons:
    """Compares pictures of each EXIF orientation, their targets and mipmaps, and the output of a Stage."""
    files, mipmaps = (
        [jpeg(number, size, exif=turned(1 + number % 8)) for number in range(BATCH_SIZE)] for size in (SMALL, MIPMAP)
    )
    with tar_of(files) as tar:
        for name, recipe in _RECIPES.items():
            yield name, partial(compare_loads, subject, tar, WIDER, preset=recipe)
        yield "boxes, masks, key points", partial(_targets, subject, tar)
        yield "Stage", partial(_stage, subject, tar, files)
    with tar_of(files, mipmaps) as tar:
        yield "smaller copies", partial(compare_loads, subject, tar, 1.0, preset=_ON_MIPMAPS)


def _targets(subject: Subject, tar: Path) -> Outcome:
    """Compares targets. They are transformed on the CPU, so they must be equal."""
    options: dict[str, Any] = {"preset": _CROP, "fields": _TARGETS, "entries": tuple(_TARGETS)}
    (ours, _), (theirs, _) = load_both(tar, subject.device_id, **options)
    pairs = [(ours.get(key, [torch.empty(0)] * len(each)), each) for key, each in theirs.items()]
    off = [name for at, name in enumerate(_TARGETS) if not all(torch.equal(one[at], other[at]) for one, other in pairs)]
    return f"{', '.join(off)} differ" if off else "all are equal", "equal, on the device", not off


def _stage(subject: Subject, tar: Path, files: list[bytes]) -> Outcome:
    batches = Stage(_CROP, subject.device_id)([(files, range(len(files)))])
    ours: Images = {f"{number:02d}": [image.cpu()] for images, ids in batches for number, image in zip(ids, images)}
    theirs, _ = load(tar, None, preset=_CROP)
    return compare(subject, ours, theirs, 1.0)


def repeats(subject: Subject) -> Comparisons:
    """Compares the same samples in other batches, after resuming, and beside other work of the GPU."""
    yield from _repeats(subject)
    if subject.device_id is not None:  # tells whether engines are the cause
        for name, outcome in _repeats(subject, decoder=Decoder(hw_load=0)):
            yield f"{name}, hw_load=0", outcome


def _repeats(subject: Subject, **decoder: Decoder) -> Comparisons:
    options: dict[str, Any] = {"preset": PLAIN, "sampling": {"subset": range(subject.samples)}, **decoder}
    run = partial(load, subject.tar, subject.device_id, **options)
    expected, _ = run()
    ways = {
        "again": run,
        "one by one": partial(run, 1),
        "in batches of 5": partial(run, 5),
        "in one batch": partial(run, IMAGES),
        "resumed after 7 samples": partial(run, delivered=min(7, subject.samples - 1)),
    }
    if subject.device_id is not None:
        ways["on a stream of its own"] = partial(run, stream=True)
        ways["freed while the stream is busy"] = partial(run, busy=True)
    for name, way in ways.items():
        yield name, partial(_repeat, expected, way)


def _repeat(expected: Images, way: Callable[[], tuple[Images, Bad]]) -> Outcome:
    images, _ = way()
    different = [
        key
        for key, views in images.items()
        if not all(torch.equal(one, other) for one, other in zip(views, expected[key], strict=True))
    ]
    found = f"{len(different)} of {len(images)} images differ" if different else f"{len(images)} images are equal"
    return found, "equal bit for bit", not different and bool(images)


def formats(subject: Subject) -> Comparisons:
    """Compares an image of each format: it must be decoded or refused as on the CPU."""
    images = {
        "JPEG 4:2:0": jpeg(0),
        "JPEG 4:2:2": jpeg(1, subsampling="4:2:2"),
        "JPEG 4:4:4": jpeg(2, subsampling="4:4:4"),
        "JPEG, large": jpeg(14, LARGE),
        "JPEG, gray": encoded(picture(3).convert("L"), "JPEG"),
        "JPEG, CMYK": encoded(picture(4).convert("CMYK"), "JPEG"),
        "JPEG, progressive": jpeg(5, progressive=True),
        "JPEG, turned by EXIF": jpeg(6, exif=turned(6)),
        "PNG": encoded(picture(7), "PNG"),
        "PNG, palette": encoded(picture(8).convert("P"), "PNG"),
        "PNG, transparent": encoded(picture(9).convert("RGBA"), "PNG"),
        "PNG, 16 bits": encoded(Image.fromarray(np.asarray(picture(10).convert("L"), np.uint16) * 257), "PNG"),
        "WebP": encoded(picture(12), "WEBP"),
        "WebP, lossless": encoded(picture(13), "WEBP", lossless=True),
    }
    for name, image in images.items():
        yield name, partial(_format, subject, image)


def _format(subject: Subject, image: bytes) -> Outcome:
    with tar_of([jpeg(0), image]) as tar:  # one that is refused needs another in its place
        (ours, our_bad), (theirs, their_bad) = load_both(tar, subject.device_id, preset="raw_uint8")
    if our_bad or their_bad:
        found = f"refused: {our_bad[1]}" if our_bad else "decoded"
        return found, "as on the CPU", our_bad.keys() == their_bad.keys()
    return compare(subject, ours, theirs, WIDER)


def cuts(subject: Subject) -> Comparisons:
    """Compares JPEGs that are cut before they are decoded with the same pictures in JPEGs that cannot be cut."""
    kinds = ("4:2:0", "4:2:2", "4:4:4")
    intervals, none = (
        [
            jpeg(each, LARGE if each in (1, 9) else SMALL, subsampling=kinds[each % 3], restart_marker_blocks=mcus)
            for each in range(BATCH_SIZE)
        ]
        for mcus in (2, 0)
    )
    loads = {"cut": None} if subject.device_id is None else {"cut, by engines": 1.0, "cut, without engines": 0.0}
    with tar_of(intervals) as seekable, tar_of(none) as plain:
        for name, hw_load in loads.items():
            yield name, partial(_cut, subject, seekable, plain, Decoder(hw_load=hw_load))
    if subject.device_id is not None:
        yield "taken by engines", partial(_engines, subject.device_id, none[0], intervals[0])


def _cut(subject: Subject, seekable: Path, plain: Path, decoder: Decoder) -> Outcome:
    (ours, _), (theirs, _) = (load(tar, subject.device_id, preset=PLAIN, decoder=decoder) for tar in (seekable, plain))
    return compare(subject, ours, theirs, 1.0)


def _engines(device_id: int, plain: bytes, intervals: bytes) -> Outcome:
    taken = ["yes" if by_engine else "no" for by_engine in taken_by_engines([plain, intervals], device_id)]
    return f"plain JPEGs: {taken[0]}, with restart intervals: {taken[1]}", "", True


def bad_images(subject: Subject) -> Comparisons:
    """Checks that damaged images are named, and that all other images are delivered."""
    bad = {2: jpeg(2)[:-30], 5: _with_broken_table(jpeg(5)), 11: b"no image"}
    with tar_of([bad.get(number) or jpeg(number) for number in range(BATCH_SIZE)]) as tar:
        (ours, our_bad), (theirs, _) = load_both(tar, subject.device_id, preset="raw_uint8")
        found = ", ".join(map(str, sorted(our_bad))) or "none"
        yield "replaced", lambda: (found, "2, 5, 11", our_bad.keys() == bad.keys())
        yield "the other images", partial(compare, subject, ours, theirs, WIDER)
        yield "raised", partial(_raised, subject, tar)


def _raised(subject: Subject, tar: Path) -> Outcome:
    named = "none"
    try:
        load(tar, subject.device_id, on_error="raise", preset="raw_uint8")
    except BadImageError as error:
        named = error.key
    return named, "02", named == "02"


def _with_broken_table(jpeg: bytes) -> bytes:
    """Returns a JPEG with an impossible table of Huffman codes, which its header does not show."""
    data, table = bytearray(jpeg), jpeg.index(b"\xff\xc4")
    data[table + 5 : table + 21] = bytes([255] * 16)
    return bytes(data)


@dataclass(frozen=True)
class Steps(PixelTransform):
    """The same steps for each image: operations of `gpuloader.recipe.program`, and their first parameters."""

    operations: tuple[tuple[Op, Sequence[float]], ...]

    @property
    def steps(self) -> int:
        return len(self.operations)

    def program(self, draw: Draw, sizes: Ints) -> Program:
        return chain([step(op, draw.samples, *parameters) for op, parameters in self.operations], draw.samples)


def _step(op: Op, *parameters: float) -> Steps:
    return Steps(((op, parameters),))


PIXEL_OPERATIONS: Mapping[str, PixelTransform] = {
    "rotation, nearest": T.RandomRotation((30, 30)),
    "rotation, bilinear": T.RandomRotation((30, 30), "bilinear", fill=124),
    "shear": T.RandomAffine(0, shear=(20, 20), interpolation="bilinear"),
    "perspective": T.RandomPerspective(0.5, 1.0),
    "brightness": _step(Op.BRIGHTNESS, 1.4),
    "contrast": _step(Op.CONTRAST, 0.6),
    "saturation": _step(Op.SATURATION, 1.4),
    "hue": _step(Op.HUE, 0.1),
    "sharpness": _step(Op.SHARPNESS, 1.9),
    "posterize": _step(Op.POSTERIZE, 3),
    "solarize": _step(Op.SOLARIZE, 128),
    "solarize, add": _step(Op.SOLARIZE_ADD, 40),
    "invert": _step(Op.INVERT),
    "autocontrast": _step(Op.AUTOCONTRAST),
    "equalize": _step(Op.EQUALIZE),
    "grayscale": _step(Op.GRAYSCALE),
    "blur": _step(Op.BLUR, 2.0, 9),
    "permute": _step(Op.PERMUTE, 2, 0, 1),
    "mix with the inverse": Steps(
        ((Op.MIX_BEGIN, ()), (Op.INVERT, ()), (Op.MIX_ADD, (0.3,)), (Op.MIX_ADD, (0.7,)), (Op.MIX_END, ()))
    ),
}

OPERATIONS: Mapping[str, Sequence[Transform]] = {
    "resize, smaller": (T.Resize((50, 70)),),
    "resize, smaller, bicubic": (T.Resize((50, 70), "bicubic"),),
    "resize, larger": (T.Resize((180, 200)),),
    "crop": (_AS_IT_IS, T.RandomCrop(96)),
    **{f"padding, {mode}": (_AS_IT_IS, T.Pad(20, 124, mode)) for mode in ("constant", "edge", "reflect", "symmetric")},
    "padding before a resize": (_AS_IT_IS, T.Pad(20, 124), T.Resize((50, 70))),
    "mirrored padding before a resize": (_AS_IT_IS, T.Pad(20, padding_mode="reflect"), T.Resize((50, 70))),
    "horizontal flip": (_AS_IT_IS, T.RandomHorizontalFlip(1.0)),
    "vertical flip": (_AS_IT_IS, T.RandomVerticalFlip(1.0)),
    "flips between operations": (
        *(_AS_IT_IS, _step(Op.BRIGHTNESS, 1.2), T.RandomHorizontalFlip(1.0)),
        *(_step(Op.INVERT), T.RandomVerticalFlip(1.0), _step(Op.BRIGHTNESS, 1.1)),
    ),
    **{name: (_AS_IT_IS, operation) for name, operation in PIXEL_OPERATIONS.items()},
    "one of these for each image": (_AS_IT_IS, T.RandomChoice(tuple(PIXEL_OPERATIONS.values()))),
    "erasing, gray": (_AS_IT_IS, T.RandomErasing(1.0, value=0.5)),
    "erasing, noise": (_AS_IT_IS, T.RandomErasing(1.0, value="random")),
}


def operations(subject: Subject) -> Comparisons:
    """Compares each operation with a fixed strength, on images that every decoder decodes equally."""
    with tar_of(encoded(picture(number), "PNG") for number in range(BATCH_SIZE)) as tar:
        for name, transforms in OPERATIONS.items():
            erases = isinstance(transforms[-1], T.RandomErasing)
            preset = Recipe(tuple(transforms), dtype="float32" if erases else "uint8")
            yield name, partial(compare_loads, subject, tar, NARROWER, preset=preset)


CHECKS: Mapping[str, Callable[[Subject], Comparisons]] = {
    "recipes": recipes,
    "operations": operations,
    "forms": forms,
    "repeats": repeats,
    "formats": formats,
    "cuts": cuts,
    "bad-images": bad_images,
}
"""The checks by name, in the order in which they run."""
