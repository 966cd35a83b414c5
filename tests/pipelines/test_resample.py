"""The CPU's kernel, in DALI's threads, against torch's interpolation and PIL's filters in floating point."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from nvidia.dali import fn, pipeline_def, types
from PIL import Image

from gpuloader.pipelines.kernels.call import resample

# Double precision weights, single precision sums, here of up to 3,000 pixels.
LEVELS = 5e-4
FILTERS = ["nearest", "bilinear", "bicubic", "lanczos"]  # in the order of the kernel's numbers
PIL_FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def run(
    images: Sequence[np.ndarray],
    size: tuple[int, int],
    resized: tuple[int, int] | None = None,
    corner: tuple[int, int] = (0, 0),
    rois: Sequence[Sequence[float]] | None = None,
    pictures: Sequence[Sequence[float]] | None = None,
    interpolation: str = "bilinear",
    **options: object,
) -> np.ndarray:
    """(n, 3, *size), the images resized and cut, computed by several threads at once; (n, *size, 3) as HWC."""
    count, resized = len(images), resized or size
    rois = rois or [[0, 0, *image.shape[:2]] for image in images]
    roi = np.array([[*each, *picture] for each, picture in zip(rois, pictures or rois, strict=True)], np.float64)
    filter_number = FILTERS.index(interpolation)
    row = [*resized, *corner, 0, 0, 0, 0, *resized, 0, filter_number, 0, 0]
    placed = np.array([row] * count, np.int32)
    settings = {
        "antialias": True,
        "padding_mode": "constant",
        "fill": (0, 0, 0),
        "scale": (1, 1, 1),
        "offset": (0, 0, 0),
        "dtype": "float32",
        "channels_first": True,
        **options,
    }

    @pipeline_def(batch_size=count, num_threads=4, device_id=None)
    def graph() -> object:
        inputs = fn.external_source(
            source=lambda: (list(images), roi, placed),
            num_outputs=3,
            ndim=[3, 1, 1],
            dtype=[types.UINT8, types.FLOAT64, types.INT32],
        )
        like_output = fn.zeros(shape=[0, *size], dtype=types.UINT8)
        return resample(*inputs, like_output, **settings)

    [output] = graph().run()
    return np.array(output.as_tensor())


def by_torch(image: np.ndarray, size: tuple[int, int], mode: str = "bilinear", antialias: bool = True) -> np.ndarray:
    source = torch.from_numpy(image).permute(2, 0, 1)[None].double()
    options = {"mode": "nearest-exact"} if mode == "nearest" else {"mode": mode, "antialias": antialias}
    return torch.nn.functional.interpolate(source, size, **options)[0].clamp(0, 255).numpy()


def by_pil(image: np.ndarray, size: tuple[int, int], mode: str) -> np.ndarray:
    """Each channel as an image of floats, whose overshoots PIL keeps until the end."""
    channels = (Image.fromarray(channel.astype(np.float32)) for channel in image.transpose(2, 0, 1))
    resized = [np.array(channel.resize(size[::-1], PIL_FILTERS[mode])) for channel in channels]
    return np.stack(resized).clip(0, 255)


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


SHAPES = [(64, 64), (375, 500), (1, 1), (1, 7), (9, 1), (2, 3000), (3000, 2), (33, 34), (640, 31), (224, 223)]
OUTPUTS = [(1, 1), (2, 5), (32, 32), (64, 20), (225, 301)]


@pytest.mark.parametrize("size", OUTPUTS, ids=str)
@pytest.mark.parametrize(
    ("interpolation", "antialias"),
    [("nearest", True), ("bilinear", True), ("bilinear", False), ("bicubic", True), ("bicubic", False)],
)
def test_it_is_torchs_interpolation(interpolation: str, antialias: bool, size: tuple[int, int]) -> None:
    images = [noise(*shape) for shape in SHAPES]
    theirs = np.stack([by_torch(image, size, interpolation, antialias) for image in images])
    ours = run(images, size, interpolation=interpolation, antialias=antialias)
    np.testing.assert_allclose(ours, theirs, atol=LEVELS, rtol=0)


@pytest.mark.parametrize("size", OUTPUTS, ids=str)
@pytest.mark.parametrize("interpolation", PIL_FILTERS)
def test_it_is_pils_filter(interpolation: str, size: tuple[int, int]) -> None:
    images = [noise(*shape) for shape in SHAPES]
    theirs = np.stack([by_pil(image, size, interpolation) for image in images])
    np.testing.assert_allclose(run(images, size, interpolation=interpolation), theirs, atol=LEVELS, rtol=0)


@pytest.mark.parametrize("size", OUTPUTS, ids=str)
def test_nearest_is_pils_but_halfway_between_two_pixels(size: tuple[int, int]) -> None:
    for image in (noise(*shape) for shape in SHAPES):
        theirs = np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.NEAREST)).transpose(2, 0, 1)
        places = [
            (np.arange(out) + 0.5) * length / out for out, length in zip(size, image.shape[:2], strict=True)
        ]  # PIL adds up steps instead, and ends on either side of a border between two pixels
        clear = np.logical_and.outer(*(np.abs(place - np.rint(place)) > 1e-6 for place in places))
        ours = run([image], size, interpolation="nearest")[0]
        assert np.array_equal(ours[:, clear], theirs[:, clear])


def test_index_arithmetic_does_not_lose_precision_on_wide_images() -> None:
    image = noise(2, 30_000)
    np.testing.assert_allclose(run([image], (301, 301))[0], by_torch(image, (301, 301)), atol=LEVELS, rtol=0)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_a_part_of_an_image_is_resized_as_if_it_were_all_of_it(interpolation: str) -> None:
    image = noise(90, 120)
    parts = [(0, 0, 90, 120), (10, 20, 50, 110), (89, 119, 90, 120), (3, 0, 90, 1)]
    ours = run([image] * len(parts), (17, 40), rois=parts, interpolation=interpolation)
    alone = [np.ascontiguousarray(image[top:bottom, left:right]) for top, left, bottom, right in parts]
    np.testing.assert_allclose(ours, run(alone, (17, 40), interpolation=interpolation), atol=LEVELS, rtol=0)


@pytest.mark.parametrize("padding_mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("antialias", [True, False])
def test_a_window_that_reaches_beyond_the_picture_is_that_of_the_padded_picture(
    antialias: bool, interpolation: str, padding_mode: str
) -> None:
    image, size, fill, options = noise(30, 40), (17, 80), (10, 200, 90), {"antialias": antialias}
    pictures = [(0, 0, 30, 40), (5, 0, 25, 31), (3, 4, 4, 5), (0, 0, 30, 40), (10, 10, 20, 20)]
    windows = [(-7, -20, 50, 60), (-3, -1, 30, 20), (-9, -9, 10, 30), (5, -70, 10, 10), (20, 20, 30, 40)]
    room, padded = 100, []
    for (top, left, bottom, right), window in zip(pictures, windows, strict=True):
        sides = [(room, room), (room, room), (0, 0)]
        picture = np.pad(image[top:bottom, left:right], sides, padding_mode)
        if padding_mode == "constant":
            inside = np.pad(np.ones((bottom - top, right - left, 1), bool), sides)
            picture = np.where(inside, picture, np.uint8(fill))
        above, beside, below, behind = np.array(window) + room - (top, left, top, left)
        padded.append(np.ascontiguousarray(picture[above:below, beside:behind]))
    expected = run(padded, size, interpolation=interpolation, **options)
    options |= {"interpolation": interpolation, "padding_mode": padding_mode, "fill": fill}
    ours = run([image] * len(pictures), size, rois=windows, pictures=pictures, **options)
    np.testing.assert_allclose(ours, expected, atol=LEVELS, rtol=0)


@pytest.mark.parametrize("channels_first", [True, False])
@pytest.mark.parametrize(("dtype", "scale", "offset"), [("float32", 0.5, 3.0), ("float16", 0.5, 3.0), ("uint8", 1, 0)])
def test_the_fill_is_in_levels_like_the_image(dtype: str, scale: float, offset: float, channels_first: bool) -> None:
    fill = (10, 200, 255)
    settings = {"dtype": dtype, "scale": (scale,) * 3, "offset": (offset,) * 3, "channels_first": channels_first}
    ours = run([noise(8, 8)], (12, 20), (4, 4), (-3, -5), fill=fill, **settings)[0]
    padding = np.ones((12, 20), bool)
    padding[3:7, 5:9] = False
    found = ours[:, padding].T if channels_first else ours[padding]
    assert np.array_equal(found, np.broadcast_to(np.array(fill) * scale + offset, found.shape))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
def test_uint8_keeps_black_and_white(interpolation: str) -> None:
    white = np.full((97, 61, 3), 255, np.uint8)
    options = {"dtype": "uint8", "interpolation": interpolation}
    assert run([white], (50, 50), **options).min() == 255  # 255.0001 must not wrap to 0
    assert run([white * 0], (50, 50), **options).max() == 0


@pytest.mark.parametrize("size", [(4, 4), (16, 7), (3, 18), (225, 224)], ids=str)  # rows of whole vectors, and not
@pytest.mark.parametrize("interpolation", ["bilinear", "lanczos"])
@pytest.mark.parametrize(
    ("dtype", "absolute", "relative"),
    [("float32", 0, 0), ("float16", 1e-6, 2**-11), ("uint8", 0.5 + LEVELS, 0)],  # halves of the last place kept
)
def test_every_dtype_and_layout_holds_the_same_values(
    size: tuple[int, int], interpolation: str, dtype: str, absolute: float, relative: float
) -> None:
    images = [noise(*shape) for shape in SHAPES]
    expected = run(images, size, interpolation=interpolation)
    first, last = (
        run(images, size, interpolation=interpolation, dtype=dtype, channels_first=first) for first in (True, False)
    )
    assert first.dtype == last.dtype == dtype
    assert np.array_equal(last.transpose(0, 3, 1, 2), first)
    np.testing.assert_allclose(first.astype(np.float32), expected, atol=absolute, rtol=relative)
