"""The gate before DALI: what it refuses never reaches the decoder.

DALI 2.4 does not only raise on an image whose header it cannot parse or on a window outside the image: the process can
end with a segmentation fault. The gate asks nvImageCodec, which is DALI's own parser, once it knows that this takes no
gigabytes itself, and adds what a parser of headers does not see: a JPEG that is cut or lacks a table, and images that
take minutes or gigabytes to decode. It never asks about JPEG 2000, of which damaged files end the process.
"""

from __future__ import annotations

import os
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")  # else it says of each bad image, without its name, that it is bad

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
    """(height, width) in pixels as stored, EXIF rotation not applied, of an image that DALI may get; else the cause.

    Args:
        encoded: (bytes,) the whole file.
        max_pixels, formats: the recipe's. JPEG 2000 is refused all the same: `admit` has it decoded.
    """
    if len(encoded) == 0:
        return "the file is empty"
    if is_jpeg2000(encoded):
        return "a JPEG 2000 image: recipes decode those only where `formats` names jpeg2000"
    if cause := cause_in_bytes(len(encoded)) or cause_in_claims(encoded):
        return cause
    try:
        stream = CodeStream(encoded)
        height, width, dtype, codec = stream.height, stream.width, stream.dtype, stream.codec_name
    except (RuntimeError, TypeError):  # the latter where the header says a precision that no dtype has
        return f"no image format that DALI reads, or a broken header (it begins with {encoded[:8].tobytes()!r})"
    if dtype not in _DTYPES:
        return f"its samples are {dtype}, allowed are uint8 and uint16"
    if cause := cause_in_size(height, width, max_pixels):
        return cause
    if codec not in formats:
        return f"an image in the format {codec}, and the recipe's `formats` are {', '.join(formats)}"
    if codec in _CHECKS and (cause := _CHECKS[codec](encoded)):
        return cause
    return int(height), int(width)
