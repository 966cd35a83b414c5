"""The CPU's kernel, in DALI's threads, against torch's interpolation in double precision."""

import numpy as np
import pytest
import torch
from nvidia.dali import fn, pipeline_def, types

from gpuloader.pipelines.resample import resample

# Double precision weights, single precision sums, here of up to 3,000 pixels.
LEVELS = 5e-4


def run(images: list[np.ndarray], size: int, mirror: bool = False, **options: object) -> np.ndarray:
    """(n, 3, size, size), whole images resized, computed by several threads at once."""
    rois = np.array([[0, 0, *image.shape[:2]] for image in images], np.float64)
    corners, mirrors = np.zeros((len(images), 2), np.int32), np.full(len(images), mirror, np.int32)
    settings = {"antialias": True, "scale": (1, 1, 1), "offset": (0, 0, 0), "dtype": "float32", "channels_first": True}

    @pipeline_def(batch_size=len(images), num_threads=4, device_id=None)
    def graph() -> object:
        inputs = fn.external_source(
            source=lambda: (images, rois, corners, mirrors),
            num_outputs=4,
            ndim=[3, 1, 1, 0],
            dtype=[types.UINT8, types.FLOAT64, types.INT32, types.INT32],
        )
        return resample(*inputs, size=size, **{**settings, **options})

    [output] = graph().run()
    return np.array(output.as_tensor())


def by_torch(image: np.ndarray, size: int, antialias: bool = True) -> np.ndarray:
    source = torch.from_numpy(image).permute(2, 0, 1)[None].double()
    return torch.nn.functional.interpolate(source, (size, size), mode="bilinear", antialias=antialias)[0].numpy()


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


SHAPES = [(64, 64), (375, 500), (1, 1), (1, 7), (9, 1), (2, 3000), (3000, 2), (33, 34), (640, 31), (224, 223)]


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("size", [1, 2, 32, 64, 225])
def test_it_is_torchs_bilinear(size: int, antialias: bool) -> None:
    images = [noise(*shape) for shape in SHAPES]
    theirs = np.stack([by_torch(image, size, antialias) for image in images])
    np.testing.assert_allclose(run(images, size, antialias=antialias), theirs, atol=LEVELS, rtol=0)


def test_index_arithmetic_does_not_lose_precision_on_wide_images() -> None:
    image = noise(2, 30_000)
    np.testing.assert_allclose(run([image], 301)[0], by_torch(image, 301), atol=LEVELS, rtol=0)


def test_flipping_flips_the_output() -> None:
    images = [noise(*shape) for shape in SHAPES]
    np.testing.assert_allclose(run(images, 32, mirror=True), run(images, 32)[..., ::-1], atol=LEVELS, rtol=0)


def test_scale_and_offset_apply_by_channel() -> None:
    images, scale, offset = [noise(40, 50)], (0.5, 2.0, -1.0), (1.0, -3.0, 0.25)
    expected = run(images, 16) * np.reshape(scale, (3, 1, 1)) + np.reshape(offset, (3, 1, 1))
    np.testing.assert_allclose(run(images, 16, scale=scale, offset=offset), expected, atol=1e-3, rtol=0)


def test_uint8_keeps_black_and_white() -> None:
    white = np.full((97, 61, 3), 255, np.uint8)
    assert run([white], 50, dtype="uint8").min() == 255  # 255.0001 must not wrap to 0
    assert run([white * 0], 50, dtype="uint8").max() == 0


@pytest.mark.parametrize("size", [4, 16, 18, 225])  # whole numbers of vectors of four, and not
@pytest.mark.parametrize(
    ("dtype", "absolute", "relative"),
    [("float32", 0, 0), ("float16", 1e-6, 2**-11), ("uint8", 0.5 + LEVELS, 0)],  # halves of the last place kept
)
def test_every_dtype_and_layout_holds_the_same_values(size: int, dtype: str, absolute: float, relative: float) -> None:
    images = [noise(*shape) for shape in SHAPES]
    expected = run(images, size)
    first, last = (run(images, size, dtype=dtype, channels_first=first) for first in (True, False))
    assert first.dtype == last.dtype == dtype
    assert np.array_equal(last.transpose(0, 3, 1, 2), first)
    np.testing.assert_allclose(first.astype(np.float32), expected, atol=absolute, rtol=relative)
