"""torchvision's transforms as recipes: the same parameters, or a refusal that names all that cannot be had."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from inspect import signature
from types import ModuleType
from typing import Any

import pytest
import torch
from oracle import parameters_of, transforms
from torchvision import tv_tensors
from torchvision.models import ResNet50_Weights

from gpuloader import transforms as T
from gpuloader.errors import PresetError
from gpuloader.recipe import TRANSFORMS, Recipe, load_preset, preset_names, recipe_from_torchvision
from gpuloader.recipe.model import Transform

v1, v2 = transforms, transforms.v2
BOTH = pytest.mark.parametrize("theirs", [v1, v2], ids=["v1", "v2"])
Mode = v1.InterpolationMode
SQUARE, MEAN, STD = T.Resize((9, 9)), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
FLIP, GRAY = T.RandomHorizontalFlip(0.3), T.Grayscale()
TO_FLOAT = [v1.PILToTensor(), v1.ConvertImageDtype(torch.float)]


translated = recipe_from_torchvision


def error_of(transform: object, **options: object) -> str:
    with pytest.raises(PresetError) as caught:
        translated(transform, **options)
    return str(caught.value)


def written(theirs: ModuleType, ours: Transform) -> object:
    """torchvision's transform of the same name and parameters."""
    parameters = parameters_of(ours)
    if "interpolation" in parameters:
        parameters["interpolation"] = Mode(parameters["interpolation"])
    if "policy" in parameters:
        parameters["policy"] = v1.AutoAugmentPolicy(parameters["policy"])
    if "transforms" in parameters:
        parameters["transforms"] = [written(theirs, each) for each in ours.transforms]  # type: ignore[attr-defined]
    if isinstance(ours, T.Grayscale):
        parameters["num_output_channels"] = 3
    return getattr(theirs, type(ours).__name__)(**parameters)


# Every transform that torchvision has, nothing at its default, and what a recipe with it needs.
CASES: list[list[Transform]] = [
    [T.Resize(9, "bicubic", 12, antialias=False), T.CenterCrop((7, 8))],
    [T.Resize((9, 9), "lanczos")],  # not the shorter side
    [T.RandomResizedCrop((7, 8), (0.2, 0.9), (0.5, 2.0), "nearest", antialias=False)],
    [SQUARE, T.RandomCrop((7, 8), (1, 2, 3, 4), (5.0, 6.0, 7.0), "constant")],
    [SQUARE, T.RandomCrop(7, 3, 9.0, "reflect")],
    [SQUARE, T.Pad((1, 2, 3, 4), (5.0, 6.0, 7.0), "constant")],
    [SQUARE, T.Pad((1, 2), 5.0, "symmetric")],
    [SQUARE, T.RandomHorizontalFlip(0.3), T.RandomVerticalFlip(0.4)],
    [SQUARE, T.FiveCrop((3, 4))],
    [SQUARE, T.TenCrop(3, vertical_flip=True)],
    [SQUARE, T.RandomRotation((-10.0, 20.0), "bilinear", (3.0, 4.0), 5.0)],
    [SQUARE, T.RandomAffine((-1.0, 2.0), (0.1, 0.2), (0.5, 1.5), (1.0, 2.0, 3.0, 4.0), "bilinear", 6.0, (3.0, 4.0))],
    [SQUARE, T.RandomAffine((-1.0, 2.0), shear=(1.0, 2.0), fill=(5.0, 6.0, 7.0))],
    [SQUARE, T.RandomPerspective(0.3, 0.4, "nearest", 5.0)],
    [SQUARE, T.ColorJitter((0.5, 1.2), (0.1, 0.9), (0.0, 3.0), (-0.2, 0.1))],
    [SQUARE, T.Grayscale(), T.RandomGrayscale(0.7)],
    [SQUARE, T.GaussianBlur(5, (0.3, 0.4))],
    [SQUARE, T.RandomSolarize(100.0, 0.3), T.RandomPosterize(3, 0.2), T.RandomEqualize(0.1), T.RandomAutocontrast(0.4)],
    [SQUARE, T.RandomAdjustSharpness(2.5, 0.6), T.RandomInvert(0.7)],
    [SQUARE, T.AutoAugment("svhn", "bilinear", 5.0)],
    [SQUARE, T.RandAugment(3, 5, 11, "bilinear", 5.0), T.TrivialAugmentWide(11, "bicubic", 5.0)],
    [SQUARE, T.AugMix(4, 2, 3, 0.5, False, "nearest", 5.0)],
    [SQUARE, T.RandomApply([T.GaussianBlur(3), T.RandomApply([T.RandomInvert(0.1)], 0.2)], 0.3)],
    [SQUARE, T.RandomChoice([T.GaussianBlur(3), T.RandomInvert(0.1)], (0.25, 0.75))],
    [SQUARE, T.Normalize(MEAN, STD), T.RandomErasing(0.2, (0.1, 0.2), (0.5, 2.0), 3.0)],
    [SQUARE, T.RandomErasing(value=(1.0, 2.0, 3.0))],
    [SQUARE, T.RandomErasing(value="random")],
]
DISTORT = T.RandomPhotometricDistort((0.5, 1.2), (0.1, 0.9), (0.0, 3.0), (-0.2, 0.1), 0.7)
ONLY_IN_V2: list[list[Transform]] = [
    [T.ScaleJitter((40, 30), (0.5, 1.5), "bicubic", antialias=False), T.RandomCrop(9)],
    [T.RandomShortestSize((10, 20), 33, "nearest"), T.RandomCrop(9)],
    [T.RandomResize(10, 20, "bicubic"), T.RandomCrop(9)],
    [T.RandomZoomOut((1.0, 2.0, 3.0), (2.0, 3.0), 0.4), SQUARE],
    [SQUARE, DISTORT],
    [T.RandomIoUCrop(0.4, 0.9, 0.6, 1.5, (0.2, 0.4), 30), SQUARE, T.SanitizeBoundingBoxes(2.0, 9.0)],
]


@pytest.mark.parametrize(
    ("order", "ours", "warns"),
    [
        ([DISTORT, SQUARE], [SQUARE, DISTORT], True),
        ([DISTORT, FLIP, SQUARE, FLIP], [FLIP, SQUARE, FLIP, DISTORT], True),
        ([SQUARE, DISTORT, FLIP], [SQUARE, DISTORT, FLIP], False),  # flips may follow colours
        ([SQUARE, DISTORT, GRAY], [SQUARE, DISTORT, GRAY], False),
        ([DISTORT, SQUARE, GRAY], [SQUARE, DISTORT, GRAY], True),
    ],
)
def test_a_distortion_in_front_of_the_geometry_comes_behind_it_which_a_warning_says(
    caplog: pytest.LogCaptureFixture, order: list[Transform], ours: list[Transform], warns: bool
) -> None:
    assert translated([written(v2, each) for each in order]).transforms == tuple(ours)
    assert ("RandomPhotometricDistort moves after" in caplog.text) == warns


def test_other_colours_in_front_of_the_geometry_are_refused() -> None:
    assert "in the wrong place" in error_of([v2.RandomPhotometricDistort(), v2.ColorJitter(0.4), v2.Resize((9, 9))])


def test_every_transform_that_torchvision_has_is_among_the_cases() -> None:
    def names(of: Iterable[object]) -> set[str]:
        return {type(each).__name__ for each in of}.union(*(names(getattr(each, "transforms", ())) for each in of))

    tested = {name for case in CASES + ONLY_IN_V2 for name in names(case)}
    assert tested == {name for name in TRANSFORMS if hasattr(v2, name)}


@BOTH
@pytest.mark.parametrize("case", CASES, ids=lambda case: ",".join(type(each).__name__ for each in case))
def test_a_transform_keeps_its_parameters(theirs: ModuleType, case: list[Transform]) -> None:
    output = [written(theirs, each) for each in case if isinstance(each, (T.Normalize, T.RandomErasing))]
    before = [written(theirs, each) for each in case if not isinstance(each, (T.Normalize, T.RandomErasing))]
    preset = translated(theirs.Compose([*before, *TO_FLOAT, *output]))
    assert preset == Recipe(case)


@pytest.mark.parametrize("case", ONLY_IN_V2, ids=lambda case: type(case[0]).__name__)
def test_a_transform_of_v2_keeps_its_parameters(case: list[Transform]) -> None:
    assert translated(v2.Compose([*(written(v2, each) for each in case), *TO_FLOAT])) == Recipe(case)


DEFAULTS: list[Transform] = [
    *(SQUARE, *(each(9) for each in (T.RandomResizedCrop, T.RandomCrop, T.CenterCrop, T.FiveCrop, T.TenCrop))),
    *(T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.Pad(3), T.RandomRotation((-5.0, 5.0))),
    *(T.RandomAffine((-5.0, 5.0)), T.RandomPerspective(), T.RandomGrayscale(), T.GaussianBlur(3)),
    *(T.RandomSolarize(128.0), T.RandomPosterize(3), T.RandomEqualize(), T.RandomAutocontrast(), T.RandomInvert()),
    *(T.RandomAdjustSharpness(2.0), T.AutoAugment(), T.RandAugment(), T.TrivialAugmentWide(), T.AugMix()),
    *(T.RandomApply([T.GaussianBlur(3)]), T.RandomErasing()),
]


@BOTH
@pytest.mark.parametrize("ours", DEFAULTS, ids=lambda each: type(each).__name__)
def test_the_defaults_are_torchvisions(theirs: ModuleType, ours: Transform) -> None:
    required = [name for name, each in signature(type(ours)).parameters.items() if each.default is each.empty]
    given = {name: getattr(ours, name) for name in required}
    if isinstance(ours, T.RandomApply):
        given["transforms"] = [theirs.GaussianBlur(3)]
    transform = getattr(theirs, type(ours).__name__)(**given)
    if isinstance(ours, (T.Resize, T.RandomResizedCrop)):
        assert translated(transform).transforms == (ours,)
    else:
        assert translated([theirs.Resize((9, 9)), transform], dtype="float32").transforms == (SQUARE, ours)


@BOTH
def test_a_jitter_without_parameters_and_choices_with_and_without(theirs: ModuleType) -> None:
    inverts, ours = [theirs.RandomInvert()] * 2, [T.RandomInvert()] * 2
    made = [theirs.ColorJitter(), theirs.RandomChoice(inverts), theirs.RandomChoice(inverts[:1], [1.0])]
    jitter, choice, one = translated([theirs.Resize((9, 9)), *made]).transforms[1:]
    assert (jitter, one) == (T.ColorJitter(), T.RandomChoice(ours[:1], (1.0,)))
    assert choice in (T.RandomChoice(ours), T.RandomChoice(ours, (0.5, 0.5)))


@BOTH
@pytest.mark.parametrize(
    ("make", "ours"),
    [
        (lambda theirs: theirs.CenterCrop([5]), T.CenterCrop(5)),
        (lambda theirs: theirs.RandomCrop(5, [2, 2]), T.RandomCrop(5, 2)),
        (lambda theirs: theirs.RandomCrop(5, pad_if_needed=True, fill=[3]), T.RandomCrop(5, fill=3.0)),
        (lambda theirs: theirs.ColorJitter(0.4, 1.5, hue=0.1), T.ColorJitter((0.6, 1.4), (0.0, 2.5), hue=(-0.1, 0.1))),
        (lambda theirs: theirs.RandomRotation(10), T.RandomRotation((-10.0, 10.0))),
        (lambda theirs: theirs.RandomAffine(0, shear=5), T.RandomAffine((0.0, 0.0), shear=(-5.0, 5.0))),
        (lambda theirs: theirs.GaussianBlur((5, 5), 1.5), T.GaussianBlur(5, (1.5, 1.5))),
        (lambda theirs: theirs.RandomErasing(value=3), T.RandomErasing(value=3.0)),
    ],
)
def test_other_ways_to_write_it(theirs: ModuleType, make: Callable[[ModuleType], object], ours: Transform) -> None:
    [found] = translated([theirs.Resize((9, 9)), make(theirs)], dtype="float32").transforms[1:]
    assert found == ours


@pytest.mark.parametrize(
    "fill",
    [
        {tv_tensors.Mask: 1, tv_tensors.Image: 127},
        {tv_tensors.Mask: 1, "others": 127},
        {torch.Tensor: 127, "others": 1},
        defaultdict(lambda: 127, {tv_tensors.Mask: 0}),  # as the detection reference writes it
    ],
    ids=["image", "others", "tensor", "default"],
)
def test_a_fill_by_the_type_of_the_input_is_that_of_images(fill: dict[Any, float]) -> None:
    assert translated([v2.Resize((9, 9)), v2.RandomRotation(5, fill=fill)]).transforms[1].fill == 127  # type: ignore[attr-defined]


@BOTH
def test_nesting_is_unfolded(theirs: ModuleType) -> None:
    crop, blur = theirs.RandomResizedCrop(9), theirs.GaussianBlur(3)
    ours, our_blur = T.RandomResizedCrop(9), T.GaussianBlur(3)
    for transform in (
        crop,
        [crop],
        theirs.Compose([theirs.Compose([crop])]),
        torch.nn.Sequential(v2.RandomResizedCrop(9), torch.nn.Identity()),
        ([], [crop]),
    ):
        assert translated(transform).transforms == (ours,)
    for inner in ([blur, blur], [theirs.Compose([blur, blur])], torch.nn.ModuleList([v2.GaussianBlur(3)] * 2)):
        assert translated([crop, theirs.RandomApply(inner, 0.3)]).transforms == (
            ours,
            T.RandomApply([our_blur, our_blur], 0.3),
        )


# The dtype.


@pytest.mark.parametrize(
    ("behind", "dtype"),
    [
        ([], "uint8"),
        ([v2.ToImage(), v2.RGB(), v2.ToPureTensor(), v2.Identity()], "uint8"),
        ([v1.ToTensor()], "float32"),
        ([v2.ConvertImageDtype(torch.float16)], "float16"),
        ([v2.ToDtype(torch.bfloat16, scale=True)], "bfloat16"),
        ([v2.ToDtype(torch.uint8, scale=True), v2.ToDtype(torch.float32, scale=True)], "float32"),
        ([v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True)], "float32"),
        ([v1.ToTensor(), v1.ToPILImage()], "uint8"),
    ],
)
def test_the_dtype_is_what_the_image_is_converted_to(behind: list[Any], dtype: str) -> None:
    assert translated([v2.RandomResizedCrop(9), *behind]) == Recipe([T.RandomResizedCrop(9)], dtype=dtype)  # type: ignore[arg-type]
    assert translated([*behind, v2.RandomResizedCrop(9)]).dtype == dtype


@BOTH
def test_levels_behind_a_conversion_are_of_255(theirs: ModuleType) -> None:
    warped = [theirs.RandomRotation(5, fill=0.2), theirs.RandomPerspective(fill=[0.2, 0.4, 1.0])]
    preset = translated([*TO_FLOAT, theirs.Resize((9, 9)), *warped, theirs.RandomSolarize(0.6)])
    rotation, perspective, solarize = preset.transforms[1:]
    assert (rotation.fill, perspective.fill, solarize.threshold) == (51.0, (51.0, 102.0, 255.0), 153.0)  # type: ignore[attr-defined]
    assert translated([theirs.Resize((9, 9)), theirs.RandomRotation(5, fill=51)]).transforms[1].fill == 51  # type: ignore[attr-defined]


def test_options_are_those_of_the_recipe() -> None:
    options = {"layout": "channels_last", "views": 2, "dtype": "float16"}
    assert translated(v2.RandomResizedCrop(9), **options) == Recipe([T.RandomResizedCrop(9)], **options)  # type: ignore[arg-type]


# What cannot be had.


class Lambda:
    """Of somebody else."""


@BOTH
def test_all_that_cannot_be_translated_is_named(theirs: ModuleType) -> None:
    wrong = {
        "Lambda has no counterpart": theirs.Lambda(str),
        f"{__name__}.Lambda is not a transform of torchvision": [Lambda()],
        "Grayscale with num_output_channels=1": theirs.Grayscale(),
        "RandomOrder has no counterpart": theirs.RandomApply([theirs.RandomOrder([theirs.RandomInvert()])]),
        "RandomRotation with expand=True": theirs.RandomRotation(5, expand=True),
        "`GaussianBlur.kernel_size`: found (3, 5)": theirs.GaussianBlur((3, 5)),
        "`RandomAdjustSharpness.sharpness_factor`: found -1": theirs.RandomAdjustSharpness(-1),
        "`Normalize.mean`: found 0.5": theirs.Normalize([0.5], [0.1, 0.2, 0.3]),
    }
    beginning, *said = error_of([theirs.RandomResizedCrop(9), *wrong.values()]).split("; ")
    said.insert(0, beginning.removeprefix("torchvision's transform cannot be translated: "))
    assert [problem for problem, each in zip(wrong, said, strict=True) if not each.startswith(problem)] == []


class ToTensor:
    """As torchvision calls it, and does something else."""


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (ToTensor(), "ToTensor is not a transform of torchvision"),
        (torch.nn.ReLU(), "ReLU has no counterpart"),
        (v2.Resize(None, max_size=9), "`Resize.size` is missing"),
        (v2.ToDtype(torch.float32), "ToDtype to float32 with scale=False: only scale=True is supported"),
        (v2.RandomChoice([v2.Compose([v2.GaussianBlur(3)] * 2), v2.RandomInvert()]), "must be exactly one transform"),
        (v2.RandomChoice([v2.Identity(), v2.RandomInvert()]), "must be exactly one transform"),
        (v2.MixUp(alpha=0.2, num_classes=10), "MixUp mixes batches: leave it out, and give the recipe"),
        (v2.RandomChoice([v2.RandomHorizontalFlip(), v2.RandomInvert()]), "allowed is a PixelTransform"),
        (v2.Resize(8), "RandomResizedCrop and Resize: here they become one resize, which changes the pixels: keep one"),
    ],
)
def test_what_cannot_be_translated_is_refused(transform: object, says: str) -> None:
    message = error_of([v2.RandomResizedCrop(9), transform])
    assert message.startswith("torchvision's transform cannot be translated: ")
    assert says in message
    assert ";" not in message.replace("; allowed", "")  # one problem, once


@pytest.mark.parametrize(
    ("transform", "options", "says"),
    [
        (v2.CenterCrop(9), {"mix": T.Mix(10, 0.2), "dtype": "uint8"}, "`mix` needs one view and a float dtype"),
        (v2.Resize(9), {}, "Resize: leaves images of different sizes: add CenterCrop or RandomCrop, or take "),
        ([v2.ColorJitter(0.4), v2.CenterCrop(9)], {}, "CenterCrop is in the wrong place"),  # other pixels behind it
        (v2.CenterCrop(9), {"layout": "nchv"}, "`layout`: found 'nchv' (did you mean nchw?); allowed are "),
    ],
    ids=str,
)
def test_what_cannot_be_a_recipe_is_refused(transform: object, options: dict[str, Any], says: str) -> None:
    assert error_of(transform, **options).startswith(f"torchvision's transform: {says}")


# The presets, as the code of their sources composes them from torchvision's transforms.

IMAGENET = v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CIFAR10 = v1.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100 = v1.Normalize((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
CLIP = v1.Normalize((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
FLIP, BICUBIC = v1.RandomHorizontalFlip(), Mode.BICUBIC


def evaluation(size: int, crop: int, *normalize: object, interpolation: Mode = Mode.BICUBIC) -> list[object]:
    return [v1.Resize(size, interpolation), v1.CenterCrop(crop), *(normalize or [IMAGENET])]


def colours(*strengths: float, blur: float = 0.5, kernel_size: int = 13) -> list[object]:
    """MoCo v2's, which SimCLR and DINO have too: their kernels are a tenth of the image, as SimCLR's paper says."""
    blurred: object = v1.GaussianBlur(kernel_size, (0.1, 2.0))
    blurred = blurred if blur == 1 else v1.RandomApply([blurred], blur)
    return [v1.RandomApply([v1.ColorJitter(*strengths)], 0.8), v1.RandomGrayscale(0.2), blurred]


def dinos(size: int, scale: tuple[float, float], blur: float, *solarize: object) -> list[object]:
    crop = v1.RandomResizedCrop(size, scale, interpolation=BICUBIC)
    return [crop, FLIP, *colours(0.4, 0.4, 0.2, 0.1, blur=blur), *solarize, IMAGENET]


def references(size: int, *policy: object, erasing: float = 0.0) -> list[object]:
    """torchvision's references/classification/presets.py."""
    erased = [v1.RandomErasing(erasing)] if erasing else []
    return [v1.RandomResizedCrop(size), FLIP, *policy, IMAGENET, *erased]


PADDED = [v1.Resize((32, 32)), v1.RandomCrop(32, 4), FLIP]
PUBLISHED: dict[str, list[list[object]]] = {
    "resnet50_v1": [references(224)],
    "imagenet_train": [references(224)],
    "imagenet_train_jitter": [references(224, v1.ColorJitter(0.4, 0.4, 0.4, 0.1))],
    "imagenet_randaugment": [references(224, v1.RandAugment())],
    "resnet50_v2": [references(176, v1.TrivialAugmentWide(interpolation=Mode.BILINEAR), erasing=0.1)],
    "imagenet_eval": [[ResNet50_Weights.IMAGENET1K_V1.transforms()]],
    "resnet50_v2_eval": [[ResNet50_Weights.IMAGENET1K_V2.transforms()]],
    "cifar10": [[*PADDED, CIFAR10]],
    "cifar10_eval": [[v1.Resize((32, 32)), CIFAR10]],
    "cifar100": [[*PADDED, CIFAR100]],
    "cifar100_eval": [[v1.Resize((32, 32)), CIFAR100]],
    "clip_train": [[v1.RandomResizedCrop(224, (0.9, 1.0), interpolation=BICUBIC), CLIP]],
    "clip_eval": [evaluation(224, 224, CLIP)],
    "a1_eval": [evaluation(int(224 / 0.95), 224)],
    "deit_eval": [evaluation(256, 224)],
    "deit3_eval": [evaluation(224, 224)],
    "moco_v2": [[v1.RandomResizedCrop(224, (0.2, 1.0)), FLIP, *colours(0.4, 0.4, 0.4, 0.1), IMAGENET]] * 2,
    "simclr": [[v1.RandomResizedCrop(224, interpolation=BICUBIC), FLIP, *colours(0.8, 0.8, 0.8, 0.2, kernel_size=23)]]
    * 2,
    "dino": [
        dinos(224, (0.4, 1.0), 1.0),
        dinos(224, (0.4, 1.0), 0.1, v1.RandomSolarize(128, 0.2)),
        *[dinos(96, (0.05, 0.4), 0.5)] * 8,
    ],
    "raw_uint8": [[v1.Resize(256), v1.CenterCrop(224)]],
}
POLICIES: dict[str, tuple[int, list[Transform]]] = {
    "a1": (224, [T.TimmRandAugment(7)]),
    "a2": (224, [T.TimmRandAugment(7)]),
    "a3": (160, [T.TimmRandAugment(6)]),
    "deit": (224, [T.TimmRandAugment(9, interpolation="bicubic")]),
    "deit3": (224, [T.ThreeAugment(0.3)]),
}
"""timm's, whose own transforms are in tests/integrations/test_model_recipes.py."""
OF_TARGETS = {"ssd", "ssd_eval", "ssdlite", "ssdlite_eval", "detection", "detection_multiscale", "detection_eval"} | {
    *("segmentation", "segmentation_eval", "detr", "detr_eval", "yolo", "yolo_eval")
}
"""In test_detection_presets.py."""
ERASING = {"deit": [T.RandomErasing(0.25, (0.02, 1 / 3), (0.3, 1 / 0.3), "random")]}
MIXES = {
    "a1": T.Mix(1000, 0.2, 1.0, label_smoothing=0.1),
    **dict.fromkeys(("a2", "a3"), T.Mix(1000, 0.1, 1.0)),
    "deit": T.Mix(1000, 0.8, 1.0, label_smoothing=0.1),
    "deit3": T.Mix(1000, 0.8, 1.0),
    "resnet50_v2": T.Mix(1000, 0.2, 1.0),
}


def as_published(name: str) -> list[list[Transform]]:
    """The transforms of each view."""
    if name in PUBLISHED:
        dtype = "uint8" if name == "raw_uint8" else "float32"
        return [list(translated(view, dtype=dtype).transforms) for view in PUBLISHED[name]]
    size, policy = POLICIES[name]
    [crop, flip, normalize] = translated([*dinos(size, (0.08, 1.0), 0)[:2], IMAGENET], dtype="float32").transforms
    return [[crop, flip, *policy, normalize, *ERASING.get(name, [])]]


def with_ranges(ours: Transform) -> Transform:
    """The same, with torchvision's ranges in the place of strengths."""
    if not isinstance(ours, (T.ColorJitter, T.RandomApply)):
        return ours
    return translated([v1.Resize((9, 9)), written(v1, ours)]).transforms[1]


def test_every_preset_is_compared_with_its_source() -> None:
    assert {*preset_names()} == {*PUBLISHED, *POLICIES} | OF_TARGETS


@pytest.mark.parametrize("name", [*PUBLISHED, *POLICIES])
def test_a_preset_is_as_its_source_composes_it(name: str) -> None:
    preset = load_preset(name)
    views = preset.views if isinstance(preset.views, tuple) else [T.View(preset.transforms, preset.views)]
    shipped = [[with_ranges(each) for each in view.transforms] for view in views for _ in range(view.count)]
    assert shipped == as_published(name)
    assert preset.mix == MIXES.get(name)
    assert preset.dtype == ("uint8" if name == "raw_uint8" else "float32")
    assert preset.layout == "nchw"
