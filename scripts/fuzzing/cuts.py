"""What is left of mutated JPEGs that are cut: it must have the pixels of the whole file, and touch no other memory."""

from __future__ import annotations

import ctypes
import mmap
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from nvidia.nvimgcodec import (
    NVIMGCODEC_DEVICE_CPU_ONLY,
    Backend,
    BackendKind,
    CodeStream,
    DecodeParams,
    Region,
)
from nvidia.nvimgcodec import (
    Decoder as Codec,
)

from fuzzing.formats import with_regular_end
from fuzzing.images import REPLACED, SplitError
from gpuloader.images.gate import admit
from gpuloader.images.limits import RefusalError
from gpuloader.pipelines.kernels.cutting import cut_jpegs

_MOST_PIXELS = 1 << 22  # decoding the most that a header may say takes long, and shows nothing else
_BACKEND = Backend(BackendKind.CPU_ONLY)
PARAMETERS = DecodeParams(apply_exif_orientation=False, allow_any_depth=True)
_FENCE_BYTES, _FENCE = 64, 0xA5
_WRONG_SIDES = (-(1 << 63), -1, 0, 1 << 16, 1 << 31, (1 << 63) - 1)

Window: TypeAlias = tuple[int, int, int, int]
"""Top, left, bottom, right."""
Cut: TypeAlias = Callable[[Sequence[NDArray[np.uint8]], NDArray[np.int64]], NDArray[np.int64]]


class Cutter:
    """Cuts each mutant to a window, and decodes the window from what is left and from the whole file.

    A file that is not cut is decoded once. Markers behind the last interval that the window touches may be irregular:
    the decoder may notice and decode in another way, or fail, while they are not in what is left. Then the pixels are
    those of the file that ends before.

    Args:
        most_bytes: of a mutant.
        cut: what is tried.
    """

    def __init__(self, most_bytes: int, cut: Cut = cut_jpegs) -> None:
        self._memory, self._cut_jpegs = guarded(most_bytes), cut
        self._codec = cpu_codec()

    def examine(self, mutants: Mapping[int, bytes]) -> Counter[str]:
        """Counts outcomes; a mutant is "replaced" if its window cannot be decoded.

        Raises:
            SplitError: what is left of one has other pixels.
        """
        return Counter(self._examine(data, random.Random(number)) for number, data in mutants.items())

    def _examine(self, data: bytes, rng: random.Random) -> str:
        whole = np.frombuffer(data, np.uint8)
        try:
            _, (height, width) = admit(whole, _MOST_PIXELS)
        except RefusalError:  # nobody cuts it, but that must do no harm
            self._cut(data, (*rng.choices(_WRONG_SIDES, k=2), *rng.choices(_WRONG_SIDES, k=2)), rng)
            self._cut(data, _window(40, 40, rng), rng)
            return "refused"
        window = top, left, bottom, right = _window(height, width, rng)
        left_over, y, x = self._cut(data, window, rng)
        region = rng.random() < 0.5  # as the loader does: the decoder decodes only the window, or all that it gets
        pixels = self._decode(left_over, (top - y, left - x, bottom - y, right - x), region)
        if not np.array_equal(left_over, whole) and not same(pixels, self._decode(whole, window, region)):
            regular = np.frombuffer(with_regular_end(data), np.uint8)
            if not same(pixels, self._decode(regular, window, region)):
                raise SplitError(f"other pixels in what is left of the window {window}")
        return REPLACED if pixels is None else "accepted"

    def _cut(self, data: bytes, window: Window, rng: random.Random) -> tuple[NDArray[np.uint8], int, int]:
        """What is left, in memory that ends or begins where nothing may be read; the other side is compared."""
        fenced = _FENCE_BYTES + len(data)
        if at_end := rng.random() < 0.7:
            fence, file = np.split(self._memory[-fenced:], [_FENCE_BYTES])
        else:
            file, fence = np.split(self._memory[:fenced], [len(data)])
        fence[:] = _FENCE
        file[:] = np.frombuffer(data, np.uint8)
        [[size, top, left]] = self._cut_jpegs([file], np.array([window])).tolist()
        where = "before" if at_end else "behind"
        assert (fence == _FENCE).all(), f"it writes {where} the file"
        assert 0 <= size <= len(file), f"{size} bytes are left of {len(file)}"
        return file[:size], top, left

    def _decode(self, file: NDArray[np.uint8], window: Window, region: bool) -> NDArray[np.uint8] | None:
        stream, (top, left, bottom, right) = CodeStream(file), window
        if region:
            stream = stream.get_sub_code_stream(region=Region(window[:2], window[2:]))
        [image] = self._codec.decode([stream], params=PARAMETERS)
        if image is None or region:
            return None if image is None else np.array(image.cpu())
        return np.array(image.cpu())[top:bottom, left:right]


def cpu_codec() -> Codec:
    """The decoder that DALI uses on a CPU, with one thread."""
    return Codec(NVIMGCODEC_DEVICE_CPU_ONLY, max_num_cpu_threads=1, backends=[_BACKEND])


def same(one: NDArray[np.uint8] | None, other: NDArray[np.uint8] | None) -> bool:
    """Whether both are the same pixels, or neither could be decoded."""
    return np.array_equal(one, other) if one is not None and other is not None else one is other


def _window(height: int, width: int, rng: random.Random) -> Window:
    """Any window, or one of up to three pixels; often at an edge."""

    def side(length: int) -> tuple[int, int]:
        size = min(length, rng.choice((1, 2, 3, rng.randint(1, length), rng.randint(1, length))))
        start = rng.choice((0, length - size, rng.randint(0, length - size), rng.randint(0, length - size)))
        return start, start + size

    (top, bottom), (left, right) = side(height), side(width)
    return top, left, bottom, right


def guarded(least_bytes: int) -> NDArray[np.uint8]:
    """Memory between two pages that end the process if they are touched."""
    page = mmap.PAGESIZE
    pages = -(-(least_bytes + _FENCE_BYTES) // page)
    memory = np.frombuffer(mmap.mmap(-1, (pages + 2) * page), np.uint8)
    protect = ctypes.CDLL(None).mprotect
    for place in (0, (pages + 1) * page):
        address = ctypes.c_void_p(memory.__array_interface__["data"][0] + place)
        if protect(address, ctypes.c_size_t(page), 0):
            raise OSError("mprotect fails")
    return memory[page:-page]
