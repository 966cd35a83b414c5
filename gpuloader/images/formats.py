"""The formats that a recipe may allow, told by a file's first bytes."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal, TypeAlias, cast, get_args

import numpy as np
from numpy.typing import NDArray

from gpuloader.images.limits import Refused

Format: TypeAlias = Literal["jpeg", "png", "webp", "tiff", "bmp", "pnm", "jpeg2000"]

FORMATS: tuple[Format, ...] = get_args(Format)
DEFAULT_FORMATS = FORMATS[:3]  # DALI decodes these; Pillow the others, in a separate process, if a recipe asks for them

_SIGNATURES = re.compile(
    rb"(?P<jpeg>\xff\xd8)"
    rb"|(?P<png>\x89PNG\r\n\x1a\n)"
    rb"|(?P<webp>RIFF.{4}WEBP)"
    rb"|(?P<tiff>II[*+]\0|MM\0[*+])"
    rb"|(?P<bmp>BM)"
    rb"|(?P<pnm>P[1-6]\s)"
    rb"|(?P<jpeg2000>\0\0\0\x0cjP  |\xff\x4f\xff\x51)",  # JP2, or a bare code stream
    re.DOTALL,
)
_SIGNATURE_BYTES = 12
_NAMES = {"tiff": "TIFF", "bmp": "BMP", "pnm": "PNM", "jpeg2000": "JPEG 2000"}


def image_format(encoded: NDArray[np.uint8]) -> Format | None:
    """Returns the format of a file, (bytes,), by its first bytes; None if a recipe cannot name it."""
    match = _SIGNATURES.match(encoded[:_SIGNATURE_BYTES].tobytes())
    return None if match is None else cast(Format, match.lastgroup)


def check_format(file_format: Format, formats: Collection[str]) -> None:
    """Refuses an image of this format if it is none of the recipe's `formats`."""
    if file_format in formats:
        return
    if file_format in DEFAULT_FORMATS:
        raise Refused(f"an image in the format {file_format}, but the recipe's `formats` are {', '.join(formats)}")
    raise Refused(
        f"a {_NAMES[file_format]} image: recipes decode these only if `formats` names {file_format}; `gpuloader pack` "
        "writes them as PNG"
    )
