"""The check of each kind of image file."""

from __future__ import annotations

from functools import partial

import numpy as np
from PIL import Image

from gpuloader.tools.verify.comparing import WIDER, compare, load_both
from gpuloader.tools.verify.pictures import encoded, jpeg, picture, tar_of
from gpuloader.tools.verify.result import Looks, Outcome, Subject


def formats(subject: Subject) -> Looks:
    """An image of each kind, decoded; or refused, as on the CPU."""
    images = {
        "JPEG 4:2:0": jpeg(0),
        "JPEG 4:2:2": jpeg(1, subsampling="4:2:2"),
        "JPEG 4:4:4": jpeg(2, subsampling="4:4:4"),
        "JPEG, gray": encoded(picture(3).convert("L"), "JPEG"),
        "JPEG, CMYK": encoded(picture(4).convert("CMYK"), "JPEG"),
        "JPEG, progressive": jpeg(5, progressive=True),
        "JPEG, turned by EXIF": jpeg(6, exif=_turned()),
        "PNG": encoded(picture(7), "PNG"),
        "PNG, palette": encoded(picture(8).convert("P"), "PNG"),
        "PNG, transparent": encoded(picture(9).convert("RGBA"), "PNG"),
        "PNG, 16 bits": encoded(_sixteen_bits(picture(10)), "PNG"),
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
        return Outcome(found, "as on the CPU", our_bad.keys() == their_bad.keys())
    return compare(subject, ours, theirs, WIDER)


def _sixteen_bits(picture: Image.Image) -> Image.Image:
    return Image.fromarray(np.asarray(picture.convert("L"), np.uint16) * 257)


def _turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees; training does not
    return exif.tobytes()
