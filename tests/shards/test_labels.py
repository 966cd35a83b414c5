"""`label_from`: each source of labels, and what is wrong with each."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from making import jpeg, tar_by_command, write_shard, write_tree

from gpuloader import Boxes, GPULoader
from gpuloader.errors import ConfigError, DataError, LabelError
from gpuloader.shards import ShardSet, make_labels, needs_labels, resolve_place, resolve_shards
from gpuloader.tools.info import describe_shards


def shard_set(folder: Path, *samples: dict[str, bytes | str]) -> ShardSet:
    """Two shards of samples that get an image and, where they have none, a key."""
    whole = [{"__key__": f"k{number}", "jpg": b"image"} | sample for number, sample in enumerate(samples)]
    half = (len(whole) + 1) // 2
    return ShardSet.open([write_shard(folder / "a.tar", whole[:half]), write_shard(folder / "b.tar", whole[half:])])


def labels_of(
    shards: ShardSet, label_from: str, samples: object = None, classes: Sequence[str] | None = None
) -> list[int]:
    labels = make_labels(shards, label_from, classes)
    assert labels is not None
    found = labels.of(np.arange(len(shards)) if samples is None else np.array(samples))
    assert found.dtype == np.int64
    return found.tolist()


@pytest.mark.parametrize("label_from", ["cls", "json:label"])
def test_labels_come_in_the_order_asked_for(shards: list[Path], label_from: str) -> None:
    opened = ShardSet.open(shards)
    assert labels_of(opened, label_from) == [i % 10 for i in range(40)]
    assert labels_of(opened, label_from, [39, 0, 25, 25]) == [9, 0, 5, 5]
    labels = make_labels(opened, label_from)
    assert labels is not None
    assert labels.classes is None


@pytest.mark.parametrize("label_from", ["", "CLS", "json:", 3], ids=repr)
def test_an_unknown_source_is_an_error_that_names_those_there_are(tmp_path: Path, label_from: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_labels(shard_set(tmp_path, {"cls": b"1"}), label_from)
    text = str(caught.value)
    assert text.startswith(f"label_from={label_from!r}: allowed are")
    assert all(part in text for part in ('"cls"', '"json:NAME"', '"folder"', "None (images only)"))


# auto.


@pytest.mark.parametrize(
    ("samples", "place", "labels"),
    [
        ([{"cls": b"3"}, {"cls": b"1"}], "cls", [3, 1]),
        ([{"__key__": "dog/1", "cls": b"3"}, {"__key__": "cat/1", "cls": b"1"}], "cls", [3, 1]),  # before folders
        ([{"__key__": "dog/1"}, {"__key__": "cat/1"}], "folder", [1, 0]),
        ([{"__key__": "./dog/1"}, {"__key__": "./cat/1"}], "folder", [1, 0]),  # as `tar -C folder .` names them
        ([{"__key__": "./1"}, {"__key__": "./2"}], None, None),
        ([{"json": b'{"label": 1}'}, {"txt": b"cat"}], None, None),  # nothing says which of the keys is the label
    ],
)
def test_auto_takes_what_the_data_has(
    tmp_path: Path, samples: list[dict[str, bytes | str]], place: str | None, labels: list[int] | None
) -> None:
    shards = shard_set(tmp_path, *samples)
    assert resolve_place(shards, "auto") == place
    found = make_labels(shards, "auto")
    assert (found and found.place, found and found.of(np.arange(2)).tolist()) == (place, labels)
    info = describe_shards(list(shards.shards), label_from="auto")
    assert (info.label_from, info.without_label) == (place, 0 if labels else 2)


def flat(root: Path, *names: str) -> ShardSet:
    """Folders with a picture at their top, and with a label beside it in folders that are called so."""
    for name in names:
        write_tree(root / name, {"1.jpg": b"", **({"1.cls": b"1"} if "label" in name else {})})
    return ShardSet.open(resolve_shards([root / name for name in names]))


@pytest.mark.parametrize("label_from", ["auto", "default"])
@pytest.mark.parametrize(
    ("names", "place"), [(["p/a"], None), (["p/a", "q/b"], None), (["p/label a", "p/label b"], "cls")]
)
def test_folders_of_pictures_have_labels_if_they_have_cls(
    tmp_path: Path, names: list[str], place: str | None, label_from: str
) -> None:
    labels = make_labels(flat(tmp_path, *names), label_from)
    assert (labels and labels.place) == place


@pytest.mark.parametrize("label_from", ["auto", "default"])
@pytest.mark.parametrize("names", [["p/a", "p/b"], ["q/c", "p/a", "p/b"]])
def test_a_list_of_class_folders_is_an_error_that_names_the_folder_above(
    tmp_path: Path, names: list[str], label_from: str
) -> None:
    shards = flat(tmp_path, *names)
    with pytest.raises(LabelError) as caught:
        make_labels(shards, label_from)
    assert f"give {tmp_path}/p, " in str(caught.value)
    assert "label_from=None" in str(caught.value)
    assert make_labels(shards, None) is None


# cls.


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({}, "lack a label: they have no .cls component"),
        ({"cls": b"dog"}, "not an integer in ASCII"),
        ({"cls": b"9" * 30}, "not an integer in ASCII"),
    ],
)
@pytest.mark.parametrize(("count", "more"), [(1, False), (3, False), (4, True)])
def test_samples_without_a_label_in_cls_are_named(
    tmp_path: Path, bad: dict[str, bytes | str], says: str, count: int, more: bool
) -> None:
    shards = shard_set(tmp_path, {"cls": b"1"}, *[bad] * count, {"cls": b"-1"})
    with pytest.raises(LabelError) as caught:
        make_labels(shards, "cls")
    text = str(caught.value)
    assert f"{count} of {count + 2} samples" in text
    assert says in text
    assert f"'k1' in {tmp_path}/" in text
    assert ("'k3' in " in text) == (count >= 3)
    assert "'k4' in " not in text
    assert (", and more" in text) == more
    assert '"folder" (the folder of the image)' in text  # what else one could ask for


# json.


@pytest.mark.parametrize(
    ("name", "text", "label"),
    [
        ("label", b'{"label": -3, "other": "x"}', -3),
        ("label", b'{"label": 9223372036854775807}', 2**63 - 1),
        ("a.b.c", b'{"a": {"b": {"c": 3}, "c": 4}, "b": 5}', 3),
        ("a.b", b'{"a": {"b": 3}, "a.b": 4}', 4),  # a key of that very name comes before the path
        ("a.b.c", b'{"a": {"b.c": 4, "b": {"c": 3}}}', 4),
    ],
)
def test_an_integer_in_json_is_a_label(tmp_path: Path, name: str, text: bytes, label: int) -> None:
    assert labels_of(shard_set(tmp_path, {"json": text}), f"json:{name}") == [label]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"lable": 3}', "no 64-bit integer under 'label' (its keys are ['lable'], found None)"),
        (b'{"label": "3"}', "found '3'"),
        (b'{"label": 5.5}', 'fields={"target": Field("json:label", float)}'),
        (b"\xff\xfe{}", "is not JSON"),
        (b'{"label": "%s"}' % (b"x" * 10**6), "found 'xxx"),
        (b'{"%s": 1}' % (b"x" * 10**6), "its keys are ['xxx"),
        (b'{"label": 9223372036854775808}', "found 9223372036854775808"),  # more than a tensor holds
        (b"[" * 100_000, "is not JSON"),
    ],
)
def test_what_is_no_integer_in_json_is_an_error_that_names_the_sample(tmp_path: Path, text: bytes, says: str) -> None:
    shards = shard_set(tmp_path, {"json": b'{"label": 1}'}, {"json": text})
    assert labels_of(shards, "json:label", [0]) == [1]  # found when it is read, not before
    with pytest.raises(LabelError) as caught:
        labels_of(shards, "json:label", [0, 1])
    assert says in str(caught.value)
    assert f"the .json component of 'k1' in {tmp_path}/b.tar" in str(caught.value)
    assert len(str(caught.value)) < 1500


# folder.


def test_folders_are_the_classes_that_torchvision_finds(tmp_path: Path) -> None:
    names = ("dog/b.jpg", "dog/a.jpg", "cat/c.jpg", "Zebra/d.jpg", "été/e.jpg", "10/f.jpg", "9/g.jpg", "cat/é.jpg")
    folder = write_tree(tmp_path / "images", dict.fromkeys(names, b"image"))
    shards = ShardSet.open([tar_by_command(folder, tmp_path / "a.tar")])
    labels = make_labels(shards, "folder")
    assert labels is not None
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())  # ImageFolder's rule
    assert labels.classes == tuple(classes) == ("10", "9", "Zebra", "cat", "dog", "été")
    found = {f"{shards.index.key(i)}.jpg": label for i, label in enumerate(labels_of(shards, "folder"))}
    assert found == {f"./{name}": classes.index(Path(name).parent.name) for name in names}


@pytest.mark.parametrize(
    ("keys", "classes", "expected"),
    [
        (["b/1", "a/1", "b/2"], ("a", "b"), [1, 0, 1]),
        (["x/b/1", "y/b/1", "a/1"], ("a", "b"), [1, 1, 0]),  # the folder that the image lies in, whatever is above
        (["./b/1", "b/1", "/b/2", "../b/3"], ("b",), [0, 0, 0, 0]),
    ],
)
def test_the_folder_that_an_image_lies_in_is_its_class(
    tmp_path: Path, keys: list[str], classes: tuple[str, ...], expected: list[int]
) -> None:
    shards = shard_set(tmp_path, *[{"__key__": key} for key in keys])
    labels = make_labels(shards, "folder")
    assert labels is not None
    assert labels.classes == classes
    assert labels_of(shards, "folder") == expected


@pytest.mark.parametrize("key", ["1", "./1", "/1"])
def test_an_image_in_no_folder_is_an_error(tmp_path: Path, key: str) -> None:
    with pytest.raises(LabelError, match=f"1 of 2 samples are not in a folder: '{key}' in "):
        make_labels(shard_set(tmp_path, {"__key__": "a/1"}, {"__key__": key}), "folder")


# classes: what labels are called.


def named(folder: Path, content: object) -> Path:
    """The folder, with a `classes.json`."""
    folder.mkdir(exist_ok=True)
    (folder / "classes.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("label_from", ["cls", "json:label"])
@pytest.mark.parametrize(
    ("content", "classes"),
    [
        (["cat", "dog"], ("cat", "dog")),
        ({"dog": 1, "cat": 0}, ("cat", "dog")),
        (["crane", "crane"], ("crane", "crane")),  # two of ImageNet's
        ({"dog": 7}, None),  # no i-th name
        ([], None),
    ],
)
def test_classes_are_those_of_the_file_beside_the_shards(
    tmp_path: Path, label_from: str, content: object, classes: tuple[str, ...] | None
) -> None:
    samples = [{"cls": b"1", "json": b'{"label": 1}'}] * 2
    labels = make_labels(shard_set(named(tmp_path, content), *samples), label_from)
    assert labels is not None
    assert labels.classes == classes
    assert labels.of(np.arange(2)).tolist() == [1, 1]


def test_folders_that_call_a_label_differently_are_an_error_unless_the_names_are_given(tmp_path: Path) -> None:
    sample: dict[str, bytes | str] = {"__key__": "a", "jpg": b"image", "cls": b"1"}
    names = {"one": ["cat", "dog"], "other": ["cat", "emu"]}
    folders = [named(tmp_path / folder, classes) for folder, classes in names.items()]
    shards = ShardSet.open([write_shard(folder / "a.tar", [sample]) for folder in folders])
    with pytest.raises(DataError, match=r"'dog' in .*one/classes\.json, but 'emu' in") as caught:
        make_labels(shards, "cls")
    assert "classes=" not in str(caught.value)  # it would give one of the two files' names to the other's numbers
    assert make_labels(shards, None) is None
    labels = make_labels(shards, "cls", ["cat", "dog"])
    assert labels is not None
    assert labels.classes == ("cat", "dog")


def test_another_file_of_that_name_does_not_keep_labels_from_being_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "gpuloader"):
        labels = make_labels(shard_set(named(tmp_path, {"0": "cat"}), {"cls": b"0"}), "cls")
    assert labels is not None
    assert labels.classes is None
    assert "the names of the classes are not known" in caplog.text
    assert f"{tmp_path}/classes.json" in caplog.text


@pytest.mark.parametrize("place", ["cls", "json:label"])
@pytest.mark.parametrize(
    ("beside", "classes", "fits"),
    [
        (["a", "c"], ["a", "b", "c"], False),  # the file of a split without b: its 1 is c
        (["a", "c"], ["c", "a"], False),
        ({"a": 0, "c": 5}, ["a", "c"], False),
        (["a", "c"], ["a", "c"], True),
        (["a", "c"], ["a", "c", "d"], True),
        (["a", "c"], ["Ahorn", "Birke"], True),  # other names for the same numbers
        (["a", "c"], ["a", "b"], True),
        (["crane", "crane"], ["bird", "crane"], True),  # two of ImageNet's
    ],
)
def test_names_that_are_given_keep_the_numbers_beside_the_shards(
    tmp_path: Path, place: str, beside: object, classes: list[str], fits: bool
) -> None:
    """`classes` does not change the integers in shards; it numbers folders."""
    samples = [{"__key__": f"{folder}/0", "cls": b"1", "json": b'{"label": 1}'} for folder in classes]
    shards = shard_set(named(tmp_path, beside), *samples)
    if fits:
        assert labels_of(shards, place, classes=classes) == [1] * len(classes)
    else:
        with pytest.raises(ConfigError, match=re.escape(f"{tmp_path}/classes.json")):
            make_labels(shards, place, classes)
    assert labels_of(shards, "folder", classes=classes) == list(range(len(classes)))


def test_names_that_are_given_are_compared_with_each_file(tmp_path: Path) -> None:
    sample: dict[str, bytes | str] = {"__key__": "0", "jpg": b"image", "cls": b"1"}
    folders = [named(tmp_path / str(number), names) for number, names in enumerate((["a", "b"], ["b", "a"]))]
    shards = ShardSet.open([write_shard(folder / "a.tar", [sample]) for folder in folders])
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path}/1/classes.json")):
        make_labels(shards, "cls", ["a", "b"])


NAMES = ("cat", "dog", "emü", "10")


@pytest.mark.parametrize("given", [True, False], ids=["classes=", "classes.json"])
def test_names_in_cls_are_numbered(tmp_path: Path, given: bool) -> None:
    samples = [{"cls": text} for text in (b"dog", " emü\r\n".encode(), b"10", b"cat")]  # all are names if one is
    shards = shard_set(tmp_path if given else named(tmp_path, NAMES), *samples)
    assert labels_of(shards, "cls", classes=NAMES if given else None) == [1, 2, 3, 0]
    assert labels_of(shards, "cls", [3, 0], classes=NAMES) == [0, 1]


@pytest.mark.parametrize("given", [True, False], ids=["classes=", "classes.json"])
def test_names_in_json_are_numbered_and_integers_are_labels(tmp_path: Path, given: bool) -> None:
    samples = [{"json": json.dumps({"a": {"b": label}}).encode()} for label in ("dog", "emü", "10", 1)]
    shards = shard_set(tmp_path if given else named(tmp_path, NAMES), *samples)
    assert labels_of(shards, "json:a.b", classes=NAMES if given else None) == [1, 2, 3, 1]


TIMMS = ["1", "02", "10", "a", "A2b", "a10", "b", "b1x2", "b1x10", "class2", "Class10", "x 3", "x_3", "é"]


def natural(name: str) -> list[object]:
    """timm's `natural_key`."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name.lower())]


@pytest.mark.parametrize("place", ["folder", "folder:top"])
def test_folders_may_be_numbered_in_natural_order_as_timm_numbers_them(tmp_path: Path, place: str) -> None:
    shards = shard_set(tmp_path, *({"__key__": f"{name}/x", "jpg": b"x"} for name in TIMMS))
    labels = make_labels(shards, place, order="natural")
    assert labels is not None
    assert list(labels.classes or ()) == sorted(sorted(TIMMS), key=natural) == TIMMS
    assert labels.of(np.arange(len(TIMMS))).tolist() == list(range(len(TIMMS)))
    by_name = make_labels(shards, place)
    assert by_name is not None
    assert list(by_name.classes or ()) == sorted(TIMMS)
    assert by_name.digest != labels.digest


def test_a_number_in_a_folders_name_may_have_any_length(tmp_path: Path) -> None:
    names = ["9" * 5_000, "1" + "0" * 5_000]  # int() takes 4,300 digits
    shards = shard_set(tmp_path, *({"__key__": f"{name}/x", "jpg": b"x"} for name in names))
    labels = make_labels(shards, "folder", order="natural")
    assert labels is not None
    assert list(labels.classes or ()) == names


def test_folders_are_numbered_by_the_classes_that_are_given(tmp_path: Path) -> None:
    shards = shard_set(tmp_path, *[{"__key__": key} for key in ("dog/1", "cat/1", "dog/2")])
    labels = make_labels(shards, "folder", ["emu", "dog", "cat"])
    assert labels is not None
    assert labels.classes == ("emu", "dog", "cat")
    assert labels.of(np.arange(3)).tolist() == [1, 2, 1]


@pytest.mark.parametrize(
    ("label_from", "bad", "says"),
    [
        ("cls", {"cls": b"dgo"}, "the .cls component of 'x/k1' in {b} has an unknown class: 'dgo' is not one of the"),
        ("cls", {"cls": b"\xff"}, "is neither an integer nor a class name in UTF-8"),
        ("cls", {}, "they have no .cls component"),
        ("json:a", {"json": b'{"a": "dgo"}'}, "the .json component of 'x/k1' in {b} has an unknown class: 'dgo'"),
        ("json:a", {"json": b'{"a": 4}'}, "has the label 4: there are 4 classes, numbered from 0"),
        ("folder", {}, "1 of 2 samples are in folders of unknown classes: 'x/k1' in {b}. 'x' is not one of the 4"),
    ],
)
def test_a_label_that_is_none_of_the_classes_is_an_error_that_names_the_sample(
    tmp_path: Path, label_from: str, bad: dict[str, bytes], says: str
) -> None:
    good = {"__key__": "cat/k0", "cls": b"cat", "json": b'{"a": "cat"}'}
    shards = shard_set(tmp_path, good, {"__key__": "x/k1", **bad})
    with pytest.raises(LabelError) as caught:
        labels_of(shards, label_from, classes=NAMES)
    assert says.format(b=tmp_path / "b.tar") in str(caught.value)


def test_integers_outside_of_the_given_classes_are_named_at_the_start(tmp_path: Path) -> None:
    shards = shard_set(tmp_path, {"cls": b"0"}, {"cls": b"2"}, {"cls": b"-1"})
    with pytest.raises(LabelError, match=r"2 of 3 samples .*'k1' in"):
        make_labels(shards, "cls", ["cat", "dog"])


@pytest.mark.parametrize(
    ("label_from", "classes", "order", "says"),
    [
        ("cls", "cat", "name", "classes='cat': allowed is a list"),
        ("cls", [], "name", "allowed is a list"),
        ("folder", ["cat", "dog", "cat"], "name", "'cat' occurs twice"),
        (None, ["cat"], "name", "label_from=None gives none"),
        ("folder", ["a"], "natural", "but classes numbers them"),
        ("cls", None, "natural", "but labels are from 'cls'"),
        (None, None, "natural", "but labels are from None"),
        ("folder", None, "size", "order='size': allowed are"),
    ],
)
def test_classes_and_orders_that_number_nothing_are_refused(
    tmp_path: Path, label_from: str | None, classes: object, order: object, says: str
) -> None:
    shards = shard_set(tmp_path, {"__key__": "a/x", "cls": b"1"})
    with pytest.raises(ConfigError, match=re.escape(says)):
        make_labels(shards, label_from, classes, order=order)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "components", "labelled"),
    [
        ("0", {"cls": b"1"}, True),
        ("0", {"json": b'{"annotations": []}'}, False),
        ("train/0", {"json": b'{"annotations": []}'}, False),  # a COCO file that names its pictures' folder
        ("dog/0", {"cls": b"1"}, True),
    ],
)
def test_shards_have_labels_where_they_have_cls(
    tmp_path: Path, key: str, components: dict[str, bytes], labelled: bool
) -> None:
    tar = write_shard(tmp_path / "a.tar", [{"__key__": key, "jpg": jpeg(8, 8), **components}])
    assert needs_labels(ShardSet.open([tar]), has_targets=True) is labelled
    with GPULoader(tar, 1, None, fields={"boxes": Boxes("json:annotations", required=False)}) as loader:
        assert (next(iter(loader))["label"] is not None) is labelled
