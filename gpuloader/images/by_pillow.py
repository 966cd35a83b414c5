"""Decodes the formats that DALI never gets, TIFF, BMP, PNM and JPEG 2000, with Pillow in a separate process.

Damaged files may crash a decoder, corrupt its memory, or show what it decoded before. This is the parent's side;
`gpuloader.images.pillow_process` is the process, and describes the protocol.
"""

from __future__ import annotations

import atexit

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import LoaderError
from gpuloader.helpers.child_processes import Child
from gpuloader.helpers.forking import at_fork
from gpuloader.images.limits import Admitted, Refused, check_size

MOST_WAITING_SECONDS = 600
_KINDS = {1: 5, 3: 6}  # of PNM, by the number of channels


def decode_by_pillow(encoded: NDArray[np.uint8], max_pixels: int) -> Admitted:
    """Decodes a file, (bytes,): returns a PNM of its pixels, (bytes,), and their (height, width).

    They are gray or RGB, 8 bits each, as stored: an alpha channel is dropped, and EXIF rotation is not applied. Threads
    take turns. The answer depends only on the file, and so do the limits on memory and time.

    Raises:
        Refused: it cannot be decoded, or has more pixels.
        LoaderError: the process does not start, is killed, or does not answer.
    """
    with server.lock:
        try:
            decoded = _decode(encoded, max_pixels) or _decode(encoded, max_pixels)  # it may have ended since the last
        except Refused:
            raise
        except BaseException:
            server.close()  # otherwise its late answer would be taken for that of the next image
            raise
    if decoded is None:
        raise LoaderError("the process that decodes with Pillow was ended twice: check whether memory is full")
    return decoded


def _decode(encoded: NDArray[np.uint8], max_pixels: int) -> Admitted | None:
    """Returns the answer for an image; None if the process ended. Raises what `decode_by_pillow` raises."""
    answer = server.ask([len(encoded), max_pixels], encoded, most_seconds=MOST_WAITING_SECONDS)
    if answer is None:
        return None
    if "error" in answer:
        raise LoaderError(answer["error"])
    if "cause" in answer:
        raise Refused(answer["cause"])
    (height, width), channels = answer["size"], answer.get("channels", 0)
    head = b"P%d\n%d %d\n255\n" % (_KINDS[channels], width, height) if channels else b""
    file = np.empty(len(head) + height * width * channels, np.uint8)
    file[: len(head)] = np.frombuffer(head, np.uint8)
    if not server.fill(memoryview(file)[len(head) :], MOST_WAITING_SECONDS):
        return None
    check_size(height, width, max_pixels)
    return file, (height, width)


server = Child("decodes with Pillow", LoaderError, "-m", "gpuloader.images.pillow_process")  # one in each process
atexit.register(server.close)
at_fork(server, Child.leave_to_the_parent)
