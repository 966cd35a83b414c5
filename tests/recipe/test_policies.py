"""Policies: torchvision's operations and magnitudes, drawn as often as it draws them."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from oracle import transforms
from reference import run_program, run_step
from scipy import stats

from gpuloader import transforms as T
from gpuloader.errors import ConfigError
from gpuloader.plan import Draws
from gpuloader.recipe.auto_augment import POLICIES
from gpuloader.recipe.model import PixelTransform
from gpuloader.recipe.policies import (
    AUTO_SPACE,
    MIX_SPACE,
    OPERATIONS,
    PARTIAL_MIX_SPACE,
    RAND_SPACE,
    WIDE_SPACE,
    Space,
    Table,
    all_steps,
)
from gpuloader.recipe.program import PARAMETERS, Op, Program

v2 = transforms.v2
HEIGHT, WIDTH = 30, 40
SIZES = np.array([[HEIGHT, WIDTH]])
IMAGE = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, HEIGHT, WIDTH), np.uint8))
FILL = (124.0, 116.0, 104.0)
SPACES = [
    (AUTO_SPACE, v2.AutoAugment._AUGMENTATION_SPACE, 10),
    (RAND_SPACE, v2.RandAugment._AUGMENTATION_SPACE, 31),
    (RAND_SPACE, v2.RandAugment._AUGMENTATION_SPACE, 11),
    (WIDE_SPACE, v2.TrivialAugmentWide._AUGMENTATION_SPACE, 31),
    (MIX_SPACE, v2.AugMix._AUGMENTATION_SPACE, 10),
    (PARTIAL_MIX_SPACE, v2.AugMix._PARTIAL_AUGMENTATION_SPACE, 10),
]
# torchvision takes the factors of the others in float64, and finds the places of a WARP in float32.
EXACT = {Op.IDENTITY, Op.POSTERIZE, Op.SOLARIZE, Op.INVERT, Op.AUTOCONTRAST, Op.EQUALIZE}


def program(transform: PixelTransform, count: int = 4000) -> Program:
    return transform.program(Draws(3, 1, np.arange(count)).of(transform.stream), SIZES)


def names_of(steps: Program) -> list[tuple[bytes, ...]]:
    """Each sample's steps by their numbers."""
    kinds = [[op.tobytes() + values.tobytes() for op, values in zip(*row)] for row in zip(steps.ops, steps.parameters)]
    return [tuple(row) for row in kinds]


def assert_drawn_as(expected: dict[Any, float], drawn: list[Any]) -> None:
    """A chi-square test of what was drawn against probabilities; nothing else was drawn."""
    counts = Counter(drawn)
    assert set(counts) <= {key for key, p in expected.items() if p > 0}
    observed = np.array([[counts[key], p * len(drawn)] for key, p in expected.items() if p > 0]).T
    rare = observed[1] < 5  # too rare for the test, so together
    observed = np.concatenate([observed[:, ~rare], observed[:, rare].sum(axis=1, keepdims=True)], 1)
    observed = observed[:, observed[1] > 0]
    assert len(drawn) == pytest.approx(observed[1].sum())
    assert observed.shape[1] == 1 or stats.chisquare(*observed).pvalue > 1e-3


def rows_of(space: Space, bins: int) -> dict[tuple[str, int, int], bytes]:
    """A space's steps by operation, magnitude and sign; `test_every_step_is_torchvisions` says what they do."""
    steps = all_steps(Table(space, bins, "nearest", None), HEIGHT, WIDTH)
    keys = [(name, magnitude, sign) for name in space.names for magnitude in range(bins) for sign in (0, 1)]
    return dict(zip(keys, (name for (name,) in names_of(steps)[:-1]), strict=True))


NOTHING = names_of(Program(np.zeros((1, 1), np.int32), np.zeros((1, 1, PARAMETERS), np.float32), ()))[0][0]


@pytest.mark.parametrize(("space", "theirs", "bins"), SPACES)
def test_every_step_is_torchvisions(space: Space, theirs: dict[str, tuple[Callable, bool]], bins: int) -> None:
    steps = all_steps(Table(space, bins, "bilinear", FILL), HEIGHT, WIDTH)
    apply = v2.AutoAugment(interpolation="bilinear", fill=FILL)
    assert set(space.names) == set(theirs)
    assert len(steps.ops) == len(theirs) * bins * 2 + 1
    for number, name in enumerate(space.names):
        magnitudes, signed = theirs[name]
        values = magnitudes(bins, HEIGHT, WIDTH)
        for row in range(number * bins * 2, (number + 1) * bins * 2):
            magnitude = 0.0 if values is None else float(values[row // 2 % bins])
            magnitude *= -1 if signed and row % 2 else 1
            expected = apply._apply_image_or_video_transform(IMAGE, name, magnitude, "bilinear", apply._fill)
            ours = run_program(steps, row, IMAGE)
            most = 0 if OPERATIONS[name] in EXACT else 1
            assert (ours.int() - expected.int()).abs().max() <= most, (name, magnitude)
    assert run_program(steps, -1, IMAGE) is IMAGE


@pytest.mark.parametrize(("space", "theirs", "bins"), SPACES)
def test_moves_are_torchvisions_at_every_size(
    space: Space, theirs: dict[str, tuple[Callable, bool]], bins: int
) -> None:
    for size in range(8, 600):
        expected = [int(move) for move in theirs["TranslateX"][0](bins, 0, size).tolist()]
        assert space.arguments("TranslateX", bins, 0, size)[:, 0].tolist() == expected
        assert space.arguments("TranslateY", bins, size, 0)[:, 1].tolist() == [-move for move in expected]


@pytest.mark.parametrize("policy", POLICIES)
def test_auto_augments_policies_are_torchvisions(policy: str) -> None:
    assert list(POLICIES[policy]) == v2.AutoAugment(v2.AutoAugmentPolicy(policy))._policies


@pytest.mark.parametrize("policy", POLICIES)
def test_auto_augment_draws_each_pair_with_its_probabilities(policy: str) -> None:
    rows, expected = rows_of(AUTO_SPACE, 10), Counter()
    pairs = v2.AutoAugment(v2.AutoAugmentPolicy(policy))._policies
    for first, second in pairs:
        outcomes = [
            [(NOTHING, 1 - p), *((rows[name, magnitude or 0, sign], p / 2) for sign in (0, 1))]
            for name, p, magnitude in (first, second)
        ]
        for one, p in outcomes[0]:
            for other, q in outcomes[1]:
                expected[one, other] += p * q / len(pairs)
    assert_drawn_as(expected, names_of(program(T.AutoAugment(policy), 20_000)))  # type: ignore[arg-type]


def test_rand_augment_draws_every_pair_of_operations() -> None:
    rows, expected = rows_of(RAND_SPACE, 31), Counter()
    for first in RAND_SPACE.names:
        for second in RAND_SPACE.names:
            for signs in range(4):
                expected[rows[first, 9, signs // 2], rows[second, 9, signs % 2]] += 1 / 4 / 14**2
    assert_drawn_as(expected, names_of(program(T.RandAugment(), 20_000)))


@pytest.mark.parametrize(("magnitude", "bins"), [(0, 31), (30, 31), (4, 5)])
def test_rand_augment_takes_one_magnitude(magnitude: int, bins: int) -> None:
    rows, expected = rows_of(RAND_SPACE, bins), Counter()
    for name in RAND_SPACE.names:
        for sign in (0, 1):
            expected[(rows[name, magnitude, sign],)] += 1 / 28
    assert_drawn_as(expected, names_of(program(T.RandAugment(1, magnitude, bins))))


def test_trivial_augment_draws_every_operation_and_magnitude() -> None:
    rows, expected = rows_of(WIDE_SPACE, 31), Counter()
    for row in rows.values():
        expected[(row,)] += 1 / len(rows)
    assert_drawn_as(expected, names_of(program(T.TrivialAugmentWide(), 40_000)))


@pytest.mark.parametrize("all_ops", [True, False])
def test_aug_mix_draws_every_operation_of_low_magnitude(all_ops: bool) -> None:
    space = MIX_SPACE if all_ops else PARTIAL_MIX_SPACE
    rows, expected = rows_of(space, 10), Counter()
    for name in space.names:
        for magnitude in range(4):
            for sign in (0, 1):
                expected[(rows[name, magnitude, sign],)] += 1 / len(space.names) / 8
    steps = program(T.AugMix(4, 2, 2, all_ops=all_ops, interpolation="nearest"))
    assert steps.ops.shape == (4000, 2 + 2 * 3 + 1)
    for number in (2, 3, 5, 6):
        column = Program(steps.ops[:, [number]], steps.parameters[:, [number]], ())
        assert_drawn_as(expected, names_of(column))


def test_aug_mix_draws_the_depth_of_each_chain() -> None:
    steps = program(T.AugMix(10))
    idle = np.stack([steps.ops[:, start : start + 3] == Op.IDENTITY for start in (2, 6, 10)], 1)
    depths = 3 - idle.sum(axis=2)
    assert (np.diff(idle.astype(int), axis=2) >= 0).all()  # what there is comes first
    combinations, counts = np.unique(depths, axis=0, return_counts=True)
    assert len(combinations) == 27
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("alpha", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("width", [1, 3])
def test_aug_mix_weights_are_beta_and_dirichlet(width: int, alpha: float) -> None:
    steps = program(T.AugMix(mixture_width=width, chain_depth=1, alpha=alpha))
    weights = steps.parameters[steps.ops == Op.MIX_ADD, 0].reshape(4000, 1 + width).astype(float)
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-6)
    assert stats.kstest(weights[:, 0], "beta", (alpha, alpha)).pvalue > 1e-3
    if width > 1:
        chains = weights[(weights[:, 0] < 0.99)]
        shares = chains[:, 1:] / chains[:, 1:].sum(axis=1, keepdims=True)
        for share in shares.T:
            assert stats.kstest(share, "beta", (alpha, (width - 1) * alpha)).pvalue > 1e-3


class Scripted(v2.AugMix):
    """torchvision's AugMix, with the weights and the operations of a program."""

    def __init__(self, steps: Program, row: int, width: int, depth: int) -> None:
        super().__init__(mixture_width=width, chain_depth=depth)
        image, *chains = steps.parameters[row, steps.ops[row] == Op.MIX_ADD, 0].tolist()
        self.weights = iter([torch.tensor([[image, 1.0]]), torch.tensor([chains])])  # it multiplies by the 1.0
        self.steps = iter(
            [(Op(op), values) for op, values in zip(steps.ops[row], steps.parameters[row]) if op < Op.MIX_BEGIN]
        )

    def _sample_dirichlet(self, params: torch.Tensor) -> torch.Tensor:
        return next(self.weights)

    def _apply_image_or_video_transform(self, image: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        op, values = next(self.steps)
        return run_step(op, values.tolist(), image[0])[None]


@pytest.mark.parametrize(("width", "depth"), [(1, 1), (3, 2), (4, 3)])
def test_a_mix_is_torchvisions(width: int, depth: int) -> None:
    steps = program(T.AugMix(5, width, depth), 5)
    for row in range(5):
        assert torch.equal(run_program(steps, row, IMAGE), Scripted(steps, row, width, depth)(IMAGE))


BLURS = (T.GaussianBlur(3), T.GaussianBlur(5), T.RandomInvert())


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0, None])
def test_random_apply_applies_all_or_nothing(p: float | None) -> None:
    transform = T.RandomApply(BLURS[:2]) if p is None else T.RandomApply(BLURS[:2], p)
    steps = program(transform)
    applied = steps.ops[:, 0] == Op.BLUR
    np.testing.assert_array_equal(applied, steps.ops[:, 1] == Op.BLUR)
    assert (steps.ops[~applied] == Op.IDENTITY).all()
    assert stats.binomtest(int(applied.sum()), 4000, 0.5 if p is None else p).pvalue > 1e-3


def test_transforms_of_one_kind_within_another_draw_by_themselves() -> None:
    sigmas = program(T.RandomApply(BLURS, 1.0)).parameters[:, :2, 0]
    assert abs(np.corrcoef(sigmas.T)[0, 1]) < 0.06
    for column in sigmas.T:
        assert stats.kstest(column, "uniform", (0.1, 1.9)).pvalue > 1e-3
    applied = program(T.RandomApply(BLURS, 0.5))  # what is applied does not depend on whether it is
    assert stats.binomtest(int((applied.ops[:, 2] == Op.INVERT).sum()), 4000, 0.25).pvalue > 1e-3


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        (None, {Op.GRAYSCALE: 1 / 3, Op.SOLARIZE: 1 / 3, Op.BLUR: 1 / 3}),
        ((1, 2, 5), {Op.GRAYSCALE: 1 / 8, Op.SOLARIZE: 2 / 8, Op.BLUR: 5 / 8}),
        ([0, 0.5, 0.5], {Op.SOLARIZE: 1 / 2, Op.BLUR: 1 / 2}),
        ((0, 0, 7), {Op.BLUR: 1}),
    ],
)
def test_random_choice_draws_by_weight(p: tuple[float, ...] | None, expected: dict[Op, float]) -> None:
    steps = program(T.RandomChoice([T.Grayscale(), T.RandomSolarize(99, 1.0), T.GaussianBlur(3)], p))  # type: ignore[arg-type]
    assert_drawn_as(expected, steps.ops[:, 0].tolist())
    assert steps.choices == (frozenset(expected),)


def test_random_choice_is_as_long_as_its_longest() -> None:
    steps = program(T.RandomChoice((T.Grayscale(), T.ColorJitter(0.1, 0.1, 0.1), T.RandAugment(2))))
    chosen = steps.ops[:, 0]
    assert steps.ops.shape == (4000, 3)
    assert (steps.ops[chosen == Op.GRAYSCALE, 1:] == Op.IDENTITY).all()
    assert steps.choices[2] == {Op.BRIGHTNESS, Op.CONTRAST, Op.SATURATION, Op.IDENTITY}


def test_transforms_nest_until_there_are_no_numbers_left() -> None:
    transform: PixelTransform = T.GaussianBlur(3)
    for _ in range(16):
        transform = T.RandomApply([transform])
    program(transform, 2)
    with pytest.raises(ConfigError, match="nest fewer transforms"):
        program(T.RandomApply([transform]), 2)


def test_aug_mix_has_numbers_for_many_long_chains() -> None:
    assert np.isfinite(program(T.AugMix(mixture_width=10, chain_depth=10, alpha=0.01), 50).parameters).all()
