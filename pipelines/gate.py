"""The gate before DALI: what it refuses never reaches the decoder.

DALI 2.4 does not only raise on an image whose header it cannot parse or on a window outside the image: the process can
end with a segmentation fault. The gate asks nvImageCodec, which is DALI's own parser, and adds what a parser of headers
does not see: a JPEG that is cut, and images that take minutes or gigabytes to decode.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray
from nvidia.nvimgcodec import CodeStream

MAX_PIXELS = 100_000_000
MAX_SCANS = 100

_DTYPES = (np.dtype(np.uint8), np.dtype(np.uint16))
_NO_LENGTH = frozenset((0x01, *range(0xD0, 0xD8)))
_PROGRESSIVE = frozenset((0xC2, 0xC6, 0xCA, 0xCE))
_START_OF_SCAN = b"\xff\xda"
_END_OF_IMAGE = b"\xff\xd9"


def gate(encoded: NDArray[np.uint8]) -> tuple[int, int] | str:
    """(height, width) in pixels as stored, EXIF rotation not applied, of an image that DALI may get; else the cause.

    Args:
        encoded: (bytes,) the whole file.
    """
    if len(encoded) == 0:
        return "the file is empty"
    try:
        stream = CodeStream(encoded)
        height, width, dtype, codec = stream.height, stream.width, stream.dtype, stream.codec_name
    except (RuntimeError, TypeError):  # the latter where the header says a precision that no dtype has
        return f"no image format that DALI reads, or a broken header (it begins with {encoded[:8].tobytes()!r})"
    if dtype not in _DTYPES:
        return f"its samples are {dtype}, allowed are uint8 and uint16"
    if height < 1 or width < 1:
        return f"its header says {width}x{height} pixels"
    if height * width > MAX_PIXELS:
        return f"its header says {width}x{height} pixels, more than {MAX_PIXELS:,}"
    if codec in _CHECKS and (cause := _CHECKS[codec](encoded)):
        return cause
    return int(height), int(width)


def _cause_in_jpeg(encoded: NDArray[np.uint8]) -> str | None:
    head = encoded[:4096].tobytes()
    progressive, scan = _walk(head)
    if scan is None and len(encoded) > len(head):
        head = encoded.tobytes()
        progressive, scan = _walk(head)
    if scan is None:
        return "a JPEG without a scan"
    # The thumbnail within the header has an end of its own: only one behind the first scan counts.
    if encoded[-2:].tobytes() != _END_OF_IMAGE and encoded[scan:].tobytes().rfind(_END_OF_IMAGE) < 0:
        return "a JPEG that is cut: it has no end-of-image marker"
    if progressive and (scans := encoded[scan:].tobytes().count(_START_OF_SCAN)) > MAX_SCANS:
        return f"a JPEG of {scans} scans, more than {MAX_SCANS}"
    return None


def _cause_in_pnm(encoded: NDArray[np.uint8]) -> str | None:
    """DALI takes values as they are; where white is not the largest of 8 or 16 bits, they would have to be scaled."""
    kind, *numbers = re.sub(rb"#[^\n]*", b"", encoded[:1024].tobytes()).split()[:4]
    if kind not in (b"P1", b"P4") and numbers[2:] not in ([b"255"], [b"65535"]):
        return f"its white is {b''.join(numbers[2:])[:10]!r}, allowed are 255 and 65535"
    return None


_CHECKS = {"jpeg": _cause_in_jpeg, "pnm": _cause_in_pnm}


def _walk(head: bytes) -> tuple[bool, int | None]:
    """Whether a JPEG is progressive, and where its first scan begins; None if that is not in these bytes."""
    position = 2
    progressive = False
    while position + 4 <= len(head):
        marker = head[position + 1]
        if head[position] != 0xFF:
            return progressive, None
        if marker == 0xDA:
            return progressive, position
        if marker == 0xFF:
            position += 1
        elif marker in _NO_LENGTH:
            position += 2
        else:
            progressive = progressive or marker in _PROGRESSIVE
            position += 2 + (head[position + 2] << 8 | head[position + 3])
    return progressive, None
