"""Finds out, with a good JPEG, whether the machine is the reason that nothing can be decoded."""

from __future__ import annotations

import io
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.dali import decoder_cause, is_decode_failure
from gpuloader.base.versions import describe_decoder_versions
from gpuloader.errors import DeviceError

if TYPE_CHECKING:
    from PIL.Image import Image

GOOD_SIZE = (48, 64)
"""(height, width)."""


@cache
def good_jpeg() -> NDArray[np.uint8]:
    """Makes a JPEG that any decoder can decode, (bytes,)."""
    file = io.BytesIO()
    smooth_picture(0, *GOOD_SIZE).save(file, "JPEG")
    return np.frombuffer(file.getvalue(), np.uint8)


def smooth_picture(seed: int, height: int, width: int) -> Image:
    """Makes a smooth RGB picture with some texture, on which decoders differ little."""
    from PIL import Image  # here, because a normal start does not need it

    rng = np.random.default_rng(seed)
    few = Image.fromarray(rng.integers(0, 256, (4, 4, 3), np.uint8))
    smooth = np.asarray(few.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    return Image.fromarray((smooth + rng.integers(-12, 13, smooth.shape)).clip(0, 255).astype(np.uint8))


def machine_error(message: str) -> DeviceError:
    """Makes the error for a decoder that fails on a good JPEG, with the decoder's message."""
    cause = decoder_cause(message) if is_decode_failure(message) else message
    return DeviceError(
        f"the decoder fails on a good JPEG, so the installation or the machine is the cause, not the images: "
        f"{cause or 'it gives no reason'} ({describe_decoder_versions()}). See `gpuloader doctor`; on a machine with a "
        f"GPU, device_id=None decodes on the CPU"
    )


def batch_error(message: str) -> DeviceError:
    """Makes the error for a decoder that fails on a batch, but decodes each of its images alone."""
    return DeviceError(
        f"the decoder fails on a batch, but decodes each of its images alone, so the decoder or the machine is the "
        f"cause, not an image: {decoder_cause(message) or message} ({describe_decoder_versions()}). On a GPU, "
        f"Decoder(hw_load=0) decodes without its JPEG engines, and device_id=None on the CPU"
    )
