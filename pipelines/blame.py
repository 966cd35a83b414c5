"""Whose fault it is that nothing can be decoded: a good JPEG tells."""

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
    """A JPEG that any decoder takes, (bytes,)."""
    from PIL import Image  # which no start needs

    height, width = GOOD_SIZE
    rows, columns = np.mgrid[:height, :width]
    levels = np.stack([4 * columns, 5 * rows, 2 * (rows + columns)], 2).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "JPEG")
    return np.frombuffer(file.getvalue(), np.uint8)


def machine_error(message: str) -> DeviceError:
    """For a decoder that fails on a good JPEG, with the error's message."""
    said = decoder_cause(message) if is_decode_failure(message) else message
    return DeviceError(
        f"the decoder fails on a JPEG that is good, so the installation or the machine is to blame, not the images: "
        f"{said or 'it gives no reason'} ({describe_decoder_versions()}). See `gpuloader doctor`; beside a GPU, "
        f"device_id=None decodes on the CPU"
    )
