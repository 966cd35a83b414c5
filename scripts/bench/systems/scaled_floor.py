"""Measures only decoding the region at the smallest scale that suffices, with libjpeg-turbo's own scaling.

TurboJPEG 3 decodes a region at 1/2, 1/4 or 1/8 straight from the coefficients. No decoder of DALI, and no library among
this package's dependencies, offers both together; the distribution `turbojpeg` brings the library.
"""

from __future__ import annotations

import ctypes
import math
import random
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import files
from pathlib import Path

import numpy as np

from systems import tars
from systems.common import SIZE, Images, Loader, Task, main

_DECOMPRESS, _JPEG_WIDTH, _JPEG_HEIGHT, _RGB = 1, 5, 6, 0
_LARGEST_BLOCK = 16
_SCALES = (8, 4, 2, 1)


class _Factor(ctypes.Structure):
    _fields_ = (("numerator", ctypes.c_int), ("denominator", ctypes.c_int))


class _Region(ctypes.Structure):
    _fields_ = (("x", ctypes.c_int), ("y", ctypes.c_int), ("width", ctypes.c_int), ("height", ctypes.c_int))


def make(task: Task) -> Loader:
    """Threads, each with a decoder of its own: calls into the library hold no lock of Python's."""
    images = tars.Images(task.shards)
    decoder = _Decoder()

    def decoded(seed: int, number: int) -> Images:
        # The evaluation's window is the middle; a square of the shorter side stands in for it.
        draw = random.Random(seed * len(images) + number)
        return decoder.decode(images[number], draw if task.train else None)

    def epoch(number: int) -> Iterator[Images]:
        order = list(range(len(images)))
        random.Random(number).shuffle(order)
        with ThreadPoolExecutor(task.threads) as threads:
            for first in range(0, len(order), task.batch):
                batch = order[first : first + task.batch]
                yield list(threads.map(lambda image: decoded(number, image), batch))

    return Loader(epoch, {"threads": task.threads}, ("turbojpeg", "numpy"))


class _Decoder:
    """TurboJPEG 3 through ctypes: https://libjpeg-turbo.org/Documentation/Documentation."""

    def __init__(self) -> None:
        [path] = [file.locate() for file in files("turbojpeg") or () if file.name.startswith("libturbojpeg")]
        self._library = library = ctypes.CDLL(str(Path(path)))
        pointer, integer, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
        library.tj3Init.restype = pointer
        library.tj3GetErrorStr.restype = ctypes.c_char_p
        for name, arguments in {
            "tj3Init": [integer],
            "tj3Get": [pointer, integer],
            "tj3GetErrorStr": [pointer],
            "tj3DecompressHeader": [pointer, ctypes.c_char_p, size],
            "tj3SetScalingFactor": [pointer, _Factor],
            "tj3SetCroppingRegion": [pointer, _Region],
            "tj3Decompress8": [pointer, ctypes.c_char_p, size, pointer, integer, integer],
        }.items():
            getattr(library, name).argtypes = arguments
        self._of_thread = threading.local()

    def decode(self, encoded: bytes, draw: random.Random | None) -> Images:
        """A region at the smallest scale at which it is not smaller than the output, RGB."""
        if not hasattr(self._of_thread, "handle"):
            self._of_thread.handle = self._library.tj3Init(_DECOMPRESS)
        library, handle = self._library, self._of_thread.handle
        self._check(library.tj3DecompressHeader(handle, encoded, len(encoded)))
        height, width = library.tj3Get(handle, _JPEG_HEIGHT), library.tj3Get(handle, _JPEG_WIDTH)
        top, left, rows, columns = _window(height, width, draw)
        scale = next(scale for scale in _SCALES if scale == 1 or min(rows, columns) >= SIZE * scale)
        # The left edge must lie between blocks.
        left = left // _LARGEST_BLOCK * _LARGEST_BLOCK // scale
        region = _Region(left, top // scale, math.ceil(columns / scale), math.ceil(rows / scale))
        region.width = min(region.width, math.ceil(width / scale) - region.x)
        region.height = min(region.height, math.ceil(height / scale) - region.y)
        self._check(library.tj3SetScalingFactor(handle, _Factor(1, scale)))
        self._check(library.tj3SetCroppingRegion(handle, region))
        image = np.empty((region.height, region.width, 3), np.uint8)
        self._check(library.tj3Decompress8(handle, encoded, len(encoded), image.ctypes.data, 0, _RGB))
        return image.reshape(-1)[:1]

    def _check(self, status: int) -> None:
        if status:
            sys.exit(f"turbojpeg: {self._library.tj3GetErrorStr(self._of_thread.handle).decode()}")


def _window(height: int, width: int, draw: random.Random | None) -> tuple[int, int, int, int]:
    """Top, left, height, width as `RandomResizedCrop` draws them; without draws the square in the middle."""
    for _ in range(10 if draw else 0):
        assert draw is not None
        area = height * width * draw.uniform(0.08, 1)
        ratio = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        rows, columns = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < rows <= height and 0 < columns <= width:
            return draw.randint(0, height - rows), draw.randint(0, width - columns), rows, columns
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


if __name__ == "__main__":
    main(make)
