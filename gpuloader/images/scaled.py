"""Decodes JPEGs at 1/2, 1/4 or 1/8 of their height and width, which costs less than decoding all of their pixels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuloader.images.formats import image_format
from gpuloader.images.header import frame_of, mcu_of

_COMPONENTS = (b"\1", b"\3")  # of CMYK, simplejpeg's levels differ from DALI's by 1
_LONGEST_ROW = 3 * 65_500  # bytes; libjpeg-turbo refuses longer sides
_UNWRITTEN = np.random.default_rng(0).integers(0, 256, _LONGEST_ROW, np.uint8)
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
        components, or if simplejpeg does not decode all of these rows.
    """
    data = memoryview(file)
    found = frame_of(lambda count, at: data[at : at + count].tobytes()) if image_format(file) == "jpeg" else None
    if found is None or found[1][5:6] not in _COMPONENTS:
        return None
    from simplejpeg import decode_jpeg  # here, because most recipes do not need it

    at, frame, has_one_scan = found
    height, width = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
    if has_one_scan:
        of_mcu = mcu_of(frame)[0]
        height = min(height, -(-(bottom + _MARGIN) // of_mcu) * of_mcu)
        data[at + 1 : at + 3] = height.to_bytes(2, "big")
    rows, columns = -(-height // factor), -(-width // factor)
    sizes = {"min_height": rows, "min_width": columns, "min_factor": factor}
    image = np.empty((rows, columns, 3), np.uint8)
    image[-1].flat = _UNWRITTEN[: 3 * columns]
    try:
        # Not strict: DALI, too, decodes what libjpeg warns of. But then simplejpeg does not raise what comes behind a
        # warning and ends the decoding: rows are left unwritten.
        made = decode_jpeg(file, "RGB", **sizes, buffer=image.reshape(-1), strict=False)
    except ValueError:
        return None
    finally:
        data[at + 1 : at + 3] = frame[1:3]
    is_whole = made.shape == image.shape and not np.array_equal(image[-1].flat, _UNWRITTEN[: 3 * columns])
    return image if is_whole else None
