"""Transforms that move pixels: torchvision's matrices and the ranges it draws from."""

import numpy as np
import pytest
import torch
from oracle import functional, transforms
from reference import run_program
from scipy import stats

from gpuloader import transforms as T
from gpuloader.plan import Draws
from gpuloader.recipe.model import PixelTransform
from gpuloader.recipe.program import BICUBIC, BILINEAR, NEAREST, Op, Program
from gpuloader.recipe.warps import affine, mirror, perspective, rotation, shear, translate, warp

v2 = transforms.v2
HEIGHT, WIDTH = 24, 37  # not square, and one side odd
SIZES = np.array([[HEIGHT, WIDTH]])
IMAGE = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, HEIGHT, WIDTH), np.uint8))
MIDDLE = (WIDTH / 2, HEIGHT / 2)
FILL = (124.0, 116.0, 104.0)


def program(transform: PixelTransform, count: int = 4000) -> Program:
    return transform.program(Draws(3, 1, np.arange(count)).of(transform.stream), SIZES)


def matrices(transform: PixelTransform) -> np.ndarray:
    return program(transform).parameters[:, 0, :9].reshape(-1, 3, 3).astype(float)


def moved(matrix: np.ndarray, interpolation: int = BILINEAR) -> torch.Tensor:
    return run_program(warp(matrix, interpolation, FILL), 0, IMAGE)


def assert_within_1_level(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """torchvision finds the places in float32, the reference in float64."""
    assert (ours.int() - theirs.int()).abs().max() <= 1


@pytest.mark.parametrize("center", [None, (0.0, 0.0), (5.5, 30.0)])
@pytest.mark.parametrize("degrees", [0.0, 33.3, -120.0, 90.0, 180.0, 400.0])
def test_rotation_is_torchvisions(degrees: float, center: tuple[float, float] | None) -> None:
    theirs = functional.rotate(IMAGE, degrees, "bilinear", center=center, fill=FILL)
    if center is None and degrees == 180:  # torchvision turns the array, and so leaves the edge as it is
        assert torch.equal(moved(rotation(degrees, MIDDLE), NEAREST), theirs)
    else:
        assert_within_1_level(moved(rotation(degrees, center or MIDDLE)), theirs)


@pytest.mark.parametrize("center", [None, (3.0, 40.0)])
@pytest.mark.parametrize(
    ("degrees", "move", "scale", "shears"),
    [
        (0.0, (0, 0), 1.0, (0.0, 0.0)),
        (20.0, (0, 0), 1.0, (0.0, 0.0)),
        (0.0, (5, -3), 1.0, (0.0, 0.0)),
        (0.0, (0, 0), 0.5, (0.0, 0.0)),
        (0.0, (0, 0), 1.0, (25.0, 0.0)),
        (0.0, (0, 0), 1.0, (0.0, -40.0)),
        (-130.0, (-7, 4), 1.7, (31.0, 12.0)),
    ],
)
def test_affine_is_torchvisions(
    degrees: float, move: tuple[int, int], scale: float, shears: tuple[float, float], center: tuple[float, float] | None
) -> None:
    theirs = functional.affine(IMAGE, degrees, move, scale, shears, "bilinear", FILL, center)
    assert_within_1_level(moved(affine(degrees, move, scale, shears, center or MIDDLE)), theirs)


@pytest.mark.parametrize(
    "corners",
    [
        [[0, 0], [36, 0], [36, 23], [0, 23]],
        [[3, 5], [30, 1], [33, 20], [8, 13]],
        [[36, 0], [0, 0], [0, 23], [36, 23]],  # mirrored
    ],
)
def test_perspective_is_torchvisions(corners: list[list[int]]) -> None:
    old = [[0, 0], [WIDTH - 1, 0], [WIDTH - 1, HEIGHT - 1], [0, HEIGHT - 1]]
    theirs = functional.perspective(IMAGE, old, corners, "bilinear", FILL)
    assert_within_1_level(moved(perspective(np.array([corners], float), SIZES)), theirs)


@pytest.mark.parametrize(
    ("corners", "size"),
    [([[0, 0], [10, 10], [20, 20], [0, 23]], (HEIGHT, WIDTH)), ([[0, 0], [9, 0], [9, 0], [0, 0]], (1, 10))],
)
def test_a_picture_without_a_perspective_stays_and_the_others_do_not_mind(
    corners: list[list[int]], size: tuple[int, int]
) -> None:
    other = [[3, 5], [30, 1], [33, 20], [8, 13]]
    both = perspective(np.array([corners, other], float), np.array([size]))
    np.testing.assert_array_equal(both[0], np.eye(3))
    np.testing.assert_array_equal(both[1:], perspective(np.array([other], float), np.array([size])))


@pytest.mark.parametrize("interpolation", [NEAREST, BILINEAR, BICUBIC])
def test_flips_are_exact(interpolation: int) -> None:
    flips = warp(mirror([False, True, False, True], [False, False, True, True], SIZES), interpolation, FILL)
    for row, dims in enumerate([(), (2,), (1,), (1, 2)]):
        assert torch.equal(run_program(flips, row, IMAGE), IMAGE.flip(dims))


def test_a_shear_takes_pixels_from_further_on_in_each_row() -> None:
    ours = moved(shear(2.0, 0.0), NEAREST)
    for row in range(10):
        assert torch.equal(ours[:, row, : WIDTH - 2 * row - 1], IMAGE[:, row, 2 * row + 1 :])


def test_a_step_holds_the_matrix_the_interpolation_and_the_fill() -> None:
    steps = warp(translate([1.0, 2.0], 0), [NEAREST, BICUBIC], 7.0)
    assert steps.ops.tolist() == [[Op.WARP], [Op.WARP]]
    assert steps.parameters[1, 0].tolist() == [1, 0, -2, 0, 1, 0, 0, 0, 1, BICUBIC, 7, 7, 7, 1]
    assert warp(translate([1.0], 0), NEAREST, FILL).parameters[0, 0, 9:].tolist() == [NEAREST, *FILL, 1]
    assert warp(translate([1.0], 0), NEAREST, None).parameters[0, 0, 9:].tolist() == [NEAREST, 0, 0, 0, 0]


def degrees_of(drawn: np.ndarray) -> np.ndarray:
    """Counter-clockwise."""
    return np.degrees(np.arctan2(-drawn[:, 0, 1], drawn[:, 0, 0]))


def move_of(drawn: np.ndarray) -> np.ndarray:
    """Of the middle."""
    middle = np.array([*MIDDLE, 1.0])
    return np.linalg.solve(drawn, np.broadcast_to(middle[:, None], (len(drawn), 3, 1)))[:, :2, 0] - middle[:2]


@pytest.mark.parametrize(("degrees", "low", "high"), [(30, -30, 30), ((-10.0, 80.0), -10, 80)])
def test_rotations_are_even_over_torchvisions_range(
    degrees: float | tuple[float, float], low: float, high: float
) -> None:
    drawn = degrees_of(matrices(T.RandomRotation(degrees)))
    assert stats.kstest(drawn, "uniform", (low, high - low)).pvalue > 1e-3


def test_affine_parameters_are_even_over_torchvisions_ranges() -> None:
    degrees = -degrees_of(matrices(T.RandomAffine((-20.0, 50.0))))  # clockwise here
    assert stats.kstest(degrees, "uniform", (-20, 70)).pvalue > 1e-3
    scale = 1 / matrices(T.RandomAffine(0, scale=(0.5, 2.0)))[:, 0, 0]
    assert stats.kstest(scale, "uniform", (0.5, 1.5)).pvalue > 1e-3


@pytest.mark.parametrize(
    ("shears", "x", "y"),
    [(20, (-20, 20), (0, 0)), ((5, 10), (5, 10), (0, 0)), ((5, 10, -30, -20), (5, 10), (-30, -20))],
)
def test_shears_are_even_over_torchvisions_ranges(
    shears: float | tuple[float, ...], x: tuple[float, float], y: tuple[float, float]
) -> None:
    """The inverse of a shear by x, then by y, is [[1, tan x], [tan y, 1 + tan x tan y]]."""
    drawn = matrices(T.RandomAffine(0, shear=shears))  # type: ignore[arg-type]
    for values, (low, high) in ((drawn[:, 0, 1], x), (drawn[:, 1, 0], y)):
        degrees = np.degrees(np.arctan(values))
        if low < high:
            assert stats.kstest(degrees, "uniform", (low, high - low)).pvalue > 1e-3
        else:
            assert np.abs(degrees).max() < 1e-6


def test_moves_are_whole_pixels_as_often_as_torchvisions() -> None:
    drawn = move_of(matrices(T.RandomAffine(0, (0.1, 0.2))))
    assert np.abs(drawn - np.rint(drawn)).max() < 1e-5
    for moves, reach in ((drawn[:, 0], 0.1 * WIDTH), (drawn[:, 1], 0.2 * HEIGHT)):
        places, counts = np.unique(np.rint(moves), return_counts=True)
        edges = np.clip(np.array([places - 0.5, places + 0.5]), -reach, reach)  # what rounds to that place
        assert stats.chisquare(counts, (edges[1] - edges[0]) / (2 * reach) * len(drawn)).pvalue > 1e-3


@pytest.mark.parametrize(
    "transform",
    [
        T.RandomAffine((10, 10), (0.0, 0.0), (0.8, 0.8), (5, 5, 7, 7), "bilinear", FILL, (3.0, 4.0)),
        T.RandomAffine((-25, -25), None, (1.3, 1.3), None, "bilinear", 9),
        T.RandomRotation((33, 33), "bilinear", (1.0, 2.0), FILL),
        T.RandomRotation((-200, -200), "bilinear"),
    ],
)
def test_a_transform_with_nothing_left_to_draw_is_torchvisions(transform: T.RandomAffine | T.RandomRotation) -> None:
    theirs = getattr(v2, type(transform).__name__)(**{name: getattr(transform, name) for name in vars(transform)})
    assert_within_1_level(run_program(program(transform, 2), 1, IMAGE), theirs(IMAGE))


@pytest.mark.parametrize("scale", [0.0, 0.3, 0.5, 0.99])
def test_corners_are_drawn_from_torchvisions_whole_pixels(scale: float) -> None:
    old = np.array([(0, 0, 1), (WIDTH - 1, 0, 1), (WIDTH - 1, HEIGHT - 1, 1), (0, HEIGHT - 1, 1)], float)
    found = np.linalg.solve(matrices(T.RandomPerspective(scale, p=1.0))[:, None], old[..., None])[..., 0]
    corners = found[..., :2] / found[..., 2:]
    assert np.abs(corners - np.rint(corners)).max() < 1e-2
    for values, length in ((corners[..., 0], WIDTH), (corners[..., 1], HEIGHT)):
        reach = int(scale * (length // 2)) + 1
        for number in range(4):
            near = (number in (0, 3)) if length == WIDTH else number < 2
            places, counts = np.unique(np.rint(values[:, number]), return_counts=True)
            assert places.tolist() == list(range(reach) if near else range(length - reach, length))
            assert reach == 1 or stats.chisquare(counts).pvalue > 1e-3


def test_corners_may_meet_in_the_middle() -> None:
    assert np.isfinite(program(T.RandomPerspective(1.0, p=1.0)).parameters).all()
    small = T.RandomPerspective(1.0, p=1.0).program(
        Draws(0, 0, np.arange(4000)).of(T.RandomPerspective.stream), np.array([[3, 3]])
    )
    kept = (small.parameters[:, 0, :9] == np.eye(3, dtype=np.float32).ravel()).all(axis=1)
    assert 0 < kept.sum() < 4000  # of 3 x 3 pixels some are drawn on one line


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_perspective_is_done_as_often_as_said(p: float) -> None:
    applied = int((program(T.RandomPerspective(p=p)).ops == Op.WARP).sum())
    assert stats.binomtest(applied, 4000, p).pvalue > 1e-3


def test_the_middle_of_an_image_is_where_a_turn_leaves_it() -> None:
    turned = matrices(T.RandomRotation(180)) @ np.array([*MIDDLE, 1])
    np.testing.assert_allclose(turned, np.broadcast_to([*MIDDLE, 1], turned.shape), atol=1e-4)
    corner = matrices(T.RandomRotation(180, center=(0.0, 0.0))) @ np.array([0, 0, 1])
    np.testing.assert_allclose(corner, np.broadcast_to([0, 0, 1], corner.shape), atol=1e-4)
