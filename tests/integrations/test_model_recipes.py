"""timm's transforms and models' configurations as recipes: what is drawn, and the pixels beside theirs.

The packages come with scripts/test_integrations; elsewhere these tests skip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from making import picture
from PIL import Image
from snippets import snippets_of

from gpuloader import Compose
from gpuloader import transforms as T
from gpuloader.errors import DataError, PresetError
from gpuloader.loading.blending import soft_labels
from gpuloader.plan import Draws, Stream
from gpuloader.recipe import TRANSFORMS, load_preset
from gpuloader.recipe.timm import POLICY_NAMES, argument

pytest.importorskip("timm")
pytest.importorskip("transformers")

import timm
import transformers
from timm.data import create_transform, resolve_model_data_config
from timm.data.auto_augment import LEVEL_TO_ARG
from timm.data.mixup import mixup_target
from timm.data.naflex_transforms import get_image_size_for_seq
from timm.data.transforms import CenterCropOrPad
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
from transformers.models.siglip2.image_processing_siglip2 import get_image_size_for_max_num_patches

ROOT = Path(__file__).resolve().parents[2]

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
SIZES = [(300, 400), (400, 300), (256, 256), (97, 53), (501, 333)]
TRAIN = {"is_training": True, "color_jitter": None}


def levels(pixels: torch.Tensor, normalize: T.Normalize) -> torch.Tensor:
    """Normalised pixels as levels of 0 to 255."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (normalize.mean, normalize.std))
    return (pixels * std + mean) * 255


def apart(ours: Compose, theirs: Callable[[Image.Image], torch.Tensor], sizes: list[tuple[int, int]] = SIZES) -> float:
    """The largest difference of a level between what both make of some pictures."""
    greatest = 0.0
    for seed, (height, width) in enumerate(sizes):
        image = picture(height, width, seed)
        one, other = ours(np.asarray(image)), theirs(image)
        assert one.shape == other.shape
        difference = levels(one, ours.each_view[0].normalize) - levels(other, ours.each_view[0].normalize)
        greatest = max(greatest, difference.abs().max().item())
    return greatest


# --- timm: evaluation


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, 1.01),
        ({"crop_mode": "squash", "input_size": (3, 96, 128), "mean": (0.5, 0.4, 0.3), "std": (0.3, 0.4, 0.5)}, 1.01),
        ({"crop_mode": "border", "crop_pct": 1.0}, 1.01),
        ({"interpolation": "bicubic", "crop_pct": 0.95}, 3.01),  # PIL rounds and clips between its two passes
    ],
    ids=str,
)
def test_evaluation_has_timms_pixels(options: dict[str, Any], most: float) -> None:
    theirs = create_transform(**{"input_size": 224, **options})
    assert apart(Compose.from_timm(theirs), theirs) <= most


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "resnet50"])
def test_a_models_data_config_is_its_evaluation(name: str) -> None:
    config = resolve_model_data_config(timm.create_model(name, num_classes=2))
    theirs = create_transform(**config)
    ours = Compose.from_torchvision(config)
    assert ours == Compose.from_timm(theirs)
    assert apart(ours, theirs) <= (1.01 if config["interpolation"] == "bilinear" else 3.01)


# --- timm: training


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"input_size": (3, 96, 128), "scale": (0.2, 0.9), "ratio": (0.5, 2.0), "interpolation": "bicubic"},
            [T.RandomResizedCrop((96, 128), (0.2, 0.9), (0.5, 2.0), "bicubic"), T.RandomHorizontalFlip()],
        ),
        (
            {"color_jitter": (0.1, 0.2, 0.3, 0.05), "color_jitter_prob": 0.8},
            [
                T.RandomResizedCrop(224),
                T.RandomHorizontalFlip(),
                T.RandomApply([T.ColorJitter((0.9, 1.1), (0.8, 1.2), (0.7, 1.3), (-0.05, 0.05))], 0.8),
            ],
        ),
        (
            {"auto_augment": "rand-m7-n3-mstd0.5-inc1-p0.3-mmax20", "interpolation": "bicubic"},
            [
                T.RandomResizedCrop(224, interpolation="bicubic"),
                T.RandomHorizontalFlip(),
                T.TimmRandAugment(7, 3, 0.5, True, 0.3, 20, "bicubic", (124, 116, 104)),
            ],
        ),
        (
            {"auto_augment": "3a", "color_jitter": 0.3},
            [
                T.RandomResizedCrop(224),
                T.RandomHorizontalFlip(),
                T.ThreeAugment(0.0),
                T.ColorJitter((0.7, 1.3), (0.7, 1.3), (0.7, 1.3)),
            ],
        ),
        *(
            (
                {"auto_augment": f"{policy}-mstd0.5"},
                [T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.TimmAutoAugment(policy, 0.5, "bilinear")],
            )
            for policy in ("v0r", "original")
        ),
    ],
    ids=str,
)
def test_training_has_timms_parameters(options: dict[str, Any], expected: list[Any]) -> None:
    statistics = {key: options.get(key, value) for key, value in IMAGENET.items()}
    theirs = create_transform(**{"input_size": 224, **TRAIN, **options})
    assert Compose.from_timm(theirs) == Compose([*expected, T.Normalize(**statistics)])
    without = create_transform(**{"input_size": 224, **TRAIN, **options, "normalize": False})
    assert Compose.from_timm(without) == Compose(expected, dtype="uint8")


@pytest.mark.parametrize("re_num_splits", [0, 3])
def test_the_parts_of_aug_splits_are_views_that_share(re_num_splits: int) -> None:
    theirs = create_transform(
        224,
        is_training=True,
        auto_augment="rand-m9-mstd0.5-inc1",
        re_prob=0.25,
        re_mode="pixel",
        re_num_splits=re_num_splits,
        separate=True,
    )
    normalize, erasing = T.Normalize(**IMAGENET), T.RandomErasing(0.25, (0.02, 1 / 3), (0.3, 3.33333333333), "random")
    ours = Compose.from_timm(theirs, views=3)
    assert ours.transforms == (T.RandomResizedCrop(224), T.RandomHorizontalFlip())
    assert ours.views == (
        T.View([normalize] if re_num_splits else [normalize, erasing]),
        T.View([T.TimmRandAugment(interpolation="bilinear"), normalize, erasing], 2),
    )
    with pytest.raises(PresetError, match="give the number of --aug-splits, from 2 on, such as views=3"):
        Compose.from_timm(theirs)


def test_labels_after_the_mixup_off_epoch_are_timms() -> None:
    mix, labels = T.Mix(10, {0: 0.8, 5: 0}, label_smoothing=0.1).at(5), torch.tensor([3, 9])
    weight = torch.from_numpy(mix.draw(Draws(0, 5, np.arange(2)).of(Stream.MIX), 8, 8).weight)
    theirs = mixup_target(labels, 10, lam=1.0, smoothing=0.1)
    torch.testing.assert_close(soft_labels(labels, weight, 10, mix.label_smoothing), theirs)


OPERATIONS = {name for policy in POLICY_NAMES for pair in T.TimmAutoAugment(policy).pairs for name, *_ in pair}
OPERATIONS |= {name for each in (True, False) for name in T.TimmRandAugment(increasing=each).names}


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_arguments_of_operations_are_timms(name: str) -> None:
    timms = f"{name}Rel" if name.startswith("Translate") else name
    size = 80 if name == "TranslateX" else 60 if name == "TranslateY" else 1  # theirs are shares of the image
    for magnitude in np.arange(0, 10.5, 0.5).tolist():
        of_level = LEVEL_TO_ARG[timms]
        found = (
            {0.0} if of_level is None else {size * value for _ in range(40) for value in of_level(magnitude, {})[:1]}
        )
        levels = np.full(2, magnitude / 10)
        ours = argument(name, levels, np.array([1.0, -1.0]), np.array([[60, 80]]))
        np.testing.assert_allclose(
            sorted({round(each, 6) for each in ours}), sorted({round(each, 6) for each in found})
        )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a1", {"auto_augment": "rand-m7-mstd0.5-inc1"}),
        ("a3", {"input_size": 160, "auto_augment": "rand-m6-mstd0.5-inc1"}),
        ("deit", {"auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.25, "re_mode": "pixel"}),
    ],
)
def test_timms_own_recipes_are_those_that_are_shipped(name: str, options: dict[str, Any]) -> None:
    theirs = create_transform(**{"input_size": 224, **TRAIN, "interpolation": "bicubic", **options})
    shipped = load_preset(name, {"TimmRandAugment": {"interpolation": "bicubic"}}).transforms
    ours = Compose.from_timm(theirs, mix=T.Mix(10, mixup_alpha=0.8)).transforms
    if name == "deit":  # timm keeps the logarithm of the ratio
        *ours, erasing = (*ours[:-1], replace(ours[-1], ratio=tuple(round(each, 9) for each in ours[-1].ratio)))
        *shipped, expected = (*shipped[:-1], replace(shipped[-1], ratio=(0.3, round(1 / 0.3, 9))))
        assert erasing == expected
    assert list(ours) == list(shipped)


@pytest.mark.parametrize(
    ("mode", "value"),
    [("const", 0.0), ("pixel", "random"), ("rand", "random_color")],
    ids=["to the mean", "noise for each pixel", "one colour"],
)
def test_erasing_has_timms_parameters(mode: str, value: object) -> None:
    theirs = create_transform(224, **TRAIN, re_prob=0.4, re_mode=mode)
    *_, ours = Compose.from_timm(theirs).transforms
    assert isinstance(ours, T.RandomErasing)
    assert (ours.p, ours.scale, ours.value, ours.count) == (0.4, (0.02, 1 / 3), value, 1)


# --- timm: what has no counterpart


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({**TRAIN, "auto_augment": "augmix-m5"}, "timm's AugMixAugment has no counterpart: leave auto_augment out"),
        ({"crop_mode": "border"}, "timm's ResizeKeepRatio to (256, 256) has no counterpart"),
        ({"crop_border_pixels": 4}, "timm's TrimBorder has no counterpart: leave crop_border_pixels out"),
    ],
    ids=str,
)
def test_what_has_no_counterpart_is_refused_by_name(options: dict[str, Any], says: str) -> None:
    with pytest.raises(PresetError) as caught:
        Compose.from_timm(create_transform(**{"input_size": 224, **options}))
    assert str(caught.value).startswith("timm's transform cannot be translated: ")
    assert says in str(caught.value)


def test_a_crop_that_pads_with_black_is_a_centre_crop() -> None:
    theirs = [oracle.transforms.Resize((40, 60)), CenterCropOrPad(50), oracle.transforms.ToTensor()]
    ours = Compose.from_timm(theirs)
    assert [type(each) for each in ours.transforms] == [TRANSFORMS["Resize"], TRANSFORMS["CenterCrop"]]
    image = picture(80, 120)
    difference = ours(np.asarray(image)) - oracle.transforms.Compose(theirs)(image)
    assert difference.abs().max() * 255 <= 1.01


# --- Hugging Face


PROCESSORS = {
    "ViT, 96": {"size": {"height": 96, "width": 128}},
    "CLIP, bilinear": {"resample": 2, "size": {"shortest_edge": 96}, "crop_size": {"height": 90, "width": 80}},
    "Siglip": {},
    "DeiT": {},
    "ConvNext, below 384": {"size": {"shortest_edge": 224}},
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_an_image_processor_is_its_evaluation(name: str) -> None:
    processor = getattr(transformers, f"{name.partition(',')[0]}ImageProcessor")(**PROCESSORS[name])
    ours = Compose.from_torchvision(processor)
    assert ours == Compose.from_torchvision(processor.to_dict())

    def theirs(image: Image.Image) -> torch.Tensor:
        return processor(image, return_tensors="pt")["pixel_values"][0]

    # Whose crops leave out the same number of pixels on both sides: else it takes the window one pixel before.
    sizes = [(300, 400), (400, 300), (256, 256), (128, 192)]
    assert apart(ours, theirs, sizes) <= (1.01 if processor.resample == 2 else 3.01)


# --- sizes under a budget

SIDES = np.random.default_rng(0).integers(1, 8192, (100_000, 2))
BUDGETS = {
    "Qwen2VL": {"size": {"shortest_edge": 4 * 28 * 28, "longest_edge": 60 * 28 * 28}},
    "Qwen2VL, Qwen3-VL's": {"patch_size": 16, "size": {"shortest_edge": 65_536, "longest_edge": 16_777_216}},
    "Siglip2": {},
    "Siglip2, bicubic": {"resample": 3, "patch_size": 14, "max_num_patches": 100},
}


@pytest.mark.parametrize(("factor", "least", "most"), [(28, 56 * 56, 1280 * 28 * 28), (32, 65_536, 16_777_216)])
def test_smart_sizes_are_transformers(factor: int, least: int, most: int) -> None:
    sides = SIDES[SIDES.max(1) <= 200 * SIDES.min(1)]
    theirs = [smart_resize(height, width, factor, least, most) for height, width in sides.tolist()]
    np.testing.assert_array_equal(T.SmartResize(factor, least, most).fit(sides), theirs)


@pytest.mark.parametrize(("patch", "most"), [(16, 256), (14, 729)])
def test_sizes_of_sequences_are_timms_and_transformers(patch: int, most: int) -> None:
    ours = T.ResizeToSequence(patch, most).fit(SIDES)
    np.testing.assert_array_equal(ours, [get_image_size_for_seq(each, patch, most)[1] for each in SIDES.tolist()])
    theirs = [get_image_size_for_max_num_patches(*each, patch, most) for each in SIDES.tolist()]
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("height", [199, 200, 201])
def test_a_ratio_is_refused_where_transformers_refuses_it(height: int) -> None:
    def refuses(function: Callable[[], object], error: type[Exception]) -> bool:
        try:
            function()
        except error:
            return True
        return False

    ours = Compose([T.SmartResize()], batch="list")
    by_us = refuses(lambda: ours(np.zeros((height, 1, 3), np.uint8)), DataError)
    assert by_us == refuses(lambda: smart_resize(height, 1), ValueError) == (height == 201)


@pytest.mark.parametrize("name", BUDGETS)
def test_a_processor_with_a_budget_has_its_pixels(name: str) -> None:
    processor = getattr(transformers, f"{name.partition(',')[0]}ImageProcessor")(**BUDGETS[name])
    ours = Compose.from_torchvision(processor, batch="list")
    patch, merge = processor.patch_size, getattr(processor, "merge_size", 1)

    def theirs(image: Image.Image) -> torch.Tensor:
        """The image that the processor cut into patches."""
        made = processor(image, return_tensors="pt")
        if merge > 1:
            _, rows, columns = made["image_grid_thw"][0].tolist()
            patches = made["pixel_values"].reshape(rows // merge, columns // merge, merge, merge, 3, 2, patch, patch)
            return patches[:, :, :, :, :, 0].permute(4, 0, 2, 5, 1, 3, 6).reshape(3, rows * patch, columns * patch)
        rows, columns = made["spatial_shapes"][0].tolist()
        patches = made["pixel_values"][0][: rows * columns].reshape(rows, columns, patch, patch, 3)
        return patches.permute(4, 0, 2, 1, 3).reshape(3, rows * patch, columns * patch)

    assert apart(ours, theirs) <= (1.01 if processor.resample == 2 else 3.01)


def test_the_pages_patches_are_qwens() -> None:
    [page] = [each.code for each in snippets_of(ROOT / "docs/samples.md") if "def to_qwen" in each.code]
    names: dict[str, Any] = {}
    exec(page.partition("\n\n\nrecipe = ")[0], names)
    processor = transformers.Qwen2VLImageProcessor(do_resize=False)
    images = [torch.from_numpy(np.array(picture(*size))).permute(2, 0, 1) for size in [(56, 84), (140, 28)]]
    theirs = processor(images, return_tensors="pt", do_rescale=False, do_normalize=False)
    sizes = torch.tensor([image.shape[1:] for image in images])
    made = names["to_qwen"]({"image": [image.float() for image in images], "size": sizes, "txt": []})
    assert torch.equal(made["pixel_values"], theirs["pixel_values"].float())
    assert torch.equal(made["image_grid_thw"], theirs["image_grid_thw"])
