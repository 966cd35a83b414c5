"""The steps in DALI's operators against torchvision, on DALI's backend for the CPU; a GPU's is meant to be the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations

import numpy as np
import pytest
import torch
from making import picture
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.pipeline import Pipeline
from oracle import functional, transforms
from reference import run_step

from gpuloader.pipelines.inputs import needed, step_inputs
from gpuloader.pipelines.steps import run_steps
from gpuloader.recipe.program import BICUBIC, BILINEAR, NEAREST, PARAMETERS, Op, Program, chain, step

Image = np.ndarray  # (height, width, 3) uint8


def noise(height: int, width: int, seed: int = 0) -> Image:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def images() -> list[Image]:
    smooth = np.asarray(picture(60, 80))
    return [
        smooth,
        smooth // 4 + 20,
        noise(47, 33),
        np.repeat(noise(32, 32)[..., :1], 3, axis=2),
        np.where(noise(40, 50)[..., :1] < 70, 255, 0).astype(np.uint8).repeat(3, axis=2),
        np.full((20, 30, 3), (10, 128, 250), np.uint8),
        np.zeros((16, 15, 3), np.uint8),
        np.full((15, 16, 3), 255, np.uint8),
    ]


EVERY_WARP = frozenset({"affine_nearest", "affine_linear", "perspective_nearest", "perspective_linear", "fill"})


def build(program: Program, batches: Sequence[Sequence[Image]]) -> Pipeline:
    """Runs the program on one batch after the other, all as long as the program has samples."""
    batches = iter(batches)
    names = [needed(possible, EVERY_WARP) for possible in program.choices]
    steps = step_inputs(program.ops, program.parameters, names)
    numbers = [rows for step in steps for rows in step.values()]

    @pipeline_def(batch_size=len(program.ops), num_threads=2, device_id=None, prefetch_queue_depth=1)
    def graph() -> object:
        image, *given = fn.external_source(
            source=lambda: (list(next(batches)), *numbers),
            num_outputs=1 + len(numbers),
            ndim=[3, *(array.ndim - 1 for array in numbers)],
            dtype=[types.UINT8, *(types.to_dali_type(array.dtype) for array in numbers)],
            layout=["HWC", *("" for _ in numbers)],
        )
        nodes = iter(given)
        return run_steps(image, [{name: next(nodes) for name in step} for step in steps], program.choices)

    return graph()


def run(program: Program, batch: Sequence[Image]) -> list[Image]:
    (output,) = build(program, [batch]).run()
    return [np.array(output.at(row)) for row in range(len(batch))]


def by_torch(function: Callable[..., torch.Tensor], image: Image, *args: object) -> Image:
    return function(torch.tensor(image).permute(2, 0, 1), *args).permute(1, 2, 0).numpy()


def check(ours: Sequence[Image], theirs: Sequence[Image], largest: int, mean: float) -> None:
    """The largest and the mean difference in levels."""
    differences = [np.abs(one.astype(int) - other.astype(int)).ravel() for one, other in zip(ours, theirs, strict=True)]
    assert np.concatenate(differences).max() <= largest
    assert np.concatenate(differences).mean() <= mean


def by_torchvision(op: int, image: Image, parameter: float) -> Image:
    return by_torch(lambda tensor: run_step(Op(op), [parameter], tensor), image)


FACTORS = [0.0, 0.1, 0.5, 0.73, 1.0, 1.27, 1.9]


@pytest.mark.parametrize(
    ("op", "parameters", "largest", "mean"),
    [
        (Op.BRIGHTNESS, FACTORS, 0, 0),
        (Op.CONTRAST, FACTORS, 1, 0.001),
        (Op.SATURATION, FACTORS, 1, 0.1),  # torch fuses f x + (1 - f) gray
        (Op.HUE, [-0.5, -0.31, -0.1, 0.0, 0.02, 0.25, 0.4, 0.5], 1, 0.001),
        (Op.SHARPNESS, FACTORS, 1, 0.01),
        (Op.POSTERIZE, range(9), 0, 0),
        (Op.SOLARIZE, [0.0, 1.0, 110.0, 127.5, 255.0], 0, 0),
        (Op.SOLARIZE_ADD, [0.0, 30.0, 110.0, 255.0], 0, 0),
        (Op.INVERT, [0.0], 0, 0),
        (Op.AUTOCONTRAST, [0.0], 0, 0),
        (Op.EQUALIZE, [0.0], 1, 0.3),  # rounded otherwise
        (Op.GRAYSCALE, [0.0], 0, 0),
    ],
)
def test_it_is_torchvisions(op: Op, parameters: Sequence[float], largest: int, mean: float) -> None:
    pairs = [(image, float(parameter)) for image in images() for parameter in parameters]
    ours = run(step(op, len(pairs), [parameter for _, parameter in pairs]), [image for image, _ in pairs])
    check(ours, [by_torchvision(op, image, parameter) for image, parameter in pairs], largest, mean)


@pytest.mark.parametrize("order", [*permutations(range(3)), (1, 1, 1)])
def test_channels_are_those_with_the_numbers(order: tuple[int, ...]) -> None:
    batch = images()
    for image, output in zip(batch, run(step(Op.PERMUTE, len(batch), *order), batch), strict=True):
        assert np.array_equal(output, image[..., list(order)])


@pytest.mark.parametrize("sigma", [0.1, 1.0, 2.0])
@pytest.mark.parametrize("window", [3, 9, 23])
def test_blur_is_torchvisions(window: int, sigma: float) -> None:
    batch = images()
    theirs = [by_torch(functional.gaussian_blur, image, [window] * 2, [sigma] * 2) for image in batch]
    check(run(step(Op.BLUR, len(batch), sigma, window), batch), theirs, 1, 0.001)


def affine(height: int, width: int, angle: float, dx: float, dy: float, scale: float, shear: float) -> np.ndarray:
    """Output to input: less the shift, and about the middle sheared back, turned back and scaled back."""
    turn, slant = np.deg2rad(angle), np.tan(np.deg2rad(shear))
    forward = scale * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]) @ [[1, -slant], [0, 1]]
    matrix, middle = np.eye(3), np.array([width / 2, height / 2])
    matrix[:2, :2] = np.linalg.inv(forward)
    matrix[:2, 2] = middle - matrix[:2, :2] @ (middle + np.array([dx, dy]))
    return matrix


def perspective(ends: Sequence[Sequence[int]], corners: Sequence[Sequence[int]]) -> np.ndarray:
    """Output to input: each end to its corner."""
    rows = []
    for (x, y), (u, v) in zip(ends, corners, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y, u], [0, 0, 0, x, y, 1, -v * x, -v * y, v]]
    system = np.array(rows, float)
    return np.append(np.linalg.solve(system[:, :8], system[:, 8]), 1).reshape(3, 3)


AFFINE = [(30, 0, 0, 1, 0), (0, 10, -7, 1, 0), (0, 0, 0, 1, 17.2), (-13.7, 3, -4, 0.8, 5), (5, 1, 1, 1.6, -8)]
CORNERS = [[0, 0], [79, 0], [79, 59], [0, 59]]
ENDS = [[[3, 5], [74, 2], [79, 55], [0, 59]], [[12, 9], [65, 3], [70, 44], [9, 57]]]


def warped(interpolation: int, mode: str, fill: tuple[float, ...]) -> tuple[list[Image], list[Image]]:
    """(ours, torchvision's). Torchvision's bilinear fill counts the image's share of a border pixel twice: without a
    fill it counts it once, so it gets the image less the fill."""
    colour = torch.tensor(fill)[:, None, None]
    batch, matrices, theirs = [], [], []
    for image in (np.asarray(picture(60, 80)), noise(60, 80)):
        moved, how = torch.tensor(image).permute(2, 0, 1) - colour, transforms.InterpolationMode(mode)
        for angle, dx, dy, scale, shear in AFFINE:
            matrices.append(affine(60, 80, angle, dx, dy, scale, shear))
            theirs.append(functional.affine(moved, angle, [dx, dy], scale, [shear, 0], interpolation=how) + colour)
        for ends in ENDS:
            matrices.append(perspective(ends, CORNERS))
            theirs.append(functional.perspective(moved, CORNERS, ends, interpolation=how) + colour)
        batch += [image] * (len(AFFINE) + len(ENDS))
    program = step(Op.WARP, len(batch), *np.reshape(matrices, (-1, 9)).T, interpolation, *fill)
    return run(program, batch), [one.round().to(torch.uint8).permute(1, 2, 0).numpy() for one in theirs]


@pytest.mark.parametrize("fill", [(0.0, 0.0, 0.0), (124.0, 116.3, 255.0)])
@pytest.mark.parametrize("interpolation", [BILINEAR, BICUBIC])  # DALI has no bicubic warps
def test_bilinear_warps_are_torchvisions(interpolation: int, fill: tuple[float, ...]) -> None:
    check(*warped(interpolation, "bilinear", fill), 1, 0.01)


@pytest.mark.parametrize("fill", [(0.0, 0.0, 0.0), (124.0, 116.3, 255.0)])
def test_nearest_warps_are_torchvisions_but_for_ties(fill: tuple[float, ...]) -> None:
    ours, theirs = warped(NEAREST, "nearest", fill)
    assert max((one != other).any(2).mean() for one, other in zip(ours, theirs, strict=True)) <= 0.003


PIXEL_OPS = [op for op in Op if op not in (Op.MIX_BEGIN, Op.MIX_ADD, Op.MIX_END)]
ANY = frozenset(PIXEL_OPS)
ROUNDED_OTHERWISE = {Op.CONTRAST, Op.SATURATION, Op.HUE, Op.SHARPNESS, Op.EQUALIZE, Op.BLUR, Op.WARP}
EXACT = [op for op in PIXEL_OPS if op not in ROUNDED_OTHERWISE]


def test_each_sample_goes_through_the_operations_drawn_for_it() -> None:
    drawn = np.array([(first, second) for first in EXACT for second in EXACT], np.int32)
    parameters = np.full((len(drawn), 2, PARAMETERS), 5, np.float32)
    batch = [noise(9, 7 + row % 3, row) for row in range(len(drawn))]
    ours = run(Program(drawn, parameters, (ANY, ANY)), batch)
    for row, (first, second) in enumerate(drawn.tolist()):
        assert np.array_equal(ours[row], by_torchvision(second, by_torchvision(first, batch[row], 5.0), 5.0))


def mixture(samples: int) -> Program:
    """AugMix: parts of the image, of the inverted, and of the posterized and then solarized."""
    steps = [
        (Op.MIX_BEGIN,),
        (Op.MIX_ADD, 0.3),
        (Op.INVERT,),
        (Op.MIX_ADD, 0.4),
        (Op.POSTERIZE, 3),
        (Op.SOLARIZE, 100),
        (Op.MIX_ADD, 0.2),
        (Op.MIX_END,),
        (Op.INVERT,),
    ]
    return chain([step(op, samples, *parameters) for op, *parameters in steps], samples)


def mixed(image: torch.Tensor) -> torch.Tensor:
    last = functional.solarize(functional.posterize(image, 3), 100)
    return functional.invert((0.3 * image + 0.4 * functional.invert(image) + 0.2 * last).to(torch.uint8))


def test_a_mix_is_the_weighted_sum() -> None:
    check(run(mixture(8), images()), [by_torch(mixed, image) for image in images()], 1, 0.01)


def test_a_mix_that_is_not_applied_leaves_the_image() -> None:
    applied = np.arange(8) % 3 == 0
    ours, always = run(mixture(8).where(applied), images()), run(mixture(8), images())
    for row, image in enumerate(images()):
        assert np.array_equal(ours[row], always[row] if applied[row] else image)


@pytest.mark.parametrize("op", PIXEL_OPS)
def test_the_smallest_images_keep_their_size(op: Op) -> None:
    batch = [noise(*size) for size in ((1, 1), (1, 5), (2, 2), (3, 1), (3, 3))]
    parameters = (1, 0, 0, 0, 1, 0, 0, 0, 1) if op == Op.WARP else (1.5, 1)
    for image, output in zip(batch, run(step(op, 5, *parameters), batch), strict=True):
        assert output.shape == image.shape
        assert output.dtype == np.uint8


def everything(samples: int) -> Program:
    drawn = np.random.default_rng(0).choice(PIXEL_OPS, (samples, 2)).astype(np.int32)
    parameters = np.zeros((samples, 2, PARAMETERS), np.float32)
    parameters[..., :9] = 0.9, 0.1, -0.5, -0.1, 0.9, 1.5, 0, 0, 1
    parameters[..., 1] = np.where(drawn == Op.BLUR, 3, parameters[..., 1])
    return Program(drawn, parameters, (ANY, ANY))


def test_sizes_may_change_from_batch_to_batch_and_pixels_depend_on_no_neighbour() -> None:
    program = everything(40)
    batches = [[noise(size, size + 3, row) for row in range(40)] for size in (16, 24, 8)]
    pipeline = build(program, batches)
    for batch in batches:
        (output,) = pipeline.run()
        for row in (3, 17, 39):
            alone = Program(program.ops[[row]], program.parameters[[row]], program.choices)
            assert np.array_equal(run(alone, [batch[row]])[0], np.array(output.at(row)))
