"""`label_from`: each source of labels, and what is wrong with each."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from making import tar_by_command, write_shard

from gpuloader.errors import ConfigError, LabelError
from gpuloader.shards import ShardSet, make_labels


def shard_set(folder: Path, *samples: dict[str, bytes | str]) -> ShardSet:
    """Two shards of samples that get an image and, where they have none, a key."""
    whole = [{"__key__": f"k{number}", "jpg": b"image"} | sample for number, sample in enumerate(samples)]
    half = (len(whole) + 1) // 2
    return ShardSet.open([write_shard(folder / "a.tar", whole[:half]), write_shard(folder / "b.tar", whole[half:])])


def labels_of(shards: ShardSet, label_from: str, samples: object = None) -> list[int]:
    labels = make_labels(shards, label_from)
    assert labels is not None
    found = labels.of(np.arange(len(shards)) if samples is None else np.array(samples))
    assert found.dtype == np.int64
    return found.tolist()


def test_no_source_gives_no_labels(tmp_path: Path) -> None:
    assert make_labels(shard_set(tmp_path, {}), None) is None


@pytest.mark.parametrize("label_from", ["cls", "json:label"])
def test_labels_come_in_the_order_asked_for(shards: list[Path], label_from: str) -> None:
    opened = ShardSet.open(shards)
    assert labels_of(opened, label_from) == [i % 10 for i in range(40)]
    assert labels_of(opened, label_from, [39, 0, 25, 25]) == [9, 0, 5, 5]
    labels = make_labels(opened, label_from)
    assert labels is not None
    assert labels.classes is None


@pytest.mark.parametrize("label_from", ["", "CLS", "txt", "json", "json:", "folders", "label", 3], ids=repr)
def test_an_unknown_source_is_an_error_that_names_those_there_are(tmp_path: Path, label_from: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_labels(shard_set(tmp_path, {"cls": b"1"}), label_from)
    text = str(caught.value)
    assert text.startswith(f"label_from={label_from!r}: allowed are")
    assert all(part in text for part in ('"cls"', '"json:NAME"', '"folder"', "None (images only)"))


# cls.


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({}, "lack a label: they have no .cls component"),
        ({"json": b'{"label": 1}'}, "lack a label: they have no .cls component"),
        ({"cls": b"dog"}, "not an integer in ASCII"),
        ({"cls": b""}, "not an integer in ASCII"),
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
    assert (" ..." in text) == more
    assert '"folder" (the folder that the image lies in)' in text  # what else one could ask for


# json.


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (b'{"label": 3}', 3),
        (b'{"label": -3, "other": "x"}', -3),
        (b' {"other": {"label": 1}, "label": 0}\n', 0),
        (b'{"label": 9223372036854775807}', 2**63 - 1),
    ],
)
def test_an_integer_in_json_is_a_label(tmp_path: Path, text: bytes, label: int) -> None:
    assert labels_of(shard_set(tmp_path, {"json": text}), "json:label") == [label]


def test_the_name_in_json_may_be_any(tmp_path: Path) -> None:
    assert labels_of(shard_set(tmp_path, {"json": b'{"a:b c": 7, "label": 1}'}), "json:a:b c") == [7]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"lable": 3}', "no 64-bit integer under 'label' (its keys are ['lable'], found None)"),
        (b'{"label": "3"}', "found '3'"),
        (b'{"label": 3.0}', "found 3.0"),
        (b'{"label": true}', "found True"),
        (b'{"label": null}', "found None"),
        (b'{"label": [3]}', "found [3]"),
        (b"3", "it is 3"),
        (b"[]", "it is []"),
        (b"", "is not JSON"),
        (b"{label: 3}", "is not JSON"),
        (b"\xff\xfe{}", "is not JSON"),
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


def test_samples_without_json_are_named_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(
        LabelError, match=r"1 of 2 samples lack a label: they have no \.json component: 'k1' in .*b\.tar"
    ):
        make_labels(shard_set(tmp_path, {"json": b"{}"}, {"cls": b"1"}), "json:label")


# folder.


def test_folders_are_the_classes_that_torchvision_finds(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    names = ("dog/b.jpg", "dog/a.jpg", "cat/c.jpg", "Zebra/d.jpg", "été/e.jpg", "10/f.jpg", "9/g.jpg", "cat/é.jpg")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"image")
    shards = ShardSet.open([tar_by_command(folder, tmp_path / "a.tar")])
    labels = make_labels(shards, "folder")
    assert labels is not None
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())  # ImageFolder's rule
    assert labels.classes == tuple(classes) == ("10", "9", "Zebra", "cat", "dog", "été")
    found = {f"{shards.key(i)}.jpg": label for i, label in enumerate(labels_of(shards, "folder"))}
    assert found == {f"./{name}": classes.index(Path(name).parent.name) for name in names}


@pytest.mark.parametrize(
    ("keys", "classes", "expected"),
    [
        (["b/1", "a/1", "b/2"], ("a", "b"), [1, 0, 1]),
        (["x/b/1", "y/b/1", "a/1"], ("a", "b"), [1, 1, 0]),  # the folder that the image lies in, whatever is above
        (["./b/1", "b/1", "/b/2", "../b/3"], ("b",), [0, 0, 0, 0]),
        (["v1.0/1", "v1.1/1"], ("v1.0", "v1.1"), [0, 1]),
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
    with pytest.raises(LabelError, match=f"1 of 2 samples lie in no folder: '{key}' in "):
        make_labels(shard_set(tmp_path, {"__key__": "a/1"}, {"__key__": key}), "folder")
