"""Whole files, from which the mutants are made."""

from __future__ import annotations

import io
import json
import tarfile
import warnings
from functools import cache

import numpy as np
from bad_images import GOOD, bad_kinds, good_kinds
from making import encoded, picture, saved
from PIL import Image

IMAGES = ("jpeg", "png", "webp")
DATA = ("tar", "index", "annotations")
KINDS = (*IMAGES, "seekable", "scaled", *DATA)
_LEAST_BYTES, _MOST_BYTES, _MOST_PIXELS = 16, 40_000, 20_000
_TAR_FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


@cache
def material(kind: str) -> tuple[bytes, ...]:
    """The whole files of a kind, small ones."""
    if kind in IMAGES:
        zoo = (image.data for image in good_kinds() if image.name.startswith(f"{kind}-"))
        return (*filter(_is_small, zoo), *_animations(kind))
    makes = {
        "seekable": _seekable_jpegs,
        "scaled": lambda: (*material("jpeg"), *_seekable_jpegs()),
        "tar": _tars,
        "index": _indexes,
        "annotations": _annotations,
    }
    return makes[kind]()


@cache
def donors(kind: str) -> tuple[bytes, ...]:
    """Files from which parts are taken: whole ones, and damaged images of the zoo."""
    kind_of_bad = {"scaled": "jpeg"}.get(kind, kind)
    bad = (image.data for image in bad_kinds() if kind_of_bad in IMAGES and image.name.startswith(f"{kind_of_bad}-"))
    return (*material(kind), *(data for data in bad if _LEAST_BYTES <= len(data) <= _MOST_BYTES))


def _is_small(image: bytes) -> bool:
    if len(image) > _MOST_BYTES:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow, on EXIF that is broken on purpose
        opened = Image.open(io.BytesIO(image))
        return opened.width * opened.height <= _MOST_PIXELS


def _animations(kind: str) -> tuple[bytes, ...]:
    """The zoo has few; their parts are the most intricate ones."""
    small, frames = picture(24, 32), {"save_all": True, "append_images": [picture(24, 32, 1)]}
    return {
        "jpeg": (),
        "png": tuple(encoded(small, "PNG", **frames, default_image=hidden) for hidden in (False, True)),
        "webp": tuple(encoded(small, "WEBP", **frames, lossless=lossless) for lossless in (False, True)),
    }[kind]


def _seekable_jpegs() -> tuple[bytes, ...]:
    """Three intervals a row, of one to three MCUs, in all samplings that Pillow writes, gray and CMYK; and odd ones."""
    jpegs = []
    for mode, sampling, across, down in (
        ("RGB", "4:2:0", 16, 16),
        ("RGB", "4:2:2", 16, 8),
        ("RGB", "4:4:4", 8, 8),
        ("L", "4:4:4", 8, 8),
        ("CMYK", "4:4:4", 8, 8),
    ):
        for mcus in (1, 2, 3):
            image = picture(3 * down + 6, across * (3 * mcus - 1) + 4, mcus).convert(mode)
            jpegs.append(encoded(image, "JPEG", subsampling=sampling, restart_marker_blocks=mcus))
    commented = encoded(picture(64, 96), "JPEG", restart_marker_blocks=2, comment=b"a comment", dpi=(300, 300))
    rows = encoded(picture(64, 48), "JPEG", restart_marker_rows=1, exif=b"Exif\0\0of a camera", optimize=True)
    across_rows = encoded(picture(40, 48), "JPEG", restart_marker_blocks=2)
    gray = bytearray(encoded(picture(30, 44).convert("L"), "JPEG", restart_marker_blocks=2))
    gray[gray.index(b"\xff\xc0") + 11] = 0x22  # sampling factors, which mean nothing in a single component
    return (*jpegs, commented, rows, across_rows, bytes(gray))


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
