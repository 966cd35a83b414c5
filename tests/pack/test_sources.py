"""What each kind of source has, against torchvision, webdataset and the files themselves."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making import encoded, jpeg, picture, tar_by_command, write_samples, write_shard, write_tree
from oracle import torchvision
from packing import CLASSES, samples_of, write_class_folders
from PIL import Image

from gpuloader import GPULoader
from gpuloader.errors import ConfigError, LabelError, NoSamplesError, PackError
from gpuloader.pack import PackResult, pack
from gpuloader.pack.records import Record, SourceSample, unique_keys
from gpuloader.shards import ShardSet


def packed(source: object, tmp_path: Path, **options: object) -> tuple[PackResult, list[dict[str, bytes]]]:
    """The source's samples in its own order."""
    result = pack(source, tmp_path / "packed", shuffle=False, workers=1, **options)
    return result, samples_of(tmp_path / "packed")


def errors(source: object, tmp_path: Path, error: type[Exception], **options: object) -> str:
    with pytest.raises(error) as raised:
        packed(source, tmp_path, **options)
    assert not list((tmp_path / "packed").glob("*.tar"))
    return str(raised.value)


def files_and_labels(samples: Sequence[dict[str, bytes]]) -> list[tuple[bytes, int]]:
    return [(sample["jpg"], int(sample["cls"])) for sample in samples]


# --- class folders


def test_class_folders_are_torchvisions(tmp_path: Path) -> None:
    source = write_class_folders(tmp_path / "photos")
    for name in ("dog/deep/er/x.JPEG", "dog/10.jpg", "dog/a.b.c.jpg", "emu/Z.jpg", "emu/a.jpg"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(jpeg(8, 8, seed=len(name)))
    (source / "dog" / "notes.txt").write_text("no picture")
    (source / "README").write_text("no folder")
    result, samples = packed(source, tmp_path)
    folder = torchvision.datasets.ImageFolder(source)
    assert result.classes == tuple(folder.classes)
    assert json.loads((tmp_path / "packed" / "classes.json").read_bytes()) == folder.classes
    assert files_and_labels(samples) == [(Path(path).read_bytes(), label) for path, label in folder.samples]
    assert (result.samples, result.passed_over) == (35, 1)


def test_keys_are_the_paths_within_without_dots(tmp_path: Path) -> None:
    source = tmp_path / "photos"
    for name in ("a/1.jpg", "a/1.JPG", "a/1.png", "a/1-1.jpg", "a/b.c/d.e.jpg", "a/é ü.jpg"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(encoded(picture(8, 8), "PNG" if name.endswith("png") else "JPEG"))
    _, samples = packed(source, tmp_path)
    keys = [sample["__key__"] for sample in samples]
    assert keys == ["a/1-1", "a/1", "a/1-2", "a/1-3", "a/b.c/d_e", "a/é ü"]  # in the order of tar


def test_names_that_are_no_utf8_and_long_ones_come_through(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path / "photos" / "a")
    os.makedirs(folder)  # noqa: PTH103 - bytes
    for name in (b"\xff\xfe.jpg", b"n" * 240 + b".jpg"):
        Path(os.fsdecode(folder + b"/" + name)).write_bytes(jpeg(8, 8))
    result, samples = packed(tmp_path / "photos", tmp_path)
    assert [os.fsencode(sample["__key__"]) for sample in samples] == [b"a/" + b"n" * 240, b"a/\xff\xfe"]
    assert result.samples == 2


def test_folders_without_classes_or_pictures(tmp_path: Path) -> None:
    for name in ("1.jpg", ".hidden/1.jpg"):
        write_tree(tmp_path / "photos", {name: jpeg(8, 8)})
        assert "has neither class folders" in errors(tmp_path / "photos", tmp_path, NoSamplesError)


def test_splits_are_not_taken_for_classes(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_class_folders(tmp_path / "photos" / split, count=3)
    message = errors(tmp_path / "photos", tmp_path, ConfigError)
    assert f"has the splits train, val instead of classes: pack one at a time, {tmp_path}/photos/train" in message
    assert packed(tmp_path / "photos" / "val", tmp_path)[0].samples == 3


def test_given_classes_number_the_folders(tmp_path: Path) -> None:
    source = write_class_folders(tmp_path / "photos", count=3)
    (tmp_path / "classes.json").write_text(json.dumps(["owl", "emu", "dog", "cat"]))
    for classes in (["owl", "emu", "dog", "cat"], tmp_path / "classes.json"):
        result, samples = packed(source, tmp_path, classes=classes)
        assert result.classes == ("owl", "emu", "dog", "cat")
        numbers = [(sample["__key__"].split("/")[0], sample["cls"]) for sample in samples]
        assert numbers == [("cat", b"3"), ("dog", b"2"), ("emu", b"1")]


# --- tables


def table(tmp_path: Path, text: str, name: str = "photos.csv", encoding: str = "utf-8") -> Path:
    for i in range(3):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{i}.jpg").write_bytes(jpeg(8, 8, seed=i))
    (tmp_path / name).write_bytes(text.replace("TMP", str(tmp_path)).encode(encoding))
    return tmp_path / name


IN_0, IN_1 = '"path": "in/0.jpg"', '"path": "in/1.jpg"'
BOX = {"box": [1, 2.5]}


@pytest.mark.parametrize(
    ("name", "text", "labels", "classes", "fields"),
    [
        ("a.csv", "path,label\nin/0.jpg,5\nin/1.jpg,-1\n", [5, -1], None, [None, None]),
        ("a.csv", "path,label\nin/0.jpg,dog\nin/1.jpg,cat\n", [1, 0], ("cat", "dog"), [None, None]),
        ("a.csv", '\ufeffpath,label\r\nTMP/in/0.jpg,w\r\n"in/../in/1.jpg",x\r\n', [0, 1], ("w", "x"), [None, None]),
        ("a.csv", 'by,label,path\n"A, é",1,in/0.jpg\n,2,in/1.jpg\n', [1, 2], None, [{"by": "A, é"}, {"by": ""}]),
        ("a.jsonl", f'{{{IN_0}, "label": 3, "box": [1, 2.5]}}\n\n{{"label": 4, {IN_1}}}', [3, 4], None, [BOX, None]),
        ("a.jsonl", f'{{{IN_0}, "label": "b7"}}\n{{{IN_1}, "label": "a7"}}', [1, 0], ("a7", "b7"), [None, None]),
    ],
)
def test_a_table_is_its_rows(
    tmp_path: Path, name: str, text: str, labels: list[int], classes: tuple[str, ...] | None, fields: list[object]
) -> None:
    result, samples = packed(table(tmp_path, text, name), tmp_path)
    assert result.classes == classes
    assert (tmp_path / "packed" / "classes.json").exists() == (classes is not None)
    assert files_and_labels(samples) == [(jpeg(8, 8, seed=i), label) for i, label in enumerate(labels)]
    assert [sample["__key__"] for sample in samples] == ["in/0", "in/1"]
    assert [json.loads(sample["json"]) if "json" in sample else None for sample in samples] == fields


def labels_table(tmp_path: Path, name: str, labels: Sequence[str]) -> Path:
    """A table with a label in each line; in JSON Lines, line 1 has the first one."""
    if name.endswith(".csv"):
        return table(tmp_path, "path,label\n" + "".join(f"in/0.jpg,{each}\n" for each in labels), name)
    return table(tmp_path, "".join(f'{{"path": "in/0.jpg", "label": {each}}}\n' for each in labels), name)


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("a.csv", ["3", "3.0", " 3 ", "+3.00", "-03", "0", "9" * 18], [3, 3, 3, 3, -3, 0, 10**18 - 1]),
        ("a.jsonl", ["3", "3.0", '" 3 "', '"3.0"', '"007"', "-1.0", '"-1"'], [3, 3, 3, 3, 7, -1, -1]),
        ("a.csv", ["nan", "true", "1e3", "2.5", "3.", "0x1", "1 2", "9" * 19], None),
        ("a.jsonl", ['"nan"', '"true"', '"1e3"', '"2.5"', '"3."', '"0x1"', '"1 2"', f'"{"9" * 19}"'], None),
    ],
)
def test_a_tables_labels_are_integers_if_all_are_and_names_if_none_is(
    tmp_path: Path, name: str, labels: list[str], expected: list[int] | None
) -> None:
    result, samples = packed(labels_table(tmp_path, name, labels), tmp_path)
    names = sorted(label.strip('"') for label in labels)
    assert result.classes == (tuple(names) if expected is None else None)
    numbers = [names.index(label.strip('"')) for label in labels] if expected is None else expected
    assert [int(sample["cls"]) for sample in samples] == numbers


@pytest.mark.parametrize(
    ("name", "labels", "lines"),
    [
        ("a.csv", [*map(str, range(11)), "11l"], [13]),
        ("a.csv", ["0x3", *map(str, range(11))], [2]),
        ("a.csv", ["1", "2", "", "nan"], [4, 5]),  # at a tie, those that are no integers
        ("a.csv", ["a", "b", "2.0", "c"], [4]),
        ("a.csv", [*"abcdef", *"0123456"], [*range(2, 7)]),  # the first five
        ("a.jsonl", ["0", "1", "2", "true"], [4]),
        ("a.jsonl", ["0", "1", '"1.0"', "1e3"], [4]),
        ("a.jsonl", ["0", "1", '"2"', "NaN"], [4]),
        ("a.jsonl", ["0", '"1"', "[2]", "3"], [3]),
        ("a.jsonl", ['"a"', '"b"', "0"], [3]),
    ],
)
def test_integers_among_other_labels_are_an_error_with_the_lines_of_the_fewer(
    tmp_path: Path, name: str, labels: list[str], lines: list[int]
) -> None:
    message = errors(labels_table(tmp_path, name, labels), tmp_path, LabelError)
    assert [int(number) for number in re.findall(r"line (\d+)", message)] == lines
    assert f"the {len(labels)} labels are " in message
    assert "--classes FILE" in message


def test_classes_that_name_all_labels_of_a_table_make_them_names(tmp_path: Path) -> None:
    classes, labels = ["A", "10", "1"], ["10", "A", "1", "A"]
    for name, shown in (("a.csv", labels), ("a.jsonl", ["10", '"A"', '"1"', '"A"'])):
        source = labels_table(tmp_path, name, shown)
        result = pack(source, tmp_path / name[2:], shuffle=False, workers=1, classes=classes)
        assert result.classes == tuple(classes)
        assert [int(each["cls"]) for each in samples_of(tmp_path / name[2:])] == [1, 0, 2, 0]
        more = pack(source, tmp_path / name[2:], prefix="more", workers=1)  # the folder's classes name them, too
        assert more.classes == tuple(classes)
    with pytest.raises(LabelError, match="the 4 labels are 2 integers and 2 others"):
        pack(source, tmp_path / "packed", classes=["A", "10"], workers=1)


def test_pairs_keep_the_types_of_their_labels(tmp_path: Path) -> None:
    path = write_class_folders(tmp_path / "photos", count=1) / "cat" / "000.jpg"
    assert packed([(path, "3"), (path, "10")], tmp_path)[0].classes == ("10", "3")
    assert "line" not in errors([(path, "3"), (path, 3), (path, "4")], tmp_path / "mixed", LabelError)


def test_pictures_outside_the_tables_folder_have_their_whole_path_as_key(tmp_path: Path) -> None:
    source = table(tmp_path, "path,label\n../in/0.jpg,5\n")
    (tmp_path / "tables").mkdir()
    _, samples = packed(source.rename(tmp_path / "tables" / "photos.csv"), tmp_path)
    assert [sample["__key__"] for sample in samples] == [f"{tmp_path}/in/0".lstrip("/")]


def test_hidden_folders_that_a_table_names_are_packed_and_can_be_loaded(tmp_path: Path) -> None:
    names = [".x/0.jpg", "a/@eaDir/1.jpg", str(write_tree(tmp_path / ".cache", {"2.jpg": jpeg(8, 8)}) / "2.jpg")]
    folder = write_tree(tmp_path / "in", dict.fromkeys(names[:2], jpeg(8, 8)))
    (folder / "a.csv").write_text("path,label\n" + "".join(f"{name},5\n" for name in names))
    result, samples = packed(folder / "a.csv", tmp_path)
    outside = f"{tmp_path}/_.cache/2".lstrip("/")
    assert [sample["__key__"] for sample in samples] == ["_.x/0", "a/_@eaDir/1", outside]
    assert len(ShardSet.open([result.destination / name for name in result.shards])) == 3


def test_repeated_keys_get_the_next_free_number() -> None:
    records = [Record("", key, 0, {}, lambda _: SourceSample(b"", None, {})) for key in ("a", "a", "a-2", "b") * 2]
    assert unique_keys(records) == ["a", "a-1", "a-2", "b", "a-3", "a-4", "a-2-1", "b-1"]


@pytest.mark.parametrize(
    ("text", "classes", "labels"),
    [
        ("path,label\nin/0.jpg,b\nin/1.jpg,b\n", ["a", "b"], [1, 1]),
        ("path,label\nin/0.jpg,0\nin/1.jpg,1\n", ["a", "b"], [0, 1]),
        ("path,label\nin/0.jpg,0\nin/1.jpg,1\n", ["1", "0"], [1, 0]),
    ],
)
def test_given_classes_number_a_tables_labels(tmp_path: Path, text: str, classes: list[str], labels: list[int]) -> None:
    result, samples = packed(table(tmp_path, text), tmp_path, classes=classes)
    assert result.classes == tuple(classes)
    assert [int(sample["cls"]) for sample in samples] == labels


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        ("a.csv", "file,label\nin/0.jpg,1\n", PackError, "has the columns 'file', 'label': its first line must name"),
        ("a.csv", "path,label\n", NoSamplesError, "a.csv has no rows"),
        ("a.csv", "path,label\nin/0.jpg\n", PackError, "a.csv, line 2: it does not have 2 columns, as the first"),
        ("a.csv", 'path,label\n"in/0.jpg,1\n', PackError, "cannot be read as a table in UTF-8: unexpected end of data"),
        ("a.csv", "path,label\nin/7.jpg,1\nin/0.jpg/8.jpg,1\n", PackError, "line 2), TMP/in/0.jpg/8.jpg (TMP"),
        ("a.csv", "path,label\nin/é.jpg,1\n", PackError, "cannot be read as a table in UTF-8"),
        ("a.jsonl", '{"path": 5, "label": 1}', PackError, "a.jsonl, line 1: no path or no label"),
        ("a.jsonl", f'{{{IN_0}, "label": 1{"0" * 18}}}', LabelError, "has more than 18 digits"),
        ("a.jsonl", f'{{{IN_0}, "label": {"9" * 5000}}}', PackError, "a.jsonl, line 1 is not JSON: Exc"),
        ("a.jsonl", f'{{{IN_0}, "label": {"[" * 5000}}}', PackError, "a.jsonl, line 1 is not JSON"),
    ],
)
def test_a_wrong_table_names_its_line(
    tmp_path: Path, name: str, text: str, error: type[Exception], message: str
) -> None:
    source = table(tmp_path, text, name, encoding="latin-1")
    assert message.replace("TMP", str(tmp_path)) in errors(source, tmp_path, error)


def test_pairs_of_path_and_label_are_a_table(tmp_path: Path) -> None:
    write_class_folders(tmp_path / "photos", count=3)
    pairs = [(str(tmp_path / "photos" / "dog" / "001.jpg"), "dog"), (tmp_path / "photos" / "cat" / "000.jpg", "cat")]
    result, samples = packed(pairs, tmp_path)
    assert result.classes == ("cat", "dog")
    assert [(sample["__key__"], sample["cls"]) for sample in samples] == [("dog/001", b"1"), ("cat/000", b"0")]


# --- tars


def test_members_of_tars_are_copied_as_they_are(tmp_path: Path) -> None:
    shards = write_samples(tmp_path / "shards", 10)
    result, samples = packed(tmp_path / "shards", tmp_path)
    assert samples == samples_of(shards)
    assert (result.samples, result.classes) == (10, None)


def test_tars_of_any_kind_keep_keys_and_fields_and_lose_what_is_no_sample(tmp_path: Path) -> None:
    folder = write_class_folders(tmp_path / "photos", count=3)
    (folder / "cat" / "000.seg.png").write_bytes(b"mask")
    (folder / "cat" / "000._private").write_bytes(b"kept as well")
    (folder / "README.txt").write_text("no image")
    tar = tar_by_command(folder, tmp_path / "photos.tar")
    result, samples = packed(tar, tmp_path)
    by_key = {sample["__key__"]: sample for sample in samples}
    assert sorted(by_key) == ["./cat/000", "./dog/001", "./emu/002"]
    assert by_key["./cat/000"]["seg.png"] == b"mask"
    assert result.passed_over == 1
    with tarfile.open(tmp_path / "packed" / "train-000000.tar") as written:
        assert "./cat/000._private" in written.getnames()  # webdataset's reader passes over such


def write_class_tars(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Class folders, a folder with a tar of each, and a tar of these tars, in other orders."""
    folders = write_class_folders(tmp_path / "photos", count=7)
    (folders / "dog" / "g.gif").write_bytes(encoded(picture(8, 9), "GIF"))
    tars = tmp_path / "tars"
    tars.mkdir()
    for name in CLASSES:
        tar_by_command(folders / name, tars / f"{name}.tar", "--sort=name")
    nested = tmp_path / "nested.tar"
    with tarfile.open(nested, "w") as tar:
        for name in reversed(CLASSES):
            tar.add(tars / f"{name}.tar", f"images/{name}.tar")
    return folders, tars, nested


def test_tars_called_by_their_class_are_the_same_as_class_folders(tmp_path: Path) -> None:
    folders, tars, nested = write_class_tars(tmp_path)
    expected, samples = packed(folders, tmp_path / "folders")
    for name, source, options in (("tars", tars, {"tars_are_classes": True}), ("nested", nested, {})):
        result, found = packed(source, tmp_path / f"of-{name}", **options)
        assert (result.classes, result.left_out) == (expected.classes, ())
        assert sorted(found, key=lambda sample: sample["__key__"]) == samples
    given, found = packed(nested, tmp_path / "given", classes=["owl", *reversed(CLASSES)])
    assert given.classes == ("owl", "emu", "dog", "cat")
    assert [int(sample["cls"]) for sample in found] == [1, 1, 2, 2, 2, 3, 3, 3]


def test_tars_are_no_classes_unless_they_are_said_to_be(tmp_path: Path) -> None:
    folders, tars, nested = write_class_tars(tmp_path)
    result, samples = packed(tars, tmp_path)
    assert (result.classes, [sample for sample in samples if "cls" in sample]) == (None, [])
    with pytest.raises(LabelError, match="--tars-are-classes"):
        GPULoader(tars, 2, "cpu", preset="raw_uint8")
    with pytest.raises(NoSamplesError, match="`gpuloader pack"):
        GPULoader(nested, 2, "cpu", preset="raw_uint8")
    for source in (nested, tars / "cat.tar", [(folders / "cat" / "000.jpg", 0)]):
        assert "a folder of CLASS.tar" in errors(source, tmp_path / "b", ConfigError, tars_are_classes=True)
    assert "a folder of CLASS.tar" in errors(folders, tmp_path / "b", NoSamplesError, tars_are_classes=True)


def test_a_class_tar_without_pictures_is_no_class_in_silence(tmp_path: Path) -> None:
    _, tars, _ = write_class_tars(tmp_path)
    write_shard(tars / "owl.tar", [{"__key__": "0", "txt": b"no picture"}])
    assert "owl" in errors(tars, tmp_path, LabelError, tars_are_classes=True)
    result, _ = packed(tars, tmp_path, tars_are_classes=True, classes=[*CLASSES, "owl"])
    assert (result.classes, result.samples, result.passed_over) == ((*CLASSES, "owl"), 8, 1)


def test_decoded_samples_have_one_image(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", [{"__key__": "0", "jpg": jpeg(8, 8), "png": b"?"}])
    assert "has .png beside its image" in errors(tmp_path / "a.tar", tmp_path, PackError, decoded=8)


# --- datasets


def write_cifar10(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR-10's files with few pictures in them; torchvision checks their hashes, so it is told these."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)

    def write(name: str, content: object) -> tuple[str, str]:
        (folder / name).write_bytes(pickle.dumps(content))
        return name, hashlib.md5((folder / name).read_bytes()).hexdigest()

    def batch(name: str) -> tuple[str, str]:
        labels = rng.integers(0, 10, 4).tolist()
        return write(name, {"data": rng.integers(0, 256, (4, 3072), np.uint8), "labels": labels})

    kind = torchvision.datasets.CIFAR10
    monkeypatch.setattr(kind, "train_list", [batch("data_batch_1"), batch("data_batch_2")])
    monkeypatch.setattr(kind, "test_list", [batch("test_batch")])
    name, md5 = write("batches.meta", {"label_names": [f"class {i}" for i in range(10)]})
    monkeypatch.setattr(kind, "meta", {"filename": name, "key": "label_names", "md5": md5})


class Pairs:
    """A dataset as torchvision's are."""

    def __init__(self, *items: object) -> None:
        self.classes = list(CLASSES)
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> object:
        if isinstance(item := self.items[number], Exception):
            raise item
        return item


def test_a_dataset_gives_images_paths_or_bytes_with_labels(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg(8, 8))
    items = Pairs((picture(8, 8), 1), (jpeg(8, 8), np.int64(2)), (tmp_path / "a.jpg", 0))
    result, samples = packed(items, tmp_path)
    assert result.classes == CLASSES
    assert [sample["cls"] for sample in samples] == [b"1", b"2", b"0"]
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(samples[0]["png"]))), np.asarray(picture(8, 8)))
    assert [sample["jpg"] for sample in samples[1:]] == [jpeg(8, 8)] * 2


def test_an_image_folder_of_torchvisions_is_class_folders(tmp_path: Path) -> None:
    source = write_class_folders(tmp_path / "photos")
    pack(source, tmp_path / "folders", workers=1)
    pack(torchvision.datasets.ImageFolder(source), tmp_path / "object", workers=1)
    pack(f"torchvision:ImageFolder:{source}", tmp_path / "name", workers=1)
    shards = [(tmp_path / name / "train-000000.tar").read_bytes() for name in ("folders", "object", "name")]
    assert shards[0] == shards[1] == shards[2]


def test_a_torchvision_dataset_is_packed_without_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(tmp_path / "cifar", monkeypatch)
    for train in (True, False):
        dataset = torchvision.datasets.CIFAR10(tmp_path / "cifar", train=train)
        name = f"torchvision:CIFAR10:{tmp_path}/cifar:train={train}"
        result = pack(name, tmp_path / str(train), shuffle=False, workers=1)
        assert result.classes == tuple(dataset.classes)
        samples = samples_of(tmp_path / str(train))
        assert len(samples) == len(dataset)
        for sample, (image, label) in zip(samples, dataset, strict=True):
            assert int(sample["cls"]) == label
            assert np.array_equal(np.asarray(Image.open(io.BytesIO(sample["png"]))), np.asarray(image))


def test_items_that_cannot_be_decoded_are_left_out(tmp_path: Path) -> None:
    items = Pairs((picture(8, 8), 1), OSError("image file is truncated"), SyntaxError("broken PNG file"), (b"?", 1))
    result, samples = packed(items, tmp_path)
    assert len(samples) == result.samples == 1
    assert [item.name for item in result.left_out] == ["item 1", "item 2", "item 3"]
    assert result.left_out[0].why == "its dataset cannot decode it: image file is truncated"


# --- what cannot be packed


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        (Pairs(OSError(5, "Input/output error")), {}, OSError, "[Errno 5] Input/output error: 'item 0'"),  # of the disk
        (Pairs(), {}, NoSamplesError, "the dataset is empty"),
        (Pairs((np.zeros((8, 8, 3)), 1)), {}, PackError, "item 0 of the dataset has a ndarray as its image: allowed"),
        (Pairs((picture(8, 8), "cat")), {}, LabelError, "item 0 of the dataset has the label 'cat': it must be an int"),
        ("torchvision:CIFAR10", {}, ConfigError, "allowed is torchvision:NAME:ROOT"),
        ("torchvision:Cifar:x", {}, PackError, "torchvision.datasets has no 'Cifar'"),
        ("torchvision:CIFAR10:x:nonsense=1", {}, PackError, "unexpected keyword argument 'nonsense'"),
        ("gone", {}, PackError, "no such source: gone (relative to "),
        ("a.txt", {}, PackError, "a.txt is not a source of pictures: allowed are folders, FILE.csv, FILE.jsonl"),
        ("photos/{cat,dog}", {}, PackError, "{cat,dog} names folders of pictures: pack one folder at a time"),
        ("s3://bucket/a.tar", {}, ConfigError, "is on a store, but only local shards can be used here"),
        ("photos", {"classes": ["cat", "dog"]}, LabelError, "emu/002.jpg: unknown class 'emu': the classes are cat"),
        ("photos", {"classes": ["cat", "cat"]}, ConfigError, "a name occurs twice"),
        ("photos", {"classes": [1, 2]}, ConfigError, "allowed is a list of names, or a JSON file with one"),
        ("photos", {"classes": "a.txt"}, ConfigError, "classes='a.txt' cannot be read"),
    ],
)
def test_what_cannot_be_packed_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: object,
    options: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("cat\ndog\n")
    write_class_folders(Path("photos"), count=3)
    assert message in errors(source, tmp_path, error, **options)
