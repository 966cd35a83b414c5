"""What a picture is, by its name."""

from __future__ import annotations

ARRAY_EXTENSION = "npy"
"""The extension of a decoded image, see `gpuloader.images.arrays`; other arrays have it, too."""

JPEG_EXTENSIONS = ("jpg", "jpeg")
IMAGE_EXTENSIONS = (*JPEG_EXTENSIONS, "png", "webp", "bmp", "tif", "tiff", "jp2", "ppm", "pgm", "pnm", ARRAY_EXTENSION)
"""The extensions of images. If a sample has several, the first in this order is used. Other arrays do not count."""

PICTURE_ENDINGS = tuple(f".{extension}" for extension in IMAGE_EXTENSIONS)


def is_picture(path: str) -> bool:
    """Says whether a file is a picture, or a decoded one, by its name; hidden files are none."""
    return path.lower().endswith(PICTURE_ENDINGS) and not path.rpartition("/")[2].startswith(".")
