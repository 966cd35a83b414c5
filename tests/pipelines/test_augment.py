"""The CPU's kernel for pixel operations, in DALI's threads, against torchvision on uint8 tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from making import picture
from nvidia.dali import fn, pipeline_def, types
from oracle import functional
from reference import run_step

from gpuloader.pipelines.kernels.call import augment
from gpuloader.recipe.program import BICUBIC, BILINEAR, NEAREST, PARAMETERS, Op, Program, chain, step

pytestmark = pytest.mark.usefixtures("torch_in_one_thread")
Images = list[np.ndarray]
PLAIN = {"scale": (1, 1, 1), "offset": (0, 0, 0), "dtype": "float32", "channels_first": False, "erase_value": (0, 0, 0)}


def run(images: Images, program: Program, erase: object = (0, 0, 0, 0), key: object = (0, 0), **more: object) -> Images:
    """One output for each image, computed by several threads at once."""
    settings, count = {**PLAIN, **more}, len(images)
    keys = np.ascontiguousarray(np.broadcast_to(np.array(key, np.uint32), (count, 2)))
    inputs = (
        images,
        program.ops,
        program.parameters,
        np.concatenate([np.broadcast_to(np.array(erase, np.int32), (count, 4)), keys.view(np.int32)], 1),
        [np.empty((0, *image.shape[:2]), np.uint8) for image in images],
    )

    @pipeline_def(batch_size=count, num_threads=4, device_id=None)
    def graph() -> object:
        nodes = fn.external_source(
            source=lambda: inputs,
            num_outputs=5,
            ndim=[3, 1, 2, 1, 3],
            dtype=[types.UINT8, types.INT32, types.FLOAT, types.INT32, types.UINT8],
        )
        return augment(*nodes, **settings)

    [output] = graph().run()
    return [np.array(image) for image in output]


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def photo(height: int, width: int) -> np.ndarray:
    return np.array(picture(height, width, seed=height))


def ramps() -> np.ndarray:
    ramp = np.linspace(0, 255, 200).astype(np.uint8)
    return np.stack(np.broadcast_arrays(ramp, ramp[:, None], ramp[::-1] // 2), -1)


def one_channel_constant() -> np.ndarray:
    image = photo(70, 80)
    image[..., 1] = 40
    return image


IMAGES = [
    photo(224, 224),
    photo(97, 131),
    noise(64, 64),
    noise(61, 97),
    ramps(),
    np.full((50, 60, 3), (13, 200, 77), np.uint8),
    np.zeros((50, 60, 3), np.uint8),
    np.full((50, 60, 3), 255, np.uint8),
    noise(50, 60) // 128 * 255,
    one_channel_constant(),
]
NO_PIXELS_TO_SPARE = [noise(*shape) for shape in [(1, 1), (1, 7), (7, 1), (2, 2), (2, 9), (3, 3), (4, 5)]]


def by_torchvision(images: Images, function: Callable[..., torch.Tensor], *values: object, **options: object) -> Images:
    tensors = [torch.from_numpy(image).permute(2, 0, 1).contiguous() for image in images]
    return [function(tensor, *values, **options).permute(1, 2, 0).numpy() for tensor in tensors]


def differences(ours: Images, theirs: Images) -> np.ndarray:
    """How far all pixels of all images are from each other, each in the channel where it is farthest."""
    assert [image.shape for image in ours] == [image.shape for image in theirs]
    return np.concatenate(
        [np.abs(one - two.astype(np.float32)).max(-1).ravel() for one, two in zip(ours, theirs, strict=True)]
    )


FACTORS = [0.0, 0.1, 0.37, 0.5, 0.93, 1.0, 1.01, 1.6, 1.9, 4.0]
EXACT = {
    **dict.fromkeys((Op.BRIGHTNESS, Op.CONTRAST, Op.SATURATION, Op.SHARPNESS), FACTORS),
    Op.HUE: [-0.5, -0.31, -0.1, -1e-3, 0.0, 1e-3, 0.05, 0.25, 1 / 3, 0.5],
    Op.POSTERIZE: range(9),
    Op.SOLARIZE: [0, 0.5, 1, 127.5, 128, 254.3, 255],
    Op.SOLARIZE_ADD: [0, 1, 57, 110, 255],
    **dict.fromkeys((Op.IDENTITY, Op.INVERT, Op.AUTOCONTRAST, Op.EQUALIZE, Op.GRAYSCALE), (0,)),
}


@pytest.mark.parametrize("op", EXACT, ids=lambda op: op.name)
def test_colour_is_torchvisions_bit_for_bit(op: Op) -> None:
    images = [*IMAGES, *NO_PIXELS_TO_SPARE]
    for parameter in map(float, np.array(EXACT[op], np.float32)):
        ours = run(images, step(op, len(images), parameter))
        theirs = by_torchvision(images, lambda image, value=parameter: run_step(op, [value], image))
        assert differences(ours, theirs).max() == 0


@pytest.mark.parametrize("order", [*permutations(range(3)), (1, 1, 1)])
def test_channels_are_those_with_the_numbers(order: tuple[int, ...]) -> None:
    images = [*IMAGES, *NO_PIXELS_TO_SPARE]
    ours = run(images, step(Op.PERMUTE, len(images), *order))
    assert differences(ours, [image[..., list(order)] for image in images]).max() == 0


@pytest.mark.parametrize("size", [1, 3, 5, 23])
@pytest.mark.parametrize("deviation", [0.1, 0.5, 2.0, 7.5])
def test_blur_is_torchvisions_within_a_level(size: int, deviation: float) -> None:
    deviation = float(np.float32(deviation))
    ours = run(IMAGES, step(Op.BLUR, len(IMAGES), deviation, size))
    difference = differences(ours, by_torchvision(IMAGES, functional.gaussian_blur, size, deviation))
    assert difference.max() <= 1  # their weights are rounded once more
    assert difference.mean() < 1e-3


def test_blur_reflects_the_border_as_often_as_it_takes() -> None:
    images, radius = NO_PIXELS_TO_SPARE, 11
    padded = [np.pad(image, ((radius, radius), (radius, radius), (0, 0)), "reflect") for image in images]
    theirs = [
        image[radius:-radius, radius:-radius] for image in by_torchvision(padded, functional.gaussian_blur, 23, 3.0)
    ]
    assert differences(run(images, step(Op.BLUR, len(images), 3.0, 23)), theirs).max() <= 1


def warp(images: Images, matrices: Sequence[Sequence[float]], interpolation: int, fill: Any) -> Program:  # noqa: ANN401
    fills = (0, 0, 0, 0) if fill is None else (*fill, 1)
    return step(Op.WARP, len(images), *np.array(matrices, np.float64).T, interpolation, *fills)


def affine_matrix(image: np.ndarray, angle: float, translate: Sequence[float], scale: float, shear: float) -> list[Any]:
    """From output to input pixels: the inverse of moving after shearing horizontally, scaling and turning clockwise."""
    height, width, _ = image.shape
    turn, skew = np.deg2rad(angle), np.tan(np.deg2rad(shear))
    turned = scale * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]) @ [[1, -skew], [0, 1]]
    inverse, centre = np.linalg.inv(turned), np.array([width / 2, height / 2])
    moved = centre - inverse @ (centre + translate)
    return [*inverse[0], moved[0], *inverse[1], moved[1], 0, 0, 1]


AFFINE = [  # angle, translation in pixels, scale, shear
    (0, (0, 0), 1, 0),
    (30, (0, 0), 1, 0),
    (-171.3, (0, 0), 1, 0),
    (0, (20, -13), 1, 0),
    (0, (0, 0), 1, 17),
    (0, (0, 0), 0.73, 0),
    (61, (-8, 5), 1.3, -12),
    (0, (1000, 0), 1, 0),  # nothing is left of the image
]
PERSPECTIVE = [
    (1.2, 0.05, -9.3, 0.02, 1.1, -4.1, 1.3e-3, 4e-4),
    (0.8, -0.1, 12.9, -0.07, 0.93, 7.7, -1.1e-3, 2e-3),
    (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, -0.021),  # the horizon lies in the image
]
MODES = {NEAREST: "nearest", BILINEAR: "bilinear"}


@pytest.mark.parametrize("fill", [None, (0, 0, 0), (255, 3, 128)])
@pytest.mark.parametrize("interpolation", MODES, ids=MODES.get)
def test_warps_are_torchvisions_but_for_ties(interpolation: int, fill: tuple[int, int, int] | None) -> None:
    options = {"interpolation": MODES[interpolation], "fill": None if fill is None else [float(each) for each in fill]}
    rows = [
        (
            [affine_matrix(image, angle, translate, scale, shear) for image in IMAGES],
            by_torchvision(IMAGES, functional.affine, angle, list(translate), scale, [shear, 0.0], **options),
        )
        for angle, translate, scale, shear in AFFINE
    ] + [
        (
            [[*values, 1]] * len(IMAGES),
            by_torchvision(IMAGES, functional.perspective, None, None, coefficients=list(values), **options),
        )
        for values in PERSPECTIVE
    ]
    for matrices, theirs in rows:
        difference = differences(run(IMAGES, warp(IMAGES, matrices, interpolation, fill)), theirs)
        if interpolation == NEAREST:  # a place in the middle of two pixels, within 1e-5, goes to the one or the other
            assert np.mean(difference > 0) < 1e-3
        else:
            assert difference.max() <= 1
            assert difference.mean() < 2e-3


def bicubic(image: np.ndarray, matrix: Sequence[float], fill: Sequence[float]) -> np.ndarray:
    """By torch's `grid_sample`, in double precision."""
    height, width, _ = image.shape
    columns, rows = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    x, y, depth = np.einsum("ij,jhw->ihw", np.reshape(matrix, (3, 3)), [columns, rows, np.ones_like(rows)])
    grid = torch.from_numpy(np.stack([x / depth / width, y / depth / height], -1))[None] * 2 - 1
    opaque = np.concatenate([image, np.ones_like(image[..., :1])], -1).transpose(2, 0, 1).astype(np.float64)
    sampled = torch.nn.functional.grid_sample(torch.from_numpy(opaque)[None], grid, "bicubic", align_corners=False)
    *channels, mask = sampled[0].numpy()
    blended = [mask * (channel - value) + value for channel, value in zip(channels, fill, strict=True)]
    return np.stack(blended, -1).clip(0, 255).round()


@pytest.mark.parametrize("row", AFFINE)
def test_bicubic_is_torchs(row: tuple[float, tuple[float, float], float, float]) -> None:
    matrices, fill = [affine_matrix(image, *row) for image in IMAGES], (200, 0, 31)
    theirs = [bicubic(image, matrix, fill) for image, matrix in zip(IMAGES, matrices, strict=True)]
    difference = differences(run(IMAGES, warp(IMAGES, matrices, BICUBIC, fill)), theirs)
    assert difference.max() <= 1
    assert difference.mean() < 2e-3


HOSTILE = [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -1.0, 0.0, 1e9]


@pytest.mark.parametrize("interpolation", [NEAREST, BILINEAR, BICUBIC])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, -3e38])
def test_what_comes_from_nowhere_is_filled(value: float, interpolation: int) -> None:
    images = [*NO_PIXELS_TO_SPARE, photo(60, 80)]
    for matrix in ([value] * 9, [1, 0, value, 0, 1, 0, 0, 0, 1], [1, 0, 0, 0, value, 0, 0, 0, 1]):
        for output in run(images, warp(images, [matrix] * len(images), interpolation, (7, 8, 9))):
            assert np.array_equal(output, np.broadcast_to([7, 8, 9], output.shape))


def test_no_parameter_and_no_size_is_out_of_bounds() -> None:
    rng, images = np.random.default_rng(0), NO_PIXELS_TO_SPARE * 20
    ops = rng.integers(-1, max(Op) + 2, (len(images), 6)).astype(np.int32)  # some that do not exist
    ordinary = rng.normal(0, 3, (len(images), 6, PARAMETERS))
    parameters = np.where(rng.random(ordinary.shape) < 0.5, rng.choice(HOSTILE, ordinary.shape), ordinary)
    program = Program(ops, parameters.astype(np.float32), ())
    erase = rng.choice([-(2**31), -3, 0, 1, 2, 2**31 - 1], (len(images), 4))
    first, second = (run(images, program, erase, erase_value=(1, 2, 3)) for _ in range(2))
    assert all(np.array_equal(one, two) for one, two in zip(first, second, strict=True))
    assert all(np.all((image >= 0) & (image <= 255)) for image in first)


def test_mixing_adds_images_up_that_all_begin_with_the_one_noted() -> None:
    count, weights = len(IMAGES), np.array([0.21, 0.34, 0.2, 0.25], np.float32)
    steps: list[tuple[Any, ...]] = [
        *((Op.INVERT,), (Op.MIX_BEGIN,), (Op.MIX_ADD, weights[0]), (Op.EQUALIZE,), (Op.MIX_ADD, weights[1])),
        *((Op.POSTERIZE, 2), (Op.SOLARIZE, 77), (Op.SATURATION, 0), (Op.MIX_ADD, weights[2])),
        *((Op.IDENTITY,), (Op.MIX_ADD, weights[3]), (Op.MIX_END,), (Op.INVERT,)),
    ]
    program = chain([step(op, count, *values) for op, *values in steps], count)

    def mixed(image: torch.Tensor) -> torch.Tensor:
        image = functional.invert(image)
        third = functional.adjust_saturation(functional.solarize(functional.posterize(image, 2), 77), 0.0)
        total = torch.zeros(image.shape)
        for weight, part in zip(weights, (image, functional.equalize(image), third, image), strict=True):
            total += float(weight) * part
        return functional.invert(total.clamp(0, 255).to(torch.uint8))

    assert differences(run(IMAGES, program), by_torchvision(IMAGES, mixed)).max() == 0


@pytest.mark.parametrize("channels_first", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
@pytest.mark.parametrize(
    ("erase", "rows", "columns"),
    [
        ((0, 0, 0, 0), slice(0, 0), slice(0, 0)),
        ((3, 5, 0, 9), slice(0, 0), slice(0, 0)),
        ((3, 5, 7, 9), slice(3, 10), slice(5, 14)),
        ((-4, -2, 7, 9), slice(0, 3), slice(0, 7)),
        ((30, 40, 100, 2**31 - 1), slice(30, 33), slice(40, 51)),
        ((0, 0, 33, 51), slice(0, 33), slice(0, 51)),
        ((33, 0, 5, 5), slice(0, 0), slice(0, 0)),
    ],
)
def test_erasing_writes_the_value_where_the_part_lies_in_the_image(
    erase: tuple[int, ...], rows: slice, columns: slice, dtype: str, channels_first: bool
) -> None:
    image, values = noise(33, 51), (2, 3, 250)
    expected = image.copy()
    expected[rows, columns] = values
    program = step(Op.IDENTITY, 1)
    [output] = run([image], program, erase, dtype=dtype, channels_first=channels_first, erase_value=values)
    assert np.array_equal(output.transpose(1, 2, 0) if channels_first else output, expected)


def random_numbers(height: int, width: int, key: tuple[int, int]) -> np.ndarray:
    """What the operator says of its noise, in double precision."""

    def hashed(x: np.ndarray) -> np.ndarray:
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
        return (x ^ (x >> np.uint32(16))).astype(np.float64)

    place = np.arange(height * width * 3, dtype=np.uint32).reshape(height, width, 3)
    first, second = hashed(place ^ np.uint32(key[0])), hashed(place + np.uint32(key[1]))
    return np.sqrt(-2 * np.log((first + 1) / 2**32)) * np.cos(2 * np.pi * second / 2**32)


@pytest.mark.parametrize("channels_first", [True, False])
@pytest.mark.parametrize(("dtype", "difference"), [("float32", 1e-4), ("float16", 3e-3)])
@pytest.mark.parametrize("key", [(0, 0), (0xFFFFFFFF, 0x80000000), (123456789, 3987654321)])
def test_noise_is_what_the_places_and_the_key_say(
    key: tuple[int, int], dtype: str, difference: float, channels_first: bool
) -> None:
    image = noise(33, 51)
    options = {"dtype": dtype, "channels_first": channels_first, "erase_value": "random"}
    [output] = run([image], step(Op.IDENTITY, 1), (4, 7, 20, 30), key, **options)
    expected = image.astype(np.float64)
    expected[4:24, 7:37] = random_numbers(33, 51, key)[4:24, 7:37]
    found = output.transpose(1, 2, 0) if channels_first else output
    np.testing.assert_allclose(found, expected, rtol=0, atol=difference)
