"""`Placement`: what the placing transforms fold into, against torchvision's pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from oracle import functional, parameters_of, transforms
from PIL import Image, ImageOps
from scipy import stats

from gpuloader import transforms as T
from gpuloader.plan import Draws
from gpuloader.recipe import Recipe
from gpuloader.recipe.crops import random_windows
from gpuloader.recipe.model import ResizeFilter, at_epoch
from gpuloader.recipe.placement import GeometricTransform, PaddingMode, Placement, Shape, Size, sides

pytestmark = pytest.mark.usefixtures("torch_in_one_thread")
v2 = transforms.v2
RNG = np.random.default_rng(0)
FLIP, FLIPPED = T.RandomHorizontalFlip(), T.RandomHorizontalFlip(1)
plainly = partial(T.Resize, antialias=False)


def folded(placing: Sequence[GeometricTransform], heights: Sequence[int], widths: Sequence[int]) -> Placement:
    """The transforms on images of these sizes, (n,); each draws by itself."""
    at, draws = Placement.whole(np.stack([heights, widths], 1)), Draws(7, 0, np.arange(len(heights)))
    for number, transform in enumerate(placing):
        at = transform.place(at, draws.of(transform.stream, number))
    return at


def theirs(transform: GeometricTransform) -> torch.nn.Module:
    """torchvision's transform of the same name and parameters."""
    if isinstance(transform, T.CornerCrop):
        corner = ("top left", "top right", "bottom left", "bottom right").index(transform.corner)
        return v2.Lambda(lambda image: functional.five_crop(image, transform.size)[corner])
    needed = {"pad_if_needed": True} if isinstance(transform, T.RandomCrop) else {}
    return getattr(v2, type(transform).__name__)(**parameters_of(transform), **needed)


def rendered(at: Placement, row: int, image: torch.Tensor) -> torch.Tensor:
    """The output that a placement means, (3, h, w): resized by torchvision, padded by numpy."""
    assert (at.window[row] == at.canvas()[row]).all()  # whole pixels
    picture = surrounded(at, image, at.part[row], at.canvas()[row])
    if picture.shape[1:] != tuple(at.resized[row]):
        if at.interpolation == "lanczos":  # which torchvision has of PIL alone
            pil = functional.to_pil_image(picture)
            picture = functional.pil_to_tensor(functional.resize(pil, at.resized[row].tolist(), "lanczos"))
        else:
            picture = functional.resize(picture, at.resized[row].tolist(), at.interpolation, antialias=at.antialias)
    output = surrounded(at, picture, at.shown[row], at.output()[row])
    output = output.flip([axis + 1 for axis in (0, 1) if at.mirrored[row, axis]])
    return output.transpose(1, 2) if at.transposed[row] else output


def surrounded(at: Placement, image: torch.Tensor, picture: np.ndarray, box: np.ndarray) -> torch.Tensor:
    """A box of what is around a picture in an image; both are top, left, bottom, right."""
    top, left, bottom, right = picture
    inside = image[:, top:bottom, left:right].numpy()
    room = int(max(0, *(picture - box)[:2], *(box - picture)[2:], *(box[2:] - picture[:2]), *(picture[2:] - box[:2])))
    sides = ((0, 0), (room, room), (room, room))
    if at.padding_mode == "constant":
        mask = np.pad(np.ones_like(inside), sides)
        padded = np.where(mask, np.pad(inside, sides), np.array(at.fill)[:, None, None]).astype(np.uint8)
    else:
        padded = np.pad(inside, sides, at.padding_mode)
    (y, x), (h, w) = box[:2] - picture[:2] + room, box[2:] - box[:2]
    return torch.from_numpy(padded[:, y : y + h, x : x + w].copy())


def noise(height: int, width: int) -> torch.Tensor:
    """An image no two parts of which are the same."""
    return torch.from_numpy(RNG.integers(0, 256, (3, height, width), np.uint8))


@pytest.mark.slow(kept=6)
@pytest.mark.parametrize("size", [(7, 9), (4, 6)], ids=str)
@pytest.mark.parametrize(
    "placing",
    [
        [T.CenterCrop((3, 8))],
        [T.CenterCrop((8, 12))],
        [T.RandomCrop((4, 7))],
        [T.RandomCrop((6, 8), (1, 0, 0, 2), (1, 2, 3))],
        [T.RandomCrop((7, 9), 1, padding_mode="edge")],
        [T.RandomCrop((7, 9), 2, padding_mode="reflect")],
        [T.Pad((1, 2, 3, 4), (7, 8, 9)), T.CenterCrop(6)],
        [T.Pad((2, 0), padding_mode="reflect"), T.RandomCrop((4, 8))],  # the crop keeps the padding in front of it
        [T.RandomVerticalFlip(1), T.Pad((1, 2, 3, 4), 5), T.RandomHorizontalFlip()],
        [T.RandomHorizontalFlip(), T.RandomCrop(5, (1, 0, 0, 1)), T.RandomVerticalFlip()],
        [T.RandomHorizontalFlip(1), T.CenterCrop((2, 4)), T.RandomVerticalFlip(1)],
        [T.Resize((6, 8)), T.RandomCrop(5), T.RandomHorizontalFlip()],
        [T.Resize(7, antialias=False), T.CenterCrop(5)],
        [T.Resize((5, 4), "nearest"), T.Pad(1, 4), T.RandomVerticalFlip(0)],
        [T.CenterCrop((4, 6)), T.Pad((1, 2, 3, 4), 7), T.RandomHorizontalFlip(), T.RandomCrop(6)],
        [T.Pad(1, 7), T.Pad((2, 0), 7), T.CenterCrop((3, 6)), T.Pad(1, 7)],
        [T.CenterCrop(4), T.CenterCrop(6), FLIPPED, T.CenterCrop((3, 9))],  # what was cut off stays so
        [T.RandomHorizontalFlip(), T.CornerCrop(3, "top left"), T.Pad((2, 1), padding_mode="reflect"), T.CenterCrop(5)],
        [T.Pad((1, 2, 3, 4), (9, 8, 7)), T.Resize((5, 7)), T.RandomVerticalFlip()],
        [T.CenterCrop(4), T.Pad((1, 2), 200), FLIP, T.Resize((9, 8)), T.Pad(1, 200), T.RandomCrop(9)],
        [T.Pad(2, padding_mode="reflect"), T.Resize((5, 7)), T.CenterCrop((4, 3))],
        [T.CornerCrop(4, "bottom right"), T.RandomCrop(6, 2, padding_mode="symmetric"), T.Resize((9, 5), "bicubic")],
        [T.RandomCrop(6, 2, padding_mode="edge"), T.Resize(4, antialias=False)],
    ],
    ids=str,
)
def test_every_output_is_one_of_torchvisions_as_often(placing: list[GeometricTransform], size: tuple[int, int]) -> None:
    count = 700
    image, compose = noise(*size), v2.Compose([theirs(transform) for transform in placing])
    at = folded(placing, [size[0]] * count, [size[1]] * count)
    keys = np.concatenate([at.window, at.resized, at.corner, at.shape, at.mirrored], 1)
    _, rows, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    pictures = [rendered(at, row, image) for row in rows]
    ours = Counter(pictures[number].numpy().tobytes() for number in inverse.ravel())
    torch.manual_seed(0)
    others = Counter(compose(image).numpy().tobytes() for _ in range(count))
    assert {picture.shape for picture in pictures} == {compose(image).shape}
    assert set(ours) == set(others)
    if len(ours) > 1:
        assert stats.chi2_contingency([[drawn[key] for key in ours] for drawn in (ours, others)]).pvalue > 1e-3


@pytest.mark.parametrize(
    "flips",
    [[], [T.RandomHorizontalFlip(1)], [T.RandomVerticalFlip(1)], [T.RandomVerticalFlip(1), T.RandomHorizontalFlip(1)]],
    ids=str,
)
def test_windows_lie_in_the_flipped_image(flips: list[GeometricTransform]) -> None:
    crop = T.RandomResizedCrop((5, 7))
    heights, widths = RNG.integers(5, 40, (2, 30))
    at = folded([*flips, crop], heights, widths)
    draw = Draws(7, 0, np.arange(30)).of(crop.stream, len(flips))
    windows = random_windows(draw, np.stack([heights, widths], 1), crop.scale, crop.ratio).tolist()
    for row, window in enumerate(windows):
        image = noise(heights[row], widths[row])
        parameters = dict(zip(("top", "left", "height", "width"), window, strict=True))
        expected = theirs(crop).transform(v2.Compose([*map(theirs, flips), v2.Identity()])(image), parameters)
        apart = rendered(at, row, image).int() - expected.int()
        assert apart.abs().max() <= 1  # flipped before or after it is rounded


INTERPOLATIONS = ["nearest", "bilinear", "bicubic", "lanczos"]


@pytest.mark.parametrize(
    ("interpolation", "antialias"),
    [each for each in product(INTERPOLATIONS, [True, False]) if each != ("lanczos", False)],
)
@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ([], []),
        ([], [T.CenterCrop(6)]),
        ([], [T.RandomHorizontalFlip(1), T.RandomCrop(6, (0, 9), padding_mode="symmetric"), T.RandomVerticalFlip(1)]),
        ([T.CenterCrop((30, 40))], [T.Pad(2), T.CenterCrop(6), T.Pad(1)]),
        ([T.RandomCrop(20, 9, padding_mode="edge")], [T.CenterCrop(6)]),
    ],
    ids=str,
)
def test_the_output_depends_on_the_needed_pixels_alone(
    interpolation: ResizeFilter, antialias: bool, before: list[GeometricTransform], behind: list[GeometricTransform]
) -> None:
    heights, widths = RNG.integers(3, 60, (2, 25))
    for resize in (
        T.Resize((20, 13), interpolation, antialias=antialias),
        T.RandomResizedCrop(9, (0.1, 1.0), (0.5, 2.0), interpolation, antialias),
    ):
        at = folded([*before, resize, *behind], heights, widths)
        for row, (top, left, bottom, right) in enumerate(at.needed()):
            image, other = noise(heights[row], widths[row]), noise(heights[row], widths[row])
            assert 0 <= top < bottom <= heights[row]
            assert 0 <= left < right <= widths[row]
            other[:, top:bottom, left:right] = image[:, top:bottom, left:right]
            assert torch.equal(rendered(at, row, image), rendered(at, row, other))


@pytest.mark.parametrize(
    ("interpolation", "antialias", "needed"),
    [
        # Columns 32 to 64 of 96 resized from 960, and the filter's reach: 0.5, 1, 2 or 3 of 10 pixels, and one more.
        ("nearest", True, [314, 646]),
        ("bilinear", True, [309, 651]),
        ("bicubic", True, [299, 661]),
        ("lanczos", True, [289, 671]),
        ("bilinear", False, [318, 642]),
    ],
)
def test_no_more_is_needed_than_the_filter_reaches(
    interpolation: ResizeFilter, antialias: bool, needed: list[int]
) -> None:
    at = folded([T.Resize((96, 96), interpolation, antialias=antialias), T.CenterCrop(32)], [96], [960])
    assert at.needed()[0, [1, 3]].tolist() == needed


def test_the_middle_needs_little_of_a_long_image() -> None:
    at = folded([T.Resize(256), T.CenterCrop(224)], [2], [20_000])
    assert at.needed().tolist() == [[0, 9997, 2, 10_003]]  # resized whole it would be 256 x 2,560,000


@pytest.mark.parametrize("start", [-50, 50])
def test_a_crop_beside_the_image_needs_a_pixel_of_it(start: int) -> None:
    whole = Placement.whole(np.array([[20, 20]]))
    top, left, bottom, right = whole.crop(np.array([[start, start]]), np.array([[5, 5]])).needed()[0]
    assert 0 <= top < bottom <= 20
    assert 0 <= left < right <= 20


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric"])
def test_a_padding_of_the_image_needs_all_of_it(mode: PaddingMode) -> None:
    assert folded([T.Pad(30, padding_mode=mode), T.CenterCrop(4)], [50], [60]).needed().tolist() == [[0, 0, 50, 60]]


@pytest.mark.parametrize(
    ("paddings", "says"),
    [
        ([T.Pad(1), T.Pad(1, 9)], r"padded twice, 'constant' with fill \(0.0, 0.0, 0.0\) and 'constant' with fill"),
        ([T.RandomCrop(9, 1), T.Pad(1, padding_mode="edge")], "padded twice, 'constant' .* and 'edge'"),
        ([T.Pad(1, padding_mode="reflect"), T.Resize(9), T.Pad(1, padding_mode="reflect")], "padded twice, 'reflect'"),
    ],
    ids=str,
)
def test_a_second_padding_must_be_like_the_first(paddings: list[GeometricTransform], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        folded(paddings, [50], [60])


def test_a_second_resizing_of_all_of_the_image_reaches_not_beyond_it() -> None:
    heights, widths = np.arange(1, 2001), np.arange(2000, 0, -1)
    for side in (7, 49, 224, 333):
        at = folded([T.Resize((side, side + 1)), T.Resize((30, 31))], heights, widths)
        np.testing.assert_array_equal(at.window, np.stack([0 * heights, 0 * widths, heights, widths], 1))
        assert (at.needed()[:, 2:] <= at.window[:, 2:]).all()


# Points.


def coordinates(height: int, width: int) -> torch.Tensor:
    """(3, height, width): x and y of each pixel's middle; and 1 on pixels that are far from the border."""
    inside = torch.zeros(height, width)
    inside[6:-6, 6:-6] = 1
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    return torch.stack([x, y, inside])


def middles(shape: np.ndarray) -> np.ndarray:
    """(1, height * width, 2): x and y of each pixel's middle."""
    x, y, _ = coordinates(*shape.tolist()).reshape(3, -1).numpy()
    return np.stack([x, y], 1)[None]


@pytest.mark.parametrize(
    "placing",
    [
        [],
        [T.CenterCrop((30, 21)), T.RandomHorizontalFlip(1), T.Pad((1, 2, 3, 4)), T.CornerCrop(19, "bottom right")],
        [T.Resize((35, 90), antialias=False), T.RandomVerticalFlip(1), T.CenterCrop((30, 50))],
        [
            T.Pad(9),
            FLIPPED,
            T.CornerCrop((40, 30), "top left"),
            plainly((30, 41)),
            T.CenterCrop((28, 39)),
            T.Pad((0, 3)),
        ],
        [plainly(33, max_size=40), T.Pad((1, 2, 3, 4)), plainly(45, max_size=50), plainly((20, 21))],
    ],
    ids=str,
)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_points_lie_where_torchvision_puts_their_pixels(orientation: int, placing: list[GeometricTransform]) -> None:
    height, width = 48, 70
    upright = torch.stack([as_exif_says(channel, orientation) for channel in coordinates(height, width)])
    x, y, inside = v2.Compose([*map(theirs, placing), v2.Identity()])(upright).reshape(3, -1).numpy()
    at = Placement.whole(np.array([[height, width]])).orient(np.array([orientation]))
    for number, transform in enumerate(placing):
        at = transform.place(at, Draws(7, 0, np.arange(1)).of(transform.stream, number))
    sure = inside > 1 - 1e-6
    assert sure.sum() > 100
    in_output = at.to_output(np.stack([x, y], 1)[None])
    np.testing.assert_allclose(in_output[0, sure], middles(at.shape[0])[0, sure], atol=2e-3)


def as_exif_says(channel: torch.Tensor, orientation: int) -> torch.Tensor:
    """A channel as Pillow turns an image with this orientation."""
    image = Image.fromarray(channel.numpy())
    image.getexif()[0x0112] = orientation
    return torch.from_numpy(np.array(ImageOps.exif_transpose(image)))


@pytest.mark.parametrize("orientation", [*range(1, 9), 0, 9])  # as some cameras write it
@pytest.mark.parametrize(
    "placing",
    [
        [],
        [T.RandomHorizontalFlip(1), T.CornerCrop((4, 3), "top left"), T.Pad((1, 0, 0, 0), 9)],
        [T.Pad((1, 2, 3, 0), 9), T.Resize((5, 8)), T.RandomVerticalFlip(1), T.CenterCrop((4, 6))],
        [T.CornerCrop((5, 4), "bottom left"), T.Resize(3)],
    ],
    ids=str,
)
def test_upright_pictures_are_pillows(orientation: int, placing: list[GeometricTransform]) -> None:
    image = noise(7, 9)
    upright = torch.stack([as_exif_says(channel, orientation) for channel in image])
    at = Placement.whole(np.array([[7, 9]])).orient(np.array([orientation]))
    for number, transform in enumerate(placing):
        at = transform.place(at, Draws(7, 0, np.arange(1)).of(transform.stream, number))
    expected = v2.Compose([*map(theirs, placing), v2.Identity()])(upright)
    assert at.shape[0].tolist() == list(expected.shape[1:])
    assert (rendered(at, 0, image).int() - expected.int()).abs().max() <= 1  # turned before or after it is rounded


# Sizes.


@pytest.mark.parametrize(
    ("size", "by_epoch"),
    [
        (128, {0: 128, 99: 128}),
        ((96, 128), {0: (96, 128), 5: (96, 128)}),
        ({0: 128, 30: 160, 60: 224}, {0: 128, 29: 128, 30: 160, 59: 160, 60: 224, 1000: 224}),
        ({30: 160, 0: 128}, {0: 128, 30: 160}),  # in any order
    ],
)
def test_a_size_holds_from_its_epoch_on(size: Size, by_epoch: dict[int, int | Shape]) -> None:
    assert {epoch: at_epoch(size, epoch) for epoch in by_epoch} == by_epoch
    for now in by_epoch.values():
        assert sides(now) == ((now, now) if isinstance(now, int) else now)
    assert sides(size) == sides(by_epoch[0])


@pytest.mark.parametrize(
    ("placing", "before", "after"),
    [
        ([T.RandomResizedCrop({0: 8, 2: 12})], (8, 8), (12, 12)),
        ([T.RandomCrop({0: 8, 2: 12})], (8, 8), (12, 12)),
        ([T.Resize({0: 10, 2: 20}), T.CenterCrop((7, 5))], (7, 5), (7, 5)),
        ([T.Resize({0: 10, 2: 20}, max_size=25), T.CenterCrop({0: 8, 2: 16}), T.Pad((1, 2))], (12, 10), (20, 18)),
        ([T.Resize((4, 6)), T.Pad((1, 2, 3, 4)), T.RandomVerticalFlip()], (10, 10), (10, 10)),
    ],
    ids=str,
)
def test_the_outputs_size_is_known_by_epoch(placing: list[GeometricTransform], before: Shape, after: Shape) -> None:
    for epoch, expected in ((0, before), (1, before), (2, after), (9, after)):
        recipe = Recipe(placing).at(epoch)
        assert recipe.shapes == [expected]
        assert folded(recipe.transforms, [30, 9], [20, 50]).shape.tolist() == [list(expected)] * 2
