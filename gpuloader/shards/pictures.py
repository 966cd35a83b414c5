"""Recognises pictures by their names."""

from __future__ import annotations

ARRAY_EXTENSION = "npy"
"""The extension of decoded images, see `gpuloader.images.arrays`, and of other arrays."""

JPEG_EXTENSIONS = ("jpg", "jpeg")
IMAGE_EXTENSIONS = (*JPEG_EXTENSIONS, "png", "webp", "bmp", "tif", "tiff", "jp2", "ppm", "pgm", "pnm", ARRAY_EXTENSION)
"""The extensions of images. If a sample has several images, the first in this order is used."""

PICTURE_ENDINGS = tuple(f".{extension}" for extension in IMAGE_EXTENSIONS)


def is_picture(path: str) -> bool:
    """Returns whether a file is a picture, or a decoded one, by its name; False for hidden files."""
    return path.lower().endswith(PICTURE_ENDINGS) and not path.rpartition("/")[2].startswith(".")
