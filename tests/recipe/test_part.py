"""`part`: wrong arguments in Python are errors of the library's, in words, one line for each."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields
from inspect import signature
from typing import Any

import pytest
import torch
from oracle import transforms

from gpuloader import Buckets, Compose, World
from gpuloader import transforms as T  # noqa: N812
from gpuloader.errors import ConfigError, PresetError
from gpuloader.loading.arguments import VALUES
from gpuloader.loading.fields import FIELDS
from gpuloader.recipe import TRANSFORMS

v1, v2 = transforms, transforms.v2
CROP = T.CenterCrop(8)
KEYS = "transforms, views, mix, dtype, layout, max_pixels, orientation"
FROM_TORCHVISION = (
    "allowed are the transforms of gpuloader.transforms; Compose.from_torchvision translates those of torchvision"
)


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.RandomResizedCrop(8, scale=0.5), "`RandomResizedCrop.scale`: found 0.5: allowed is [low, high]"),
        (
            lambda: T.CenterCrop((3, 224, 224)),
            "`CenterCrop.size`: found (3, 224, 224): allowed is an integer, a mapping or",
        ),
        (
            lambda: T.Pad((1, 2, 3)),
            "`Pad.padding`: found (1, 2, 3): allowed is an integer, [left and right, top and bottom]",
        ),
        (lambda: T.RandomRotation(3, center=5), "`RandomRotation.center`: found 5: allowed is [x, y]"),
        (lambda: T.Normalize(0.5, [0.5] * 3), "`Normalize.mean`: found 0.5: allowed is [red, green, blue]"),
        (lambda: T.ColorJitter([1, 2, 3]), "`ColorJitter.brightness`: found [1, 2, 3]: allowed is a number or"),
        (
            lambda: T.RandomErasing(value=[1]),
            "`RandomErasing.value`: found [1]; allowed are a number, [red, green, blue]",
        ),
        (lambda: Compose([CROP], mipmaps="x"), "`Compose.mipmaps`: found 'x'; allowed are 'off' or a number"),
        (
            lambda: Compose([CROP], layuot="nchw"),
            f"`Compose.layuot` is an unknown key (did you mean layout?); allowed are {KEYS}",
        ),
        (T.Resize, "`Resize.size` is missing"),
        (lambda: T.ColorJitter(0.4, 0.4, 0.4, 0.1, 0.2, 0.3), "`ColorJitter`: found 0.2, one value too many; allowed"),
        (lambda: T.CenterCrop((8, 0)), "`CenterCrop.size`: found 0: allowed is a number of at least 1"),
        (Compose, "`Compose`: give `transforms`, or `views` with their own, or both; an empty list"),
        (
            lambda: Compose([CROP], mix={"num_classes": 9}),
            "`Compose.mix`: `Mix`: mixup_alpha and cutmix_alpha are both 0",
        ),
        (
            lambda: Compose([CROP], dtype="float46", views=0),
            "`Compose.views`: found 0: allowed is a number of at least 1\n"
            "`Compose.dtype`: found 'float46' (did you mean float16?); allowed are "
            "'float32', 'float16', 'bfloat16' or 'uint8'",
        ),
        (lambda: Compose(T.RandomHorizontalFlip()), "`Compose.transforms`: found RandomHorizontalFlip(p=0.5): allowed"),
        (lambda: Compose([CROP, T.RandomHorizontalFlip]), "`Compose.transforms`: found the class"),
        (lambda: Compose([CROP, "Pad"]), f"`Compose.transforms`: found 'Pad': {FROM_TORCHVISION}"),
        (
            lambda: Compose([v1.CenterCrop(8), v1.RandomHorizontalFlip()]),
            f"`Compose.transforms`: found torchvision.transforms.transforms.CenterCrop: {FROM_TORCHVISION}",
        ),
        *(
            (
                lambda each=each: Compose([CROP, each]),
                f"`Compose.transforms`: {type(each).__name__} is not needed, leave it out: batches are tensors "
                "already, of the recipe's `dtype`",
            )
            for each in (
                v1.ToTensor(),
                v1.PILToTensor(),
                v2.ToImage(),
                v2.ToDtype(torch.uint8),
                v1.ConvertImageDtype(torch.half),
            )
        ),
        (lambda: Compose([CROP, T.RandomApply([T.GaussianBlur(4)])]), "`GaussianBlur`: kernel_size 4: allowed are odd"),
    ],
)
def test_what_is_wrong_is_said_in_words(make: Callable[[], object], message: str) -> None:
    with pytest.raises(PresetError) as caught:
        make()
    assert str(caught.value).startswith(message)
    assert str(caught.value).count("\n") == message.count("\n")  # a line for each
    assert isinstance(caught.value, ConfigError)
    assert caught.value.__suppress_context__  # nothing of pydantic's is shown


def test_a_part_keeps_its_signature_and_its_documentation() -> None:
    assert list(signature(T.RandomCrop).parameters) == ["size", "padding", "fill", "padding_mode"]
    assert (T.RandomCrop.__name__, T.RandomCrop.__module__) == ("RandomCrop", "gpuloader.recipe.crops")
    assert T.RandomCrop.__doc__ is not None
    crop = T.RandomCrop(8, padding=2)
    assert crop == T.RandomCrop(8, 2) == pickle.loads(pickle.dumps(crop)) == deepcopy(crop)
