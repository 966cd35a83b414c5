"""Pictures to verify with, encoded, and tars of them; and pictures of what differs."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gpuloader.helpers.atomic_files import write_sample
from gpuloader.helpers.text import printable
from gpuloader.pipelines.blame import smooth_picture
from gpuloader.tools.sheet import Picture, Sheet, as_picture, fitting_tile
from gpuloader.tools.verify.result import Difference

SMALL = (120, 160)
LARGE = (1500, 2000)
"""(height, width) of a JPEG that another of nvJPEG's backends decodes, as of any above 1,000,000 pixels."""
BOXES = [[20, 10, 120, 90], [90, 50, 150, 110]]
ANNOTATIONS = [
    {
        "bbox": [left, top, right - left, bottom - top],
        "keypoints": [left, top, 2, right, bottom, 1],
        "segmentation": [[left, top, right, top, right, bottom]],
    }
    for left, top, right, bottom in BOXES
]


def picture(seed: int, size: tuple[int, int] = SMALL) -> Image.Image:
    """Makes a smooth picture with some texture."""
    return smooth_picture(seed, *size)


def jpeg(seed: int, size: tuple[int, int] = SMALL, **options: Any) -> bytes:  # noqa: ANN401
    """Returns a picture as a JPEG."""
    return encoded(picture(seed, size), "JPEG", **{"quality": 90, "subsampling": "4:2:0", **options})


def encoded(picture: Image.Image, image_format: str, **options: Any) -> bytes:  # noqa: ANN401
    """Returns a picture's file; the options are Pillow's."""
    file = io.BytesIO()
    picture.save(file, image_format, **options)
    return file.getvalue()


def turned(orientation: int) -> bytes:
    """Returns the EXIF data of a picture that is to be turned so; a recipe does it if its `orientation` is "apply"."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


@contextmanager
def tar_of(images: Iterable[bytes]) -> Iterator[Path]:
    """Writes images under the keys 00, 01, ..., with labels and targets; their content says their format."""
    targets = json.dumps({"boxes": BOXES, "annotations": ANNOTATIONS}).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.tar"
        with tarfile.open(path, "w") as tar:
            for number, image in enumerate(images):
                write_sample(tar, f"{number:02d}", {"jpg": image, "cls": b"%d" % (number % 10), "json": targets})
        yield path


def draw(differences: Mapping[str, Difference], heading: Sequence[str]) -> Picture:
    """Draws a row for each name: the CPU's image, the device's, and their difference, multiplied so that it is seen."""
    tile = fitting_tile(side for each in differences.values() for side in each.ours.shape[1:])
    sheet = Sheet(tile, 3, len(differences), heading)
    for row, (name, (key, ours, theirs)) in enumerate(differences.items()):
        expected, delivered = as_picture(theirs), as_picture(ours)
        levels = np.abs(np.asarray(expected, np.int16) - np.asarray(delivered, np.int16))
        times = 255 // max(1, int(levels.max()))
        sheet.put(row, 0, expected, [name, f"the CPU's {printable(key)}"])
        sheet.put(row, 1, delivered, ["the device's"])
        sheet.put(row, 2, Image.fromarray((times * levels).astype(np.uint8)), [f"difference, times {times}"])
    return sheet.image
