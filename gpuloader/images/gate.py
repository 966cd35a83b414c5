"""The gate before DALI: images that it refuses never reach DALI's parser or decoder.

DALI gets JPEG, PNG and WebP. If DALI 2.4 gets an image with a header that it cannot parse, or a window outside the
image, the process can end with a segmentation fault. So the gate first checks that parsing needs no gigabytes, and then
asks DALI's own parser, nvImageCodec. It also refuses what a parser of headers does not detect: a JPEG that is cut or
lacks a table, and images that take minutes or gigabytes to decode. Pillow decodes other formats in another process.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")  # otherwise it prints a message for each bad image, without a name

from nvidia.nvimgcodec import CodeStream

from gpuloader.errors import DataError
from gpuloader.images.by_pillow import decode_by_pillow
from gpuloader.images.formats import DEFAULT_FORMATS, FORMATS, cause_in_format, image_format
from gpuloader.images.jpeg import cause_in_jpeg
from gpuloader.images.limits import MAX_PIXELS, Admitted, cause_in_bytes, cause_in_size
from gpuloader.images.png import cause_in_data, decoder_png
from gpuloader.images.webp import cause_in_webp

_DTYPES = (np.dtype(np.uint8), np.dtype(np.uint16))
_CHECKS = {"jpeg": cause_in_jpeg, "png": cause_in_data}


def admit(
    encoded: NDArray[np.uint8], max_pixels: int = MAX_PIXELS, formats: Collection[str] = FORMATS
) -> Admitted | str:
    """Returns the file that DALI gets for an image, and the size; or why the image is refused.

    Args:
        encoded: (bytes,) the whole file.
        max_pixels, formats: the recipe's.

    Returns:
        `encoded` itself if DALI may get it; of a PNG with text and the like, a copy without these; of an image that
        Pillow decodes, a PNM.

    Raises:
        LoaderError: Pillow's process fails, and the image is not the cause.
    """
    if len(encoded) == 0:
        return "the file is empty"
    found = image_format(encoded)
    if found is None:
        return _cause_in_beginning(encoded)
    if cause := cause_in_format(found, formats) or cause_in_bytes(len(encoded)):
        return cause
    if found not in DEFAULT_FORMATS:
        return decode_by_pillow(encoded, max_pixels)
    file = decoder_png(encoded) if found == "png" else encoded
    if isinstance(file, str):
        return file
    if found == "webp" and (cause := cause_in_webp(file)):
        return cause
    try:
        stream = CodeStream(file)
        height, width, dtype, codec = int(stream.height), int(stream.width), stream.dtype, stream.codec_name
    except (RuntimeError, TypeError):  # TypeError if the header has a precision that no dtype has
        return _cause_in_beginning(encoded)
    if codec != found or dtype not in _DTYPES:
        return f"its header says {codec} with samples of {dtype}: allowed are uint8 and uint16"
    if cause := cause_in_size(height, width, max_pixels):
        return cause
    if found in _CHECKS and (cause := _CHECKS[found](file)):
        return cause
    return file, (height, width)


def admit_all(
    images: Sequence[bytes], max_pixels: int, formats: Collection[str]
) -> tuple[list[NDArray[np.uint8]], NDArray[np.int64]]:
    """Returns the files that DALI gets for images, and their sizes; all of them must pass.

    Returns:
        The files (bytes,) each; (n, 2) heights and widths.

    Raises:
        DataError: an image cannot be decoded; the message names the first one.
    """
    files, sizes = [], []
    for number, image in enumerate(images):
        admitted = admit(np.frombuffer(image, np.uint8), max_pixels, formats)
        if isinstance(admitted, str):
            raise DataError(f"image {number} cannot be decoded: {admitted}")
        files.append(admitted[0])
        sizes.append(admitted[1])
    return files, np.array(sizes, np.int64)


def _cause_in_beginning(encoded: NDArray[np.uint8]) -> str:
    return f"no image format that DALI reads, or a broken header (it begins with {encoded[:8].tobytes()!r})"
