"""timm's policies: parameters by level, worked out from the text of timm.data.auto_augment, and how they are drawn."""

import numpy as np
import pytest
import torch
from PIL import Image
from reference import run_program
from scipy import stats

from gpuloader import transforms as T
from gpuloader.plan import Draws
from gpuloader.recipe.model import PixelTransform
from gpuloader.recipe.policies import OPERATIONS, operation
from gpuloader.recipe.program import BICUBIC, BILINEAR, Op, Program
from gpuloader.recipe.timm import PolicyName, argument

HEIGHT, WIDTH = 30, 40
SIZES = np.array([[HEIGHT, WIDTH]])
RAND = T.TimmRandAugment()
FILL = (124, 116, 104)


def program(transform: PixelTransform, count: int = 4000) -> Program:
    return transform.program(Draws(3, 1, np.arange(count)).of(transform.stream), SIZES)


def increasing(name: str) -> str:
    """timm's name of an operation with inc1."""
    return f"{name}Increasing" if f"{name}Increasing" in RAND.names else name


@pytest.mark.parametrize(
    ("name", "at_0", "at_5", "at_9", "at_10"),
    [
        ("Invert", 0, 0, 0, 0),
        ("Rotate", 0, 15, 27, 30),
        ("Posterize", 4, 2, 1, 0),
        ("Solarize", 256, 128, 26, 0),
        ("SolarizeAdd", 0, 55, 99, 110),
        ("Color", 1, 1.45, 1.81, 1.9),
        ("Sharpness", 1, 1.45, 1.81, 1.9),
        ("ShearX", 0, 0.15, 0.27, 0.3),
        ("TranslateX", 0, 0.225 * WIDTH, 0.405 * WIDTH, 0.45 * WIDTH),
        ("TranslateY", 0, 0.225 * HEIGHT, 0.405 * HEIGHT, 0.45 * HEIGHT),
    ],
)
def test_parameters_by_level(name: str, at_0: float, at_5: float, at_9: float, at_10: float) -> None:
    levels = np.array([0, 5, 9, 10]) / 10
    expected = np.array([at_0, at_5, at_9, at_10])
    np.testing.assert_allclose(argument(increasing(name), levels, np.ones(4), SIZES), expected)
    negative = argument(increasing(name), levels, -np.ones(4), SIZES)
    if name in ("Color", "Contrast", "Brightness", "Sharpness"):
        np.testing.assert_allclose(negative, 2 - expected)
    else:
        signed = name in ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")
        np.testing.assert_allclose(negative, -expected if signed else expected)


@pytest.mark.parametrize(
    ("name", "levels", "expected"),
    [
        ("Posterize", [0, 0.5, 1], [0, 2, 4]),
        ("PosterizeOriginal", [0, 0.5, 1], [4, 6, 8]),
        ("Solarize", [0, 0.5, 1], [0, 128, 256]),
        ("Color", [0, 0.5, 1], [0.1, 1.0, 1.9]),
        ("Sharpness", [0, 0.5, 1], [0.1, 1.0, 1.9]),
        # Levels above 10 go to the end of the range.
        ("PosterizeIncreasing", [3], [0]),
        ("SolarizeIncreasing", [3], [0]),
        ("SolarizeAdd", [3], [128]),
        ("BrightnessIncreasing", [3], [0.1]),
    ],
)
def test_other_parameters(name: str, levels: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(argument(name, np.array(levels), -np.ones(len(levels)), SIZES), expected)


@pytest.mark.parametrize(
    ("name", "argument", "affine"),
    [
        ("ShearX", 0.3, (1, 0.3, 0, 0, 1, 0)),
        ("ShearY", -0.3, (1, 0, 0, -0.3, 1, 0)),
        ("TranslateX", -7.25, (1, 0, 7.25, 0, 1, 0)),
        ("TranslateY", 3.5, (1, 0, 0, 0, 1, -3.5)),
        ("Rotate", 25.0, None),
    ],
)
def test_pixels_move_as_pil_moves_them(name: str, argument: float, affine: tuple[float, ...] | None) -> None:
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    picture = np.stack([3 * x + 2 * y, 2 * x + 60, 4 * y + 50], -1).astype(np.uint8)
    image, bilinear = Image.fromarray(picture), Image.Resampling.BILINEAR
    if affine is None:
        theirs = image.rotate(argument, bilinear, fillcolor=FILL)
    else:
        theirs = image.transform(image.size, Image.Transform.AFFINE, affine, bilinear, fillcolor=FILL)
    steps = operation(name, np.array([argument]), SIZES, BILINEAR, FILL)
    ours = run_program(steps, 0, torch.from_numpy(picture).permute(2, 0, 1)).permute(1, 2, 0).numpy()
    apart = np.abs(ours.astype(int) - np.asarray(theirs, int)).max(axis=2)
    assert (apart <= 1).mean() > 0.93  # PIL's pictures end sharply, torchvision's fade into the fill over a pixel


def test_every_operation_is_drawn_equally_often_and_applied_half_of_the_time() -> None:
    ops, counts = np.unique(program(RAND, 10_000).ops, return_counts=True)
    share = {Op.IDENTITY: 15, Op.WARP: 5}  # of 30; the rest has one operation each
    expected = np.array([share.get(Op(op), 1) / 30 for op in ops]) * 20_000
    assert len(ops) == 12
    assert stats.chisquare(counts, expected).pvalue > 1e-3


def test_every_way_to_move_pixels_is_drawn_equally_often() -> None:
    steps = program(RAND, 20_000)
    matrices = steps.parameters[steps.ops == Op.WARP, :9].astype(float)
    still = np.eye(3).ravel()
    for changed in ([1], [3], [2], [5], [1, 0, 2, 3, 4, 5]):  # shears, moves, rotation
        others = [number for number in range(9) if number not in changed]
        of_kind = matrices[
            (matrices[:, changed] != still[changed]).all(1) & (matrices[:, others] == still[others]).all(1)
        ]
        assert stats.binomtest(len(of_kind), len(matrices), 1 / 5).pvalue > 1e-3
        assert stats.binomtest(int((of_kind[:, changed[0]] < 0).sum()), len(of_kind)).pvalue > 1e-3


@pytest.mark.parametrize(("magnitude", "std", "most"), [(9.0, 0.5, 10.0), (5.0, 3.0, 10.0), (20.0, 4.0, 30.0)])
def test_magnitudes_are_normal_and_cut_off(magnitude: float, std: float, most: float) -> None:
    transform = T.TimmRandAugment(magnitude, 4, std, prob=1.0, magnitude_max=most)
    steps = program(transform, 10_000)
    shear_x = (steps.ops == Op.WARP) & (steps.parameters[..., 0] == 1) & (steps.parameters[..., 1] != 0)
    levels = np.abs(steps.parameters[shear_x, 1].astype(float)) / 0.3 * 10
    of_normal = stats.norm(magnitude, std)
    cut = np.abs(levels - most) < 1e-4
    assert stats.binomtest(int(cut.sum()), len(levels), of_normal.sf(most) / of_normal.sf(0)).pvalue > 1e-3
    between = stats.truncnorm(-magnitude / std, (most - magnitude) / std, magnitude, std)
    assert stats.kstest(levels[~cut], between.cdf).pvalue > 1e-3


def test_magnitudes_are_even_if_the_deviation_is_above_100() -> None:
    steps = program(T.TimmRandAugment(8.0, 4, 101, prob=1.0), 10_000)
    shear_x = (steps.ops == Op.WARP) & (steps.parameters[..., 0] == 1) & (steps.parameters[..., 1] != 0)
    levels = np.abs(steps.parameters[shear_x, 1].astype(float)) / 0.3 * 10
    assert stats.kstest(levels, "uniform", (0, 8)).pvalue > 1e-3


@pytest.mark.parametrize("prob", [0.0, 0.2, 1.0])
def test_operations_are_applied_as_often_as_said(prob: float) -> None:
    applied = int((program(T.TimmRandAugment(num_ops=3, prob=prob)).ops != Op.IDENTITY).sum())
    assert stats.binomtest(applied, 12_000, prob).pvalue > 1e-3


def test_interpolation_is_bilinear_or_bicubic_and_outside_is_the_mean_of_imagenet() -> None:
    steps = program(RAND, 10_000)
    warps = steps.parameters[steps.ops == Op.WARP]
    codes, counts = np.unique(warps[:, 9], return_counts=True)
    assert codes.tolist() == [BILINEAR, BICUBIC]
    assert stats.chisquare(counts).pvalue > 1e-3
    assert (warps[:, 10:13] == FILL).all()
    fixed = program(T.TimmRandAugment(interpolation="bicubic", fill=1))
    assert np.unique(fixed.parameters[fixed.ops == Op.WARP][:, 9:], axis=0).tolist() == [[BICUBIC, 1, 1, 1, 1]]


def test_three_augment_draws_one_of_three_and_then_jitter() -> None:
    steps = program(T.ThreeAugment())
    first, counts = np.unique(steps.ops[:, 0], return_counts=True)
    assert first.tolist() == [Op.SOLARIZE, Op.GRAYSCALE, Op.BLUR]
    assert stats.chisquare(counts).pvalue > 1e-3
    orders, counts = np.unique(steps.ops[:, 1:], axis=0, return_counts=True)
    assert len(orders) == 6
    assert stats.chisquare(counts).pvalue > 1e-3
    assert stats.kstest(steps.parameters[:, 1:, 0].ravel(), "uniform", (0.7, 0.6)).pvalue > 1e-3
    assert set(steps.parameters[steps.ops == Op.SOLARIZE, 0].tolist()) == {128}
    sigmas = steps.parameters[steps.ops == Op.BLUR, 0]
    assert stats.kstest(sigmas, "uniform", (0.1, 1.9)).pvalue > 1e-3


# --- timm's AutoAugment


def test_pairs_are_drawn_equally_often_and_their_operations_as_often_as_the_policy_says() -> None:
    transform = T.TimmAutoAugment("original", interpolation="bilinear")
    steps, count = program(transform, 20_000), 20_000
    for number in range(2):
        expected = {Op.IDENTITY: 0.0}
        for pair in transform.pairs:
            name, p, _ = pair[number]
            op = OPERATIONS[name.removesuffix("Original")]
            expected[op] = expected.get(op, 0.0) + p / 25
        expected[Op.IDENTITY] = 1 - sum(expected.values())
        found = [int((steps.ops[:, number] == op).sum()) for op in expected]
        assert sum(found) == count
        assert stats.chisquare(found, [count * share for share in expected.values()]).pvalue > 1e-3
    assert set(steps.parameters[steps.ops == Op.POSTERIZE, 0].tolist()) == {6, 7}  # magnitudes 5, 6, 7 and 8
    assert set(steps.parameters[steps.ops == Op.SOLARIZE, 0].tolist()) == {76, 102, 128, 179, 204}  # 3, 4, 5, 7, 8


@pytest.mark.parametrize(
    ("policy", "bits"), [("v0", {0, 2}), ("v0r", {4, 2}), ("original", {6, 7}), ("originalr", {1, 2})]
)
def test_the_policies_differ_in_the_bits_that_posterizing_keeps(policy: PolicyName, bits: set[int]) -> None:
    steps = program(T.TimmAutoAugment(policy), 20_000)
    assert set(steps.parameters[steps.ops == Op.POSTERIZE, 0].tolist()) == bits


def test_a_deviation_changes_the_magnitudes_of_a_policy() -> None:
    steps = program(T.TimmAutoAugment("v0", 0.5), 20_000)
    colors = steps.parameters[steps.ops == Op.SATURATION, 0]
    assert len(np.unique(colors)) > 1_000
    fixed = program(T.TimmAutoAugment("v0"), 20_000)
    assert len(np.unique(fixed.parameters[fixed.ops == Op.SATURATION, 0])) <= 6
