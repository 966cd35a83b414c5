"""Decodes JPEGs at 1/2, 1/4 or 1/8 of their height and width, which costs less than decoding all of their pixels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuloader.images.formats import image_format
from gpuloader.images.header import frame_of, mcu_of

_COMPONENTS = (b"\1", b"\3")  # of CMYK, simplejpeg's levels differ from DALI's by 1
_MARGIN = 4  # rows below those that are needed: as in cutting.h, chroma is interpolated from them


def decode_scaled(file: NDArray[np.uint8], factor: int, bottom: int) -> NDArray[np.uint8] | None:
    """Decodes a JPEG at 1/`factor` of its height and width, rounded up.

    A pixel is about the mean of `factor` x `factor` pixels. The rows of a single scan are decoded only as far as they
    are needed, with the same pixels.

    Args:
        file: (bytes,) a file that passed validation. A part of it is overwritten during the call.
        factor: 2, 4 or 8.
        bottom: the row of the file below which no pixels are needed.

    Returns:
        uint8 (height, width, 3), RGB, with at least the needed rows; None if the file is not a JPEG of one or three
        components, or if simplejpeg refuses it.
    """
    data = memoryview(file)
    found = frame_of(lambda count, at: data[at : at + count].tobytes()) if image_format(file) == "jpeg" else None
    if found is None or found[1][5:6] not in _COMPONENTS:
        return None
    from simplejpeg import decode_jpeg  # here, because most recipes do not need it

    at, frame, has_one_scan = found
    height, width = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
    if has_one_scan:
        rows = mcu_of(frame)[0]
        height = min(height, -(-(bottom + _MARGIN) // rows) * rows)
        data[at + 1 : at + 3] = height.to_bytes(2, "big")
    shape = -(-height // factor), -(-width // factor), 3
    try:
        # Not strict: DALI, too, decodes what libjpeg warns of.
        image = decode_jpeg(file, "RGB", min_height=shape[0], min_width=shape[1], min_factor=factor, strict=False)
    except ValueError:
        return None
    finally:
        data[at + 1 : at + 3] = frame[1:3]
    return image if image.shape == shape else None
