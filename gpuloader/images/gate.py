"""Validates each image file before DALI: refused files never reach DALI's decoder.

DALI gets JPEG, PNG and WebP. DALI 2.4 can end the process with a segmentation fault if it cannot parse a header, or if
a window is outside the image. So validation first checks that parsing needs no gigabytes, and then calls DALI's own
parser, nvImageCodec. It also refuses files that a header parser accepts: a JPEG that is cut or lacks a table, and
images that take minutes or gigabytes to decode.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")  # otherwise it prints a message without a name for each bad image

from nvidia.nvimgcodec import CodeStream

from gpuloader.images.formats import RARE_FORMATS, image_format
from gpuloader.images.jpeg import check_jpeg, decoder_jpeg
from gpuloader.images.limits import MAX_PIXELS, AdmittedImage, RefusalError, cause_in_bytes, check_size
from gpuloader.images.png import check_data, decoder_png
from gpuloader.images.webp import check_webp

_DTYPES = (np.dtype(np.uint8), np.dtype(np.uint16))
_FILES = {"jpeg": decoder_jpeg, "png": decoder_png}
_CHECKS = {"jpeg": check_jpeg, "png": check_data}


def decoder_file(encoded: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns the file that DALI gets for an image, (bytes,); the image itself if it is bad, or another format."""
    file_format = image_format(encoded)
    try:
        return _FILES[file_format](encoded) if file_format in _FILES else encoded
    except RefusalError:
        return encoded


def admit(encoded: NDArray[np.uint8], max_pixels: int = MAX_PIXELS) -> AdmittedImage:
    """Validates an image; returns the file for DALI, and the image's (height, width).

    Args:
        encoded: (bytes,) the whole file.
        max_pixels: of the recipe.

    Returns:
        `encoded` itself, or what `decoder_jpeg` or `decoder_png` makes of it.

    Raises:
        RefusalError: DALI must not get the image.
    """
    if len(encoded) == 0:
        raise RefusalError("the file is empty")
    file_format = image_format(encoded)
    if file_format is None:
        raise RefusalError(_cause_in_beginning(encoded))
    if name := RARE_FORMATS.get(file_format):
        raise RefusalError(f"a {name} image: recipes decode JPEG, PNG and WebP; `gpuloader pack` converts it to PNG")
    if cause := cause_in_bytes(len(encoded)):
        raise RefusalError(cause)
    file = _FILES[file_format](encoded) if file_format in _FILES else encoded
    if file_format == "webp":
        check_webp(file)
    try:
        stream = CodeStream(file)
        height, width, dtype, codec = int(stream.height), int(stream.width), stream.dtype, stream.codec_name
    except (RuntimeError, TypeError):  # TypeError if no dtype has the header's precision
        raise RefusalError(_cause_in_beginning(encoded)) from None
    if codec != file_format or dtype not in _DTYPES:
        raise RefusalError(f"its header says {codec} with samples of {dtype}: allowed are uint8 and uint16")
    check_size(height, width, max_pixels)
    if file_format in _CHECKS:
        _CHECKS[file_format](file)
    return file, (height, width)


def admit_each(
    images: Sequence[bytes | NDArray[np.uint8]], max_pixels: int
) -> tuple[list[NDArray[np.uint8]], NDArray[np.int64], dict[int, str]]:
    """Validates images; returns the files for DALI, (bytes,), their sizes, (n, 2), and causes of refusals by row."""
    files = [np.frombuffer(image, np.uint8) for image in images]
    sizes, refused = np.ones((len(files), 2), np.int64), {}
    for row, file in enumerate(files):
        try:
            files[row], sizes[row] = admit(file, max_pixels)
        except RefusalError as error:
            refused[row] = error.cause
    return files, sizes, refused


def _cause_in_beginning(encoded: NDArray[np.uint8]) -> str:
    return f"no image format that DALI reads, or a broken header (it begins with {encoded[:8].tobytes()!r})"
