"""`part`: wrong arguments in Python are errors of the library's, in words, one line for each."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields
from functools import partial
from inspect import signature
from typing import Any

import pytest
import torch
from oracle import transforms

from gpuloader import Buckets, Compose, World
from gpuloader import transforms as T
from gpuloader.errors import ConfigError, PresetError
from gpuloader.loading.arguments import VALUES
from gpuloader.loading.fields import FIELDS
from gpuloader.recipe import TRANSFORMS, Recipe

v1, v2 = transforms, transforms.v2
CROP = T.CenterCrop(8)
WRONG = (
    *("x", b"x", 0.5, -1, 10**9, 1e30, float("nan"), float("inf"), True, None, object()),
    *([], [1], [1, 2, 3], (3, 224, 224), ["a", "b"], [0.5, 2], [[1, 2], [3]], {}, {"a": 1}, {0: 1.5}, {1: 2}),
)


@pytest.mark.parametrize("kind", [*TRANSFORMS.values(), *FIELDS.values(), *VALUES.values(), T.Mix, Buckets, Compose])
def test_pydantics_own_words_reach_no_user(kind: Any) -> None:  # noqa: ANN401
    if kind is World:  # whose values are checked otherwise
        return
    said = []
    for parameter in fields(kind):
        for value in WRONG:
            try:
                kind(**{parameter.name: value})
            except ConfigError as error:
                said += str(error).splitlines()
    assert said or not fields(kind)
    words = [line.partition("`: ")[2] for line in said]
    assert not [text for text in words if re.search("(?i)input should|valid|instance|tuple|pydantic", text)]


def test_a_part_keeps_its_signature_and_its_documentation() -> None:
    assert list(signature(T.RandomCrop).parameters) == ["size", "padding", "fill", "padding_mode"]
    assert (T.RandomCrop.__name__, T.RandomCrop.__module__) == ("RandomCrop", "gpuloader.recipe.crops")
    assert T.RandomCrop.__doc__ is not None
    crop = T.RandomCrop(8, padding=2)
    assert crop == T.RandomCrop(8, 2) == pickle.loads(pickle.dumps(crop)) == deepcopy(crop)


def film(image: Any) -> Any:  # noqa: ANN401
    return image


BLURS, JITTER, ERASE = [T.GaussianBlur(3), T.GaussianBlur(5)], T.ColorJitter(0.4), T.RandomErasing()
FILM, NORMAL = T.Apply(film), T.Normalize([0.5] * 3, [0.5] * 3)
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
SHARES = "write mean [0.485, 0.456, 0.406], std [0.229, 0.224, 0.225]"
NOT_NEEDED = [v1.ToTensor(), v1.PILToTensor(), v2.ToImage(), v2.ToDtype(torch.uint8), v1.ConvertImageDtype(torch.half)]
ONE_OWN = "a view may have one Apply: join the functions"
REFUSED: list[tuple[Callable[[], object], str]] = [
    # Numbers.
    (lambda: T.CenterCrop((8, 0)), "`CenterCrop.size`: found 0: allowed is a number of at least 1"),
    (lambda: T.CenterCrop((3, 224, 224)), "found (3, 224, 224): allowed is an integer, a mapping or"),
    (lambda: T.Resize(0), "found 0: allowed is a number of at least 1"),
    (lambda: T.Resize((5, 0)), "found 0: allowed is a number of at least 1"),
    (lambda: T.Resize(5.0), "found 5.0: allowed is an integer"),
    (lambda: T.Resize("covr"), "allowed are a side, [height, width], sides by epoch, and 'cover'"),
    (lambda: T.RandomCrop(5, -1), "found -1: allowed is a number of at least 0"),
    (lambda: T.RandomCrop(5, 1, 256), "found 256: allowed is a number of at most 255"),
    (lambda: T.RandomErasing(1.5), "`RandomErasing.p`: found 1.5: allowed is a number of at most 1"),
    (lambda: T.SmartResize(0), "`SmartResize.factor`: found 0: "),
    (lambda: T.SmartResize(min_pixels=0), "`SmartResize.min_pixels`: found 0: "),
    (lambda: T.ResizeToSequence(16, 0), "`ResizeToSequence.max_seq_len`: found 0: "),
    (lambda: T.GaussianBlur(4), "kernel_size 4: allowed are odd"),
    (lambda: Compose([CROP, T.RandomApply([T.GaussianBlur(4)])]), "`GaussianBlur`: kernel_size 4: allowed are odd"),
    (lambda: T.RandAugment(magnitude=31), "magnitude 31: allowed is 0 to 30, below num_magnitude_bins"),
    (lambda: T.RandomSolarize(0.5), "threshold 0.5 is a share of 1, but"),
    (lambda: Recipe([CROP, T.RandomHorizontalFlip()], views=65), "`Recipe.views`: found 65: "),
    # Ranges and lists of numbers.
    (lambda: T.RandomResizedCrop(8, scale=0.5), "`RandomResizedCrop.scale`: found 0.5: allowed is [low, high]"),
    (lambda: T.RandomResizedCrop(5, ratio=(0.0, 1.0)), "0.001 <= low <= high <= 1000"),
    (lambda: T.RandomResizedCrop(5, ratio=(2.0, 1.0)), "0.001 <= low <= high <= 1000"),
    (lambda: T.RandomErasing(scale=(0.0, 0.3)), "allowed is [low, high] with 0 < low <= high"),
    (lambda: T.RandomErasing(scale=(0.4, 0.3)), "allowed is [low, high] with 0 < low <= high"),
    (lambda: T.RandomErasing(scale=(0.1, 1.1)), "allowed is [low, high] with 0 < low <= high"),
    (lambda: T.RandomErasing(ratio=(0.0, 3.0)), "allowed is [low, high] with 0.001 <= low"),
    (lambda: T.RandomErasing(ratio=(3.0, 0.3)), "allowed is [low, high] with 0.001 <= low"),
    (lambda: T.RandomErasing(value=[1]), "found [1]; allowed are a number, [red, green, blue]"),
    (lambda: T.ColorJitter([1, 2, 3]), "`ColorJitter.brightness`: found [1, 2, 3]: allowed is a number or"),
    (lambda: T.ColorJitter(-0.1), "brightness -0.1: allowed is a number from 0, or [low, high] with 0 <= low"),
    (lambda: T.ColorJitter(hue=0.6), "hue 0.6: allowed is a number from 0 to 0.5, or"),
    (lambda: T.ColorJitter(0.4, 0.4, 0.4, 0.1, 0.2, 0.3), "`ColorJitter`: found 0.2, one value too many; allowed"),
    (lambda: T.RandomPhotometricDistort(hue=(-0.6, 0.1)), "[low, high] with -0.5 <= low <= high <= 0.5"),
    (lambda: T.RandomPhotometricDistort(contrast=(1.5, 0.5)), "contrast [1.5, 0.5]: allowed is"),
    (lambda: T.RandomPhotometricDistort((-0.1, 1.0)), "brightness [-0.1, 1.0]: allowed is"),
    (lambda: T.GaussianBlur(3, (2, 1)), "sigma (2.0, 1.0): allowed is a number from 0.001 to 200"),
    (lambda: T.RandomRotation(-3), "degrees -3.0: allowed is a number from 0, or [low, high] with low <= high"),
    (lambda: T.RandomRotation(3, center=5), "`RandomRotation.center`: found 5: allowed is [x, y]"),
    (lambda: T.RandomAffine(0, (0.5, 1.5)), "translate [0.5, 1.5]: allowed are two shares from 0 to 1"),
    (lambda: T.RandomAffine(0, scale=(0, 1)), "scale [0.0, 1.0]: allowed is [low, high] with 0.001 <= low"),
    (lambda: T.RandomAffine(0, shear=-1), "shear -1.0: allowed is a number from 0"),
    (lambda: T.RandomIoUCrop(0.9, 0.3), "min_scale 0.9, max_scale 0.3: allowed is 0 < min <= max <= 1"),
    (lambda: T.RandomZoomOut(side_range=(0.5, 2)), "side_range [0.5, 2.0]: allowed is [low, high] with 1"),
    (lambda: T.Pad((1, 2, 3)), "found (1, 2, 3): allowed is an integer, [left and right, top and bottom]"),
    (lambda: T.Pad(1, (1, 2)), "found (1, 2): allowed is a number or [red, green, blue]"),
    (lambda: T.Normalize(0.5, [0.5] * 3), "`Normalize.mean`: found 0.5: allowed is [red, green, blue]"),
    (lambda: T.Normalize((0, 0), (1, 1, 1)), "`Normalize.mean`: found (0, 0): allowed is [red, green, blue]"),
    (lambda: T.Normalize((0, 0, 0), (1, 0, 1)), "std [1.0, 0.0, 1.0]: allowed are numbers above 0"),
    (lambda: T.Normalize(MEAN, STD), SHARES),
    (lambda: T.Normalize((0.485, 0.456, 0.406), STD), SHARES),
    (lambda: T.Normalize((0, 0, 0), (255,) * 3), "write mean [0.0, 0.0, 0.0], std [1.0, 1.0, 1.0]"),
    (
        lambda: T.Normalize(MEAN[::-1], (1, 1, 1)),
        f"write mean [0.406, 0.456, 0.485], std {[0.00392157] * 3}",
    ),  # Caffe's
    # Words.
    (lambda: T.Resize(5, "area"), "'nearest', 'bilinear', 'bicubic' or 'lanczos'"),
    (lambda: T.RandomRotation(3, "lanczos"), "found 'lanczos'; allowed are 'nearest', 'bilinear' or 'bicubic'"),
    (lambda: T.CornerCrop(5, "left top"), "'top left', 'top right', 'bottom left' or 'bottom right'"),
    (lambda: T.AutoAugment("mnist"), "'imagenet', 'cifar10' or 'svhn'"),
    (lambda: T.Mix(10, 1.0, per="pair"), "found 'pair'"),
    (lambda: Compose([CROP], oversampling="x"), "`Compose.oversampling`: found 'x'; allowed are 'off' or a number"),
    (T.Resize, "`Resize.size` is missing"),
    (lambda: T.ResizeToSequence(16), "`ResizeToSequence.max_seq_len` is missing"),
    (Compose, "`Compose`: give `transforms`, or `views` with their own, or both; an empty list"),
    # What does not go together.
    (lambda: T.Resize("cover", pad=0), "pad 0.0 with size cover: allowed is size [height, width]"),
    (lambda: T.Resize(9, pad=1), "pad 1.0 with size 9: allowed is size [height, width]"),
    (lambda: T.Resize("cover", max_size=9), "max_size 9 needs a shorter side, got size cover"),
    (lambda: T.Resize((5, 6), max_size=9), "max_size 9 needs a shorter side, got size [5, 6]"),
    (lambda: T.Resize({0: 5, 3: 10}, max_size=9), "max_size 9: allowed is more than the shorter side, 10"),
    (lambda: T.Resize(5, "lanczos", antialias=False), "'lanczos' always antialiases, as in PIL"),
    (lambda: T.SmartResize(interpolation="lanczos", antialias=False), "'lanczos' always antialiases"),
    (lambda: T.SmartResize(28, 400, 399), "max_pixels 399: allowed is min_pixels, 400, or more"),
    (lambda: T.RandomResize(9, 9), "max_size 9: allowed is more than min_size, 9"),
    (lambda: T.RandomCrop({0: 9, 5: 4}, 4), "padding 4 on all sides: allowed is less than the crop's 4"),
    (lambda: T.Mix(10), "mixup_alpha and cutmix_alpha are both 0: set one, or leave `mix` out"),
    (lambda: T.Mix(10, {0: 0, 5: 0.0}), "mixup_alpha and cutmix_alpha are both 0"),
    (lambda: Compose([CROP], mix={"num_classes": 9}), "`Compose.mix`: `Mix`: mixup_alpha and cutmix_alpha are both 0"),
    (lambda: Recipe([T.Resize("cover")]), 'Resize("cover") needs a crop after it'),
    (lambda: Compose([T.SmartResize()]), "SmartResize: leaves images of different sizes: "),
    (lambda: Compose([T.ResizeToSequence(16, 256)]), "ResizeToSequence: leaves images of different sizes: "),
    # Values by epoch.
    (lambda: T.RandomErasing({1: 0.5}), "values by epoch {1: 0.5}: allowed are epochs from 0 on, and 0"),
    (lambda: T.RandomErasing({0: 0.5, 3: 1.5}), "`RandomErasing.p`: found 1.5: allowed is a number of at most 1"),
    (lambda: T.RandAugment(magnitude={0: 5, 3: 31}), "`RandAugment`: magnitude 31: allowed is 0 to 30"),
    (lambda: T.AugMix({0: 3, 2: 0}), "`AugMix.severity`: found 0: allowed is a number of at least 1"),
    # Transforms.
    (lambda: T.RandomApply([]), "at least 1"),
    (lambda: T.RandomApply(["blur"]), "found 'blur': allowed are the transforms of gpuloader.transforms"),
    (lambda: T.RandomChoice(BLURS, (1, 1, 1)), "p [1.0, 1.0, 1.0]: allowed is a weight for each of 2 transforms"),
    (lambda: T.RandomChoice(BLURS, (0, 0)), "a weight for each of 2 transforms, not all of them 0"),
    (lambda: Compose(T.RandomHorizontalFlip()), "`Compose.transforms`: found RandomHorizontalFlip(p=0.5): allowed"),
    (lambda: Compose([CROP, T.RandomHorizontalFlip]), "`Compose.transforms`: found the class"),
    (lambda: Compose([CROP, "Pad"]), "found 'Pad': allowed are the transforms of gpuloader.transforms; Compose.from_"),
    (lambda: Compose([v1.CenterCrop(8), v1.RandomHorizontalFlip()]), "found torchvision.transforms.transforms.Center"),
    *((lambda each=each: Compose([CROP, each]), f"{type(each).__name__} is not needed, leave") for each in NOT_NEEDED),
    (lambda: Recipe([CROP, *[JITTER] * 17]), "a view may have 16 transforms of one kind; this has more"),
    (lambda: Recipe([T.TenCrop(8)], views=7), "a recipe may have 64 views; this has more"),
    (lambda: Recipe(views=[T.View([CROP]), T.View([CROP], 64)]), "a recipe may have 64 views; this has more"),
    # Own code.
    (lambda: T.Apply(lambda image: image), "which has no name of its own: write name='film'"),
    (lambda: T.Apply(partial(film)), "has no name of its own"),
    (lambda: T.Apply(type("Grain", (), {"__call__": film})()), "has no name of its own"),
    (T.Apply, "has no name of its own"),
    (lambda: T.Apply(film, name=""), "`Apply.name`: found ''"),
    (lambda: T.Apply("film"), "function='film': allowed is a function that takes an image"),
    (lambda: T.Apply(v2.RandomPosterize(3), targets=True), "targets=True: RandomPosterize gets the image alone"),
    (lambda: Recipe([CROP, FILM, FILM]), ONE_OWN),
    (lambda: Recipe([CROP, FILM, JITTER, FILM]), ONE_OWN),
    (lambda: Recipe([CROP, NORMAL, FILM]), "Apply is in the wrong place"),
    (lambda: Recipe([CROP, ERASE, FILM]), "Apply is in the wrong place"),
    (lambda: Recipe([CROP, T.Apply(film, same_size=False)]), "leaves images of different sizes"),
    (lambda: Recipe([T.Resize("cover"), FILM, T.CenterCrop(9)]), 'Resize("cover") needs a crop after it'),
]


@pytest.mark.parametrize(("make", "says"), REFUSED, ids=[says[:50] for _, says in REFUSED])
def test_what_cannot_be_meant_is_refused_in_one_line(make: Callable[[], object], says: str) -> None:
    with pytest.raises(PresetError) as caught:
        make()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None  # nothing of pydantic's is shown
