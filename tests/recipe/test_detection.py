"""What detectors' recipes draw, against torchvision's own transforms, which get the same random numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from gpuloader import Compose
from gpuloader import transforms as T
from gpuloader.plan import Draws, Stream
from gpuloader.recipe import ViewParams
from gpuloader.recipe.model import Transform
from gpuloader.recipe.target_transforms import move_boxes, which_boxes_stay

SAMPLES = 60
SIZES = np.random.default_rng(0).integers(30, 300, (SAMPLES, 2))
DRAWS = Draws(3, 1, np.arange(SAMPLES))
LAST = T.CenterCrop(200)


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The random numbers in [0, 1) that torch gives next."""
    left: list[float] = []

    def rand(count: int) -> torch.Tensor:
        return torch.tensor([left.pop(0) for _ in range(count)], dtype=torch.float64)

    def randint(*bounds: int | tuple[()], low: int = 0, high: int = 0, size: tuple[int, ...] = ()) -> torch.Tensor:
        least, end = (low, high) if not bounds else (0, *bounds[:-1])[-2:]  # torch takes (high, size), too
        assert isinstance(least, int)
        assert isinstance(end, int)
        return torch.tensor(least + int(left.pop(0) * (end - least)))

    monkeypatch.setattr(torch, "rand", rand)
    monkeypatch.setattr(torch, "randint", randint)
    return left


def drawn(*transforms: Transform, boxes: Sequence[NDArray[np.float64]] = (), draws: Draws = DRAWS) -> ViewParams:
    sizes = SIZES[draws.ids]
    return Compose([*transforms, LAST]).draw(draws, sizes, boxes=boxes).views[0]


def picture(row: int) -> tv_tensors.Image:
    return tv_tensors.Image(torch.zeros(1, *SIZES[row].tolist(), dtype=torch.uint8))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (T.ScaleJitter((90, 120)), v2.ScaleJitter((90, 120))),
        (T.RandomShortestSize((40, 60, 90), 150), v2.RandomShortestSize([40, 60, 90], 150)),
        (T.RandomShortestSize((40, 60, 90)), v2.RandomShortestSize([40, 60, 90])),
        (T.RandomResize(40, 160), v2.RandomResize(40, 160)),
    ],
    ids=["ScaleJitter", "RandomShortestSize", "without max_size", "RandomResize"],
)
def test_a_size_is_drawn_as_torchvision_draws_it(numbers: list[float], ours: Transform, theirs: v2.Transform) -> None:
    shapes = drawn(ours).placements[1].shape
    for row, uniform in enumerate(DRAWS.of(Stream.SCALE)(1).tolist()):
        numbers[:] = uniform
        size = theirs.make_params([picture(row)])["size"]
        assert functional.resize(picture(row), size).shape[-2:] == tuple(shapes[row])


def test_a_zoom_is_drawn_as_torchvision_draws_it(numbers: list[float]) -> None:
    after = drawn(T.RandomZoomOut(side_range=(1.5, 3), p=0.7)).placements[1]
    zoomed = v2.RandomZoomOut(side_range=(1.5, 3))
    for row, (applied, *others) in enumerate(DRAWS.of(Stream.ZOOM_OUT)(4).tolist()):
        side, top, left = others
        numbers[:] = side, left, top
        padding = zoomed.make_params([picture(row)])["padding"] if applied < 0.7 else [0, 0, 0, 0]
        assert (-after.corner[row, ::-1]).tolist() == padding[:2]
        assert after.shape[row].tolist() == list(functional.pad(picture(row), padding).shape[-2:])


@pytest.mark.parametrize("size", [(90, 120), (200, 60), (400, 400)])
def test_one_number_places_a_window_on_both_axes_and_the_rest_is_padded(size: tuple[int, int]) -> None:
    """As the reference does: top and left are the same share of what is cut off; then rows and columns are added."""
    sample, (height, width) = np.arange(SAMPLES), size
    boxes = [boxes_of(number) for number in sample]
    view = drawn(T.FixedSizeCrop(size), boxes=boxes)
    seen = set()
    for row, [uniform] in enumerate(DRAWS.of(Stream.CROP)(1).tolist()):
        rows, columns = SIZES[row].tolist()
        top, left = int(max(rows - height, 0) * uniform), int(max(columns - width, 0) * uniform)
        shown = min(rows, height), min(columns, width)
        at = view.placements[1]
        assert at.corner[row].tolist() == [top, left]
        assert at.shown[row].tolist() == [top, left, top + shown[0], left + shown[1]]
        assert at.shape[row].tolist() == [height, width]
        expected = boxes[row] - [left, top, left, top]
        expected[:, 0::2] = expected[:, 0::2].clip(0, shown[1])
        expected[:, 1::2] = expected[:, 1::2].clip(0, shown[0])
        one = Compose([T.FixedSizeCrop(size)]).draw(Draws(3, 1, np.array([row])), SIZES[[row]]).views[0]
        np.testing.assert_allclose(move_boxes(boxes[row], np.zeros(len(boxes[row]), np.int64), one), expected)
        seen.add((shown[0] == height, shown[1] == width))
    assert len(seen) == (4 if size != (400, 400) else 1)


def test_boxes_that_a_window_shows_nothing_of_are_left_out() -> None:
    image, boxes = np.zeros((100, 100, 3), np.uint8), np.array([[0, 0, 20, 20], [40, 40, 60, 60], [80, 80, 99, 99]])
    target = {"boxes": boxes, "labels": np.arange(3)}
    left = {len(Compose([T.FixedSizeCrop(40)])(image, target, seed=seed)[1]["labels"]) for seed in range(20)}
    assert left == {1, 2}


@pytest.mark.parametrize("size", [150, (120, 200)])
def test_a_smaller_image_is_padded_behind_it(size: int | tuple[int, int]) -> None:
    at = drawn(T.PadIfSmaller(size)).placements[1]
    height, width = (size, size) if isinstance(size, int) else size
    assert at.corner.tolist() == [[0, 0]] * SAMPLES
    assert at.shown.tolist() == [[0, 0, *sides] for sides in SIZES.tolist()]
    assert at.shape.tolist() == [[max(rows, height), max(columns, width)] for rows, columns in SIZES.tolist()]


def test_pixels_and_masks_are_padded_with_their_own_fills() -> None:
    image, mask = np.full((3, 5, 3), 9, np.uint8), np.full((3, 5), 2, np.uint8)
    for transform in (T.PadIfSmaller((4, 7), fill=200), T.FixedSizeCrop((4, 7), fill=200)):
        pixels, target = Compose([transform], batch="list", dtype="uint8")([image], [{"mask": mask}])
        expected = functional.pad(torch.from_numpy(image).permute(2, 0, 1), [0, 0, 2, 1], fill=200)
        assert torch.equal(pixels[0], expected)
        assert torch.equal(target[0]["mask"], functional.pad(torch.from_numpy(mask)[None].long(), [0, 0, 2, 1])[0])


def boxes_of(sample: int) -> NDArray[np.float64]:
    """0 to 6 boxes; one of zero area, one on the border."""
    height, width = SIZES[sample]
    generator = np.random.default_rng(sample)
    start = generator.random((sample % 7, 2)) * [width, height] * 0.8
    boxes = np.concatenate([start, start + generator.random((sample % 7, 2)) * [width, height] * 0.2], 1)
    if len(boxes) > 2:
        boxes[0, 2:], boxes[1] = boxes[0, :2], [0, 0, width / 2, height]
    return boxes


def in_torchvisions_order(draw: NDArray[np.float64], trials: int, size: tuple[int, int]) -> Iterator[float]:
    """The numbers of an option's windows as torchvision takes them: it draws no place for a ratio out of bounds."""
    yield draw[0]
    for width, height, left, top in draw[1:].reshape(trials, 4):
        yield from (width, height)
        sides = [int(side * (0.3 + 0.7 * share)) for side, share in zip(size[::-1], (width, height))]
        if 0.5 <= sides[0] / sides[1] <= 2:
            yield from (left, top)


@pytest.mark.parametrize("options", [(0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0), (0.0, 1.0), (0.5, 0.9, 1.0)])
def test_a_window_and_its_boxes_are_drawn_as_torchvision_draws_them(
    numbers: list[float], options: tuple[float, ...]
) -> None:
    crop, trials = T.RandomIoUCrop(sampler_options=options, trials=12), 12
    view = drawn(crop, boxes=[boxes_of(sample) for sample in range(SAMPLES)])
    theirs, seen = v2.RandomIoUCrop(sampler_options=list(options), trials=trials), set()
    each_draw = [part(1 + 4 * trials) for part in DRAWS.of(Stream.CROP).split(32)]
    for row, (height, width) in enumerate(SIZES.tolist()):
        numbers[:] = [each for draw in each_draw for each in in_torchvisions_order(draw[row], trials, (height, width))]
        boxes = boxes_of(row)
        tensor = tv_tensors.BoundingBoxes(torch.from_numpy(boxes), format="XYXY", canvas_size=(height, width))
        found = theirs.make_params([picture(row), tensor])
        at = view.placements[1]
        window = [*at.corner[row], *at.shape[row]]
        expected = [found[name] for name in ("top", "left", "height", "width")] if found else [0, 0, height, width]
        assert window == expected, row
        stay = which_boxes_stay(boxes, np.full(len(boxes), row), view)
        assert stay.tolist() == (found["is_within_crop_area"].tolist() if found else [True] * len(boxes))
        seen.add((bool(found), bool(stay.all())))
    assert seen == {(False, True), (True, True), (True, False)}


def test_boxes_that_were_left_out_draw_no_windows() -> None:
    boxes = [boxes_of(sample) for sample in range(SAMPLES)]
    large = [each[(each[:, 2:] - each[:, :2] >= 20).all(1)] for each in boxes]
    windows = [
        drawn(*transforms, T.RandomIoUCrop(), boxes=each).placements[-2].output().tolist()
        for transforms, each in (([T.SanitizeBoundingBoxes(20)], boxes), ([], large), ([], boxes))
    ]
    assert windows[0] == windows[1] != windows[2]


def test_many_boxes_draw_the_same_in_parts() -> None:
    boxes = [np.tile([1.0, 1, 9, 9], (3_000, 1))] * 4
    view = drawn(T.RandomIoUCrop(trials=100), boxes=boxes, draws=Draws(3, 1, np.arange(4)))
    few = drawn(T.RandomIoUCrop(trials=100), boxes=[each[:1] for each in boxes], draws=Draws(3, 1, np.arange(4)))
    assert view.placements[1].output().tolist() == few.placements[1].output().tolist()


def test_an_image_without_a_window_stays_as_it_is() -> None:
    crop = T.RandomIoUCrop(sampler_options=[0.99], max_scale=0.4, min_scale=0.3)  # no window overlaps the box so much
    view = drawn(crop, boxes=[np.array([[0.0, 0, 30, 30]])] * SAMPLES)
    assert view.placements[1].shape.tolist() == SIZES.tolist()
    assert view.placements[1].corner.tolist() == [[0, 0]] * SAMPLES


def test_small_boxes_are_left_out_where_sanitize_stands() -> None:
    boxes = np.array([[0.0, 0, 9, 9], [0, 0, 20, 20], [5, 5, 60, 11], [-1, 0, 30, 30]])
    rows, sanitize = np.zeros(4, np.int64), T.SanitizeBoundingBoxes(min_size=8)
    theirs = v2.SanitizeBoundingBoxes(min_size=8, labels_getter=None)
    canvas = (int(SIZES[0, 0]), int(SIZES[0, 1]))
    for before in ([], [T.Resize(canvas)], [T.Resize((canvas[0] * 2, canvas[1] * 2))]):
        view = drawn(*before, sanitize, boxes=[boxes], draws=Draws(0, 0, np.array([0])))
        moved = tv_tensors.BoundingBoxes(torch.from_numpy(boxes), format="XYXY", canvas_size=canvas)
        moved = moved if not before else functional.resize(moved, list(before[0].size))
        kept = theirs(moved)
        assert len(kept) == which_boxes_stay(boxes, rows, view).sum() < len(boxes)


@pytest.mark.parametrize("size", [(40, 60), (60, 40), (50, 50), (37, 61), (1000, 30)])
def test_a_letterbox_is_that_of_yolo(size: tuple[int, int]) -> None:
    height, width = size
    ratio = min(96 / height, 64 / width)
    shape = max(round(height * ratio), 1), max(round(width * ratio), 1)
    top, left = round((96 - shape[0]) / 2 - 0.1), round((64 - shape[1]) / 2 - 0.1)
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    made = Compose([T.Resize((96, 64), pad=114)], dtype="uint8")(image)
    expected = torch.full((3, 96, 64), 114)
    inside = functional.resize(torch.from_numpy(image).permute(2, 0, 1), list(shape), antialias=True)
    expected[:, top : top + shape[0], left : left + shape[1]] = inside
    assert (made.int() - expected).abs().max() <= 1
    view = Compose([T.Resize((96, 64), pad=114)]).draw(Draws(0, 0, np.arange(1)), np.array([size])).views[0]
    whole = move_boxes(np.array([[0.0, 0, width, height]]), np.array([0]), view)
    assert whole.tolist() == [[left, top, left + shape[1], top + shape[0]]]


def test_detrs_window_is_within_its_bounds() -> None:
    view = drawn(T.RandomSizeCrop(40, 70, sizes=[50, 80]))
    resized, at = view.placements[1].resized, view.placements[1]
    kept = (resized == SIZES).all(1) & (at.shape == SIZES).all(1)
    assert 0.3 < kept.mean() < 0.7
    assert set(resized[~kept].min(1)) == {50, 80}
    shapes = at.shape[~kept]
    assert ((shapes >= np.minimum(40, resized[~kept])) & (shapes <= np.minimum(70, resized[~kept]))).all()
    assert ((at.corner >= 0) & (at.corner + at.shape <= resized)).all()
    assert len(np.unique(shapes)) > 15
