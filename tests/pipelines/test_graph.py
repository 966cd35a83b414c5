"""The graph's pixels, against PIL, torchvision and the reference of the pixel operations."""

from __future__ import annotations

import io
import random
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from gpu_graph import GPU, gpu_graph, run_gpu_graph
from making import encoded, jpeg, picture
from oracle import functional, parameters_of, transforms
from PIL import Image, ImageOps
from reference import run_program
from running import as_arrays, draw, run_graph, run_views

from gpuloader import transforms as T
from gpuloader.errors import ConfigError
from gpuloader.pipelines import recipe_pipeline
from gpuloader.plan import Draws
from gpuloader.recipe import AugmentParams, Recipe, load_preset, preset_names
from gpuloader.recipe.model import Transform

pytestmark = pytest.mark.slow(kept=71, of="graph")

# PIL rounds after each of its two passes, and cuts off there what the filter overshoots.
LEVELS = {"nearest": 0, "bilinear": 1, "bicubic": 3, "lanczos": 4}
FLOAT = 2e-3  # of a level, what single precision leaves
SIZES = [(375, 500), (500, 375), (225, 300), (224, 224), (256, 256), (100, 150), (300, 1000), (1000, 301), (768, 1024)]
PADDINGS = ("constant", "edge", "reflect", "symmetric")
INTERPOLATIONS = {name: getattr(Image.Resampling, name.upper()) for name in LEVELS}


@cache
def photos() -> list[bytes]:
    sampling = ("4:2:0", "4:4:4", "4:2:2")
    return [jpeg(*size, seed=n, subsampling=sampling[n % 3]) for n, size in enumerate(SIZES)]


@cache
def small(count: int = 8) -> list[bytes]:
    return [jpeg(60, 80, seed=n) if n % 2 else jpeg(90, 50, seed=n) for n in range(count)]


@cache
def pil(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def levels(image: Image.Image) -> torch.Tensor:
    """(3, height, width) float32, 0 to 255."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float()


def largest_difference(ours: torch.Tensor, theirs: Sequence[torch.Tensor]) -> float:
    return (ours - torch.stack(list(theirs))).abs().max().item()


def in_levels(*placing: Transform, **options: Any) -> Recipe:  # noqa: ANN401
    return Recipe(placing, dtype="uint8", **options)


def windows(params: AugmentParams, view: int = 0) -> list[list[int]]:
    """Top, left, height and width of what is resized, in the whole image."""
    window = params.views[view].placement.canvas()
    return np.concatenate([window[:, :2], window[:, 2:] - window[:, :2]], 1).tolist()


# --- placing: resize, crop, pad, flip


@pytest.mark.parametrize(
    ("resize", "size"), [(256, 224), (224, 224), (160, 128), (288, 255), (33, 32), (64, (48, 60)), (40, (40, 17))]
)
def test_evaluation_is_within_one_level_of_pil(resize: int, size: int | tuple[int, int]) -> None:
    preset = load_preset("raw_uint8", {"Resize": {"size": resize}, "CenterCrop": {"size": size}})
    reference = transforms.Compose([transforms.Resize(resize), transforms.CenterCrop(size)])
    assert largest_difference(run_graph(preset, photos()), [levels(reference(pil(photo))) for photo in photos()]) <= 1


@pytest.mark.parametrize("epoch", range(3))
def test_training_is_within_one_level_of_pil_on_the_drawn_window(epoch: int) -> None:
    preset = load_preset("imagenet_train", {"Normalize": None})
    params = draw(preset, photos(), epoch)
    mirrored = params.views[0].placement.mirrored[:, 1]
    theirs = []
    for photo, window, flip in zip(photos(), windows(params), mirrored, strict=True):
        image = transforms.functional.resized_crop(pil(photo), *window, [224, 224])
        theirs.append(levels(transforms.functional.hflip(image) if flip else image))
    assert 0 < mirrored.sum() < len(photos())
    assert largest_difference(run_graph(preset, photos(), params) * 255, theirs) <= 1


@pytest.mark.parametrize("run", [run_graph, lambda *given: run_gpu_graph(*given)[0]], ids=["cpu", "gpu's graph"])
def test_a_drawn_filter_is_one_of_both_for_each_image(run: Any) -> None:  # noqa: ANN401
    either = in_levels(T.RandomResizedCrop((96, 160), interpolation="random"))
    one, other = (in_levels(T.RandomResizedCrop((96, 160), interpolation=each)) for each in ("bilinear", "bicubic"))
    params = draw(either, photos())
    bicubic = params.views[0].placement.bicubic
    assert bicubic is not None
    assert 0 < bicubic.sum() < len(photos())
    expected = [run(preset, photos(), draw(preset, photos())) for preset in (one, other)]
    for row, image in enumerate(run(either, photos(), params)):
        assert torch.equal(image, expected[int(bicubic[row])][row])


@pytest.mark.parametrize("antialias", [True, False])
def test_nearest_is_torchs_exact_nearest(antialias: bool) -> None:
    preset = in_levels(T.Resize((96, 160), interpolation="nearest", antialias=antialias))
    mode = transforms.InterpolationMode.NEAREST_EXACT
    theirs = [functional.resize(levels(pil(photo)), [96, 160], mode) for photo in photos()]
    assert largest_difference(run_graph(preset, photos()), theirs) == 0


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_without_antialias_it_is_torchs_clamped(interpolation: str) -> None:
    preset = Recipe([T.RandomResizedCrop((96, 160), interpolation=interpolation, antialias=False)])
    params = draw(preset, photos())
    mode = transforms.InterpolationMode(interpolation)
    theirs = [
        functional.resized_crop(levels(pil(photo)), *window, [96, 160], mode, antialias=False).clamp(0, 255)
        for photo, window in zip(photos(), windows(params), strict=True)
    ]
    assert largest_difference(run_graph(preset, photos(), params) * 255, theirs) <= FLOAT


@pytest.mark.parametrize(("size", "max_size"), [(64, 70), (64, 100), (60, 1000)])
def test_the_longer_side_is_bounded_as_torchvision_bounds_it(size: int, max_size: int) -> None:
    preset = in_levels(T.Resize(size, max_size=max_size), T.CenterCrop((64, 110)))
    reference = transforms.Compose([transforms.Resize(size, max_size=max_size), transforms.CenterCrop((64, 110))])
    assert largest_difference(run_graph(preset, photos()), [levels(reference(pil(photo))) for photo in photos()]) <= 1


@pytest.mark.parametrize("padding_mode", PADDINGS)
def test_a_random_crop_is_a_window_of_the_padded_image(padding_mode: str) -> None:
    images = [encoded(picture(32, 32, seed), "PNG") for seed in range(40)]
    preset = in_levels(T.RandomCrop(32, 4, 90.0, padding_mode), T.RandomHorizontalFlip(), T.RandomVerticalFlip())
    params = draw(preset, images)
    theirs = []
    at = params.views[0].placement
    for image, (top, left), (upside_down, mirrored) in zip(images, at.corner.tolist(), at.mirrored, strict=True):
        padded = transforms.functional.pad(pil(image), [4], 90, padding_mode)
        # A flip turns what the crop shows: the drawn corner is that in the image as it is.
        cropped = transforms.functional.crop(padded, top + 4, left + 4, 32, 32)
        cropped = transforms.functional.vflip(cropped) if upside_down else cropped
        theirs.append(levels(transforms.functional.hflip(cropped) if mirrored else cropped))
    assert {tuple(flips) for flips in at.mirrored.tolist()} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert largest_difference(run_graph(preset, images, params), theirs) == 0


def test_a_crop_larger_than_the_image_is_torchvisions() -> None:
    for size in (64, (31, 90), (90, 31)):
        preset = in_levels(T.Resize(40), T.CenterCrop(size))
        reference = transforms.Compose([transforms.Resize(40), transforms.CenterCrop(size)])
        assert largest_difference(run_graph(preset, small()), [levels(reference(pil(image))) for image in small()]) <= 1


ANY_ORDER = [
    [T.CenterCrop((44, 40)), T.Resize((31, 47))],
    [T.Pad((5, 6, 7, 8), (250, 3, 128)), T.Resize((31, 47)), T.RandomHorizontalFlip(1.0)],
    [T.RandomVerticalFlip(1.0), T.Pad((30, 0), 200), T.Resize((31, 147)), T.Pad(2, 200), T.CenterCrop((20, 140))],
    [T.CenterCrop(40), T.Pad(9, 77), T.CenterCrop((54, 70)), T.Resize((60, 20)), T.CenterCrop((50, 15)), T.Pad(3, 77)],
    [T.Pad((3, 9), padding_mode="reflect"), T.Resize((31, 47))],
    [T.Pad(40, padding_mode="symmetric"), T.Resize((131, 47)), T.RandomHorizontalFlip(1.0), T.CenterCrop(40)],
    [T.CenterCrop(40), T.Pad((30, 2, 3, 4), 0, "edge"), T.CornerCrop((41, 50), "top left"), T.Resize((20, 31))],
    [T.CornerCrop((30, 40), "bottom right"), T.Pad(4, padding_mode="reflect"), T.CenterCrop((35, 46))],
    *([T.Pad((20, 3), (10, 220, 70)), T.Resize((40, 33), name)] for name in LEVELS if name != "nearest"),
    # This overshoots the fill.
    [T.CornerCrop((33, 35), "top left"), T.Pad((20, 3), (10, 220, 70)), T.Resize((80, 93), "bicubic")],
]


@pytest.mark.parametrize("placing", ANY_ORDER, ids=str)
def test_any_order_is_torchvisions(placing: list[Transform]) -> None:
    expected = [levels(by_torchvision(placing, pil(image))) for image in small()]
    [resize] = [each for each in placing if isinstance(each, T.Resize)] or [T.Resize(9)]
    most = LEVELS[resize.interpolation] * (3 if resize.interpolation in ("bicubic", "lanczos") else 1)
    assert largest_difference(run_graph(in_levels(*placing), small()), expected) <= most


@pytest.mark.parametrize("seed", range(40))
def test_any_chain_is_torchvisions(seed: int) -> None:
    placing, images = chain(random.Random(seed)), [encoded(picture(50, 60, number), "PNG") for number in range(2)]
    expected = [levels(by_torchvision(placing, pil(image))) for image in images]
    assert largest_difference(run_graph(in_levels(*placing), images), expected) <= 1
    # Without antialiasing, the border of what DALI resizes is as that of torch.
    preset = in_levels(*(replace(each, antialias=False) if isinstance(each, T.Resize) else each for each in placing))
    params = draw(preset, images)
    assert largest_difference(run_gpu_graph(preset, images, params)[0], run_views(preset, images, params)[0]) <= 1


def chain(rng: random.Random) -> list[Transform]:
    """Geometry for images of 50 x 60, of which nothing is drawn; no crop exceeds what it crops."""
    height, width, placing, fill, mode = 50, 60, list[Transform](), rng.randrange(256), rng.choice(PADDINGS)
    kinds = ["center", "corner", "flip", "upside down", "resize", *["pad"] * (2 if mode == "constant" else 1)]
    for kind in rng.sample(kinds * 2, 7):
        if kind in ("center", "corner"):
            height, width = rng.randint(-(-height // 3), height), rng.randint(-(-width // 3), width)
            corner = rng.choice(("top left", "bottom right"))
            placing.append(T.CenterCrop((height, width)) if kind == "center" else T.CornerCrop((height, width), corner))
        elif kind == "pad" and (mode == "constant" or not any(isinstance(each, T.Pad) for each in placing)):
            left, top, right, bottom = (rng.randint(0, min(20, height - 1, width - 1)) for _ in range(4))
            placing.append(T.Pad((left, top, right, bottom), fill, mode))
            height, width = height + top + bottom, width + left + right
        elif kind == "resize" and not any(isinstance(each, T.Resize) for each in placing):
            height, width = rng.randint(4, 70), rng.randint(4, 70)
            placing.append(T.Resize((height, width)))
        elif kind in ("flip", "upside down"):
            placing.append(T.RandomHorizontalFlip(1.0) if kind == "flip" else T.RandomVerticalFlip(1.0))
    return [*placing, T.CenterCrop((height, width))]


def by_torchvision(placing: Sequence[Transform], image: Image.Image) -> Image.Image:
    """What torchvision's transforms of these names do to a Pillow image; none of them draws anything."""
    for each in placing:
        if isinstance(each, T.CornerCrop):
            image = transforms.FiveCrop(each.size)(image)[("top left", "", "", "bottom right").index(each.corner)]
            continue
        parameters = parameters_of(each)
        if "interpolation" in parameters:
            parameters["interpolation"] = transforms.InterpolationMode(parameters["interpolation"])
        if "fill" in parameters:
            fill = parameters["fill"]
            parameters["fill"] = tuple(map(int, fill)) if isinstance(fill, tuple) else int(fill)
        image = getattr(transforms, type(each).__name__)(**parameters)(image)
    return image


@pytest.mark.parametrize(
    "placing",
    [
        [T.Resize(100), T.CenterCrop(90), T.Resize((60, 70))],
        [T.Resize(40), T.CenterCrop(40), T.Resize((80, 80))],
        [T.Resize((256, 320)), T.RandomHorizontalFlip(1.0), T.Pad(8, 99), T.Resize(112), T.CenterCrop(100)],
        [T.RandomHorizontalFlip(1.0), T.Resize((800, 1000)), T.Resize(224), T.CenterCrop(224)],
    ],
    ids=str,
)
@pytest.mark.parametrize("run", [run_views, run_gpu_graph], ids=["the CPU's graph", "the GPU's graph"])
def test_two_resizes_are_as_far_from_torchvisions_as_the_page_of_operations_says(
    run: Any,  # noqa: ANN401
    placing: list[Transform],
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (4, 160, 200, 3), np.uint8)
    drawn, of_noise = [picture(160, 200, seed) for seed in range(6)], [Image.fromarray(each) for each in noise]
    for pictures, mean, most in ((drawn, 1.6, 9), (of_noise, 16, 92)):
        images, preset = [encoded(each, "PNG") for each in pictures], in_levels(*placing)
        theirs = torch.stack([levels(by_torchvision(placing, each)) for each in pictures])
        apart = (run(preset, images, draw(preset, images))[0] - theirs).abs()
        assert apart.mean() <= mean
        assert apart.max() <= most


@pytest.mark.parametrize(
    "placing", [[], *ANY_ORDER[1::2], [T.Resize((30, 40)), T.CenterCrop(20), T.Resize(31)]], ids=str
)
@pytest.mark.parametrize(
    ("run", "layout"), [(run_views, "nchw"), (run_views, "channels_last"), (run_gpu_graph, "nchw")]
)
def test_turned_pictures_are_those_that_pillow_turns(run: Any, placing: list[Transform], layout: str) -> None:  # noqa: ANN401
    """In each graph, as it resizes pictures that are not turned."""
    images = [encoded(picture(50, 60, seed), "PNG") for seed in range(8)]
    upright = [pil(image) for image in images]
    for orientation, image in enumerate(upright, 1):
        image.getexif()[0x0112] = orientation
    upright = [ImageOps.exif_transpose(image) for image in upright]
    preset, same = (
        in_levels(*placing, T.CenterCrop((57, 58)), layout=layout, orientation=way) for way in ("apply", "off")
    )
    [ours] = run(preset, images, preset.draw(Draws(0, 0, np.arange(8)), np.tile([50, 60], (8, 1)), np.arange(1, 9)))
    turned = [encoded(image, "PNG") for image in upright]
    [theirs] = run(same, turned, draw(same, turned))
    assert largest_difference(ours, theirs) <= 1  # a level halfway between two is rounded


# --- decoding


@pytest.mark.parametrize(
    "placing",
    [
        [T.RandomResizedCrop((48, 64))],
        [T.RandomResizedCrop(48, interpolation="bicubic"), T.RandomHorizontalFlip()],
        [T.Resize(64), T.CenterCrop((24, 30))],
        [T.Resize((40, 40)), T.Pad(5, padding_mode="reflect"), T.RandomCrop(32)],
        [T.Pad(30, 99), T.RandomResizedCrop(48), T.RandomHorizontalFlip()],
        [T.RandomCrop(70), T.Pad(30, padding_mode="reflect"), T.RandomResizedCrop(48)],
    ],
    ids=lambda placing: "-".join(type(each).__name__ for each in placing),
)
@pytest.mark.parametrize("run", [run_views, run_gpu_graph], ids=["the CPU's graph", "the GPU's graph"])
def test_whole_images_give_the_pixels_of_their_regions(run: Any, placing: list[Transform]) -> None:  # noqa: ANN401
    """Not if DALI's `resize` were told the region: at its border that takes in the pixels behind it."""
    plain = picture(90, 120)
    others = [encoded(plain, "PNG"), encoded(plain, "WEBP"), encoded(plain.convert("L"), "JPEG")]
    preset, images = in_levels(*placing), [*photos()[:4], *others, encoded(picture(91, 123), "JPEG", progressive=True)]
    for epoch in range(2):
        params = draw(preset, images, epoch)
        [regions], [whole] = (run(preset, images, params, region=region) for region in (True, False))
        assert torch.equal(regions, whole)


# --- normalising and erasing


@pytest.mark.parametrize("name", ["imagenet_train", "imagenet_eval", "imagenet_train_jitter"])
def test_normalising_is_torchvisions(name: str) -> None:
    preset = load_preset(name)
    normalise = transforms.Normalize(preset.each_view[0].normalize.mean, preset.each_view[0].normalize.std)
    plain = run_graph(load_preset(name, {"Normalize": None}), photos())
    torch.testing.assert_close(run_graph(preset, photos()), normalise(plain), atol=1e-5, rtol=0)


@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
@pytest.mark.parametrize(
    ("dtype", "scale", "tolerance"), [("float32", 1, 0), ("float16", 1, 1e-3), ("uint8", 255, 0.501)]
)
@pytest.mark.parametrize("behind", [[], [T.ColorJitter(0.4, hue=0.1)]], ids=["one pass", "two passes"])
def test_dtypes_and_layouts_hold_the_same_values(
    behind: list[Transform], layout: str, dtype: str, scale: int, tolerance: float
) -> None:
    change = [T.RandomResizedCrop((60, 43)), *behind]
    expected = run_graph(Recipe(change), small()) * scale
    got = run_graph(Recipe(change, dtype=dtype, layout=layout), small())
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("value", [0.0, (0.5, -1.0, 2.0)], ids=str)
@pytest.mark.parametrize("behind", [[], [T.RandomInvert(1.0)]], ids=["alone", "behind an operation"])
def test_erasing_fills_the_drawn_box_of_the_normalised_image(
    behind: list[Transform], value: float | tuple[float, ...], dtype: str, layout: str
) -> None:
    change = [T.RandomResizedCrop((40, 31)), *behind, T.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))]
    preset = Recipe([*change, T.RandomErasing(0.7, value=value)], dtype=dtype, layout=layout)
    params = draw(preset, small(16))
    boxes = params.views[0].erased[:, :4].tolist()
    # Whatever is erased, the levels before it are rounded.
    whole = run_graph(in_levels(*change[:-1]), small(16)) / 255
    expected = transforms.Normalize(change[-1].mean, change[-1].std)(whole)
    for image, (top, left, height, width) in zip(expected, boxes, strict=True):
        image[:, top : top + height, left : left + width] = torch.tensor(value).reshape(-1, 1, 1)
    assert 0 < sum(height > 0 for _, _, height, _ in boxes) < 16
    tolerance = {"float32": 1e-5, "float16": 2e-3}[dtype]
    torch.testing.assert_close(run_graph(preset, small(16), params), expected, atol=tolerance, rtol=0)


# --- operations on pixels

PIXELS: list[tuple[Transform, float]] = [  # and the mean difference in levels
    *((kind(), 0) for kind in (T.Grayscale, T.RandomEqualize, T.RandomAutocontrast, T.RandomInvert)),
    *((T.ColorJitter(0.8, 0.8, 0.8, 0.5), 0), (T.RandomGrayscale(0.5), 0), (T.GaussianBlur(13), 1e-3)),
    *((T.RandomSolarize(128.0), 0), (T.RandomPosterize(3), 0), (T.RandomAdjustSharpness(2.0), 0)),
    (T.RandomApply([T.ColorJitter(0.4, 0.4), T.Grayscale()], 0.5), 0),
    (T.RandomChoice([T.RandomInvert(1.0), T.ColorJitter(0.1, 0.1)], (1.0, 2.0)), 0),
    # The reference finds the places of a warp in double precision: now and then it rounds to the neighbour.
    (T.RandomAffine(30.0, (0.1, 0.1), (0.5, 1.5), 10.0, "bilinear", (9.0, 200.0, 30.0)), 0.05),
    *((each, 0.05) for each in (T.RandomRotation(30.0), T.RandomPerspective(), T.AutoAugment(), T.AutoAugment("svhn"))),
    *((each, 0.05) for each in (T.RandAugment(), T.TrivialAugmentWide(), T.AugMix(), T.TimmRandAugment())),
    *((each, 0.05) for each in (T.TimmAutoAugment("originalr"), T.ThreeAugment())),
]


@pytest.mark.parametrize(("change", "tolerance"), PIXELS, ids=lambda value: type(value).__name__)
def test_an_operation_on_pixels_is_the_references(change: Transform, tolerance: float) -> None:
    images = small(24)
    preset, placed = (in_levels(T.RandomResizedCrop((40, 48)), *each) for each in ([change], []))
    params = draw(preset, images)
    program = params.views[0].program
    before = run_graph(placed, images).to(torch.uint8)
    theirs = torch.stack([run_program(program, row, image) for row, image in enumerate(before)]).float()
    assert (theirs != before).flatten(1).any(1).sum() >= 8
    assert (run_graph(preset, images, params) - theirs).abs().mean() <= tolerance


def test_a_flip_behind_an_operation_is_a_flip() -> None:
    change = [T.Resize((40, 47)), T.Grayscale()]
    preset = in_levels(*change, T.RandomHorizontalFlip(), T.RandomInvert(1.0), T.RandomVerticalFlip())
    images = small(24)
    ours, plain = run_graph(preset, images), 255 - run_graph(in_levels(*change), images)
    seen = Counter()
    for image, upright in zip(ours, plain, strict=True):
        variants = {axes: torch.equal(image, upright.flip(axes)) for axes in ((), (1,), (2,), (1, 2))}
        seen.update(axes for axes, same in variants.items() if same)
    assert sum(seen.values()) == 24
    assert len(seen) == 4


# --- views


@pytest.mark.parametrize("vertical_flip", [False, True])
def test_ten_crops_are_torchvisions(vertical_flip: bool) -> None:
    crops = transforms.TenCrop((24, 31), vertical_flip)
    theirs = zip(*(crops(transforms.Resize(40)(pil(image))) for image in small()))
    ours = run_views(in_levels(T.Resize(40), T.TenCrop((24, 31), vertical_flip)), small())
    for view, expected in zip(ours, theirs, strict=True):
        assert largest_difference(view, [levels(image) for image in expected]) <= 1


def test_each_of_several_views_is_its_window_of_the_whole_image() -> None:
    small_ones = T.View(
        [T.RandomResizedCrop((31, 24), (0.05, 0.3), interpolation="bicubic"), T.RandomHorizontalFlip()], 3
    )
    preset = Recipe(views=[T.View([T.RandomResizedCrop(64)]), small_ones], dtype="uint8")
    params = draw(preset, photos())
    views = run_views(preset, photos(), params)
    assert [tuple(view.shape[2:]) for view in views] == [(64, 64), (31, 24), (31, 24), (31, 24)]
    for number, view in enumerate(views):
        method = INTERPOLATIONS["bicubic" if number else "bilinear"]
        theirs = []
        flips = params.views[number].placement.mirrored[:, 1]
        for photo, window, mirrored in zip(photos(), windows(params, number), flips, strict=True):
            top, left, height, width = window
            image = pil(photo).crop((left, top, left + width, top + height)).resize(view.shape[:1:-1], method)
            theirs.append(levels(transforms.functional.hflip(image) if mirrored else image))
        assert largest_difference(view, theirs) <= 2
    of_views = [windows(params, number) for number in range(4)]
    assert all(len({str(each[row]) for each in of_views}) == 4 for row in range(len(photos())))


def test_several_views_are_decoded_once_as_far_as_any_needs() -> None:
    preset = Recipe([T.RandomResizedCrop(32, (0.08, 0.2))], views=4)
    params = draw(preset, photos())
    assert [operators(preset, device_id)["ImageSlice"] for device_id in (None, 0)] == [1, 1]
    each = np.array([windows(params, number) for number in range(4)])
    start, end = each[:, :, :2].min(0), (each[:, :, :2] + each[:, :, 2:]).max(0)
    np.testing.assert_array_equal(params.region, np.concatenate([start, end], 1))
    assert ((end - start).prod(1) < np.prod(SIZES, 1)).all()


@pytest.mark.parametrize("run", [run_views, run_gpu_graph], ids=["the CPU's graph", "the GPU's graph"])
def test_views_of_one_transform_are_equal_to_single_ones_with_their_draws(run: Any) -> None:  # noqa: ANN401
    """Pixels that only another view needs are decoded too, and must not count at the border of this one's window."""
    crop = T.RandomResizedCrop(40, (0.1, 0.6), interpolation="bicubic")
    two, one = (Recipe([crop, T.RandomHorizontalFlip(), T.ColorJitter(0.4, hue=0.1)], views=count) for count in (2, 1))
    of_two, [of_one] = (run(preset, small(), draw(preset, small())) for preset in (two, one))
    assert torch.equal(of_two[0], of_one)


def test_on_a_gpu_a_view_of_a_part_of_the_image_needs_not_hold_all_that_is_resized() -> None:
    """What is decoded is less than the whole image, of which the centre is shown."""
    two = Recipe(
        views=[T.View([T.Resize(40), T.CenterCrop((20, 31))]), T.View([T.Resize(48, "bicubic"), T.CenterCrop(24)])]
    )
    for number, preset in enumerate([Recipe([T.Resize(40), T.CenterCrop((20, 31))]), Recipe(two.views[1].transforms)]):
        of_two, [alone] = (run_gpu_graph(each, photos(), draw(each, photos())) for each in (two, preset))
        torch.testing.assert_close(of_two[number], alone, atol=1.01 / 255, rtol=0)


SHARED = [T.RandomResizedCrop(40, (0.1, 0.6), interpolation="bicubic"), T.RandomHorizontalFlip()]
NORMAL = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
JITTER = T.ColorJitter(0.4)
IN_LEVELS = 255 * 0.224  # at least, of what is normalised


@pytest.mark.parametrize("run", [run_views, run_gpu_graph], ids=["the CPU's graph", "the GPU's graph"])
@pytest.mark.parametrize(
    ("shared", "own", "options"),
    [
        (SHARED, [[NORMAL], [T.TimmRandAugment(), NORMAL], [T.AugMix(), NORMAL, T.RandomErasing(1)]], {}),
        (SHARED, [[], [T.ColorJitter(0.4), T.RandomVerticalFlip()]], {"dtype": "uint8", "layout": "channels_last"}),
        # geometry behind the shared one is resized by itself
        (SHARED, [[], [T.CenterCrop(24), NORMAL], [T.RandomVerticalFlip(), T.Resize((20, 30)), JITTER]], {}),
        # shared colours are those of view 0 in all views
        ([*SHARED, T.ColorJitter(0.4, hue=0.1)], [[], [T.RandomInvert(), T.RandomHorizontalFlip()]], {}),
        ([T.Resize((50, 60)), T.RandomCrop(48, 8, padding_mode="reflect")], [[NORMAL], [T.RandomInvert()]], {}),
        ([T.Resize(40), T.TenCrop((24, 30))], [[], [T.RandomInvert()]], {}),
    ],
    ids=["policies", "levels", "own geometry", "shared colours", "padding", "ten crops"],
)
def test_views_that_share_are_those_of_a_recipe_of_shared_and_own(
    run: Any,  # noqa: ANN401
    shared: list[Transform],
    own: list[list[Transform]],
    options: dict[str, Any],
) -> None:
    preset = Recipe(shared, [T.View(each) for each in own], **options)
    params = draw(preset, small())
    together = run(preset, small(), params)
    crops = len(together) // len(own)
    for number, view in enumerate(together):
        way, crop = divmod(number, crops)
        of_way = AugmentParams.of(params.views[way * crops : (way + 1) * crops])
        alone = run(Recipe([*shared, *own[way]], **options), small(), of_way)[crop]
        only_normalises = way == 0 and not preset.each_view[number].pixels and run is run_views
        off = 0.5 / (1 if "dtype" in options else IN_LEVELS) + FLOAT if only_normalises else 0
        torch.testing.assert_close(view, alone, atol=off, rtol=0)


@pytest.mark.parametrize(
    ("views", "passes", "resizes"),
    [
        ([T.View([NORMAL]), T.View([T.RandomInvert(), NORMAL], 2)], 4, 1),  # one to place, and one for each view
        ([T.View([NORMAL]), T.View([T.CenterCrop(24)], 2)], 4, 3),  # two for the first, and one for each of the others
        ([T.View([T.CenterCrop(24)]), T.View([T.CenterCrop(24), T.RandomInvert()])], 3, 2),
    ],
)
def test_shared_geometry_is_resized_once(views: list[T.View], passes: int, resizes: int) -> None:
    preset = Recipe(SHARED, views)
    assert operators(preset, None)["Compiled"] == passes
    assert operators(preset, 0)["Resize"] == resizes
    assert operators(preset, 0)["ImageSlice"] == 1


# --- sizes that change


def test_one_pipeline_runs_every_size_of_a_schedule() -> None:
    preset = Recipe([T.RandomResizedCrop({0: 64, 2: 96}), T.RandomHorizontalFlip(), T.ColorJitter(0.4), NORMAL])
    epochs = range(4)
    batches = iter([(as_arrays(small()), draw(preset, small(), epoch)) for epoch in epochs])
    pipeline = recipe_pipeline(preset=preset, source=lambda: next(batches), batch_size=8, num_threads=2)
    for epoch in epochs:
        [output] = pipeline.run()
        size = 64 if epoch < 2 else 96
        fixed = load_preset(preset, {"RandomResizedCrop": {"size": size}})
        expected = run_graph(fixed, small(), draw(fixed, small(), epoch))
        assert expected.shape == (8, 3, size, size)
        assert np.array_equal(np.array(output.as_tensor()), expected)


def test_a_resize_and_its_crop_can_have_schedules_of_their_own() -> None:
    preset = in_levels(T.Resize({0: 40, 1: 56}), T.CenterCrop({0: 32, 1: 48}))
    for epoch, (resize, size) in enumerate([(40, 32), (56, 48), (56, 48)]):
        reference = transforms.Compose([transforms.Resize(resize), transforms.CenterCrop(size)])
        ours = run_graph(preset, small(), draw(preset, small(), epoch))
        assert largest_difference(ours, [levels(reference(pil(image))) for image in small()]) <= 1


@pytest.mark.parametrize("on_gpu", [False, True], ids=["the CPU's graph", "the GPU's graph"])
def test_one_pipeline_runs_all_values_by_epoch(on_gpu: bool) -> None:
    made = [T.RandomResizedCrop(32), T.RandomApply([T.ColorJitter(0.4)], {0: 1.0, 1: 0.0, 2: 0.5})]
    preset = Recipe([*made, T.TimmRandAugment({0: 2, 2: 9}, prob=1.0), T.RandomErasing({0: 0, 1: 1})])
    batches = iter([(as_arrays(small()), draw(preset, small(), epoch)) for epoch in range(3)])
    with gpu_graph() if on_gpu else nullcontext():
        options = {"batch_size": 8, "num_threads": 2, "device_id": GPU if on_gpu else None, "region": True}
        pipeline = recipe_pipeline(preset=preset, source=lambda: next(batches), **options)
        for epoch in range(3):
            ours = torch.from_numpy(np.array(pipeline.run()[0].as_tensor()))
            of_epoch = preset.at(epoch)
            params = draw(of_epoch, small(), epoch)
            theirs = (run_gpu_graph if on_gpu else run_views)(of_epoch, small(), params)[0]
            assert torch.equal(ours, theirs)


# --- what holds of every recipe


def nodes(preset: Recipe, device_id: int | None) -> list[Any]:
    options = {"batch_size": 2, "num_threads": 1, "device_id": device_id, "region": True}
    pipeline = recipe_pipeline(preset=preset, source=lambda: (), **options)
    pipeline._build_graph()
    return list(pipeline._ops)


def operators(preset: Recipe, device_id: int | None) -> Counter[str]:
    """How often the graph has each of DALI's operators."""
    return Counter(re.sub(r"^_+|GenericOp|_\d+$", "", node.name) for node in nodes(preset, device_id))


@pytest.mark.parametrize("name", [name for name in preset_names() if load_preset(name).batch == "dense"])
def test_the_pixels_do_not_depend_on_neighbours_or_threads(name: str) -> None:
    preset, images = load_preset(name), small(6)
    params = draw(preset, images)
    together = run_views(preset, images, params, num_threads=3)
    for row in (0, 3, 5):
        alone = run_views(preset, images[row : row + 1], params.take([row]), num_threads=1)
        assert all(torch.equal(one[0], many[row]) for one, many in zip(alone, together, strict=True))


REFLECTED = {"Flip": 4, "Cat": 2, "Slice": 5}
ROTATED = {"WarpAffine": 1, "Arithmetic": 2, "Cast": 1}
FLIPS = [T.RandomHorizontalFlip(), T.RandomVerticalFlip()]
PLACED = {"ImageSlice": 1, "Resize": 1, "CropMirrorNormalize": 1}


@pytest.mark.parametrize(
    ("recipe", "inputs", "passes", "on_gpu"),
    [
        ([T.Resize((32, 32))], 6, 1, {}),
        ([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.RandomVerticalFlip()], 6, 1, {"Flip": 1}),
        ([T.Resize(40), T.CenterCrop(32)], 6, 1, {"Slice": 1}),
        ([T.Resize((32, 32)), T.Pad(2, padding_mode="edge")], 6, 1, {"WarpAffine": 1}),
        ([T.Pad(2), T.RandomResizedCrop(32), T.CenterCrop(40)], 6, 1, {"Slice": 2}),
        ([T.Resize((32, 32)), T.RandomCrop(32, 4, padding_mode="reflect")], 6, 1, REFLECTED),
        ([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.GaussianBlur(5)], 8, 2, {"Flip": 1, "GaussianBlur": 1}),
        ([T.RandomResizedCrop(32), T.RandomGrayscale()], 8, 2, {"CoordTransform": 1, "Arithmetic": 1, "Cast": 1}),
        ([T.RandomResizedCrop(32), T.RandomInvert()], 8, 2, {"Arithmetic": 3}),
        ([T.RandomResizedCrop(32), T.RandomRotation(9, fill=7)], 8, 2, ROTATED),
        # a flip is one node
        ([T.Resize((32, 32)), T.RandomRotation(9, "bilinear", fill=7), *FLIPS], 8, 2, {**ROTATED, "WarpAffine": 3}),
        ([T.RandomResizedCrop(32), T.RandomErasing()], 7, 2, {"Erase": 1}),
    ],
    ids=lambda value: "-".join(type(each).__name__ for each in value) if isinstance(value, list) else None,
)
def test_a_graph_has_what_its_recipe_uses_and_no_more(
    recipe: list[Transform], inputs: int, passes: int, on_gpu: dict[str, int]
) -> None:
    preset = Recipe(recipe)
    cpu, gpu = operators(preset, None), operators(preset, 0)
    del cpu["Constant"], gpu["ExternalSource"]
    assert cpu == {"ExternalSource": inputs, "ImageSlice": 1, "Compiled": passes}
    assert gpu == {**PLACED, **on_gpu}


EVERYTHING = [T.AugMix(), T.TimmRandAugment(fill=9.0), T.ThreeAugment(), T.RandomPerspective()]
EVERYTHING += [T.ColorJitter(0.4, 0.4, 0.4, 0.1)]


@pytest.mark.parametrize(
    ("preset", "splits"),
    [
        *((load_preset(name), 2 if name == "deit" else 0) for name in preset_names()),
        (Recipe([T.RandomResizedCrop(32), T.RandomVerticalFlip(), *EVERYTHING]), 0),
        (Recipe([T.RandomResizedCrop(32), T.RandomErasing(value="random")], views=3), 6),
    ],
    ids=[*preset_names(), "every operation", "noise"],
)
def test_on_a_gpu_numpy_computes_all_numbers(preset: Recipe, splits: int) -> None:
    """On the CPU, the graph takes inputs. Only erasing with noise, as `deit` does, sorts two of them into branches."""
    on_cpu = Counter(node._op.schema.Name() for node in nodes(preset, 0) if node._op.device == "cpu")
    del on_cpu["ExternalSource"]
    assert on_cpu == ({"_conditional__Split": splits} if splits else {})


# --- DALI's operators, which are the GPU's graph, on DALI's backend for the CPU


@pytest.mark.slow(kept=8)
@pytest.mark.parametrize(
    "placing",
    [
        *([T.RandomResizedCrop((40, 48), interpolation=name), T.RandomHorizontalFlip()] for name in LEVELS),
        *([T.Resize(40, interpolation=name), T.CenterCrop((32, 24))] for name in LEVELS if name != "nearest"),
        [T.RandomResizedCrop((40, 48), antialias=False), T.RandomVerticalFlip()],
        *([T.Resize((30, 36)), T.Pad((3, 5, 7, 9), (10.0, 200.0, 30.0), mode)] for mode in PADDINGS),
        *([T.Resize((30, 36)), T.RandomCrop((32, 31), 6, 99.0, mode), T.RandomHorizontalFlip()] for mode in PADDINGS),
        [T.Resize((8, 16), "nearest"), T.Pad(12, padding_mode="edge")],
        [T.Resize(30), T.CenterCrop(64)],
        [T.Resize(40), T.TenCrop((32, 24), True)],
        *ANY_ORDER,
        [T.Resize(40), T.CenterCrop((30, 35)), T.Resize((45, 31))],
        [T.Pad(20, 99), T.RandomResizedCrop(32, antialias=False), T.RandomHorizontalFlip()],
        [T.Pad(20, padding_mode="reflect"), T.RandomResizedCrop(32), T.TenCrop((16, 24))],  # of a region that is shared
        [T.Pad(20, 99), T.CenterCrop(70), T.TenCrop((50, 60)), T.Resize((30, 31)), T.Pad(2, 99)],
        [T.Pad((0, 200, 0, 0), 99), T.CornerCrop((50, 60), "top left"), T.Pad(9, 99), T.Resize((30, 31)), T.Pad(2, 99)],
        [T.Pad(10, 0, "reflect"), T.CornerCrop(8, "top left"), T.CornerCrop(4, "top left")],  # no pixel is left
        [T.RandomResizedCrop(32), NORMAL, T.RandomErasing(value=(1.0, 0.0, -1.0))],
        [T.RandomResizedCrop(32), T.RandomErasing(value="random")],
        [T.RandomResizedCrop(32), T.RandomErasing(1.0, (0.1, 0.5), value="random_color", count=4)],
        [T.RandomResizedCrop(32), T.RandomErasing(1.0, (0.1, 0.5), value="random", count=4)],
    ],
    ids=lambda placing: "-".join(type(each).__name__ for each in placing),
)
@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
def test_a_gpus_graph_places_and_erases_like_the_kernels(placing: list[Transform], layout: str) -> None:
    preset = Recipe(placing, layout=layout)
    params = draw(preset, small(16))
    for one, other in zip(run_gpu_graph(preset, small(16), params), run_views(preset, small(16), params), strict=True):
        difference = (one - other).abs() * 255
        scale = 5 if preset.each_view[0].normalize else 1
        # Levels are rounded behind the resize, and DALI repeats the border where PIL and torch cut the filter off.
        assert difference.mean() <= 0.5 * scale
        assert difference.max() <= 4 * scale


def test_a_blur_that_dali_lacks_on_a_gpu_is_refused_there() -> None:
    def graph(device_id: int | None, *changed: Transform) -> None:
        preset = Recipe([T.RandomResizedCrop(224), *changed])
        recipe_pipeline(preset=preset, source=lambda: (), batch_size=1, num_threads=1, device_id=device_id)

    within = T.RandomApply([T.RandomChoice([T.RandomInvert(), T.GaussianBlur(173)])])
    for blur in (T.GaussianBlur(173), within):
        with pytest.raises(ConfigError, match=r"kernel_size 173: .* on a GPU allows up to 171"):
            graph(0, T.RandomInvert(), blur)
        graph(None, blur)
    graph(0, T.GaussianBlur(171))
