"""Recognises the format of an image by the first bytes of its file."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

Format: TypeAlias = Literal["jpeg", "png", "webp", "tiff", "bmp", "pnm", "jpeg2000", "gif", "avif"]

RARE_FORMATS = {"tiff": "TIFF", "bmp": "BMP", "pnm": "PNM", "jpeg2000": "JPEG 2000", "gif": "GIF", "avif": "AVIF"}
"""Formats that only `pack` decodes, with their usual names."""

_SIGNATURES = re.compile(
    rb"(?P<jpeg>\xff\xd8)"
    rb"|(?P<png>\x89PNG\r\n\x1a\n)"
    rb"|(?P<webp>RIFF.{4}WEBP)"
    rb"|(?P<tiff>II[*+]\0|MM\0[*+])"
    rb"|(?P<bmp>BM)"
    rb"|(?P<pnm>P[1-6]\s)"
    rb"|(?P<gif>GIF8[79]a)"
    rb"|(?P<avif>.{4}ftypavi[fs])"
    rb"|(?P<jpeg2000>\0\0\0\x0cjP  |\xff\x4f\xff\x51)",  # JP2, or a bare codestream
    re.DOTALL,
)
_SIGNATURE_BYTES = 12


def image_format(encoded: NDArray[np.uint8]) -> Format | None:
    """Returns the format of a file, (bytes,), by its first bytes; None if unknown."""
    match = _SIGNATURES.match(encoded[:_SIGNATURE_BYTES].tobytes())
    return None if match is None else cast(Format, match.lastgroup)
