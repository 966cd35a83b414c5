"""Finds out whether the machine is the reason that nothing can be decoded, with the help of a good JPEG."""

from __future__ import annotations

import io
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import DeviceError
from gpuloader.helpers.versions import describe_decoder_versions
from gpuloader.internals.dali import decoder_cause, is_decode_failure

GOOD_SIZE = (48, 64)
"""(height, width)."""


@cache
def good_jpeg() -> NDArray[np.uint8]:
    """A JPEG that any decoder can decode, (bytes,)."""
    from PIL import Image  # here, because a normal start does not need it

    height, width = GOOD_SIZE
    rows, columns = np.mgrid[:height, :width]
    levels = np.stack([4 * columns, 5 * rows, 2 * (rows + columns)], 2).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "JPEG")
    return np.frombuffer(file.getvalue(), np.uint8)


def machine_error(message: str) -> DeviceError:
    """The error for a decoder that fails on a good JPEG, with the decoder's message."""
    said = decoder_cause(message) if is_decode_failure(message) else message
    return DeviceError(
        f"the decoder fails on a good JPEG, so the installation or the machine is the cause, not the images: "
        f"{said or 'it gives no reason'} ({describe_decoder_versions()}). See `gpuloader doctor`; on a machine with a "
        f"GPU, device_id=None decodes on the CPU"
    )
