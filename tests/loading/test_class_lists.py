"""Which loaders have the same classes, for one model: of folders, packs, tars with numbers, and boxes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from making import jpeg, write_shard, write_tree
from torch.utils.data import DataLoader

from gpuloader import Boxes, GPULoader, LabelFrom, MixedLoader
from gpuloader.errors import DataError
from gpuloader.loading.class_lists import check_same_classes
from gpuloader.pack import pack

PICTURE = jpeg(24, 32)
BOXES = {"boxes": Boxes("json:annotations", "xywh", labels="category_id")}


def folder(path: Path, *classes: str) -> Path:
    return write_tree(path, {f"{name}/{number}.jpg": PICTURE for name in classes for number in range(2)})


def packed(path: Path, *classes: str) -> Path:
    pack(str(folder(path / "pictures", *classes)), str(path / "packed"), workers=1)
    return path / "packed"


def numbers(path: Path, *labels: int, names: object = None) -> Path:
    """A tar with these labels in `.cls` and in `.json`, and perhaps a classes.json."""
    path.mkdir()
    if names is not None:
        (path / "classes.json").write_text(json.dumps(names))
    rows = [(str(row), b"%d" % label, b'{"label": %d}' % label) for row, label in enumerate(labels)]
    write_shard(path / "a.tar", [{"__key__": key, "jpg": PICTURE, "cls": cls, "json": doc} for key, cls, doc in rows])
    return path


def coco(path: Path, *categories: str) -> Path:
    """A pack of COCO's pictures with one box of each category; ids have gaps."""
    ids = {name: 10 * (number + 1) for number, name in enumerate(categories)}
    images = [{"id": 1, "file_name": "0.jpg", "width": 32, "height": 24}]
    boxes = [{"id": each, "image_id": 1, "category_id": each, "bbox": [1, 1, 8, 8]} for each in ids.values()]
    named = [{"id": each, "name": name} for name, each in ids.items()]
    content = {"images": images, "annotations": boxes, "categories": named}
    write_tree(path, {"0.jpg": PICTURE, "instances.json": json.dumps(content).encode()})
    pack(str(path / "instances.json"), str(path / "packed"), images=str(path), workers=1)
    return path / "packed"


DATA: dict[str, tuple[Callable[..., Path], tuple[Any, ...], dict[str, Any]]] = {
    "folder abc": (folder, ("a", "b", "c"), {}),
    "folder ac": (folder, ("a", "c"), {}),
    "folder ab": (folder, ("a", "b"), {}),
    "folder Abc": (folder, ("A", "b", "c"), {}),
    "folder ac as abc": (folder, ("a", "c"), {"label_from": LabelFrom("folder", classes=["a", "b", "c"])}),
    "packed abc": (packed, ("a", "b", "c"), {}),
    "packed ac": (packed, ("a", "c"), {}),
    "packed ac as abc": (packed, ("a", "c"), {"label_from": LabelFrom("folder", classes=["a", "b", "c"])}),
    "packed ac, no labels": (packed, ("a", "c"), {"label_from": None}),
    "packed ac, images": (packed, ("a", "c"), {"output": ("image",)}),
    "0 to 2": (numbers, (0, 1, 2), {}),
    "0 and 2": (numbers, (0, 2), {}),
    "0 and 1": (numbers, (0, 1), {}),
    "-1 and 1": (numbers, (-1, 1), {}),
    "0 to 3": (numbers, (0, 1, 2, 3), {}),
    "8 and 9": (numbers, (8, 9), {}),
    "json 0 to 3": (numbers, (0, 1, 2, 3), {"label_from": "json:label"}),
    "json ac": (numbers, (0, 1), {"label_from": LabelFrom("json:label", classes=["a", "c"])}),
    "names 5 to 7": (partial(numbers, names={"a": 5, "b": 6, "c": 7}), (5, 6), {}),
    "names 5 and 7": (partial(numbers, names={"a": 5, "c": 7}), (5, 7), {}),
    "boxes abc": (coco, ("a", "b", "c"), {"fields": BOXES}),
    "boxes ac": (coco, ("a", "c"), {"fields": BOXES}),
    "boxes ac, images": (coco, ("a", "c"), {"fields": BOXES, "output": ("image", "boxes")}),
}


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], GPULoader]]:
    """A loader of each of these data sets, by name; to be read only."""
    made: dict[str, GPULoader] = {}

    def loader(name: str) -> GPULoader:
        if name not in made:
            make, of, options = DATA[name]
            path = make(tmp_path_factory.mktemp("data") / "set", *of)
            made[name] = GPULoader(path, 2, "cpu", preset="imagenet_eval", **options)
        return made[name]

    yield loader
    for each in made.values():
        each.close()


@pytest.mark.parametrize(
    ("train", "val"),
    [
        ("folder abc", "packed abc"),
        ("folder abc", "folder ac as abc"),
        ("packed abc", "packed ac as abc"),
        ("0 to 2", "0 and 2"),
        ("0 and 2", "0 to 2"),  # the range is what counts
        ("0 to 3", "0 and 1"),
        ("packed abc", "0 to 2"),
        ("0 and 1", "packed abc"),
        ("names 5 to 7", "names 5 to 7"),
        ("folder abc", "packed ac, no labels"),
        ("folder abc", "packed ac, images"),
        ("folder abc", "json 0 to 3"),
        ("boxes abc", "boxes abc"),
        ("boxes abc", "boxes ac, images"),
    ],
)
def test_these_have_the_same_classes_or_nothing_to_compare(
    loaders: Callable[[str], GPULoader], train: str, val: str
) -> None:
    check_same_classes({"train": loaders(train), "val": loaders(val)}, "train")


RENUMBER, PACK = 'LabelFrom("folder", classes=[...])', "gpuloader pack --classes"


@pytest.mark.parametrize(
    ("train", "val", "label", "cure"),
    [
        ("folder abc", "folder ac", 1, RENUMBER),
        ("folder abc", "folder ab", 2, RENUMBER),  # a subset
        ("folder ab", "folder abc", 2, RENUMBER),
        ("folder abc", "folder Abc", 0, RENUMBER),
        ("folder abc", "packed ac", 1, RENUMBER),  # its keys have the folders
        ("packed abc", "packed ac", 1, RENUMBER),
        ("packed abc", "json ac", 1, PACK),
        ("names 5 to 7", "names 5 and 7", 6, PACK),
        ("0 to 2", "0 to 3", 3, PACK),
        ("0 to 2", "-1 and 1", -1, PACK),
        ("packed abc", "0 to 3", 3, PACK),
        ("0 to 3", "packed abc", 3, PACK),
        ("boxes abc", "boxes ac", 1, PACK),
    ],
)
def test_other_classes_are_an_error_with_the_first_difference_and_the_cure(
    loaders: Callable[[str], GPULoader], train: str, val: str, label: int, cure: str
) -> None:
    with pytest.raises(DataError) as caught:
        check_same_classes({"train": loaders(train), "val": loaders(val)}, "train")
    assert f"label {label} " in str(caught.value)
    assert [each for each in (RENUMBER, PACK) if each in str(caught.value)] == [cure]
    for name in (train, val):
        if (classes := loaders(name).classes) is not None:
            assert str(list(classes)) in str(caught.value)


def test_a_long_list_of_classes_is_shortened(tmp_path: Path) -> None:
    names = [f"class {number}" for number in range(20_000)]
    made = [numbers(tmp_path / last, 0, names=[*names, last]) for last in ("x", "y")]
    with pytest.raises(DataError) as caught:
        MixedLoader({path.name: GPULoader(path, 1, "cpu") for path in made})
    assert "label 20000 is 'x' and 'y'" in str(caught.value)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(("others", "fits"), [(("packed abc", "packed ac"), False), (("packed abc", "0 to 2"), True)])
def test_others_are_compared_with_each_other_where_training_has_no_names(
    loaders: Callable[[str], GPULoader], others: tuple[str, str], fits: bool
) -> None:
    compared = {"train": loaders("0 and 1"), **{name: loaders(name) for name in others}}
    if fits:
        check_same_classes(compared, "train")
    else:
        with pytest.raises(DataError, match=r"packed ac .*label 1 "):
            check_same_classes(compared, "train")


# --- MixedLoader


@pytest.mark.parametrize(
    ("names", "fits"),
    [
        (("folder abc", "packed abc"), True),
        (("folder abc", "folder ac"), False),
        (("packed ac", "packed abc"), False),
        (("boxes abc", "boxes ac"), False),
        (("0 and 1", "0 to 3"), True),  # none of them is the one for training
        (("0 to 3", "0 and 1"), True),
        (("0 to 3", "8 and 9"), False),
        (("folder abc", "json 0 to 3"), True),
    ],
)
def test_the_loaders_of_a_mixed_loader_must_have_the_same_classes(
    loaders: Callable[[str], GPULoader], names: tuple[str, str], fits: bool
) -> None:
    mixed = {name: loaders(name) for name in names}
    if fits:
        MixedLoader(mixed)
    else:
        with pytest.raises(DataError, match="same_classes=False"):
            MixedLoader(mixed)
    assert set(MixedLoader(mixed, same_classes=False).loaders) == set(names)


def test_loaders_of_others_are_not_compared(loaders: Callable[[str], GPULoader]) -> None:
    others: Any = DataLoader(range(8), batch_size=2)
    assert len(MixedLoader({"ours": loaders("folder abc"), "others": others})) > 0
    with pytest.raises(DataError, match="folder ac"):
        MixedLoader({"others": others, **{name: loaders(name) for name in ("folder abc", "folder ac")}})
