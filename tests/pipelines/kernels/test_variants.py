"""Each variant of the kernels that this processor runs gives the same bits, for images of any size.

The functions are called as DALI calls them. What they compute is tested in tests/pipelines, against torch and PIL.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import pytest
from calling import addresses, call

from gpuloader.pipelines.kernels.library import address_of, runnable_variants
from gpuloader.recipe.program import PARAMETERS, Op

DTYPES = (np.float32, np.float16, np.uint8)
NORMALISED = [0.017, 0.018, 0.019, -2.1, -2.0, -1.8]
LEVEL = 10, 200, 90  # of the fill
LEVELS = [1, 1, 1, 0, 0, 0]
SIZES = [*((1, 1), (1, 2), (2, 1), (3, 3), (5, 7), (9, 4)), *((1, 3000), (3000, 1), (2, 1025), (37, 53), (120, 96))]


def bits_of_each_variant(kernel: str, out: np.ndarray, inputs: Sequence[np.ndarray]) -> list[bytes]:
    bits = []
    for variant in runnable_variants():
        out[:] = 77
        bits.append(call(kernel, out, inputs, variant).tobytes())
    return bits


def noise(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    return rng.integers(0, 256, (*size, 3), dtype=np.uint8)


@pytest.mark.parametrize("dtype", range(3), ids=["float32", "float16", "uint8"])
@pytest.mark.parametrize("channels_first", [True, False])
@pytest.mark.parametrize("filters", range(4), ids=["nearest", "bilinear", "bicubic", "lanczos"])
def test_resampling(filters: int, channels_first: bool, dtype: int) -> None:
    rng = np.random.default_rng(filters)
    for height, width in SIZES:
        for padding in range(4):
            out = tuple(int(pixels) for pixels in rng.choice([1, 2, 3, 4, 5, 8, 31, 64], 2))
            start, beyond = rng.uniform(0, [height - 0.5, width - 0.5]), rng.integers(0, 2) * 9
            end = rng.integers(np.int64(start) + 1, [height + 1, width + 1])
            picture = [
                *rng.integers(-3, [height, width]),
                *rng.integers([height // 2, width // 2], [height + 3, width + 3]),
            ]
            roi = np.array([*(start - beyond), *(end + beyond), *(picture if beyond else [*np.floor(start), *end])])
            resized, corner, mirror = rng.integers(1, 70, 2), rng.integers(-5, 6, 2), rng.integers(0, 2, 2)
            shown = [*rng.integers(0, resized), *resized] if beyond else [0, 0, *resized]
            how = [*(LEVELS if dtype == 2 else NORMALISED), *LEVEL, 1, 2, 3, rng.integers(0, 2), padding]
            settings = np.array([*how, channels_first, dtype], np.float32)
            placed = [*resized, *corner, *mirror, *shown, rng.integers(0, 2), filters, *rng.integers(0, 2, 2)]
            placed = np.array(placed, np.int32)
            first, *others = bits_of_each_variant(
                "resample",
                np.empty((3, *out) if channels_first else (*out, 3), DTYPES[dtype]),
                [noise(rng, (height, width)), roi, placed, settings],
            )
            assert all(other == first for other in others), (height, width, out, roi, placed, settings)


@pytest.mark.parametrize("op", list(Op), ids=lambda op: op.name)
def test_operations(op: Op) -> None:
    rng = np.random.default_rng(op)
    for size in SIZES:
        parameters = np.zeros((3, PARAMETERS), np.float32)
        parameters[:, 0] = rng.choice([-0.3, 0.2, 0.9, 1.7, 3, 128])
        if op == Op.WARP:
            parameters[:] = [1.1, 0.2, -3, 0.1, 0.9, 2, 0.001, 0.002, 1, rng.integers(0, 3), 5, 100, 250, 1]
        if op == Op.BLUR:
            parameters[:, :2] = abs(rng.normal(0, 2)) + 0.1, 2 * rng.integers(0, 12) + 1
        steps = np.array([Op.MIX_BEGIN, op, Op.MIX_END] if op >= Op.MIX_BEGIN else [op, Op.IDENTITY, op], np.int32)
        erase = np.array([rng.integers(-2, 5), 0, 4, 5, 123, -456], np.int32)
        for dtype in range(3):
            how = [*(LEVELS if dtype == 2 else NORMALISED), 1, 2, 3, dtype < 2, dtype < 1, dtype]
            first, *others = bits_of_each_variant(
                "augment",
                np.empty((3, *size) if dtype < 1 else (*size, 3), DTYPES[dtype]),
                [noise(rng, size), steps, parameters, erase, np.array(how, np.float32)],
            )
            assert all(other == first for other in others), (size, steps, parameters, how)


def test_the_shapes_of_a_batch() -> None:
    inputs = [np.array(shape, np.int64) for shape in [(9, 9, 3), (7, 7, 3), (0, 4, 5), (0, 6, 7)]]
    outputs = [np.zeros(3, np.int64) for _ in range(2)]
    setup = ctypes.CFUNCTYPE(
        *(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32),
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32),
    )
    for variant in runnable_variants():
        for layout, expected in [("chw", [[3, 4, 5], [3, 6, 7]]), ("hwc", [[4, 5, 3], [6, 7, 3]])]:
            setup(address_of(f"setup_{layout}", variant))(addresses(outputs), None, 1, addresses(inputs), None, 2, 2)
            assert [output.tolist() for output in outputs] == expected


class Allocated(ctypes.Structure):
    """glibc's `struct mallinfo2`, as far as it is of use here."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in ["a", "b", "c", "d", "mapped", "e", "f", "in_use", "g", "h"])


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="an older glibc does not count")
@pytest.mark.parametrize("op", [None, *Op], ids=lambda op: op.name if op else "resample")
def test_no_memory_is_kept(op: Op | None) -> None:
    rng = np.random.default_rng(0)
    count = ctypes.CDLL(None).mallinfo2
    count.restype = Allocated
    calls = 100

    def run() -> None:
        if op is None:
            how = np.array([*NORMALISED, *LEVEL, 1, 2, 3, 1, 0, 1, 0], np.float32)
            placed = np.array([20, 20, 0, 0, 0, 0, 0, 0, 20, 20, 0, 2, 0, 0], np.int32)
            inputs = [noise(rng, (40, 40)), np.array([-9, 0, 40, 40, 0, 0, 40, 40], np.float64), placed, how]
            bits_of_each_variant("resample", np.empty((3, 20, 20), np.float32), inputs)
        else:
            steps = np.array([Op.MIX_BEGIN, op, Op.MIX_END], np.int32)
            how = np.array([*NORMALISED, 1, 2, 3, 0, 1, 0], np.float32)
            parameters = np.full((3, PARAMETERS), 1, np.float32)
            inputs = [noise(rng, (40, 40)), steps, parameters, np.zeros(6, np.int32), how]
            bits_of_each_variant("augment", np.empty((3, 40, 40), np.float32), inputs)

    run()
    before = count()
    for _ in range(calls):
        run()
    after = count()
    # What Python keeps beside is less than the least that a kernel takes in one call.
    assert after.in_use + after.mapped - before.in_use - before.mapped < 64 * calls
