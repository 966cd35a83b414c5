"""Prepares an image for DALI: its file if the gate accepts it; for a JPEG 2000, the PNM that another process made."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import DataError
from gpuloader.helpers.image_limits import FORMATS, MAX_PIXELS
from gpuloader.pipelines.gate import gate
from gpuloader.pipelines.jpeg2000 import is_jpeg2000, translate
from gpuloader.recipe import Preset
from gpuloader.shards.image_checks import cause_in_bytes, cause_in_size


def admit(
    encoded: NDArray[np.uint8], max_pixels: int = MAX_PIXELS, formats: Collection[str] = FORMATS
) -> tuple[NDArray[np.uint8], tuple[int, int]] | str:
    """Returns the file that DALI gets for an image, and its (height, width) as in `gate`; or why it is refused.

    Args:
        encoded: (bytes,) the whole file.
        max_pixels, formats: the recipe's.

    Raises:
        LoaderError: JPEG 2000 cannot be decoded, and the image is not the cause.
    """
    size = gate(encoded, max_pixels, formats)
    if not isinstance(size, str):
        return encoded, size
    if "jpeg2000" not in formats or not is_jpeg2000(encoded):
        return size
    if cause := cause_in_bytes(len(encoded)):
        return cause
    translated = translate(encoded, max_pixels)
    if isinstance(translated, str):
        return translated
    if isinstance(translated, tuple):
        cause = cause_in_size(*translated, max_pixels)
        assert cause is not None
        return cause
    image = np.frombuffer(translated, np.uint8)
    size = gate(image, max_pixels)
    return size if isinstance(size, str) else (image, size)


def admit_all(images: Sequence[bytes], preset: Preset) -> tuple[list[NDArray[np.uint8]], NDArray[np.int64]]:
    """Returns the files that DALI gets for images, and their sizes; the recipe must accept all of them.

    Returns:
        The files (bytes,) each; (n, 2) heights and widths.

    Raises:
        DataError: an image cannot be decoded; the message names the first one.
    """
    files, sizes = [], []
    for number, image in enumerate(images):
        admitted = admit(np.frombuffer(image, np.uint8), preset.max_pixels, preset.formats)
        if isinstance(admitted, str):
            raise DataError(f"image {number} cannot be decoded: {admitted}")
        files.append(admitted[0])
        sizes.append(admitted[1])
    return files, np.array(sizes, np.int64)
