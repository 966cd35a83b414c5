"""Whole files, from which the mutants are made."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
import warnings
from functools import cache
from pathlib import Path

import numpy as np
from bad_images import GOOD, PICTURE, bad_kinds, good_kinds
from making import encoded, picture, saved
from PIL import Image

from fuzzing.seekable import seekable_jpegs

IMAGES = {  # format, as recipes name it -> how the zoo's images of it are called
    "jpeg": ("jpeg-",),
    "png": ("png-",),
    "webp": ("webp-",),
}
DATA = ("tar", "index", "state", "recipe", "npy", "json", "annotations")
_LEAST_BYTES, _MOST_BYTES, _MOST_PIXELS = 16, 40_000, 20_000
_TAR_FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


@cache
def material(kind: str) -> tuple[bytes, ...]:
    """The whole files of a kind, small ones."""
    if kind in IMAGES:
        zoo = (image.data for image in good_kinds() if image.name.startswith(IMAGES[kind]))
        return (*filter(_is_small, zoo), *_more_images(kind))
    makes = {
        "seekable": seekable_jpegs,
        "tar": _tars,
        "index": _indexes,
        "state": _states,
        "recipe": _recipes,
        "npy": _arrays,
        "json": _objects,
        "annotations": _annotations,
    }
    return makes[kind]()


@cache
def donors(kind: str) -> tuple[bytes, ...]:
    """Files from which parts are taken: whole ones, and damaged images of the zoo."""
    if kind not in IMAGES:
        return material(kind)
    bad = (image.data for image in bad_kinds() if image.name.startswith(IMAGES[kind]))
    return (*material(kind), *(data for data in bad if _LEAST_BYTES <= len(data) <= _MOST_BYTES))


def _is_small(image: bytes) -> bool:
    if len(image) > _MOST_BYTES:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow, on EXIF that is broken on purpose
        opened = Image.open(io.BytesIO(image))
        return opened.width * opened.height <= _MOST_PIXELS


def _more_images(kind: str) -> tuple[bytes, ...]:
    """What the zoo has no image of: mostly animations, whose parts are the most intricate ones."""
    small, other = picture(24, 32), picture(24, 32, 1)
    if kind == "png":
        frames = [other, small.resize((8, 8))]
        animated = {"save_all": True, "append_images": frames}
        return tuple(
            encoded(image, "PNG", **animated, default_image=hidden)
            for image in (small, small.convert("P"))
            for hidden in (False, True)
        )
    if kind == "webp":
        return tuple(
            encoded(small, "WEBP", save_all=True, append_images=[other], lossless=lossless)
            for lossless in (False, True)
        )
    return ()


def shades(height: int = PICTURE.height, width: int = PICTURE.width) -> tuple[bytes, bytes]:
    """A white and a dark image."""
    colours = (255, 255, 255), (2, 60, 9)
    return tuple(encoded(Image.new("RGB", (width, height), colour), "PNG") for colour in colours)  # type: ignore[return-value]


def _tars() -> tuple[bytes, ...]:
    members = [
        ("a.jpg", GOOD[:900]),
        ("a.cls", b"7"),
        ("a.json", b"{}"),
        ("folder/b.npy", saved(np.zeros((2, 3, 3), np.uint8))),
        ("folder/b.cls", b"x"),
        (f"{'c' * 90}/{'d' * 60}.png", b""),
        ("\u00e9.jpg", GOOD[:700]),
        ("README", b"no image"),
    ]
    tars = []
    for tar_format in _TAR_FORMATS:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=tar_format, pax_headers={"comment": "of all members"}) as tar:
            for name, data in members:
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
            link = tarfile.TarInfo("d.jpg")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(link)
        tars.append(file.getvalue())
    return tuple(tars)


def _indexes() -> tuple[bytes, ...]:
    """Index files; their digests are put right before they are read."""
    from fuzzing.parsers import scanned

    return tuple(scanned(tar).to_bytes() for tar in material("tar"))


def _states() -> tuple[bytes, ...]:
    """What a loader saves, early and late, with a bad image."""
    from fuzzing.parsers import loader_of

    with tempfile.TemporaryDirectory() as folder, loader_of(Path(folder)) as loader:
        state = loader.state_dict()
    later = {**state, "epoch": 3, "delivered": 1, "quarantine": [[0, "cut"]]}
    return json.dumps(state).encode(), json.dumps(later).encode()


def _recipes() -> tuple[bytes, ...]:
    from gpuloader.recipe import preset_names, preset_text

    return tuple(preset_text(name).encode() for name in preset_names())


def _arrays() -> tuple[bytes, ...]:
    arrays = (
        np.zeros((4, 5, 3), np.uint8),
        np.arange(10, dtype=np.float32),
        np.ones((2, 3), ">i8"),
        np.array(["ab", "c"]),
        np.zeros(3, [("a", "<i4"), ("b", "<f8")]),
        np.float64(1),
    )
    return (*map(saved, arrays), saved(arrays[1], (2, 0)), saved(arrays[1], (3, 0)))


def _objects() -> tuple[bytes, ...]:
    return (b'{"label": 3, "caption": "a \\u00e9", "box": [0.5, 1e3, -2, null], "of": {"a": [true, {}]}}',)


def _annotations() -> tuple[bytes, ...]:
    """Boxes, key points and outlines of an image of `annotations.SIZE`, and masks of it."""
    height, width = 48, 64
    outlines = (
        [[4.5, 5, 30, 5.25, 30, 40]],
        [[1, 1, 9, 1, 9, 9, 1, 9], [20, 20, 63, 21, 40, 47]],
        {"size": [height, width], "counts": [100, 30, 18, 30, height * width - 178]},
        {"size": [height, width], "counts": "T3n0b00li2"},  # the same, as pycocotools writes it
    )
    files = []
    for count in (1, 3, 4):
        annotations = [
            {
                "bbox": [3.5 * number, 5, 30.25, 20],
                "category_id": number,
                "iscrowd": number % 2,
                "area": 605.5,
                "keypoints": [10, 12, 2, 50.5, 20, 1, 0, 0, 0],
                "segmentation": outlines[number],
            }
            for number in range(count)
        ]
        boxes = [[0.5, 0.25 * number, 0.5, 0.25] for number in range(count)]
        points = [[[10, 12], [63.5, 1e-3]]] * count
        content = {"annotations": annotations, "boxes": boxes, "labels": list(range(count)), "points": points}
        files.append(json.dumps(content).encode())
    pixels = np.zeros((height, width), np.uint8)
    pixels[8:20, 8:40], pixels[30:, 50:] = 1, 2
    coloured = Image.fromarray(pixels, "P")
    coloured.putpalette([0, 0, 0, 200, 10, 20, 30, 200, 40])
    masks = (Image.fromarray(pixels), coloured, Image.fromarray(pixels.astype(np.uint16)), Image.fromarray(pixels > 0))
    return (*files, *(encoded(mask, "PNG") for mask in masks))
