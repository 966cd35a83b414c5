"""Pictures to verify with, encoded, and tars of them."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from gpuloader.helpers.tar_samples import write_sample
from gpuloader.pipelines.blame import smooth_picture

HEIGHT, WIDTH = 120, 160


def picture(seed: int) -> Image.Image:
    """A smooth picture with some texture."""
    return smooth_picture(seed, HEIGHT, WIDTH)


def jpeg(seed: int, **options: Any) -> bytes:  # noqa: ANN401
    """A picture as a JPEG."""
    return encoded(picture(seed), "JPEG", **{"quality": 90, "subsampling": "4:2:0", **options})


def encoded(picture: Image.Image, image_format: str, **options: Any) -> bytes:  # noqa: ANN401
    """A picture's file; the options are Pillow's."""
    file = io.BytesIO()
    picture.save(file, image_format, **options)
    return file.getvalue()


@contextmanager
def tar_of(images: Iterable[bytes]) -> Iterator[Path]:
    """The images under the keys 00, 01, ..., with labels; what they are, the library tells by their content."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.tar"
        with tarfile.open(path, "w") as tar:
            for number, image in enumerate(images):
                write_sample(tar, f"{number:02d}", {"jpg": image, "cls": b"%d" % (number % 10)})
        yield path
