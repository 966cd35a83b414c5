"""Makes encoded pictures to verify with, and tars of them."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from gpuloader.base.atomic_files import write_sample
from gpuloader.images.mipmaps import extension_of
from gpuloader.pipelines import smooth_picture

SMALL = (120, 160)
LARGE = (1500, 2000)
"""(height, width) of a JPEG that another of nvJPEG's backends decodes, as of any above 1,000,000 pixels."""
MIPMAP = (96, 128)
"""(height, width) of a mipmap of a `SMALL` picture."""
_OBJECTS = ((20, 10, 120, 90), (90, 50, 150, 110))
"""left, top, right, bottom in a `SMALL` picture."""
picture = partial(smooth_picture, size=SMALL)


def jpeg(seed: int, size: tuple[int, int] = SMALL, **options: Any) -> bytes:  # noqa: ANN401
    """Returns a picture as a JPEG."""
    return encoded(smooth_picture(seed, size), "JPEG", **{"quality": 90, "subsampling": "4:2:0", **options})


def encoded(picture: Image.Image, image_format: str, **options: Any) -> bytes:  # noqa: ANN401
    """Returns the picture as an encoded file; the options are Pillow's."""
    file = io.BytesIO()
    picture.save(file, image_format, **options)
    return file.getvalue()


def turned(orientation: int) -> bytes:
    """Returns EXIF data with this orientation; a recipe applies it if its `orientation` is "apply"."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


@contextmanager
def tar_of(images: Iterable[bytes], mipmaps: Sequence[bytes] = ()) -> Iterator[Path]:
    """Writes images under the keys 00, 01, ..., with labels, targets, and mipmaps of the size `MIPMAP` if given.

    Their content says their format.
    """
    boxes = [[left, top, right - left, bottom - top] for left, top, right, bottom in _OBJECTS]
    points = [[left, top, 2, right, bottom, 1] for left, top, right, bottom in _OBJECTS]
    objects = [{"bbox": box, "keypoints": its_points} for box, its_points in zip(boxes, points)]
    classes = Image.new("L", SMALL[::-1])
    for number, corners in enumerate(_OBJECTS, start=1):
        classes.paste(number, corners)
    targets = {"json": json.dumps({"annotations": objects}).encode(), "mask.png": encoded(classes, "PNG")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.tar"
        with tarfile.open(path, "w") as tar:
            for number, image in enumerate(images):
                beside = {"cls": b"%d" % (number % 10), **targets}
                beside |= {extension_of(MIPMAP[0]): mipmaps[number]} if mipmaps else {}
                write_sample(tar, f"{number:02d}", {"jpg": image, **beside})
        yield path
