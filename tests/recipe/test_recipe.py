"""`Recipe`: recipes by name and from YAML, values in them replaced, and what is wrong with wrong ones."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from drawn_numbers import all_numbers_of
from torchvision.transforms import v2

from gpuloader import Compose
from gpuloader import transforms as T
from gpuloader.errors import PresetError
from gpuloader.plan import Draws
from gpuloader.recipe import (
    TRANSFORMS,
    Recipe,
    load_preset,
    preset_names,
    preset_text,
    recipe_from_torchvision,
    recipe_yaml,
)
from gpuloader.recipe.model import Transform
from gpuloader.recipe.part import as_plain_values

FLIP = T.RandomHorizontalFlip(0.5)
CROP = T.RandomResizedCrop(224, (0.08, 1.0), (3 / 4, 4 / 3), "bilinear")
IMAGENET = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SHIPPED = {name: load_preset(name) for name in preset_names()}
"""That each is its source, tests/recipe/test_from_torchvision.py and tests/integrations/test_model_recipes.py say."""
SMALL: dict[str, Any] = {"transforms": [{"RandomResizedCrop": {"size": 32}}, "RandomHorizontalFlip"]}
OF_LIBRARY = {"imagenet_train", "imagenet_train_jitter", "imagenet_eval", "raw_uint8"}


def preset_of(folder: Path, overrides: dict[str, Any] | None = None, **content: object) -> Recipe:
    """A small recipe, through a YAML file."""
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **content}))
    return load_preset(path, overrides)


def error_of(folder: Path, **content: object) -> str:
    """The message, without the file that each of its lines begins with."""
    with pytest.raises(PresetError) as caught:
        preset_of(folder, **content)
    beginning = f"{folder / 'mine.yaml'}: "
    lines = str(caught.value).splitlines()
    assert all(line.startswith(beginning) for line in lines)
    return "\n".join(line.removeprefix(beginning) for line in lines)


# The recipes that come with the library.


NUMBERS = {1: "", 2: "two of ", 8: "eight of "}


@pytest.mark.parametrize("name", preset_names())
def test_a_shipped_preset_begins_by_saying_its_output(name: str) -> None:
    preset, [title, output, *comments] = SHIPPED[name], re.findall("^# (.*)", preset_text(name), re.MULTILINE)
    counts = Counter(preset.shapes)
    shapes = {shape: "(B, 3, {}, {})".format(*shape or "HW") for shape in counts}  # None if sizes differ
    shapes = dict.fromkeys(shapes, "a list of (3, h, w)") if preset.batch == "list" else shapes
    of_views = " and ".join(f"{NUMBERS[n]}{shapes[shape]}" for shape, n in counts.items())
    labels = f"; labels (B, {preset.mix.num_classes}) float32" if preset.mix else ""
    assert re.fullmatch(
        rf"Output: {re.escape(of_views)} {preset.dtype}, (about )?(\S+ to \S+)( \([^()]*\))?{re.escape(labels)}\.",
        output,
    )
    assert title[0].isalpha()
    assert title.endswith(".")
    assert (name in OF_LIBRARY) == (not any(line.startswith("Source: ") for line in comments))
    assert all(len(line) <= 120 for line in preset_text(name).splitlines())


@pytest.mark.parametrize("name", preset_names())
def test_evaluation_is_in_order_and_complete(name: str) -> None:
    preset = SHIPPED[name]
    training = not name.endswith("_eval") and name != "raw_uint8"
    assert (preset.default_shuffle, preset.default_last_batch) == (
        ("full", "drop") if training else ("none", "partial")
    )
    assert preset.random == training
    said = re.search(r"Evaluate with (\w+)", preset_text(name))
    assert said is None or said[1] in SHIPPED


# Where recipes come from.


def test_a_file_is_read_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("mine.yaml", "imagenet_eval"):
        Path(name).write_text("transforms: [CenterCrop: {size: 1}]\n")
    # Without a suffix, it is a file where its path has a folder.
    for source in (tmp_path / "mine.yaml", "mine.yaml", "~/mine.yaml", str(tmp_path / "imagenet_eval")):
        assert load_preset(source) == Recipe([T.CenterCrop(1)])


def test_a_preset_is_taken_as_it_is() -> None:
    preset = SHIPPED["imagenet_train_jitter"]
    assert load_preset(preset) is preset


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("imagenet_trian", "no preset is called 'imagenet_trian' (did you mean imagenet_train?): the presets are"),
        (Path("nowhere"), "no such preset file: nowhere"),
        (None, "preset=None: allowed are a name, a path, a Compose or a mapping of a recipe's keys; Compose."),
    ],
)
def test_a_recipe_that_is_not_there_is_said_with_those_that_are(source: object, says: str) -> None:
    with pytest.raises(PresetError) as caught:
        load_preset(source)
    assert says in str(caught.value)


@pytest.mark.parametrize("content", [b"views: [", b"views: 1\nviews: 2\n", b"[Pad]"])
def test_a_file_that_is_no_yaml_mapping_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mine.yaml").write_bytes(content)
    with pytest.raises(PresetError, match=re.escape(str(tmp_path / "mine.yaml"))):
        load_preset(tmp_path / "mine.yaml")


# What a recipe may say.


@pytest.mark.parametrize(
    ("text", "preset"),
    [
        ("transforms: [CenterCrop: {size: 8}, RandomHorizontalFlip]", Recipe([T.CenterCrop(8), FLIP])),
        ("transforms: [RandomCrop: {size: {0: 8, 5: 16}, fill: 3}]", Recipe([T.RandomCrop({0: 8, 5: 16}, fill=3.0)])),
        (
            "transforms:\n- Resize:\n    size: 9\n- FiveCrop: {size: 8}\n- AutoAugment: {policy: svhn}\n",
            Recipe([T.Resize(9), T.FiveCrop(8), T.AutoAugment("svhn")]),
        ),
        (
            "transforms:\n- CenterCrop: {size: 8}\n- RandomChoice:\n    transforms: [RandomGrayscale, RandomApply: "
            "{transforms: [GaussianBlur: {kernel_size: 3}]}]\n    p: [1, 2]\n",
            Recipe(
                [T.CenterCrop(8), T.RandomChoice([T.RandomGrayscale(), T.RandomApply([T.GaussianBlur(3)])], (1.0, 2.0))]
            ),
        ),
        (
            "views:\n- transforms: [CenterCrop: {size: 8}]\n- {transforms: [CenterCrop: {size: 9}], count: 3}\n",
            Recipe(views=[T.View([T.CenterCrop(8)]), T.View([T.CenterCrop(9)], 3)]),
        ),
        (
            "transforms: [CenterCrop: {size: 9}]\nviews: [transforms: [], {transforms: [Grayscale], count: 2}]\n",
            Recipe([T.CenterCrop(9)], [T.View([]), T.View([T.Grayscale()], 2)]),
        ),
        (
            "transforms:\n- CenterCrop: {size: 8}\n- RandomApply:\n    transforms: [RandAugment: {magnitude: {0: 5, "
            "30: 9}}]\n    p: {0: 1, 90: 0}\nmix: {num_classes: 10, mixup_alpha: {0: 0.8, 250: 0}}",
            Recipe(
                [T.CenterCrop(8), T.RandomApply([T.RandAugment(magnitude={0: 5, 30: 9})], {0: 1.0, 90: 0.0})],
                mix=T.Mix(10, {0: 0.8, 250: 0.0}),
            ),
        ),
        (
            "transforms: [CenterCrop: {size: 8}]\nmix: {num_classes: 10, mixup_alpha: 1, per: sample}",
            Recipe([T.CenterCrop(8)], mix=T.Mix(10, 1.0, per="sample")),
        ),
        (
            "transforms: [CenterCrop: {size: 8}, Normalize: {mean: [0, 0, 0], std: [1, 1, 1]}, "
            "RandomErasing: {value: random}]\nviews: 2\ndtype: float16\nlayout: channels_last\n"
            "max_pixels: 9\norientation: apply\n",
            Recipe(
                [T.CenterCrop(8), T.Normalize((0, 0, 0), (1, 1, 1)), T.RandomErasing(value="random")],
                views=2,
                dtype="float16",
                layout="channels_last",
                max_pixels=9,
                orientation="apply",
            ),
        ),
        ("transforms: [CenterCrop: {size: 8}]\norientation: off\n", Recipe([T.CenterCrop(8)], orientation="off")),
        ("transforms: [CenterCrop: {size: 8}]\noversampling: off\n", Recipe([T.CenterCrop(8)], oversampling="off")),
        ("transforms: [CenterCrop: {size: 8}]\noversampling: 2\n", Recipe([T.CenterCrop(8)], oversampling=2.0)),
    ],
)
def test_yaml_is_what_python_says(tmp_path: Path, text: str, preset: Recipe) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    assert load_preset(tmp_path / "mine.yaml") == preset


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"transforms": [{"CenterCrop": {"size": 8}}, "RandomHorizontalFlip"]}, Recipe([T.CenterCrop(8), FLIP])),
        ({"transforms": (T.CenterCrop(8), FLIP)}, Recipe([T.CenterCrop(8), FLIP])),
        (
            {"views": (T.View([T.CenterCrop(8)]), {"transforms": [T.CenterCrop(9)]})},
            Recipe(views=[T.View([T.CenterCrop(8)]), T.View([T.CenterCrop(9)])]),
        ),
    ],
    ids=str,
)
def test_a_mapping_of_a_recipes_keys_is_a_recipe(content: dict[str, Any], expected: Recipe) -> None:
    assert load_preset(content) == expected


SQUARE, NORMAL = {"CenterCrop": {"size": 8}}, {"Normalize": {"mean": [0, 0, 0], "std": [1, 1, 1]}}
NORMALIZED, LEVELS = [SQUARE, NORMAL], {"Normalize": {"mean": [0, 0, 0], "std": [255, 255, 255]}}
MIX = {"num_classes": 9, "mixup_alpha": 0.2}


def behind(transform: object) -> dict[str, Any]:
    return {"transforms": ["RandomHorizontalFlip", transform, "Grayscale"]}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        # Keys, and the structure.
        ({"dtipe": 3}, "`dtipe` is an unknown key (did you mean dtype?); allowed are transforms, views, mix, dtype, "),
        ({"mix": {"mixup_alpha": 1}}, "`mix.num_classes` is missing"),
        ({"mix": {**MIX, "mixup_alpa": 1}}, "`mix.mixup_alpa` is an unknown key (did you mean mixup_alpha?); allowed"),
        ({"mix": 3}, "`mix`: found 3: allowed are a Mix(...), with `from gpuloader.transforms import Mix`, or a map"),
        ({"transforms": None}, "`transforms`: found None: allowed is a list, such as [RandomHorizontalFlip]"),
        ({"views": ["Pad"]}, "`views[0]`: found 'Pad': allowed is a mapping with `transforms` and `count`"),
        # What is no transform.
        (behind("RandomCrob"), "`transforms[1]`: found 'RandomCrob' (did you mean RandomCrop?); allowed is a transf"),
        (behind(None), "`transforms[1]`: found None; allowed is a transform's name or {name: {parameter: value}}, of "),
        (behind("ToTensor"), "`transforms[1]`: ToTensor is not needed, leave it out: batches are tensors already"),
        (behind({"Pad": 3}), "`transforms[1].Pad`: found 3: allowed is a mapping of parameters to values"),
        (
            behind({"RandomApply": {"transforms": "Pad"}}),
            "`transforms[1].RandomApply.transforms`: found 'Pad': allowed",
        ),
        ({"views": [behind({"Pad": 3})]}, "`views[0].transforms[1].Pad`: found 3: allowed"),
        # What `- CenterCrop:` and `size: 64` below it are, if both begin in one column.
        (behind({"CenterCrop": None, "size": 64}), "`transforms[1]`: found {'CenterCrop': None, 'size': 64}: indent "),
        # Values.
        (behind({"CenterCrop": {"size": "32"}}), "`transforms[1].CenterCrop.size`: found '32': allowed is an integer"),
        (behind({"CenterCrop": {"size": [8, 0]}}), "`transforms[1].CenterCrop.size`: found 0: allowed is a number of"),
        (behind({"CenterCrop": {"size": [8]}}), "`transforms[1].CenterCrop.size`: found [8]: allowed is an integer"),
        (behind({"RandomErasing": {"value": "randm"}}), "found 'randm' (did you mean random?); allowed are a number, "),
        (behind({"RandomHorizontalFlip": {"p": float("nan")}}), "`: found nan: allowed is a finite number"),
        # What does not go together.
        ({"views": [{"transforms": ["Grayscale", {"Pad": {"padding": 1}}]}]}, "Pad is in the wrong place: "),
        ({"transforms": NORMALIZED, "views": [{"transforms": ["Grayscale"]}]}, "Grayscale is in the wrong place: "),
        ({"transforms": [*NORMALIZED, {"Pad": {"padding": 1}}]}, "Pad is in the wrong place: allowed are resizing, "),
        ({"transforms": [{"TenCrop": {"size": 8}}], "views": [{"transforms": [], "count": 7}]}, "a recipe may have 64"),
        (
            {"transforms": [{"TenCrop": {"size": 8}}], "views": [{"transforms": [{"FiveCrop": {"size": 4}}]}]},
            "a view may have one FiveCrop or TenCrop",
        ),
        ({"transforms": NORMALIZED, "dtype": "uint8"}, 'dtype "uint8" gives levels: leave Normalize and '),
        ({"mix": MIX, "views": 2}, "`mix` needs one view and a float dtype"),
        (behind(LEVELS), "`transforms[1].Normalize`: mean [0.0, 0.0, 0.0], std [255.0, 255.0, 255.0] are for levels"),
        ({"transforms": [{"RandomCrop": {"size": 224, "padding": 224}}]}, "`transforms[0].RandomCrop`: padding 224"),
    ],
    ids=str,
)
def test_what_is_wrong_in_a_file_is_said_with_its_place(tmp_path: Path, content: dict[str, Any], says: str) -> None:
    message = error_of(tmp_path, **{"transforms": [SQUARE], **content})
    assert says in message
    assert "\n" not in message


def test_all_that_is_wrong_with_the_transforms_is_said_at_once(tmp_path: Path) -> None:
    wrong = [
        {"RandomResizedCrop": {"size": 0, "sise": 1, "scale": 3}},
        "Flip",
        {"RandomApply": {"p": 2, "transforms": [3]}},
        {"RandomApply": {"transforms": [{"GaussianBlur": {"sigmas": 1}}]}},
    ]
    lines = error_of(tmp_path, transforms=wrong).splitlines()
    assert [line.split("`")[1] for line in lines] == [
        "transforms[0].RandomResizedCrop.size",
        "transforms[0].RandomResizedCrop.scale",
        "transforms[0].RandomResizedCrop.sise",
        "transforms[1]",
        "transforms[2].RandomApply.transforms[0]",
        "transforms[3].RandomApply.transforms[0].GaussianBlur.kernel_size",
        "transforms[3].RandomApply.transforms[0].GaussianBlur.sigmas",
    ]


def test_a_preset_cannot_be_changed() -> None:
    preset = SHIPPED["resnet50_v2"]
    for part, name in ((preset, "dtype"), (preset.transforms[0], "size"), (preset.mix, "p")):
        with pytest.raises(FrozenInstanceError, match="cannot assign to field"):
            setattr(part, name, 3)


# What a recipe is for.

COUNT = 200


@pytest.mark.parametrize(
    ("transforms", "random"),
    [
        ([T.CenterCrop(8)], False),
        ([T.Resize((9, 9)), T.TenCrop(8)], False),  # its flips always flip
        ([T.RandomResizedCrop(8)], True),
        ([T.RandomCrop(8)], True),
        ([T.CenterCrop(8), FLIP], True),
        *(([T.CenterCrop(8), T.RandomHorizontalFlip(p)], False) for p in (0, 1)),
        ([T.CenterCrop(8), T.Grayscale()], False),  # it has a stream, and draws nothing from it
        ([T.CenterCrop(8), T.RandomGrayscale()], True),
        *(([T.CenterCrop(8), T.RandomSolarize(99, p)], 0 < p < 1) for p in (0, 0.5, 1)),
        *(([T.CenterCrop(8), T.RandomEqualize(p)], 0 < p < 1) for p in (0, 0.5, 1)),
        ([T.CenterCrop(8), T.GaussianBlur(3)], True),
        ([T.CenterCrop(8), T.GaussianBlur(3, 1.5)], False),
        ([T.CenterCrop(8), T.ColorJitter()], False),
        ([T.CenterCrop(8), T.ColorJitter((1.5, 1.5))], False),
        ([T.CenterCrop(8), T.ColorJitter((1.5, 1.5), (1.2, 1.2))], True),  # their order is drawn
        ([T.CenterCrop(8), T.RandomRotation((90, 90))], False),
        ([T.CenterCrop(8), T.RandomAffine(5)], True),
        ([T.CenterCrop(8), T.RandomAffine(0)], False),
        ([T.CenterCrop(8), T.RandomAffine((5, 5), scale=(2, 2), shear=(1, 1, 2, 2))], False),
        ([T.CenterCrop(8), T.RandomAffine(0, translate=(0, 0.5))], True),
        ([T.CenterCrop(8), T.RandomAffine(0, shear=(0, 0, 1, 2))], True),
        *(([T.CenterCrop(8), T.RandomPerspective(p=p)], p > 0) for p in (0, 0.5, 1)),
        *(([T.CenterCrop(8), kind()], True) for kind in (T.AutoAugment, T.RandAugment, T.TrivialAugmentWide, T.AugMix)),
        *(([T.CenterCrop(8), kind()], True) for kind in (T.TimmRandAugment, T.TimmAutoAugment, T.ThreeAugment)),
        *(([T.CenterCrop(8), T.RandomApply([T.Grayscale()], p)], 0 < p < 1) for p in (0, 0.5, 1)),
        *(([T.CenterCrop(8), T.RandomApply([T.Grayscale(), T.GaussianBlur(3)], p)], p > 0) for p in (0, 0.5, 1)),
        ([T.CenterCrop(8), T.RandomChoice([T.Grayscale(), T.GaussianBlur(3, 1)])], True),
        ([T.CenterCrop(8), T.RandomChoice([T.Grayscale(), T.GaussianBlur(3)], (1, 0))], False),
        ([T.CenterCrop(8), T.RandomChoice([T.Grayscale(), T.GaussianBlur(3)], (0, 1))], True),
        ([T.CenterCrop(8), IMAGENET], False),
        *(([T.CenterCrop(8), T.RandomErasing(p)], True) for p in (0.5, 1)),
    ],
    ids=str,
)
def test_a_recipe_is_for_training_where_samples_differ_by_what_is_drawn(
    transforms: list[Transform], random: bool
) -> None:
    preset = Recipe(transforms)
    params = preset.draw(Draws(0, 0, np.arange(COUNT)), np.full((COUNT, 2), 12))
    assert preset.random == random == any((array != array[0]).any() for array in all_numbers_of(params))
    assert (preset.default_shuffle, preset.default_last_batch) == (("full", "drop") if random else ("none", "partial"))


def test_one_view_that_draws_and_mixing_are_for_training() -> None:
    still, drawn = T.View([T.CenterCrop(8)]), T.View([T.RandomCrop(8)])
    assert [Recipe(views=views).random for views in ([still, still], [still, drawn])] == [False, True]
    assert Recipe([T.CenterCrop(8)], mix=T.Mix(9, 1.0)).random


# Overrides.

JITTERED = SHIPPED["imagenet_train_jitter"]


def changed(preset: Recipe, **values: object) -> Recipe:
    return Recipe(**{**{name: getattr(preset, name) for name in Recipe.__dataclass_fields__}, **values})


@pytest.mark.parametrize("source", ["imagenet_train_jitter", JITTERED], ids=["name", "Recipe"])
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, {}),
        (None, {}),
        ({"mix": {"num_classes": 9, "mixup_alpha": 1}}, {"mix": T.Mix(9, 1.0)}),
        ({"mix": T.Mix(9, 1.0)}, {"mix": T.Mix(9, 1.0)}),
        # Of a transform only what is named is replaced.
        ({"RandomResizedCrop": {"size": 160}}, {"transforms": (T.RandomResizedCrop(160), *JITTERED.transforms[1:])}),
        (
            {"RandomResizedCrop": {"scale": [0.25, 1]}, "RandomHorizontalFlip": {"p": 0}},
            {
                "transforms": (
                    T.RandomResizedCrop(224, (0.25, 1.0)),
                    T.RandomHorizontalFlip(0),
                    *JITTERED.transforms[2:],
                )
            },
        ),
        ({"ColorJitter": {"hue": 0}}, {"transforms": (CROP, FLIP, T.ColorJitter(0.4, 0.4, 0.4), IMAGENET)}),
        ({"ColorJitter": None, "Normalize": None, "dtype": "uint8"}, {"transforms": (CROP, FLIP), "dtype": "uint8"}),
        (
            {"transforms": [{"CenterCrop": {"size": 8}}, "RandomHorizontalFlip"], "RandomHorizontalFlip": {"p": 1}},
            {"transforms": (T.CenterCrop(8), T.RandomHorizontalFlip(1))},
        ),
    ],
    ids=str,
)
def test_overrides_replace_what_they_name(
    source: str | Recipe, overrides: dict[str, Any] | None, expected: dict[str, Any]
) -> None:
    assert load_preset(source, overrides) == changed(JITTERED, **expected)
    assert load_preset("imagenet_train_jitter") == JITTERED  # and are not kept


def test_overrides_reach_transforms_within_transforms_and_views() -> None:
    moco = load_preset("moco_v2", {"GaussianBlur": {"kernel_size": 5}, "RandomApply": {"p": 0.3}})
    *_, blur, _ = moco.transforms
    assert blur == T.RandomApply([T.GaussianBlur(5)], 0.3)
    assert moco.transforms[2] == T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.3)  # all of the name
    dino = load_preset(
        "dino", {"RandomResizedCrop": {"size": 64}, "GaussianBlur": {"kernel_size": 5}, "Normalize": None}
    )
    assert dino.shapes == [(64, 64)] * 10
    assert re.findall(r"kernel_size: (\d+)", recipe_yaml(dino)) == ["5"] * 3
    assert all(view.normalize is None for view in dino.each_view)


def test_what_has_no_transforms_left_is_left_out() -> None:
    preset = load_preset("moco_v2", {"ColorJitter": None, "RandomGrayscale": None, "GaussianBlur": None})
    assert preset == Recipe([T.RandomResizedCrop(224, (0.2, 1.0)), FLIP, IMAGENET], views=2)


def test_a_transform_within_one_of_its_name_is_meant_too(tmp_path: Path) -> None:
    inner = {"RandomApply": {"transforms": ["RandomGrayscale"], "p": 0.1}}
    content = {"transforms": [*SMALL["transforms"], {"RandomApply": {"transforms": [inner], "p": 0.2}}]}
    preset = preset_of(tmp_path, {"RandomApply": {"p": 0.9}}, **content)
    assert preset.transforms[-1] == T.RandomApply([T.RandomApply([T.RandomGrayscale()], 0.9)], 0.9)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"mix": {"num_classes": 10}}, T.Mix(10, 0.2, 1.0)),
        ({"mix": {"p": 0.5, "label_smoothing": 0.1}}, T.Mix(1000, 0.2, 1.0, 0.5, label_smoothing=0.1)),
        ({"mix": None}, None),
    ],
)
def test_overrides_of_mix_replace_what_they_name(overrides: dict[str, Any], expected: T.Mix | None) -> None:
    assert load_preset("resnet50_v2", overrides).mix == expected


@pytest.mark.parametrize("source", ["imagenet_train", SHIPPED["imagenet_train"]], ids=["name", "Recipe"])
@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"size": 160}, "`size` is not a key of a recipe, but of its RandomResizedCrop: write {'RandomResizedCrop':"),
        ({"sise": 160}, "`sise` is not a key of a recipe (did you mean Resize?); allowed are "),
        ({"CenterCrop": {"size": 3}}, "the recipe has no CenterCrop; it has RandomResizedCrop,"),
        ({"RandomResizedCrop": 160}, "`RandomResizedCrop`: found 160: allowed is a mapping, or None to leave it out"),
        ({"RandomResizedCrop": None}, "RandomHorizontalFlip: leaves images of different sizes"),
        ({"mix": {"p": 0.5}}, "`mix.num_classes` is missing"),
    ],
    ids=str,
)
def test_wrong_overrides_are_errors_of_theirs(source: str | Recipe, overrides: dict[str, Any], says: str) -> None:
    with pytest.raises(PresetError) as caught:
        load_preset(source, overrides)
    where = "imagenet_train.yaml" if source == "imagenet_train" else "the Compose"
    assert str(caught.value).startswith(f"{where} with overrides: {says}")


@pytest.mark.parametrize(
    ("name", "overrides", "says"),
    [
        ("imagenet_eval", {"size": 9}, "{'Resize': {'size': 9}} or {'CenterCrop': {'size': 9}}"),
        ("resnet50_v2", {"num_classes": 10}, "of its mix: write {'mix': {'num_classes': 10}}"),
        ("imagenet_train", ["size"], "overrides=['size']: allowed is a mapping"),
    ],
)
def test_an_override_in_a_wrong_place_is_told_its_place(name: str, overrides: Any, says: str) -> None:  # noqa: ANN401
    with pytest.raises(PresetError, match=re.escape(says)):
        load_preset(name, overrides)


def test_a_wrong_recipe_is_said_before_its_overrides(tmp_path: Path) -> None:
    with pytest.raises(PresetError, match=r"mine\.yaml: `transforms\[0\]\.RandomApply`: found 3"):
        preset_of(tmp_path, {"Pad": None}, transforms=[{"RandomApply": 3}])


AS_A_MAPPING = {"transforms": [{"RandomResizedCrop": {"size": 8}}], "mix": MIX}


@pytest.mark.parametrize(
    ("source", "overrides", "same"),
    [
        (AS_A_MAPPING, None, Recipe([T.RandomResizedCrop(8)], mix=T.Mix(9, 0.2))),
        (AS_A_MAPPING, {}, Recipe([T.RandomResizedCrop(8)], mix=T.Mix(9, 0.2))),
        (AS_A_MAPPING, {"mix": None, "RandomResizedCrop": {"size": 7}}, Recipe([T.RandomResizedCrop(7)])),
        ({"transforms": [T.CenterCrop(8)]}, {"CenterCrop": {"size": 7}}, Recipe([T.CenterCrop(7)])),
        ({"cifar10": {"mix": MIX}}, {"dtype": "float16"}, load_preset("cifar10", {"mix": MIX, "dtype": "float16"})),
        ({"cifar10": None}, None, load_preset("cifar10")),
    ],
    ids=str,
)
def test_a_mapping_is_a_recipe_also_with_overrides(source: Any, overrides: Any, same: Recipe) -> None:  # noqa: ANN401
    assert load_preset(source, overrides) == same


@pytest.mark.parametrize("mix", [MIX, T.Mix(**MIX)], ids=["mapping", "Mix"])
def test_mix_may_be_a_mapping_of_its_keys(mix: Any) -> None:  # noqa: ANN401
    for recipe in (
        Recipe([T.CenterCrop(8)], mix=mix),
        recipe_from_torchvision([v2.CenterCrop(8), v2.ToDtype(torch.float32, scale=True)], mix=mix),
    ):
        assert recipe.mix == T.Mix(9, mixup_alpha=0.2)


@pytest.mark.parametrize(
    ("recipe", "written"),
    [
        (Recipe([], batch="list"), "transforms: []\nbatch: list\n"),
        (Recipe((), 2, batch={"pad": 32}, dtype="uint8"), "transforms: []\nviews: 2\ndtype: uint8\nbatch: {pad: 32}\n"),
        (recipe_from_torchvision([v2.ToImage()], batch="list"), "transforms: []\ndtype: uint8\nbatch: list\n"),
        (load_preset("imagenet_eval", {"transforms": [], "batch": "list"}), "transforms: []\nbatch: list\n"),
    ],
    ids=["list", "pad, views", "from torchvision", "overrides"],
)
def test_an_empty_list_of_transforms_is_a_recipe_that_only_decodes(recipe: Recipe, written: str) -> None:
    assert recipe_yaml(recipe) == written
    assert load_preset(yaml.safe_load(written)) == recipe
    assert eval(repr(recipe), {"Recipe": Recipe}) == recipe
    assert set(recipe.shapes) == {None}
    assert not recipe.random


# The fingerprint.


@pytest.mark.parametrize(
    "same",
    [
        {},
        {"layout": "channels_last"},
        {"RandomHorizontalFlip": {"p": 0.5}},
        {"RandomResizedCrop": {"size": 224, "antialias": True}},
    ],
    ids=str,
)
def test_recipes_of_the_same_pixels_have_the_same_fingerprint(same: dict[str, Any]) -> None:
    assert load_preset("imagenet_train", same).fingerprint == SHIPPED["imagenet_train"].fingerprint


def test_a_default_that_is_written_out_changes_no_fingerprint(tmp_path: Path) -> None:
    fingerprint = preset_of(tmp_path).fingerprint
    assert len(fingerprint) == 32
    assert int(fingerprint, 16) > 0
    written = preset_of(tmp_path, views=1, mix=None, dtype="float32", max_pixels=50_000_000, orientation="off")
    assert written.fingerprint == fingerprint
    assert preset_of(tmp_path, oversampling="off").fingerprint == fingerprint  # that of None, which has no entry at all
    integers, floats = (
        Recipe([T.CenterCrop(8), T.Normalize((zero, zero, zero), (one, one, one))]).fingerprint
        for zero, one in ((0, 1), (0.0, 1.0))
    )
    assert integers == floats != fingerprint


@pytest.mark.parametrize(
    ("recipe", "fingerprint"),
    [
        (
            Recipe(
                [
                    T.RandomResizedCrop({0: 8, 2: 9}),
                    T.RandomApply([T.ColorJitter(0.4)], 0.8),
                    T.RandAugment(),
                    T.RandomErasing(),
                ],
                views=2,
            ),
            "aae2f9f80660642603a4157dbf542fe6",
        ),
        (Recipe([T.RandomResizedCrop(8)], mix=T.Mix(10, 0.8, 1)), "14007672aa4a7762bb29c1d2ed882e9e"),
    ],
    ids=["transforms", "mix"],
)
def test_fingerprints_stay_as_they_are(recipe: Recipe, fingerprint: str) -> None:
    assert recipe.fingerprint == fingerprint


def test_recipes_of_other_pixels_have_other_fingerprints() -> None:
    crop, jitter, mix = T.CenterCrop(8), T.ColorJitter(0.1), T.Mix(9, 1.0)
    recipes = [
        Recipe([crop]),
        Recipe([crop], dtype="float16"),
        Recipe([crop], max_pixels=100_000_000),
        Recipe([crop], orientation="apply"),
        Recipe([crop], oversampling=1.5),
        Recipe([crop], oversampling=2),
        Recipe([crop], views=2),
        Recipe([crop], mix=mix),
        Recipe([crop], mix=T.Mix(9, 0.5)),
        Recipe([crop], mix=T.Mix(9, 1.0, per="sample")),
        Recipe([T.CenterCrop(9)]),
        Recipe([T.CenterCrop({0: 8, 5: 9})]),
        Recipe([T.RandomCrop(8)]),
        Recipe([T.Resize(9), crop]),
        Recipe([T.Resize(9, antialias=False), crop]),
        Recipe([T.Resize(9, "bicubic"), crop]),
        Recipe([FLIP, crop]),
        Recipe([crop, FLIP]),  # another order
        Recipe([crop, T.RandomHorizontalFlip(0.4)]),
        Recipe([crop, jitter]),
        Recipe([crop, T.RandomApply([jitter])]),
        Recipe([crop, T.RandomApply([jitter], 0.4)]),
        Recipe([crop, T.Normalize((0, 0, 0), (1, 1, 1))]),
        Recipe([crop, T.Normalize((0, 0, 0), (1, 1, 2))]),
        Recipe([crop, T.RandomErasing(value="random")]),
        Recipe([crop, T.RandomErasing({0: 0.5, 5: 0}, value="random")]),
        Recipe([crop], mix=T.Mix(9, {0: 1.0, 5: 0})),
        Recipe(views=[T.View([crop]), T.View([crop, jitter])]),
        Recipe(views=[T.View([crop, jitter]), T.View([crop])]),
        Recipe([T.Pad(1), crop]),
    ]
    assert len({preset.fingerprint for preset in recipes}) == len(recipes)


# As YAML.


@pytest.mark.parametrize("name", preset_names())
def test_what_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(recipe_yaml(SHIPPED[name]))
    assert load_preset(path) == SHIPPED[name]
    assert load_preset(path).fingerprint == load_preset(name).fingerprint


def test_a_recipe_is_written_without_its_defaults() -> None:
    preset = Recipe(
        [
            T.RandomResizedCrop({0: 128, 5: 160}, interpolation="bicubic"),
            FLIP,
            T.RandomVerticalFlip(0.1),
            T.RandomChoice([T.RandomGrayscale(), T.RandomApply([T.GaussianBlur(3)])], (1, 2)),
            T.Normalize((0, 0, 0), (1, 1, 1)),
        ],
        mix=T.Mix(9, 1.0),
        dtype="float16",
    )
    assert (
        recipe_yaml(preset)
        == """\
transforms:
- RandomResizedCrop:
    size: {0: 128, 5: 160}
    interpolation: bicubic
- RandomHorizontalFlip
- RandomVerticalFlip: {p: 0.1}
- RandomChoice:
    transforms:
    - RandomGrayscale
    - RandomApply:
        transforms:
        - GaussianBlur: {kernel_size: 3}
    p: [1.0, 2.0]
- Normalize:
    mean: [0.0, 0.0, 0.0]
    std: [1.0, 1.0, 1.0]
mix: {num_classes: 9, mixup_alpha: 1.0}
dtype: float16
"""
    )
    assert (
        recipe_yaml(Recipe(views=[T.View([T.CenterCrop(8)]), T.View([T.CenterCrop(9)], 2)]))
        == """\
views:
- transforms:
  - CenterCrop: {size: 8}
- transforms:
  - CenterCrop: {size: 9}
  count: 2
"""
    )


@pytest.mark.parametrize("name", TRANSFORMS)
def test_each_transform_is_written_and_read_again(tmp_path: Path, name: str) -> None:
    needed: dict[str, Any] = {
        "size": 8, "padding": 1, "corner": "top left", "degrees": 5.0, "kernel_size": 3, "threshold": 9.0, "bits": 3,
        "sharpness_factor": 2.0, "transforms": [T.GaussianBlur(3)], "mean": (0, 0, 0), "std": (1, 1, 1),
        "target_size": (9, 9), "min_size": 8, "max_size": 9, "sizes": [9], "name": "film",
        "patch_size": 8, "max_seq_len": 9,
    }  # fmt: skip
    fields = TRANSFORMS[name].__dataclass_fields__
    transform = TRANSFORMS[name](**{key: value for key, value in needed.items() if key in fields})
    for content in (as_plain_values(transform), as_plain_values(transform, brief=True)):
        preset = preset_of(tmp_path, transforms=[], views=[{"transforms": around(content)}])
        assert transform in preset.views[0].transforms  # type: ignore[index]


def around(content: object) -> list[Any]:
    """A recipe with a transform in its place."""
    name = content if isinstance(content, str) else next(iter(content))
    square, crop = {"Resize": {"size": [9, 9]}}, {"CenterCrop": {"size": 8}}
    if TRANSFORMS[name].__module__.endswith((".budgets", ".detection")) or name == "Resize":
        return [content, crop]
    return [content] if name == "RandomResizedCrop" else [square, content]


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (
            Recipe([T.CenterCrop((8, 9))], layout="channels_last"),
            "Recipe(transforms=(CenterCrop(size=(8, 9)),), layout='channels_last')",
        ),
        (
            Compose(views=[T.View([T.CenterCrop(8)], 2)]),
            "Compose(views=(View(transforms=(CenterCrop(size=8),), count=2),))",
        ),
    ],
    ids=["layout", "views"],
)
def test_a_repr_is_the_call_without_keys_at_their_default(recipe: Recipe, expected: str) -> None:
    assert repr(recipe) == expected
    assert eval(expected, {"Recipe": Recipe, "Compose": Compose, **vars(T)}) == recipe
