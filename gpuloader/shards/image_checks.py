"""What makes an image unfit that a decoder may take: said from its bytes, for the gate and for packing."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

MAX_PIXELS = 100_000_000
MAX_SCANS = 100

_NO_LENGTH = frozenset((0x01, *range(0xD0, 0xD8)))
_PROGRESSIVE = frozenset((0xC2, 0xC6, 0xCA, 0xCE))
_START_OF_SCAN = b"\xff\xda"
_END_OF_IMAGE = b"\xff\xd9"


def cause_in_size(height: int, width: int) -> str | None:
    """Why an image of so many pixels is refused; None if it is not."""
    if height < 1 or width < 1:
        return f"its header says {width}x{height} pixels"
    if height * width > MAX_PIXELS:
        return f"its header says {width}x{height} pixels, more than {MAX_PIXELS:,}"
    return None


def cause_in_jpeg(encoded: NDArray[np.uint8]) -> str | None:
    """Why a JPEG is refused, (bytes,) of the whole file: it is cut, or takes minutes to decode; None if it is not."""
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


def cause_in_pnm(encoded: NDArray[np.uint8]) -> str | None:
    """DALI takes values as they are; where white is not the largest of 8 or 16 bits, they would have to be scaled."""
    kind, *numbers = re.sub(rb"#[^\n]*", b"", encoded[:1024].tobytes()).split()[:4]
    if kind not in (b"P1", b"P4") and numbers[2:] not in ([b"255"], [b"65535"]):
        return f"its white is {b''.join(numbers[2:])[:10]!r}, allowed are 255 and 65535"
    return None


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
