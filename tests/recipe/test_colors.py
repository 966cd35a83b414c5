"""Colour transforms: torchvision's parameters, drawn as it draws them, and what their steps do."""

import numpy as np
import pytest
import torch
from oracle import transforms
from reference import run_program
from scipy import stats

from gpuloader import transforms as T
from gpuloader.errors import ConfigError
from gpuloader.plan import Draw, Draws
from gpuloader.recipe.model import PixelTransform
from gpuloader.recipe.program import Op, Program

v2 = transforms.v2
IMAGE = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 24, 36), np.uint8))
ALL = T.ColorJitter(0.4, 1.5, (0.2, 0.9), 0.1)
FACTORS = {
    Op.BRIGHTNESS: "brightness_factor",
    Op.CONTRAST: "contrast_factor",
    Op.SATURATION: "saturation_factor",
    Op.HUE: "hue_factor",
}


def draw(transform: PixelTransform, count: int = 4000) -> Draw:
    return Draws(3, 1, np.arange(count)).of(transform.stream)


def program(transform: PixelTransform, count: int = 4000) -> Program:
    return transform.program(draw(transform, count), np.array([[24, 36]]))


def test_every_order_of_the_jitters_is_drawn_equally_often() -> None:
    orders, counts = np.unique(program(ALL).ops, axis=0, return_counts=True)
    assert len(orders) == 24
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(
    ("op", "low", "high"),
    [
        (Op.BRIGHTNESS, 0.6, 1.4),
        (Op.CONTRAST, 0.0, 2.5),  # 1 - 1.5 is cut at 0, as torchvision does
        (Op.SATURATION, 0.2, 0.9),
        (Op.HUE, -0.1, 0.1),
    ],
)
def test_jitters_parameters_are_even_over_torchvisions_range(op: Op, low: float, high: float) -> None:
    steps = program(ALL)
    assert stats.kstest(steps.parameters[steps.ops == op, 0], "uniform", (low, high - low)).pvalue > 1e-3


@pytest.mark.parametrize(
    ("jitter", "ops"),
    [
        (T.ColorJitter(), set()),
        (T.ColorJitter(hue=0.5), {Op.HUE}),
        (T.ColorJitter(0.1, 0, (1, 1)), {Op.BRIGHTNESS}),  # [1, 1] changes nothing, as torchvision knows
        (T.ColorJitter(hue=(0, 0), saturation=(0, 0)), {Op.SATURATION}),
        (ALL, set(FACTORS)),
    ],
)
def test_only_the_jitters_that_are_on_are_steps(jitter: T.ColorJitter, ops: set[Op]) -> None:
    assert program(jitter).choices == (frozenset(ops),) * len(ops)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_a_photometric_distortion_is_torchvisions_with_the_same_numbers(p: float) -> None:
    ranges = {"brightness": (0.9, 1.2), "contrast": (0.5, 1.5), "saturation": (0.3, 1.1), "hue": (-0.2, 0.1)}
    ours, theirs = T.RandomPhotometricDistort(**ranges, p=p), v2.RandomPhotometricDistort(**ranges, p=p)
    orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    steps, seen = program(ours, 300), set()
    for row, (*changed, permuted, b, c, s, h, order, first) in enumerate(draw(ours, 300)(11).tolist()):
        factors = [low + each * (high - low) for (low, high), each in zip(ranges.values(), (b, c, s, h))]
        parameters = {
            f"{name}_factor": float(np.float32(factor)) if each < p else None
            for name, factor, each in zip(ranges, factors, changed)
        }
        parameters["contrast_before"] = first < 0.5
        parameters["channel_permutation"] = list(orders[int(6 * order)]) if permuted < p else None
        expected = theirs.transform(IMAGE, parameters)
        assert torch.equal(run_program(steps, row, IMAGE), expected), row
        seen.add((torch.equal(expected, IMAGE), first < 0.5, *(parameters["channel_permutation"] or ())))
    assert len(seen) == {0.0: 2, 0.5: 16, 1.0: 12}[p]  # orders and places of contrast, and nothing at all
    assert ours.random == (p > 0)


def test_leaving_a_jitter_out_does_not_change_the_others() -> None:
    full, without = program(ALL), program(T.ColorJitter(0.4, 0, (0.2, 0.9), 0.1))
    np.testing.assert_array_equal(without.parameters[without.ops == Op.HUE], full.parameters[full.ops == Op.HUE])
    np.testing.assert_array_equal(without.ops.ravel(), full.ops[full.ops != Op.CONTRAST])


def test_jitter_is_torchvisions() -> None:
    steps = program(ALL, 30)
    theirs = v2.ColorJitter(0.4, 1.5, (0.2, 0.9), 0.1)
    for row in range(30):
        ops = [Op(op) for op in steps.ops[row]]
        parameters = {FACTORS[op]: float(values[0]) for op, values in zip(ops, steps.parameters[row], strict=True)}
        expected = theirs.transform(IMAGE, {"fn_idx": [list(FACTORS).index(op) for op in ops], **parameters})
        assert torch.equal(run_program(steps, row, IMAGE), expected)


@pytest.mark.parametrize(("sigma", "low", "high"), [((0.1, 2.0), 0.1, 2.0), (1.5, 1.5, 1.5)])
def test_blur_is_torchvisions(sigma: float | tuple[float, float], low: float, high: float) -> None:
    steps = program(T.GaussianBlur(5, sigma))
    drawn = steps.parameters[:, 0, 0].astype(float)
    if low < high:
        assert stats.kstest(drawn, "uniform", (low, high - low)).pvalue > 1e-3
    for row in range(10):
        expected = v2.GaussianBlur(5, sigma).transform(IMAGE, {"sigma": [drawn[row], drawn[row]]})
        assert torch.equal(run_program(steps, row, IMAGE), expected)
    assert low - 1e-6 < drawn.min() <= drawn.max() < high + 1e-6


SOMETIMES = [
    (T.RandomGrayscale, v2.RandomGrayscale, ()),
    (T.RandomSolarize, v2.RandomSolarize, (128.0,)),
    (T.RandomSolarize, v2.RandomSolarize, (100.5,)),
    (T.RandomSolarize, v2.RandomSolarize, (0.0,)),
    (T.RandomPosterize, v2.RandomPosterize, (3,)),
    (T.RandomPosterize, v2.RandomPosterize, (0,)),
    (T.RandomPosterize, v2.RandomPosterize, (8,)),
    (T.RandomEqualize, v2.RandomEqualize, ()),
    (T.RandomAutocontrast, v2.RandomAutocontrast, ()),
    (T.RandomAdjustSharpness, v2.RandomAdjustSharpness, (0.0,)),
    (T.RandomAdjustSharpness, v2.RandomAdjustSharpness, (2.5,)),
    (T.RandomInvert, v2.RandomInvert, ()),
]


@pytest.mark.parametrize(("ours", "theirs", "arguments"), SOMETIMES)
def test_what_is_done_sometimes_is_torchvisions(ours: type, theirs: type, arguments: tuple[float, ...]) -> None:
    steps = program(ours(*arguments, p=1.0), 2)
    image = IMAGE // 2 + 40  # so that autocontrast has something to do
    assert torch.equal(run_program(steps, 1, image), theirs(*arguments, p=1.0)(image))


@pytest.mark.slow(kept=4)
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0, None])
@pytest.mark.parametrize(("ours", "theirs", "arguments"), SOMETIMES)
def test_it_is_done_as_often_as_said(ours: type, theirs: type, arguments: tuple[float, ...], p: float | None) -> None:
    transform = ours(*arguments) if p is None else ours(*arguments, p)
    p = theirs(*arguments).p if p is None else p
    applied = int((program(transform, 2000).ops != Op.IDENTITY).sum())
    assert stats.binomtest(applied, 2000, p).pvalue > 1e-3


def test_grayscale_is_torchvisions() -> None:
    assert torch.equal(run_program(program(T.Grayscale(), 1), 0, IMAGE), v2.Grayscale(3)(IMAGE))


def test_a_kernel_that_does_not_fit_into_the_image_is_refused() -> None:
    blur = T.GaussianBlur(47)
    blur.program(draw(blur), np.array([[24, 36]]))
    with pytest.raises(
        ConfigError, match="kernel_size 47 does not fit into images of 23 x 36 pixels: allowed is up to 45"
    ):
        blur.program(draw(blur), np.array([[24, 36], [23, 36]]))
