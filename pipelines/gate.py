"""The gate before DALI: images that it refuses never reach the decoder.

If DALI 2.4 gets an image with a header that it cannot parse, or a window outside the image, the process can end with a
segmentation fault. So the gate first checks that parsing needs no gigabytes, and then asks DALI's own parser,
nvImageCodec. It also refuses what a parser of headers does not detect: a JPEG that is cut or lacks a table, and images
that take minutes or gigabytes to decode. The parser never gets JPEG 2000, because damaged files end the process.
"""

from __future__ import annotations

import os
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")  # otherwise it prints a message for each bad image, without a name

from nvidia.nvimgcodec import CodeStream

from gpuloader.helpers.image_limits import FORMATS, MAX_PIXELS
from gpuloader.pipelines.jpeg2000 import is_jpeg2000
from gpuloader.shards.image_checks import cause_in_bytes, cause_in_jpeg, cause_in_pnm, cause_in_size
from gpuloader.shards.image_claims import cause_in_claims

_DTYPES = (np.dtype(np.uint8), np.dtype(np.uint16))
_CHECKS = {"jpeg": cause_in_jpeg, "pnm": cause_in_pnm}


def gate(
    encoded: NDArray[np.uint8], max_pixels: int = MAX_PIXELS, formats: Collection[str] = FORMATS
) -> tuple[int, int] | str:
    """Returns (height, width) in pixels as stored, without EXIF rotation, if DALI may get the image; or the cause.

    Args:
        encoded: (bytes,) the whole file.
        max_pixels, formats: the recipe's. JPEG 2000 is always refused; `admit` has it decoded in another process.
    """
    if len(encoded) == 0:
        return "the file is empty"
    if is_jpeg2000(encoded):
        return "a JPEG 2000 image: recipes decode these only if `formats` names jpeg2000"
    if cause := cause_in_bytes(len(encoded)) or cause_in_claims(encoded):
        return cause
    try:
        stream = CodeStream(encoded)
        height, width, dtype, codec = stream.height, stream.width, stream.dtype, stream.codec_name
    except (RuntimeError, TypeError):  # TypeError if the header has a precision that no dtype has
        return f"no image format that DALI reads, or a broken header (it begins with {encoded[:8].tobytes()!r})"
    if dtype not in _DTYPES:
        return f"its samples are {dtype}, allowed are uint8 and uint16"
    if cause := cause_in_size(height, width, max_pixels):
        return cause
    if codec not in formats:
        return f"an image in the format {codec}, but the recipe's `formats` are {', '.join(formats)}"
    if codec in _CHECKS and (cause := _CHECKS[codec](encoded)):
        return cause
    return int(height), int(width)
