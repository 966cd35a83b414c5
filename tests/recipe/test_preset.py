"""`Preset`: recipes from YAML, and what is wrong with wrong ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from gpuloader.errors import ConfigError, PresetError
from gpuloader.recipe import (
    CenterCrop,
    ColorJitter,
    Preset,
    RandomPaddedCrop,
    RandomResizedCrop,
    load_preset,
    preset_names,
    preset_text,
)

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
LARGE_CROP = RandomResizedCrop(kind="random_resized")
SHIPPED = {
    "cifar_train": Preset(
        size=32,
        crop=RandomPaddedCrop(kind="random_padded", padding=4),
        flip=0.5,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        shuffle="full",
        last_batch="drop",
    ),
    "imagenet_eval": Preset(size=224, crop=CenterCrop(kind="center", resize=256), **IMAGENET),
    "imagenet_train": Preset(size=224, crop=LARGE_CROP, flip=0.5, **IMAGENET, shuffle="full", last_batch="drop"),
    "imagenet_train_jitter": Preset(
        size=224,
        crop=LARGE_CROP,
        flip=0.5,
        jitter=ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
        **IMAGENET,
        shuffle="full",
        last_batch="drop",
    ),
    "raw_uint8": Preset(size=224, crop=CenterCrop(kind="center", resize=256), dtype="uint8"),
}
SMALL: dict[str, Any] = {"size": 32, "crop": {"kind": "center", "resize": 40}}


def preset_of(folder: Path, **changed: object) -> Preset:
    """A small recipe, through a YAML file."""
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **changed}))
    return load_preset(path)


def error_of(folder: Path, **changed: object) -> str:
    """The message, without the file that it begins with."""
    with pytest.raises(PresetError) as caught:
        preset_of(folder, **changed)
    assert isinstance(caught.value, ConfigError)
    beginning = f"{folder / 'mine.yaml'}: "
    assert str(caught.value).startswith(beginning)
    return str(caught.value).removeprefix(beginning)


# Where recipes come from.


@pytest.mark.parametrize("name", preset_names())
def test_a_shipped_preset_is_what_its_name_says(name: str) -> None:
    assert load_preset(name) == SHIPPED[name]


@pytest.mark.parametrize("name", preset_names())
def test_a_shipped_preset_begins_by_saying_its_output(name: str) -> None:
    size, dtype = SHIPPED[name].size, SHIPPED[name].dtype
    assert re.match(rf"# .*\n# Output: \(B, 3, {size}, {size}\) {dtype}, ", preset_text(name))


def test_the_shipped_presets_are_listed_in_order() -> None:
    assert preset_names() == sorted(SHIPPED)


@pytest.mark.parametrize("form", ["Path", "absolute", "relative", "home", "yml"])
def test_a_file_is_read_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / ("mine.yml" if form == "yml" else "mine.yaml")
    path.write_text(preset_text("imagenet_eval"))
    sources = {"Path": path, "absolute": str(path), "relative": "mine.yaml", "home": "~/mine.yaml", "yml": "mine.yml"}
    assert load_preset(sources[form]) == SHIPPED["imagenet_eval"]


def test_a_file_without_a_suffix_is_read_where_its_path_has_a_folder(tmp_path: Path) -> None:
    (tmp_path / "imagenet_eval").write_text("size: 1\ncrop: {kind: random_padded}\n")
    assert load_preset(str(tmp_path / "imagenet_eval")).size == 1


def test_a_preset_is_taken_as_it_is() -> None:
    preset = SHIPPED["imagenet_train_jitter"]
    assert load_preset(preset) == preset


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            "imagenet_trian",
            "no preset is called 'imagenet_trian' (did you mean imagenet_train?): there are cifar_train, ",
        ),
        ("", "no preset is called ''"),
        ("something", "or give a path that ends in .yaml"),
        ("nowhere.yaml", "no such preset file: nowhere.yaml"),
        ("no/where", "no such preset file: no/where"),
        (Path("nowhere"), "no such preset file: nowhere"),
        ("/", "no such preset file: /"),  # a folder is no file
    ],
)
def test_a_recipe_that_is_not_there_is_said_with_those_that_are(source: str | Path, says: str) -> None:
    with pytest.raises(PresetError) as caught:
        load_preset(source)
    assert says in str(caught.value)


@pytest.mark.parametrize("content", [b"size: [", b"", b"\xff\xfe\xfa\x00", b"size: 1\nsize: 2\n"])
def test_a_file_that_is_no_yaml_mapping_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mine.yaml").write_bytes(content)
    with pytest.raises(PresetError, match=re.escape(str(tmp_path / "mine.yaml"))):
        load_preset(tmp_path / "mine.yaml")


# What a recipe may say.


def test_what_a_recipe_leaves_out_has_a_default(tmp_path: Path) -> None:
    assert preset_of(tmp_path).model_dump() == {
        "size": 32,
        "crop": {"kind": "center", "resize": 40},
        "fast_idct": False,
        "antialias": True,
        "flip": 0.0,
        "jitter": None,
        "mean": None,
        "std": None,
        "dtype": "float32",
        "layout": "nchw",
        "shuffle": "none",
        "last_batch": "partial",
    }


@pytest.mark.parametrize(
    "changed",
    [
        {"size": 1},
        {"size": 8192, "crop": {"kind": "center", "resize": 16384}},
        {"size": 40},  # as large as the crop's resize
        {"flip": 0},
        {"flip": 1},
        {"mean": [0, 1, 0.5], "std": [1, 2, 3]},
        {"mean": None, "std": None, "dtype": "uint8"},
        {"crop": {"kind": "random_resized", "area": [1, 1], "ratio": [1, 1]}},
        {"crop": {"kind": "random_padded", "padding": 0}},
        {"jitter": {"hue": 0.5}},
        {"jitter": {"brightness": 7}},
        {"dtype": "float16", "layout": "channels_last", "shuffle": "block", "last_batch": "pad", "antialias": False},
    ],
    ids=str,
)
def test_the_bounds_themselves_are_allowed(tmp_path: Path, changed: dict[str, Any]) -> None:
    found = json.loads(preset_of(tmp_path, **changed).model_dump_json())
    for key, value in changed.items():
        assert found[key] == ({**found[key], **value} if isinstance(value, dict) else value)


CROPS = "'random_resized', 'center', 'random_padded'"
KEYS = "size, crop, fast_idct, antialias, flip, jitter, mean, std, dtype, layout, shuffle, last_batch"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"sise": 3}, f"`sise` is not a key of a preset (did you mean size?); allowed there are {KEYS}"),
        ({"xyz": 3}, f"`xyz` is not a key of a preset; allowed there are {KEYS}"),
        (
            {"crop": {"kind": "center", "resise": 40}},
            "`crop.resise` is not a key of a preset (did you mean resize?); allowed there are kind, resize",
        ),
        (
            {"crop": {"kind": "random_resized", "padding": 4}},  # another crop's key
            "`crop.padding` is not a key of a preset; allowed there are kind, area, ratio",
        ),
        (
            {"jitter": {"brightnes": 1}},
            "`jitter.brightnes` is not a key of a preset (did you mean brightness?); "
            "allowed there are brightness, contrast, saturation, hue",
        ),
    ],
    ids=str,
)
def test_an_unknown_key_is_said_with_those_that_are_allowed(tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    assert error_of(tmp_path, **changed) == says


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("size: 32", "the key `crop` is missing"),
        ("crop: {kind: center}", "the key `size` is missing"),
        ("{}", "the key `size` is missing"),
        (
            "size: 32\ncrop: {resize: 40}",
            "`crop.kind` is missing; allowed are 'random_resized', 'center', 'random_padded'",
        ),
    ],
)
def test_a_missing_key_is_said(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(PresetError, match=re.escape(says)):
        load_preset(tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    ("changed", "key", "found", "allowed"),
    [
        ({"size": "32"}, "size", "'32'", "integer"),
        ({"size": 32.5}, "size", "32.5", "integer"),
        ({"size": 32.0}, "size", "32.0", "integer"),
        ({"size": True}, "size", "True", "integer"),
        ({"size": None}, "size", "None", "integer"),
        ({"size": 0}, "size", "0", "greater than or equal to 1"),
        ({"size": 8193}, "size", "8193", "less than or equal to 8192"),
        ({"flip": 1.01}, "flip", "1.01", "less than or equal to 1"),
        ({"flip": -0.5}, "flip", "-0.5", "greater than or equal to 0"),
        ({"flip": True}, "flip", "True", "number"),
        ({"flip": "0.5"}, "flip", "'0.5'", "number"),
        ({"flip": float("nan")}, "flip", "nan", "finite number"),
        ({"antialias": 1}, "antialias", "1", "boolean"),
        ({"antialias": "on"}, "antialias", "'on'", "boolean"),
        ({"mean": 0.5, "std": [1, 1, 1]}, "mean", "0.5", "tuple"),
        ({"mean": [0.5], "std": [1, 1, 1]}, "mean", "[0.5]", "too few numbers"),
        ({"mean": [0, 0, 0, 0], "std": [1, 1, 1]}, "mean", "[0, 0, 0, 0]", "at most 3 items"),
        ({"mean": [0, "x", 0], "std": [1, 1, 1]}, "mean", "'x'", "number"),
        ({"mean": [0, 0, 0], "std": [1, 1, float("inf")]}, "std", "inf", "finite number"),
        ({"dtype": "float46"}, "dtype", "'float46' (did you mean float16?)", "'float32', 'float16' or 'uint8'"),
        ({"dtype": 32}, "dtype", "32", "'float32', 'float16' or 'uint8'"),
        ({"layout": "nhwc"}, "layout", "'nhwc' (did you mean nchw?)", "'nchw' or 'channels_last'"),
        ({"shuffle": "ful"}, "shuffle", "'ful' (did you mean full?)", "'none', 'full' or 'block'"),
        ({"shuffle": True}, "shuffle", "True", "'none', 'full' or 'block'"),
        ({"last_batch": "keep"}, "last_batch", "'keep'", "'drop', 'pad' or 'partial'"),
        ({"crop": 3}, "crop", "3", "dictionary"),
        ({"crop": None}, "crop", "None", "dictionary"),
        ({"crop": {"kind": "centre"}}, "crop", "'centre' (did you mean center?)", CROPS),
        ({"crop": {"kind": None}}, "crop", "None", CROPS),
        ({"crop": {"kind": "center", "resize": 40.5}}, "crop.resize", "40.5", "integer"),
        ({"crop": {"kind": "center", "resize": 20_000}}, "crop.resize", "20000", "less than or equal to 16384"),
        ({"crop": {"kind": "random_padded", "padding": -1}}, "crop.padding", "-1", "greater than or equal to 0"),
        ({"crop": {"kind": "random_resized", "area": 0.5}}, "crop.area", "0.5", "tuple"),
        ({"crop": {"kind": "random_resized", "area": [0.5]}}, "crop.area", "[0.5]", "too few numbers"),
        ({"crop": {"kind": "random_resized", "ratio": [1, 2, 3]}}, "crop.ratio", "[1, 2, 3]", "at most 2 items"),
        ({"jitter": 0.4}, "jitter", "0.4", "dictionary"),
        ({"jitter": {"hue": 0.6}}, "jitter.hue", "0.6", "less than or equal to 0.5"),
        ({"jitter": {"contrast": -1}}, "jitter.contrast", "-1", "greater than or equal to 0"),
    ],
    ids=str,
)
def test_a_wrong_value_is_said_with_what_is_allowed(
    tmp_path: Path, changed: dict[str, Any], key: str, found: str, allowed: str
) -> None:
    message = error_of(tmp_path, **changed)
    assert message.startswith(f"`{key}`: found {found}")
    assert allowed in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"size": 41}, "crop.resize 40 is below size 41"),
        ({"mean": [0, 0, 0]}, "mean and std: give both or neither"),
        ({"std": [1, 1, 1]}, "mean and std: give both or neither"),
        ({"mean": [0, 0, 0], "std": [1, 1, 1], "dtype": "uint8"}, 'mean and std cannot be had in dtype "uint8"'),
        ({"mean": [0, 0, 0], "std": [1, 0, 1]}, "std [1.0, 0.0, 1.0]: allowed are numbers above 0"),
        ({"mean": [0, 0, 0], "std": [1, -1, 1]}, "std [1.0, -1.0, 1.0]: allowed are numbers above 0"),
        ({"jitter": {}}, "`jitter`: no strength of brightness, contrast, saturation, hue is above 0"),
        ({"jitter": {"hue": 0}}, "`jitter`: no strength of brightness, contrast, saturation, hue is above 0"),
        *(
            (
                {"crop": {"kind": "random_resized", "area": area}},
                f"`crop`: area {area}: allowed is [low, high] with 0 <",
            )
            for area in ([0.0, 1.0], [-0.1, 1.0], [0.5, 0.4], [0.5, 1.1])
        ),
        *(
            (
                {"crop": {"kind": "random_resized", "ratio": ratio}},
                f"`crop`: ratio {ratio}: allowed is [low, high] with",
            )
            for ratio in ([0.0, 1.0], [2.0, 1.0], [-1.0, 1.0])
        ),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_said(tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    assert error_of(tmp_path, **changed).startswith(says)


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    lines = error_of(tmp_path, size=0, sise=1, crop={"kind": "center", "resise": 1}).splitlines()
    assert len(lines) == 3
    assert all(key in "\n".join(lines) for key in ("`size`", "`sise`", "`crop.resise`"))


def test_a_preset_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        SHIPPED["imagenet_eval"].size = 3
    with pytest.raises(ValidationError, match="frozen"):
        SHIPPED["imagenet_eval"].crop.kind = "center"  # type: ignore[union-attr]


# Overrides.


@pytest.mark.parametrize("source", ["imagenet_train_jitter", SHIPPED["imagenet_train_jitter"]], ids=["name", "Preset"])
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, {}),
        (None, {}),
        ({"size": 160, "flip": 0}, {"size": 160, "flip": 0}),
        ({"jitter": None}, {"jitter": None}),
        ({"mean": None, "std": None, "dtype": "uint8"}, {"mean": None, "std": None, "dtype": "uint8"}),
        ({"mean": [0, 0, 0]}, {"mean": (0, 0, 0)}),
        ({"jitter": {"hue": 0}}, {"jitter": ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4)}),
        # In a crop of the same kind only what is named is replaced, another kind is another crop.
        ({"crop": {"area": [0.25, 1]}}, {"crop": RandomResizedCrop(kind="random_resized", area=(0.25, 1.0))}),
        (
            {"crop": {"kind": "random_resized", "ratio": [1, 1]}},
            {"crop": RandomResizedCrop(kind="random_resized", ratio=(1.0, 1.0))},
        ),
        ({"crop": {"kind": "center"}}, {"crop": CenterCrop(kind="center")}),
        (
            {"crop": {"kind": "random_padded", "padding": 8}},
            {"crop": RandomPaddedCrop(kind="random_padded", padding=8)},
        ),
    ],
    ids=str,
)
def test_overrides_replace_what_they_name(
    source: str | Preset, overrides: dict[str, Any] | None, expected: dict[str, Any]
) -> None:
    base = SHIPPED["imagenet_train_jitter"]
    assert load_preset(source, overrides) == base.model_copy(update=expected)
    assert base == load_preset("imagenet_train_jitter")  # and are not kept


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ("imagenet_train", "imagenet_train.yaml with preset_overrides"),
        (SHIPPED["imagenet_train"], "the Preset with preset_overrides"),
    ],
)
@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"sise": 1}, "`sise` is not a key of a preset (did you mean size?)"),
        ({"size": 0}, "`size`: found 0"),
        ({"crop": {"aria": [0.1, 1]}}, "`crop.aria` is not a key of a preset (did you mean area?)"),
        ({"crop": {"kind": "center", "resize": 200}}, "crop.resize 200 is below size 224"),
        ({"mean": None}, "mean and std: give both or neither"),
    ],
    ids=str,
)
def test_wrong_overrides_are_errors_of_theirs(
    source: str | Preset, where: str, overrides: dict[str, Any], says: str
) -> None:
    with pytest.raises(PresetError) as caught:
        load_preset(source, overrides)
    assert str(caught.value).startswith(f"{where}: {says}")


# The fingerprint.


@pytest.mark.parametrize(
    "same", [{}, {"shuffle": "block"}, {"last_batch": "pad"}, {"flip": 0.5}, {"size": 224}], ids=str
)
def test_recipes_of_the_same_pixels_have_the_same_fingerprint(same: dict[str, Any]) -> None:
    assert load_preset("imagenet_train", same).fingerprint == load_preset("imagenet_train").fingerprint


def test_a_default_that_is_written_out_changes_no_fingerprint(tmp_path: Path) -> None:
    fingerprint = preset_of(tmp_path).fingerprint
    assert len(fingerprint) == 32
    assert int(fingerprint, 16) > 0
    assert preset_of(tmp_path, flip=0, jitter=None, antialias=True, dtype="float32").fingerprint == fingerprint
    with_integers = preset_of(tmp_path, mean=[0, 0, 0], std=[1, 1, 1]).fingerprint
    assert preset_of(tmp_path, mean=[0.0, 0.0, 0.0], std=[1.0, 1.0, 1.0]).fingerprint == with_integers != fingerprint


def test_recipes_of_other_pixels_have_other_fingerprints() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"size": 223},
        {"flip": 0.25},
        {"antialias": False},
        {"dtype": "float16"},
        {"mean": None, "std": None},
        {"mean": [0.485, 0.456, 0.405]},
        {"std": [0.229, 0.224, 0.226]},
        {"jitter": {"hue": 0.1}},
        {"jitter": {"contrast": 0.1}},
        {"crop": {"area": [0.09, 1.0]}},
        {"crop": {"ratio": [0.75, 1.3]}},
        {"crop": {"kind": "center"}},
        {"crop": {"kind": "center", "resize": 255}},
        {"crop": {"kind": "random_padded"}},
        {"crop": {"kind": "random_padded", "padding": 5}},
    ]
    assert len({load_preset("imagenet_train", change).fingerprint for change in changes}) == len(changes)
