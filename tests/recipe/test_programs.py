"""What holds of the program of every transform."""

import numpy as np
import pytest

from gpuloader import transforms as T
from gpuloader.plan import Draws, Stream
from gpuloader.recipe.model import PixelTransform
from gpuloader.recipe.program import PARAMETERS, Op, Program

COUNTS = {Op.WARP: 14, Op.BLUR: 2, Op.PERMUTE: 3} | dict.fromkeys(
    (Op.IDENTITY, Op.INVERT, Op.AUTOCONTRAST, Op.EQUALIZE, Op.GRAYSCALE, Op.MIX_BEGIN, Op.MIX_END), 0
)  # the others have 1
DRAWN = [
    *(T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomPhotometricDistort(), T.RandomGrayscale(), T.GaussianBlur(23)),
    *(T.RandomSolarize(128), T.RandomPosterize(4), T.RandomEqualize(), T.RandomAutocontrast(), T.RandomInvert()),
    *(T.RandomAdjustSharpness(2), T.RandomRotation(30), T.RandomAffine(30, (0.1, 0.1), (0.5, 1.5), 10)),
    *(T.RandomPerspective(), T.RandomPerspective(p=1.0)),
    *(T.AutoAugment("imagenet"), T.AutoAugment("cifar10"), T.AutoAugment("svhn"), T.RandAugment()),
    *(T.TrivialAugmentWide(), T.AugMix(), T.AugMix(chain_depth=2, all_ops=False, alpha=0.5)),
    T.RandomApply([T.ColorJitter(0.4, 0.4), T.RandAugment(1)], 0.8),
    T.RandomApply([T.RandomInvert(), T.Grayscale()], 1.0),
    T.RandomChoice([T.RandomInvert(), T.ColorJitter(0.1, 0.1), T.AugMix(mixture_width=1, chain_depth=1)], (1, 2, 0)),
    *(T.TimmRandAugment(), T.TimmRandAugment(prob=1.0, num_ops=1), T.TimmAutoAugment(), T.TimmAutoAugment("v0", 0.5)),
    *(T.ThreeAugment(), T.ThreeAugment(0.0)),
]
FIXED = [
    *(T.ColorJitter(), T.Grayscale(), T.RandomInvert(0.0), T.RandomInvert(1.0), T.RandAugment(0)),
    *(T.RandomApply([T.RandomInvert(), T.Grayscale()], 0.0), T.TimmRandAugment(prob=0.0)),
]
everything = pytest.mark.parametrize("transform", DRAWN + FIXED, ids=lambda transform: type(transform).__name__)


SIZE = np.array([[64, 48]])


def program(transform: PixelTransform, ids: np.ndarray, epoch: int = 1, sizes: np.ndarray = SIZE) -> Program:
    return transform.program(Draws(3, epoch, ids).of(transform.stream), sizes)


@everything
def test_each_step_is_one_of_its_choices_and_each_choice_is_drawn(transform: PixelTransform) -> None:
    steps = program(transform, np.arange(3000))
    assert [set(column.tolist()) for column in steps.ops.T] == [set(choices) for choices in steps.choices]


@everything
def test_arrays_are_as_said(transform: PixelTransform) -> None:
    steps = program(transform, np.arange(1000))
    k = transform.steps  # which is known before
    assert len(steps.choices) == k
    assert len(program(transform, np.arange(0)).ops) == 0
    assert steps.ops.shape == (1000, k)
    assert steps.parameters.shape == (1000, k, PARAMETERS)
    assert (steps.ops.dtype, steps.parameters.dtype) == (np.int32, np.float32)
    assert np.isfinite(steps.parameters).all()
    for op in Op:
        assert not steps.parameters[steps.ops == op][:, COUNTS.get(op, 1) :].any() or op == Op.IDENTITY


@everything
def test_a_sample_draws_the_same_alone_and_among_others(transform: PixelTransform) -> None:
    ids = np.array([9_000_000_000, *range(200)])
    together = program(transform, ids)
    for some in (slice(0, 1), slice(5, 6), slice(7, 19), slice(73, 201)):
        alone = program(transform, ids[some])
        np.testing.assert_array_equal(alone.ops, together.ops[some])
        np.testing.assert_array_equal(alone.parameters, together.parameters[some])


@pytest.mark.parametrize("transform", DRAWN, ids=lambda transform: type(transform).__name__)
def test_another_epoch_and_another_stream_draw_other_numbers(transform: PixelTransform) -> None:
    ids = np.arange(200)
    one, other = program(transform, ids), program(transform, ids, epoch=2)
    third = transform.program(Draws(3, 1, ids).of(Stream.ORDER), SIZE)
    assert one.choices == other.choices == third.choices  # a graph is made once
    for steps in (other, third):
        assert not (np.array_equal(one.ops, steps.ops) and np.array_equal(one.parameters, steps.parameters))


@everything
def test_images_of_several_sizes_get_what_those_of_one_size_get(transform: PixelTransform) -> None:
    ids, sizes = np.arange(200), np.array([[64, 48], [30, 70], [31, 71], [64, 48]] * 50)
    together, alike = program(transform, ids, sizes=sizes), program(transform, ids, sizes=SIZE.repeat(200, axis=0))
    for row, size in enumerate(sizes):
        alone = program(transform, ids[row : row + 1], sizes=size[None])
        np.testing.assert_array_equal(alone.ops[0], together.ops[row])
        np.testing.assert_array_equal(alone.parameters[0], together.parameters[row])
    np.testing.assert_array_equal(alike.parameters, program(transform, ids).parameters)
