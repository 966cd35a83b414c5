"""Targets move as torchvision's functions move them, with the parameters that were drawn."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import functional as F
from oracle import torchvision
from PIL import Image

from gpuloader import Compose
from gpuloader import transforms as T
from gpuloader.errors import ConfigError
from gpuloader.plan import Draws
from gpuloader.recipe import Recipe, ViewParams
from gpuloader.recipe.auto_augment import POLICIES
from gpuloader.recipe.crops import Padding, random_windows
from gpuloader.recipe.model import Transform
from gpuloader.recipe.placement import Placement, sides
from gpuloader.recipe.program import Program
from gpuloader.recipe.target_transforms import are_inside, move_boxes, move_mask, move_points
from gpuloader.targets.target import check_recipe_moves

pytestmark = pytest.mark.usefixtures("torch_in_one_thread")

v2 = torchvision.transforms.v2
tv = torchvision.tv_tensors
SIZES = [(24, 37), (40, 31), (16, 16), (50, 60)]  # height, width; each side of several crops is larger and smaller
Call = Callable[[Any], Any]


# --- the oracle: torchvision's functions, with the numbers that the documentation of each transform says it draws


def calls(transform: Transform, draws: Draws, occurrence: int, view: int, height: int, width: int) -> list[Call]:
    """What torchvision does with a picture of this size, its boxes, points and mask."""
    draw = draws.of(transform.stream, occurrence, view)
    match transform:
        case T.Resize(pad=None):
            size = [transform.size] if isinstance(transform.size, int) else [*transform.size]
            return [lambda each: F.resize(each, size, max_size=transform.max_size)]
        case T.Resize():
            within = sides(transform.size)
            h, w = (max(round(side * min(within[0] / height, within[1] / width)), 1) for side in (height, width))
            down, across = within[0] - h, within[1] - w
            around = across // 2, down // 2, across - across // 2, down - down // 2
            return [lambda each: F.resize(each, [h, w]), padded(around)]
        case T.SmartResize() | T.ResizeToSequence():
            [fitted] = transform.fit(np.array([[height, width]])).tolist()
            return [lambda each: F.resize(each, fitted)]
        case T.ScaleJitter():
            fits = min(transform.target_size[1] / height, transform.target_size[0] / width)
            scale = fits * (transform.scale_range[0] + draw(1)[0, 0] * np.diff(transform.scale_range)[0])
            return [scaled(scale, height, width)]
        case T.RandomShortestSize():
            assert not isinstance(transform.min_size, int)
            shorter = transform.min_size[int(draw(1)[0, 0] * len(transform.min_size))]
            most = math.inf if transform.max_size is None else transform.max_size
            return [scaled(min(shorter / min(height, width), most / max(height, width)), height, width)]
        case T.RandomResize():
            shorter = transform.min_size + int(draw(1)[0, 0] * (transform.max_size - transform.min_size))
            return [lambda each: F.resize(each, [shorter])]
        case T.RandomSizeCrop():
            applied, which, *numbers = draw(6)[0]
            shorter = transform.sizes[int(which * len(transform.sizes))]
            height, width = F.resize(torch.empty(1, height, width), [shorter]).shape[1:]
            bounds = [[min(b, side) for b in (transform.min_size, transform.max_size)] for side in (height, width)]
            h, w = (low + int(u * (high - low + 1)) for u, (low, high) in zip(numbers, bounds))
            y, x = (int(u * (room + 1)) for u, room in zip(numbers[2:], (height - h, width - w)))
            return [lambda each: F.resize(each, [shorter]), cropped(y, x, h, w)] if applied < transform.p else []
        case T.RandomZoomOut():
            applied, ratio, y, x = draw(4)[0]
            ratio = transform.side_range[0] + ratio * np.diff(transform.side_range)[0]
            down, across = int(height * ratio) - height, int(width * ratio) - width
            top, left = int(down * y), int(across * x)
            return [padded((left, top, across - left, down - top))] if applied < transform.p else []
        case T.RandomResizedCrop():
            window = random_windows(draw, np.array([[height, width]]), transform.scale, transform.ratio)[0].tolist()
            return [lambda each: F.resized_crop(each, *window, [*sides(transform.size)])]
        case T.CenterCrop():
            h, w = sides(transform.size)
            more = max(h - height, 0), max(w - width, 0)
            return [
                padded((more[1] // 2, more[0] // 2, (more[1] + 1) // 2, (more[0] + 1) // 2)),
                cropped(round((height + more[0] - h) / 2), round((width + more[1] - w) / 2), h, w),
            ]
        case T.RandomCrop():
            (h, w), (left, top, right, bottom) = sides(transform.size), four(transform.padding)
            height, width = height + top + bottom, width + left + right
            down, across = max(h - height, 0), max(w - width, 0)
            y, x = np.floor(draw(2)[0] * [height + 2 * down - h + 1, width + 2 * across - w + 1]).astype(int).tolist()
            around = left + across, top + down, right + across, bottom + down
            return [padded(around, transform.padding_mode), cropped(y, x, h, w)]
        case T.Pad():
            return [padded(four(transform.padding), transform.padding_mode)]
        case T.RandomVerticalFlip():
            return [F.vertical_flip] * bool(draw(1)[0, 0] < transform.p)
        case T.RandomHorizontalFlip():
            return [F.horizontal_flip] * bool(draw(1)[0, 0] < transform.p)
        case T.FixedSizeCrop():
            h, w = sides(transform.size)
            share, shown = draw(1)[0, 0], (min(height, h), min(width, w))
            cut = [cropped(int((height - shown[0]) * share), int((width - shown[1]) * share), *shown)]
            return [*cut * (shown != (height, width)), padded((0, 0, w - shown[1], h - shown[0]))]
        case T.PadIfSmaller():
            h, w = sides(transform.size)
            return [padded((0, 0, max(w - width, 0), max(h - height, 0)))]
        case T.CornerCrop():
            h, w = sides(transform.size)
            y, x = (height - h) * ("bottom" in transform.corner), (width - w) * ("right" in transform.corner)
            return [cropped(y, x, h, w)]
        case T.RandomRotation():
            low, high = transform.degrees
            angle = low + draw(1)[0, 0] * (high - low)
            return [lambda each: F.rotate(each, angle, center=transform.center)]
        case T.RandomAffine():
            values = draw(6)[0]
            spread = [width * transform.translate[0], height * transform.translate[1]]
            move = [round(2 * value * most - most) for value, most in zip(values[1:3], spread)]
            limits = [transform.degrees, transform.scale, transform.shear[:2], transform.shear[2:]]
            angle, scale, *shear = (low + u * (high - low) for u, (low, high) in zip(values[[0, 3, 4, 5]], limits))
            return [lambda each: F.affine(each, angle, move, scale, shear, center=transform.center)]
        case T.RandomPerspective():
            values = draw(9)[0]
            old = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
            reach = [int(transform.distortion_scale * (side // 2)) for side in (width, height)]
            inwards = np.floor(values[1:].reshape(4, 2) * (np.array(reach) + 1)).astype(int).tolist()
            new = [
                [
                    by if at == 0 else side - 1 - most + by
                    for at, by, side, most in zip(corner, inward, (width, height), reach)
                ]
                for corner, inward in zip(old, inwards)
            ]
            return [lambda each: F.perspective(each, old, new)] * bool(values[0] < transform.p)
        case T.RandAugment():
            space, drawn = v2.RandAugment._AUGMENTATION_SPACE, draw(2 * transform.num_ops)[0].reshape(-1, 2)
            return [
                operation(
                    space, name_of(space, which), transform.num_magnitude_bins, transform.magnitude, sign, height, width
                )
                for which, sign in drawn
            ]
        case T.TrivialAugmentWide():
            space, (which, magnitude, sign) = v2.TrivialAugmentWide._AUGMENTATION_SPACE, draw(3)[0]
            bins = transform.num_magnitude_bins
            return [operation(space, name_of(space, which), bins, int(magnitude * bins), sign, height, width)]
        case T.AutoAugment():
            space, (which, *numbers) = v2.AutoAugment._AUGMENTATION_SPACE, draw(5)[0]
            pair = POLICIES[transform.policy][int(which * 25)]
            return [
                operation(space, name, 10, magnitude or 0, sign, height, width)
                for (name, p, magnitude), applied, sign in zip(pair, numbers[::2], numbers[1::2])
                if applied < p
            ]
    assert isinstance(transform, (T.ColorJitter, T.RandomErasing, T.Normalize)), transform
    return []


def name_of(space: dict[str, Any], uniform: float) -> str:
    return list(space)[int(uniform * len(space))]


def operation(
    space: dict[str, Any], name: str, bins: int, magnitude: int, sign: float, height: int, width: int
) -> Call:
    """What torchvision's policies do with an image, as its functions of boxes."""
    magnitudes, signed = space[name]
    values = magnitudes(bins, height, width)
    value = 0.0 if values is None else float(values[magnitude]) * (-1 if signed and sign < 0.5 else 1)
    degrees = math.degrees(math.atan(value))
    done: dict[str, Call] = {
        "ShearX": lambda each: F.affine(each, 0.0, [0, 0], 1.0, [degrees, 0.0], center=[0, 0]),
        "ShearY": lambda each: F.affine(each, 0.0, [0, 0], 1.0, [0.0, degrees], center=[0, 0]),
        "TranslateX": lambda each: F.affine(each, 0.0, [int(value), 0], 1.0, [0.0, 0.0]),
        "TranslateY": lambda each: F.affine(each, 0.0, [0, int(value)], 1.0, [0.0, 0.0]),
        "Rotate": lambda each: F.rotate(each, value),
    }
    return done.get(name, lambda each: each)


def four(padding: Padding) -> tuple[int, int, int, int]:
    if isinstance(padding, int):
        return padding, padding, padding, padding
    left, top, right, bottom = padding if len(padding) == 4 else (*padding, *padding)
    return left, top, right, bottom


def padded(around: tuple[int, int, int, int], mode: str = "constant") -> Call:
    """Pads; not by 0, which cuts boxes too, and which torchvision's own transforms leave out."""
    return lambda each: F.pad(each, [*around], padding_mode=mode) if any(around) else each


def scaled(scale: float, height: int, width: int) -> Call:
    size = [max(int(height * scale), 1), max(int(width * scale), 1)]
    return lambda each: F.resize(each, size)


def cropped(top: int, left: int, height: int, width: int) -> Call:
    return lambda each: F.crop(each, top, left, height, width)


def moved_by_torchvision(things: Sequence[Any], view: int, transforms: Sequence[Transform], row: int) -> list[Any]:
    seen: Counter[int] = Counter()
    for transform in transforms:
        occurrence = seen[transform.stream]
        seen[transform.stream] += 1
        for call in calls(transform, Draws(7, 0, np.array([row])), occurrence, view, *F.get_size(things[-1])):
            things = [call(each) for each in things]
    return list(things)


# --- the comparison


def targets_in(height: int, width: int, seed: int, beyond: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Boxes, points, and a mask whose pixels all differ; the boxes may begin and end outside of the picture."""
    rng, size = np.random.default_rng(seed), np.array([width, height])
    corners = np.sort(rng.uniform(-beyond, 1 + beyond, (4, 2, 2)), 1) * size
    boxes = np.concatenate([corners.reshape(4, 4), [[0, 0, width, height], [3, 1, 3, 5]]])
    points = np.concatenate([rng.uniform(0, 1, (4, 2)) * size, [[0, 0], [width - 1, height - 1]]])
    return boxes, points, np.arange(1, height * width + 1, dtype=np.int32).reshape(height, width)


def assert_moves_as_torchvision(
    recipe: Recipe, sizes: Sequence[tuple[int, int]], ties: float = 0.0, beyond: float = 0.0
) -> None:
    """Compares all samples and views; a share of `ties` of a mask's pixels may differ."""
    params = recipe.draw(Draws(7, 0, np.arange(len(sizes))), np.array(sizes))
    targets = [targets_in(*size, row, beyond) for row, size in enumerate(sizes)]
    rows = np.repeat(np.arange(len(sizes)), 6)
    for plan, view in zip(recipe.each_view, params.views):
        transforms = [*plan.placing, *plan.pixels]
        boxes = move_boxes(np.concatenate([boxes for boxes, _, _ in targets]), rows, view)
        points, _ = move_points(np.concatenate([points for _, points, _ in targets]), rows, view)
        for row, size in enumerate(sizes):
            box, point, mask = (torch.from_numpy(each) for each in targets[row])
            things = [tv.BoundingBoxes(box, format="XYXY", canvas_size=size), tv.KeyPoints(point, canvas_size=size)]
            if plan.how_placed.repeats:  # torchvision refuses boxes and points there
                things.clear()
            *others, expected = moved_by_torchvision([*things, tv.Mask(mask)], plan.number, transforms, row)
            for ours, other in zip((boxes, points), others):
                mine, far = ours[rows == row], np.abs(other.numpy()).max(1, keepdims=True, initial=0) > 1000
                # torchvision computes in float32, which is not enough near the horizon of a perspective
                np.testing.assert_allclose(np.where(far, 0, mine), np.where(far, 0, other.numpy()), atol=1e-3, rtol=0)
            moved = move_mask(targets[row][2], row, view, 0)
            assert moved.shape == view.shape
            assert moved.dtype == np.int32
            assert (moved != expected.numpy()).mean() <= ties, (transforms, row)


FULL_AFFINE = T.RandomAffine((-30, 60), (0.2, 0.3), (0.6, 1.5), (-20, 10, -5, 15))


@pytest.mark.parametrize(
    "transforms",
    [
        [T.Resize(20, max_size=25), T.CenterCrop(20)],
        [T.Resize((40, 30), pad=9), T.RandomHorizontalFlip()],
        [T.Resize((10, 1)), T.Resize((4, 5), pad=0)],  # less than half a pixel wide, so one
        [T.ScaleJitter((40, 50), (0.3, 1.5)), T.RandomCrop((33, 30))],
        [T.RandomResize(10, 50), T.RandomHorizontalFlip(), T.RandomCrop(25)],
        [
            T.RandomHorizontalFlip(),
            T.RandomSizeCrop(12, 30, [20, 33]),
            T.RandomShortestSize([30, 40]),
            T.CenterCrop(28),
        ],
        [T.Resize(25), T.Resize((33, 17))],  # two resizes of a mask are not one
        [T.ScaleJitter((40, 50), (0.3, 1.5)), T.FixedSizeCrop((33, 30)), T.RandomHorizontalFlip()],  # as with "lsj"
        [
            T.RandomResize(10, 50),
            T.RandomHorizontalFlip(),
            T.PadIfSmaller(25),
            T.RandomCrop(25),
        ],  # as the segmentation's
        [T.FixedSizeCrop((40, 31)), T.FixedSizeCrop((45, 20))],  # of these sizes, or smaller and larger
        [T.RandomResizedCrop((22, 28))],
        [T.CenterCrop((41, 62))],  # larger, by an odd number on some sides
        [T.RandomCrop((30, 33), padding=(1, 2, 3, 4))],
        [T.RandomResizedCrop(24, scale=(1, 1), ratio=(0.3, 3))],  # of the whole picture
        [T.RandomZoomOut(side_range=(1.2, 3)), T.Resize((30, 20))],  # in half of the pictures
        [T.RandomHorizontalFlip(1), T.RandomCrop(15), T.Resize((30, 29)), T.CornerCrop(13, "top left")],
        [T.FiveCrop((12, 16))],
        [T.RandomHorizontalFlip(), T.TenCrop(14, vertical_flip=True)],
        [T.Resize((30, 40)), T.ColorJitter(0.4), T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.RandomErasing(1)],
        [T.RandomCrop((14, 13), 3, padding_mode="edge"), T.RandomHorizontalFlip()],
        [T.Pad(7, padding_mode="reflect"), T.Resize((31, 47))],
        [T.Pad((3, 2), padding_mode="symmetric"), T.CenterCrop(17)],
    ],
    ids=str,
)
def test_placing_moves_targets_as_torchvision_does(transforms: list[Transform]) -> None:
    assert_moves_as_torchvision(Recipe(transforms), SIZES, beyond=0.3)


def test_masks_are_resized_with_the_roundings_of_float32() -> None:
    assert_moves_as_torchvision(Recipe([T.Resize((224, 49))]), [(62, 119), (124, 119), (76, 64)])


@pytest.mark.parametrize("size", [(7, 12), (24, 31), (64, 50), (130, 224)])
def test_a_resize_may_take_the_pixel_under_the_centre_as_torch_and_pil_do(size: tuple[int, int]) -> None:
    for height, width in (*SIZES, (119, 95), (375, 251)):
        mask = np.arange(1, height * width + 1, dtype=np.int32).reshape(height, width)
        [view] = Recipe([T.Resize(size)]).draw(Draws(7, 0, np.arange(1)), np.array([[height, width]])).views
        moved = move_mask(mask, 0, view, 0, exact=True)
        picture = torch.from_numpy(mask).double()[None, None]
        expected = torch.nn.functional.interpolate(picture, size, mode="nearest-exact")[0, 0]
        np.testing.assert_array_equal(moved, expected)
        if height % 2 and width % 2:  # otherwise centres lie between two pixels, and PIL adds up roundings
            by_pil = Image.fromarray(mask).resize(size[::-1], Image.Resampling.NEAREST)
            np.testing.assert_array_equal(moved, by_pil)


def test_each_view_moves_targets_by_itself() -> None:
    views = (
        T.View([T.RandomResizedCrop((22, 28)), T.RandomHorizontalFlip()], 2),
        T.View([T.CenterCrop(30), FULL_AFFINE]),
    )
    assert_moves_as_torchvision(Recipe(views=views), SIZES, ties=0.02)


@pytest.mark.parametrize(
    "transforms",
    [
        [T.RandomRotation((30, 30), center=(3, 40))],
        [T.RandomAffine((0, 0), (0, 0), (0.5, 2), (0, 0, 0, 0))],
        [T.RandomAffine((0, 0), (0, 0), (1, 1), (-40, 40, 0, 0))],
        [T.RandomAffine((-170, 170), (0.1, 0.2), (0.7, 1.4), (-30, 30, -20, 20), center=(5, 6))],
        [FULL_AFFINE, T.RandomHorizontalFlip(), T.RandomRotation((-45, 45)), T.RandomVerticalFlip()],
        [T.RandomPerspective(0.5, 1.0)],
        [T.RandomPerspective(0.9, 0.5), T.ColorJitter(0.3), T.RandomHorizontalFlip(1)],
        [T.RandAugment(3, 20)],
        [T.TrivialAugmentWide()],
        *([T.AutoAugment(policy)] for policy in POLICIES),
    ],
    ids=str,
)
def test_warps_move_targets_as_torchvision_does(transforms: list[Transform]) -> None:
    """torchvision finds a mask's pixels by other roundings, so that a few that are equally near may differ."""
    assert_moves_as_torchvision(Recipe([T.RandomResizedCrop((44, 38)), *transforms]), SIZES * 3, ties=0.02)


SIDES = st.integers(5, 50)
PAIRS = st.tuples(SIDES, SIDES)
PLACING = st.one_of(
    st.builds(T.Resize, SIDES | PAIRS),
    st.builds(T.RandomResizedCrop, PAIRS, st.just((0.2, 1.0))),
    st.builds(T.CenterCrop, PAIRS),
    st.builds(T.RandomCrop, PAIRS, st.integers(0, 4)),
    st.builds(T.Resize, PAIRS, pad=st.just(0)),
    st.builds(T.RandomZoomOut, side_range=st.just((1.0, 2.0))),
    st.builds(T.SmartResize, st.integers(3, 9), st.just(100), st.just(1600)),
    st.builds(T.ResizeToSequence, st.integers(3, 9), st.integers(9, 49)),
    st.builds(T.ScaleJitter, PAIRS, st.just((0.3, 1.5))),
    st.builds(T.RandomShortestSize, st.lists(SIDES, min_size=1, max_size=3), st.none() | SIDES),
    st.builds(T.RandomSizeCrop, st.integers(5, 20), st.integers(20, 40), st.lists(SIDES, min_size=1, max_size=3)),
    st.builds(T.Pad, st.tuples(*[st.integers(0, 9)] * 4)),
    st.builds(T.RandomHorizontalFlip),
    st.builds(T.RandomVerticalFlip),
)
WARPING = st.sampled_from(
    [
        FULL_AFFINE,
        T.RandomRotation((-20, 90)),
        T.RandomPerspective(0.4),
        T.RandomHorizontalFlip(),
        T.RandomVerticalFlip(),
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(PLACING, max_size=6), PAIRS, st.lists(WARPING, max_size=3), st.lists(PAIRS, min_size=1, max_size=3))
def test_chains_move_targets_as_torchvision_does(
    placing: list[Transform], last: tuple[int, int], warps: list[Transform], sizes: list[tuple[int, int]]
) -> None:
    changing = [T.ColorJitter(0.1), *warps] if warps else []
    assert_moves_as_torchvision(Recipe([*placing, T.CenterCrop(last), *changing]), sizes, ties=0.1 if warps else 0.0)


# --- the pixels themselves


def picture_of(mask: np.ndarray) -> np.ndarray:
    return np.repeat(mask[:, :, None].astype(np.uint8), 3, 2)


def test_masks_move_bit_for_bit_as_the_graph_moves_pixels_to_the_nearest() -> None:
    warps = [
        FULL_AFFINE,
        T.RandomHorizontalFlip(),
        T.RandomRotation((90, 90)),
        T.RandomPerspective(0.5, 0.5, "nearest"),
    ]
    compose = Compose(
        [T.RandomCrop((45, 38), 3), T.RandomVerticalFlip(), T.RandomApply(warps[:1]), *warps], dtype="uint8"
    )
    masks = [np.random.default_rng(row).integers(1, 256, SIZES[row % 4]) for row in range(12)]
    pictures = compose([picture_of(mask) for mask in masks], seed=7)
    [view] = compose.draw(Draws(7, 0, np.arange(12)), np.array([mask.shape for mask in masks])).views
    for row, mask in enumerate(masks):
        np.testing.assert_array_equal(move_mask(mask, row, view, 0), pictures[row, 0].numpy())


# --- turned pictures


@pytest.mark.parametrize("orientation", range(1, 9))
def test_targets_of_turned_pictures_move(orientation: int) -> None:
    at = Placement.whole(np.array([[5, 7]] * 2)).orient(np.array([1, orientation]))
    placements = [at, at.crop(np.array([[1, 1]]), np.array([[3, 4]]))]
    placements.append(placements[-1].flip(1, np.array([True, True])))
    view = ViewParams((3, 4), tuple(placements), Program(np.zeros((2, 0)), np.zeros((2, 0, 14)), ()), None)  # type: ignore[arg-type]
    mask = np.arange(1, 36).reshape(at.shape[1])
    expected = mask[1:4, 1:5][:, ::-1]
    moved = move_mask(mask, 1, view, 0)
    np.testing.assert_array_equal(moved, expected)
    for y, x in np.ndindex(moved.shape):  # a pixel's box and point
        before = np.argwhere(mask == moved[y, x])[:, ::-1].astype(float)
        box = np.concatenate([before, before + 1], 1)
        assert move_points(before, np.array([1]), view)[0].tolist() == [[x, y]]
        assert move_boxes(box, np.array([1]), view).tolist() == [[x, y, x + 1, y + 1]]


# --- the rest


def view_of(transforms: Sequence[Transform], sizes: Sequence[tuple[int, int]] = SIZES) -> ViewParams:
    return Recipe(transforms).draw(Draws(7, 0, np.arange(len(sizes))), np.array(sizes)).views[0]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int64])
def test_instance_masks_move_together_and_show_the_fill_outside(dtype: type[np.integer]) -> None:
    view = view_of([T.CenterCrop((50, 50)), T.RandomRotation((45, 45))])
    masks = np.random.default_rng(0).integers(0, 200, (3, 24, 37)).astype(dtype)
    moved = move_mask(masks, 0, view, 255)
    assert moved.dtype == dtype
    for mask, each in zip(masks, moved):
        np.testing.assert_array_equal(each, move_mask(mask, 0, view, 255))
    assert (moved[0] == 255).sum() > 50 * 50 - 24 * 37 - 50
    assert moved[0, 0, 0] == 255
    assert move_mask(masks[:0], 0, view, 255).shape == (0, 50, 50)


def test_samples_move_alone_as_among_others() -> None:
    view = view_of([T.RandomHorizontalFlip(), T.RandomResizedCrop(30), FULL_AFFINE], SIZES * 2)
    boxes, rows = np.concatenate([targets_in(*size, 0)[0] for size in SIZES * 2]), np.repeat(np.arange(8), 6)
    together = move_boxes(boxes, rows, view)
    backwards = move_boxes(boxes[::-1], rows[::-1], view)[::-1]
    np.testing.assert_array_equal(together, backwards)
    for row in range(8):
        alone = move_boxes(boxes[rows == row], np.zeros(6, int), view.take([row]))
        np.testing.assert_array_equal(together[rows == row], alone)


@pytest.mark.parametrize(
    ("transforms", "shown"),
    [
        ([T.CenterCrop(20), T.CenterCrop(40)], False),
        ([T.CenterCrop(20), T.RandomAffine(0, scale=(0.5, 0.5))], False),
        ([T.Pad(5), T.CenterCrop(50)], True),
    ],
)
def test_points_that_were_cut_off_are_not_shown_again(transforms: list[Transform], shown: bool) -> None:
    [view] = Compose(transforms).draw(Draws(0, 0, np.arange(1)), np.array([[40, 40]])).views
    assert move_points(np.array([[6.0, 20.0], [20.0, 20.0]]), np.zeros(2, np.int64), view)[1].tolist() == [shown, True]


def test_points_are_inside_where_torchvision_keeps_them() -> None:
    view = view_of([T.CenterCrop((10, 20))])
    points = np.array([[0, 0], [19.5, 9.5], [20, 5], [5, 10], [-0.1, 5], [5, -0.1], [19, 9]])
    _, kept = F.sanitize_keypoints(torch.from_numpy(points), canvas_size=view.shape)
    assert (
        are_inside(points, np.zeros(len(points), np.int64), view).tolist()
        == kept.tolist()
        == [True, True, False, False, False, False, True]
    )


@pytest.mark.parametrize(
    ("transforms", "repeats", "message"),
    [
        ([T.CenterCrop(10), T.RandomApply([T.RandomChoice([T.ColorJitter(0.1), T.AugMix()])])], True, "RandAugment"),
        ([T.Pad(3, padding_mode="reflect"), T.CenterCrop(10)], False, "'reflect'.*\"constant\""),
    ],
)
def test_recipes_that_targets_cannot_follow_are_refused(
    transforms: list[Transform], repeats: bool, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_recipe_moves(Recipe(transforms), repeats=repeats)
