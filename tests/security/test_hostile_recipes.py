"""Recipes with hostile values: errors of ours, or a recipe that draws finite numbers; in bounded time and memory."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from drawn_numbers import all_numbers_of
from hostile import TEXTS, VALUES, mutated_bytes, paths, removed, replaced

from gpuloader import transforms as T
from gpuloader.errors import ConfigError, PresetError
from gpuloader.plan import Draws
from gpuloader.recipe import TRANSFORMS, Recipe, load_preset, preset_names, preset_text
from gpuloader.recipe.model import PixelTransform
from gpuloader.recipe.placement import GeometricTransform
from gpuloader.recipe.strict_yaml import MAX_YAML_CHARACTERS, load_yaml

CROP, INVERT = T.CenterCrop(32), T.RandomInvert()
NEEDED: dict[str, dict[str, Any]] = {  # what each transform needs at least
    "Apply": {"name": "film"},
    "FixedSizeCrop": {"size": 32},
    "PadIfSmaller": {"size": 32},
    "Normalize": {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)},
    "GaussianBlur": {"kernel_size": 3},
    "RandomSolarize": {"threshold": 128.0},
    "RandomPosterize": {"bits": 4},
    "RandomAdjustSharpness": {"sharpness_factor": 2.0},
    "RandomRotation": {"degrees": 30.0},
    "RandomAffine": {"degrees": 30.0},
    "Pad": {"padding": 4},
    "CornerCrop": {"size": 32, "corner": "top left"},
    "ScaleJitter": {"target_size": (32, 48)},
    "RandomShortestSize": {"min_size": 32},
    "ResizeToSequence": {"patch_size": 16, "max_seq_len": 256},
    "RandomResize": {"min_size": 16, "max_size": 32},
    "RandomSizeCrop": {"min_size": 16, "max_size": 32, "sizes": [32, 40]},
    **{name: {"transforms": [INVERT, T.Grayscale()]} for name in ("RandomApply", "RandomChoice")},
    **{
        name: {"size": 32}
        for name in ("Resize", "RandomResizedCrop", "CenterCrop", "RandomCrop", "FiveCrop", "TenCrop")
    },
}
NUMBERS = (1e-320, 1e-300, 1e-9, 1e-4, 0.0009, 0.01, 0.1, 1.0, 2.5, 99.0, 999.0, 8192.0, 1e6, 1e7, 1e38, 1e300)
LISTS = tuple([value] * count for value in (*NUMBERS, -1.0, -1e6, 8192, 2**40) for count in (2, 3, 4))
SAYS_WHAT_TO_DO = re.compile("found|allowed|write|4300 digits")  # the last is Python's, of numbers with more
SCHEDULES = ({0: 32, 2**70: 8}, {0: 32, -1: 8}, {10**5000: 8}, {0: 10**5000}, dict.fromkeys(range(2000), 8))


def errors(make: Callable[[], Recipe]) -> list[str]:
    """What is wrong with a recipe; any error but PresetError goes on. One that is right is drawn from."""
    try:
        preset = make()
    except PresetError as error:
        return [str(error)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(preset)
    return []


def draw(preset: Recipe) -> None:
    assert len(preset.fingerprint) == 32
    sizes = np.array([[1, 70], [64, 1], [48, 48], [3000, 40]])
    boxes = [np.array([[0.0, 0, width, height], [0, 0, 0, 0]]) for height, width in sizes]
    try:
        params = preset.draw(Draws(1, 2, np.arange(4)), sizes, boxes=boxes)
    except ConfigError:  # a blur that does not fit into the image
        return
    for array in all_numbers_of(params):
        assert array.nbytes < 10**6
        assert np.isfinite(array).all()


def recipe_of(name: str, parameters: dict[str, Any]) -> Recipe:
    """A recipe with that transform in its place."""
    transform = TRANSFORMS[name](**parameters)
    if isinstance(transform, PixelTransform) or name in ("Apply", "Normalize", "RandomErasing"):
        return Recipe([CROP, transform])
    sized = not isinstance(transform, GeometricTransform) or transform.output_shape(None)
    return Recipe([transform] if sized else [transform, CROP])


@pytest.mark.slow(kept=4)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_each_parameter_of_each_transform(name: str) -> None:
    needed = NEEDED.get(name, {})
    if name == "Pad":
        return  # it needs a size that is known, see below
    assert errors(lambda: recipe_of(name, needed)) == []
    said = []
    for field in fields(TRANSFORMS[name]):
        for value in (*VALUES, *NUMBERS, *LISTS, *SCHEDULES):
            said += errors(lambda: recipe_of(name, {**needed, field.name: value}))  # noqa: B023 - called at once
    assert len(said) >= 50 * len(fields(TRANSFORMS[name]))
    assert max(map(len, said), default=0) < 20_000
    # Each names the transform, and says what was found, what is allowed, or what to write.
    assert [each for each in said if name not in each or not SAYS_WHAT_TO_DO.search(each)] == []


def test_each_parameter_of_pad_mix_view_and_the_recipe() -> None:
    crop = T.RandomResizedCrop(32)
    said = []
    for value in (*VALUES, *NUMBERS, *LISTS, *SCHEDULES):
        said += errors(lambda: Recipe([T.Resize((32, 32)), T.Pad(value)]))  # noqa: B023
        said += errors(lambda: Recipe([CROP], mix=T.Mix(value, 1.0)))  # noqa: B023
        for name in ("mixup_alpha", "cutmix_alpha", "p", "switch_p", "per", "label_smoothing"):
            given = {"mixup_alpha": 1.0, "cutmix_alpha": 1.0, name: value}
            said += errors(lambda: Recipe([CROP], mix=T.Mix(10, **given)))  # noqa: B023
        said += errors(lambda: Recipe(views=[T.View([crop], value)]))  # noqa: B023
        said += errors(lambda: Recipe(views=[T.View(value)]))  # noqa: B023
        for field in fields(Recipe):
            said += errors(lambda: Recipe(**{"transforms": [crop], field.name: value}))  # noqa: B023
    assert len(said) > 1000
    assert max(map(len, said)) < 20_000


@pytest.mark.parametrize("name", ["simclr", "a1"])
def test_files_with_hostile_values(tmp_path: Path, name: str) -> None:
    """Each value of a preset replaced by each hostile one, as text and as an override, and bytes changed."""
    tree, file = yaml.safe_load(preset_text(name)), tmp_path / "a.yaml"

    def texts() -> Iterator[bytes]:
        every = list(paths(tree))[1:]
        for number, path in enumerate(every):
            yield yaml.safe_dump(removed(tree, path)).encode()
            before, after = yaml.safe_dump(replaced(tree, path, "@here@"), width=10**6).split("'@here@'")
            for text in TEXTS[number % 12 :: 12]:
                yield (before + text + after).encode()
        yield from mutated_bytes(preset_text(name).encode(), 30)

    said = []
    for text in texts():
        file.write_bytes(text)
        said += errors(lambda: load_preset(file))
    assert len(said) > 40
    assert max(map(len, said)) < 20_000


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_overrides_with_hostile_values(value: Any) -> None:  # noqa: ANN401
    def both(name: str, overrides: Any) -> list[str]:  # noqa: ANN401
        return errors(lambda: load_preset(name, overrides))

    said = both("simclr", {"transforms": value, "RandomApply": {"p": 0.5}}) + both("simclr", {"views": value})
    said += both("simclr", {"RandomApply": value}) + both("simclr", {"RandomApply": {"transforms": [value]}})
    said += both("simclr", {"RandomApply": {"transforms": [{"ColorJitter": value}]}, "Normalize": None})
    said += both("simclr", {"views": [value]}) + both("simclr", {"views": [{"transforms": value}], "transforms": []})
    said += both("a1", {"mix": value}) + both("a1", {"mix": {"num_classes": value}})
    if isinstance(value, (str, int, float, bytes, type(None))):
        said += both("a1", {value: 1}) + both("a1", {"mix": {value: 1}})
    said += errors(lambda: load_preset(value, value))
    assert len(said) >= 5


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: load_preset("imagenet_train", {"views": 100_000_000}), "`views`: found 100000000: .* at most 64"),
        (lambda: load_preset("a1", {"mix": {"num_classes": 2**31}}), "found 2147483648: .* at most 100000"),
        (lambda: Recipe([CROP, *[INVERT] * 60_000]), "more than 1000 transforms"),
        (lambda: Recipe([T.FiveCrop(8)] * 999), "a view may have one FiveCrop or TenCrop"),
        (lambda: Recipe(views=[T.View([CROP], 64)] * 64), "a recipe may have 64 views"),
        (lambda: Recipe([CROP, T.RandomApply([T.RandomApply([INVERT] * 100)] * 100)]), "more than 1000 transforms"),
        (lambda: Recipe([CROP, T.RandAugment(20)], views=60), "1200 steps that change pixels, in all views"),
        (lambda: Recipe([T.Resize((8000, 8000)), T.Pad(100)]), "makes images of 8200 x 8200 pixels: .* up to 8192"),
        (lambda: T.RandAugment(num_ops=2**31), "found 2147483648: .* at most 200"),
        (lambda: T.GaussianBlur(2**31 + 1), "found 2147483649: .* at most 2300"),
        (lambda: T.RandomRotation(1e300), "found 1e.300: .* at most 1000000"),
        (lambda: T.RandomAffine(0, scale=(1e-9, 1)), "0.001 <= low <= high <= 1000"),
        (lambda: T.Normalize((0, 0, 0), (1, 1, 1e-300)), "std .*: allowed are numbers above 0, from 1e-09 on"),
        (lambda: T.CenterCrop(16**5000), "found a int too large to show: .* at most 8192"),
        (lambda: T.CenterCrop(dict.fromkeys(range(5000), 8)), "at most 1000 epochs"),
        (lambda: load_preset("a" * 5000 + "/b.yaml"), "cannot be read|no such"),
    ],
)
def test_what_no_recipe_has_is_refused_at_once(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(PresetError, match=says) as caught:
        make()
    assert len(str(caught.value)) < 12_000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: " + "1:59" * 50_000, "a value of 200000 characters"),  # sexagesimal numbers take quadratic time
        ("a: 1" + ":59" * 300 + ".5", "int too large to convert to float"),
        ("x" * 5000 + ": 1", "a value of 5000 characters"),
        ("a: " + "[" * 65 + "]" * 65, "nested more than 64 deep"),
        ("a: 1\n" + "\n" * MAX_YAML_CHARACTERS, "more than 262144 characters"),
    ],
    ids=lambda text: text[:12],
)
def test_texts_that_are_larger_than_any_recipe_are_refused_at_once(text: str, says: str) -> None:
    with pytest.raises(PresetError, match=says):
        load_yaml(text, "a.yaml")


def test_bounds_are_far_from_what_recipes_use() -> None:
    for name in preset_names():
        preset = load_preset(name)
        assert sum(view.steps for view in preset.each_view) < 100
        assert len(preset_text(name)) * 100 < MAX_YAML_CHARACTERS


def test_a_sparse_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.yaml").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(PresetError, match="more than 262144 characters"):
        load_preset(tmp_path / "a.yaml")
