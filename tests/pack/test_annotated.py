"""Pictures with boxes and masks as sources of `pack`, against torchvision, pycocotools and Pillow."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Sized
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from annotating import (
    SIZES,
    coco_content,
    mask,
    voc_object,
    write_coco,
    write_masks,
    write_pictures,
    write_voc,
    write_yolo,
)
from making import encoded, jpeg, picture, write_tree
from oracle import torchvision
from packing import samples_of, write_class_folders
from PIL import Image, ImageOps

from gpuloader import Boxes, Compose, Field, GPULoader, Mask
from gpuloader.errors import ConfigError, LabelError, NoSamplesError, PackError, StateError
from gpuloader.pack import PackResult, pack
from gpuloader.pack.options import Options
from gpuloader.pack.sources import open_source


def packed(source: object, tmp_path: Path, **options: object) -> tuple[PackResult, list[dict[str, Any]]]:
    """The source's samples in its own order, their `json` parsed."""
    result = pack(source, tmp_path / "packed", shuffle=False, workers=1, **options)
    samples = samples_of(tmp_path / "packed")
    return result, [
        {name: json.loads(value) if name == "json" else value for name, value in sample.items()} for sample in samples
    ]


def error_of(source: object, tmp_path: Path, kind: type[Exception], **options: object) -> str:
    with pytest.raises(kind) as raised:
        packed(source, tmp_path, **options)
    assert not list((tmp_path / "packed").glob("*.tar"))
    return str(raised.value)


def classes_file(tmp_path: Path) -> Any:  # noqa: ANN401 - JSON
    return json.loads((tmp_path / "packed" / "classes.json").read_text())


# --- COCO


def test_coco_is_torchvisions(tmp_path: Path) -> None:
    file = write_coco(tmp_path)
    result, samples = packed(file, tmp_path)
    assert result.classes == ("dog", "cat", "emu")
    assert classes_file(tmp_path) == {"names": ["dog", "cat", "emu"], "ids": [7, 18, 90]}
    assert [sample["__key__"] for sample in samples] == ["a", "b_c", "d"]
    assert all(set(sample) == {"__key__", "jpg", "json"} for sample in samples)

    dataset = torchvision.datasets.CocoDetection(tmp_path / "train2017", file)
    ids = classes_file(tmp_path)["ids"]
    by_id = {sample["json"]["image_id"]: sample for sample in samples}
    assert sorted(by_id) == dataset.ids
    for i, number in enumerate(dataset.ids):
        sample, (image, target) = by_id[number], dataset[i]
        found = [{**each, "category_id": ids[each["category_id"]]} for each in sample["json"]["annotations"]]
        assert found == target
        assert (sample["json"]["width"], sample["json"]["height"]) == image.size
        assert np.array_equal(Image.open(io.BytesIO(sample["jpg"])), image)
        assert sample["json"]["file_name"] == dataset.coco.loadImgs(number)[0]["file_name"]
    assert by_id[1000]["json"]["annotations"] == []


@pytest.mark.parametrize("where", ["its own", "given", "nested"])
def test_the_folder_of_a_coco_files_pictures(tmp_path: Path, where: str) -> None:
    content = coco_content()
    if where == "nested":
        for entry in content["images"]:
            entry["file_name"] = f"./{entry['file_name'][0]}//{entry['file_name']}"
            write_pictures(tmp_path / "in" / entry["file_name"][2], ["a", "b.c", "d"])
    else:
        write_pictures(tmp_path / "in")
    file = tmp_path / ("in" if where == "its own" else "other") / "_annotations.coco.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content))
    if where != "its own":
        message = error_of(file, tmp_path, PackError)
        assert "its first picture a" in message
        assert "--images FOLDER" in message
    _, samples = packed(file, tmp_path, images=None if where == "its own" else tmp_path / "in")
    keys = ["a/a", "b/b_c", "d/d"] if where == "nested" else ["a", "b_c", "d"]
    assert [sample["__key__"] for sample in samples] == keys


def test_categories_are_numbered_as_given(tmp_path: Path) -> None:
    file = write_coco(tmp_path)
    result, samples = packed(file, tmp_path, classes=["owl", "cat", "dog", "emu"])
    assert result.classes == ("owl", "cat", "dog", "emu")
    assert classes_file(tmp_path) == {"names": ["owl", "cat", "dog", "emu"], "ids": [None, 18, 7, 90]}
    assert [[each["category_id"] for each in sample["json"]["annotations"]] for sample in samples] == [[1], [3, 2], []]
    again = tmp_path / "packed" / "classes.json"
    assert pack(file, tmp_path / "others", classes=again, workers=1).classes == result.classes
    message = error_of(file, tmp_path / "x", LabelError, classes=["cat", "emu"])
    assert "category 7: unknown class 'dog': the classes are cat, emu" in message


def test_two_splits_share_a_folder_if_their_categories_are_the_same(tmp_path: Path) -> None:
    packed(write_coco(tmp_path), tmp_path)
    packed(write_coco(tmp_path, split="val2017"), tmp_path, prefix="val")
    other = coco_content()
    other["categories"][0]["id"] = 91
    other["annotations"][0]["category_id"] = 91
    with pytest.raises(StateError, match=r"classes\.json has other ids of classes than the source: give another"):
        packed(write_coco(tmp_path, other, split="other"), tmp_path, prefix="other")


def test_two_categories_of_one_name_stay_two(tmp_path: Path) -> None:
    content = coco_content()
    content["categories"][1]["name"] = "emu"
    result, samples = packed(write_coco(tmp_path, content), tmp_path)
    assert result.classes == ("emu", "cat", "emu")
    assert [each["category_id"] for each in samples[1]["json"]["annotations"]] == [2, 0]


def changed(part: str, i: int, **values: object) -> Callable[[], object]:
    def make() -> object:
        content = coco_content()
        content[part][i].update(values)
        return content

    return make


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (list, "is not an annotation file of COCO, with the lists images, annotations, categories: it has []"),
        (changed("annotations", 1, id=5), "the id 5 occurs twice in its annotations"),
        (changed("annotations", 1, image_id=[]), "annotation 1 has the image_id [], which is no image of the file"),
        (changed("categories", 2, name=""), "category 18 has no name"),
        (changed("images", 1, file_name="gone.jpg"), "1 of 3 pictures cannot be found: TMP/train2017/gone.jpg (TMP/"),
        (changed("images", 1, file_name="a\0.jpg"), "image 9: TMP/train2017/a\\x00.jpg cannot be read"),
        (changed("images", 1, file_name="/etc/passwd"), "image 9 has the file_name '/etc/passwd': allowed are paths"),
        (changed("annotations", 1, category_id=2.5), "annotation 1 has the category_id 2.5, which is no category"),
    ],
)
def test_what_is_wrong_in_a_coco_file_is_named(tmp_path: Path, make: Callable[[], object], message: str) -> None:
    content: Any = make()
    found = error_of(write_coco(tmp_path, content), tmp_path, PackError)
    assert message.replace("TMP", str(tmp_path)) in found


GOOD_BOX: dict[str, Any] = {"bbox": [1, 2, 20, 30], "segmentation": [[1, 2, 21, 2, 21, 32]]}
# What differs from a good object -> what is left of it beside a good one: nothing of it, a part of it, or no sample.
OBJECTS_OF_COCO: dict[str, tuple[dict[str, Any], str]] = {
    "good": ({}, "kept"),
    "flat": ({"bbox": [1, 2, 20, 0]}, "dropped"),
    "negative": ({"bbox": [50, 50, -30, -20]}, "dropped"),
    "empty box": ({"bbox": []}, "dropped"),
    "null box": ({"bbox": None}, "dropped"),
    "missing box": ({"bbox": ...}, "dropped"),
    "empty outline": ({"segmentation": []}, "dropped"),
    "null outline": ({"segmentation": None}, "dropped"),
    "missing outline": ({"segmentation": ...}, "dropped"),
    "two points": ({"segmentation": [[1, 1, 9, 9]]}, "dropped"),
    "two points of a part": ({"segmentation": [[1, 1, 9, 9], *GOOD_BOX["segmentation"]]}, "in part"),
    "three numbers": ({"bbox": [1, 2, 3]}, "left out"),
    "five numbers": ({"bbox": [1, 2, 3, 4, 0.5]}, "left out"),
    "text": ({"bbox": ["1", "2", "3", "4"]}, "left out"),
    "NaN": ({"bbox": [float("nan"), 1, 2, 3]}, "left out"),
    "null crowd": ({"iscrowd": None}, "left out"),
    "nested": ({"segmentation": [[[1, 1], [9, 1], [9, 9]]]}, "left out"),
    "unlisted": ({"segmentation": [1, 1, 9, 1, 9, 9]}, "left out"),
    "an odd number": ({"segmentation": [[1, 1, 9, 1, 9, 9, 1]]}, "left out"),
    "runs of another size": ({"segmentation": {"size": [60, 40], "counts": [2400]}}, "left out"),
    "a far point": ({"segmentation": [[1, 1, 9, 1, 9999, 9]]}, "left out"),
    "visibility": ({"keypoints": [1, 2, 7]}, "left out"),
}


def test_what_the_fields_refuse_is_dropped_or_left_out(tmp_path: Path) -> None:
    base = {"area": 9, "iscrowd": 0, "category_id": 7.0, **GOOD_BOX}
    images, annotations = [], []
    for i, (name, (changes, _)) in enumerate(OBJECTS_OF_COCO.items()):
        images.append({"id": float(i), "file_name": f"{name}.jpg", "width": 60.0, "height": 40})
        for number, each in enumerate(({**base, **changes}, base)):
            odd = {key: value for key, value in each.items() if value is not ...}
            annotations.append({"id": 2 * i + number, "image_id": float(i), **odd})
    content = {"images": images, "annotations": annotations, "categories": [{"id": 7.0, "name": "dog"}]}
    file = write_coco(tmp_path, content)
    write_tree(tmp_path / "train2017", {f"{name}.jpg": jpeg(40, 60) for name in OBJECTS_OF_COCO})
    result, samples = packed(file, tmp_path)
    kept = {sample["__key__"]: [each["id"] % 2 for each in sample["json"]["annotations"]] for sample in samples}
    objects = {"kept": [0, 1], "in part": [0, 1], "dropped": [1]}
    assert kept == {name: objects[what] for name, (_, what) in OBJECTS_OF_COCO.items() if what in objects}
    whole = {left.key for left in result.left_out if not left.object}
    parts = {left.key for left in result.left_out if left.object.startswith("annotations[0] (id ")}
    assert whole == {name for name, (_, what) in OBJECTS_OF_COCO.items() if what == "left out"}
    assert parts == {name for name, (_, what) in OBJECTS_OF_COCO.items() if what in ("dropped", "in part")}
    assert result.samples == len(samples) == len(OBJECTS_OF_COCO) - len(whole)
    assert all(type(each["image_id"]) is int for sample in samples for each in sample["json"]["annotations"])
    boxes = Boxes("json:annotations", format="xywh", labels="category_id", keys=["iscrowd"])
    fields = {"boxes": boxes, "outlines": Mask("json:annotations")}
    options: Any = {"preset": "cifar10_eval", "label_from": None, "output": "dict", "fields": fields}
    [batch] = GPULoader(tmp_path / "packed", len(samples), "cpu", shuffle="none", **options)  # raises for a bad sample
    assert [len(each) for each in batch["boxes"]] == [len(each) for each in kept.values()]
    assert [len(each) for each in batch["outlines"]] == [len(each) for each in kept.values()]


@pytest.mark.parametrize("empty", [{}, {"segmentation": []}, {"segmentation": None}])
def test_a_file_of_boxes_needs_no_outlines(tmp_path: Path, empty: dict[str, Any]) -> None:
    content = coco_content()
    for annotation in content["annotations"][1:]:
        annotation.pop("segmentation")
        annotation.update(empty)
    result, samples = packed(write_coco(tmp_path, content), tmp_path)
    assert (result.left_out, [len(sample["json"]["annotations"]) for sample in samples]) == ((), [1, 2, 0])


@pytest.mark.parametrize("kind", ["coco", "voc"])
def test_annotations_for_another_size_leave_their_picture_out(tmp_path: Path, kind: str) -> None:
    """Unless the sizes are exchanged and EXIF turns the picture: then a recipe's `orientation` decides."""
    exif = Image.Exif()
    exif[0x0112] = 6
    plain, turned = jpeg(40, 60), encoded(picture(40, 60), "JPEG", exif=exif)
    rows = {
        "same": (plain, 60, 40, True),
        "stored": (turned, 60, 40, True),
        "upright": (turned, 40, 60, True),
        "none": (plain, 0, 0, True),
        "exchanged": (plain, 40, 60, False),
        "twice": (plain, 120, 80, False),
        "twice and turned": (turned, 80, 120, False),
    }
    if kind == "coco":
        images = [
            {"id": i, "file_name": f"{name}.jpg", "width": width, "height": height}
            for i, (name, (_, width, height, _)) in enumerate(rows.items())
        ]
        source = write_coco(tmp_path, {"images": images, "annotations": [], "categories": [{"id": 1, "name": "dog"}]})
        folder = tmp_path / "train2017"
    else:
        source = write_voc(tmp_path, {"a": []})
        folder = source / "JPEGImages"
        (source / "Annotations" / "a.xml").unlink()
        for name, (_, width, height, _) in rows.items():
            size = f"<annotation><size><width>{width}</width><height>{height}</height></size></annotation>"
            (source / "Annotations" / f"{name}.xml").write_text(size)
    write_tree(folder, {f"{name}.jpg": image for name, (image, *_) in rows.items()})
    result, samples = packed(source, tmp_path)
    assert {sample["__key__"] for sample in samples} == {name for name, (*_, good) in rows.items() if good}
    assert {left.key for left in result.left_out} == {name for name, (*_, good) in rows.items() if not good}
    assert {(sample["json"]["width"], sample["json"]["height"]) for sample in samples} == {(60, 40), (40, 60)}


def test_annotations_of_any_depth_are_packed_or_refused(tmp_path: Path) -> None:
    """Some that Python reads are too deep for it to write."""
    file = write_coco(tmp_path)
    text = file.read_text()
    for depth in range(900, 1000):
        file.write_text(text.replace('"area": 82', f'"area": {"[" * depth}{"]" * depth}', 1))
        with suppress(PackError):
            open_source(file, Options(), progress=False)


def test_annotated_pictures_keep_their_sizes(tmp_path: Path) -> None:
    message = error_of(write_coco(tmp_path), tmp_path, ConfigError, max_size=20)
    assert "boxes and masks fit the sizes that they have" in message


# --- Pascal VOC

OBJECTS = {
    "a": [voc_object("dog", [1, 1, 60, 40]), voc_object("cat", [5, 7, 5, 9], "<difficult>1</difficult>")],
    "b.c": [voc_object("dog", [45.75, 2, 50, 3])],
    "d": [],
}


def test_voc_is_torchvisions_counted_from_0(tmp_path: Path) -> None:
    root = write_voc(tmp_path, OBJECTS)
    result, samples = packed(root / "ImageSets" / "Main" / "train.txt", tmp_path)
    assert result.classes == ("cat", "dog")
    assert classes_file(tmp_path) == ["cat", "dog"]
    dataset = torchvision.datasets.VOCDetection(tmp_path)
    assert [sample["__key__"] for sample in samples] == ["d", "b_c", "a"]
    for i, sample in enumerate(samples):
        image, target = dataset[i]
        boxes = [
            {side: float(value) for side, value in each["bndbox"].items()} for each in target["annotation"]["object"]
        ]
        # The pixels from xmin to xmax, both included, the first one being 1: as detectron2 converts them.
        assert [each["bbox"] for each in sample["json"]["annotations"]] == [
            [box["xmin"] - 1, box["ymin"] - 1, box["xmax"] - (box["xmin"] - 1), box["ymax"] - (box["ymin"] - 1)]
            for box in boxes
        ]
        assert [result.classes[each["category_id"]] for each in sample["json"]["annotations"]] == [
            each["name"] for each in target["annotation"]["object"]
        ]
        assert (sample["json"]["width"], sample["json"]["height"]) == image.size
        assert np.array_equal(Image.open(io.BytesIO(sample["jpg"])), image)
    assert samples[2]["json"] == {
        "image_id": 2,
        "file_name": "a.jpg",
        "width": 60,
        "height": 40,
        "annotations": [
            {"bbox": [0, 0, 60, 40], "category_id": 1, "difficult": 0, "truncated": 1},
            {"bbox": [4, 6, 1, 3], "category_id": 0, "difficult": 1, "truncated": 0},
        ],
    }


def test_a_voc_folder_has_all_pictures_with_xml_files(tmp_path: Path) -> None:
    root = write_voc(tmp_path, OBJECTS)
    (root / "Annotations" / "b.c.xml").unlink()
    result, samples = packed(root, tmp_path)
    assert [sample["__key__"] for sample in samples] == ["a", "d"]
    assert result.passed_over == 1


def test_vocs_masks_are_torchvisions(tmp_path: Path) -> None:
    root = write_voc(tmp_path, OBJECTS)
    result, samples = packed(root / "ImageSets" / "Segmentation" / "train.txt", tmp_path)
    assert (result.classes, result.samples) == (None, 3)
    dataset = torchvision.datasets.VOCSegmentation(tmp_path)
    for i, sample in enumerate(samples):
        image, target = dataset[i]
        assert set(sample) == {"__key__", "jpg", "mask.png"}
        assert np.array_equal(Image.open(io.BytesIO(sample["mask.png"])), target)  # indices, no colours
        assert np.array_equal(Image.open(io.BytesIO(sample["jpg"])), image)


BOMB = '<!DOCTYPE x [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]><annotation>&b;</annotation>'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "it has a DOCTYPE, which is not allowed"),
        (BOMB.encode("utf-16").decode("latin-1"), "it has a DOCTYPE, which is not allowed"),
        ('<?xml version="1.0" encoding="nonsense"?><annotation/>', "cannot be read"),
        ("<annotation>", "cannot be read: no element found"),
        ("SIZE" + voc_object("dog", [1, 2, 3]), "bndbox/ymax of its <object> is '', not a number"),
    ],
)
def test_an_xml_file_that_cannot_be_read_leaves_its_picture_out(tmp_path: Path, text: str, message: str) -> None:
    root = write_voc(tmp_path, OBJECTS)
    size = "<annotation><size><width>60</width><height>40</height></size>"
    text = text.replace("SIZE", size) + ("</annotation>" if "SIZE" in text else "")
    (root / "Annotations" / "a.xml").write_bytes(text.encode("latin-1"))
    result, samples = packed(root, tmp_path)
    assert [sample["__key__"] for sample in samples] == ["b_c", "d"]
    [left_out] = result.left_out
    assert (left_out.key, left_out.object) == ("a", "")
    assert f"{root}/Annotations/a.xml" in left_out.why
    assert message in left_out.why


@pytest.mark.parametrize("size", ["", "<size><width>0</width><height>0</height></size>", "<size><width/></size>"])
def test_voc_without_a_size_takes_the_pictures(tmp_path: Path, size: str) -> None:
    root = write_voc(tmp_path, OBJECTS)
    text = (root / "Annotations" / "a.xml").read_text()
    (root / "Annotations" / "a.xml").write_text(re.sub("<size>.*</size>", size, text))
    result, samples = packed(root, tmp_path)
    assert (result.left_out, samples[0]["json"]["width"], samples[0]["json"]["height"]) == ((), 60, 40)


def test_vocs_objects_without_a_box_are_dropped_alone(tmp_path: Path) -> None:
    good, turned = voc_object("dog", [1, 1, 60, 40]), "<object><name>cat</name><robndbox><cx>4</cx></robndbox></object>"
    empty, swapped = voc_object("cat", ["", "", "", ""]), voc_object("cat", [40, 30, 11, 11])
    result, samples = packed(write_voc(tmp_path, {"a": [turned, good, empty, swapped]}), tmp_path)
    assert [each["bbox"] for each in samples[0]["json"]["annotations"]] == [[0, 0, 60, 40]]
    assert [left.object for left in result.left_out] == ["annotations[0]", "annotations[2]", "annotations[3]"]


def test_an_object_without_a_name_and_one_with_an_unknown_name(tmp_path: Path) -> None:
    root = write_voc(tmp_path, {"a": [voc_object("", [1, 2, 3, 4])]})
    assert f"{root}/Annotations/a.xml: the label ''" in error_of(root, tmp_path, LabelError)
    root = write_voc(tmp_path / "b", OBJECTS)
    assert "a.xml: unknown class 'dog': the classes are cat" in error_of(root, tmp_path, LabelError, classes=["cat"])


@pytest.mark.parametrize("lines", ["a -1\nd  1\n", "a  1\nd  0\n"])
def test_the_list_of_one_class_names_the_list_of_all(tmp_path: Path, lines: str) -> None:
    root = write_voc(tmp_path, OBJECTS)
    listed = root / "ImageSets" / "Main" / "cat_train.txt"
    listed.write_text(lines)
    said = error_of(listed, tmp_path, PackError)
    assert "one class" in said
    assert f"{root}/ImageSets/Main/train.txt" in said
    own = listed.rename(listed.with_name("train.txt"))  # which cannot be its own cure
    assert "give names alone" in error_of(own, tmp_path, PackError)


NOT_THERE = [("Main", "../../../etc/passwd", "JPEGImages"), ("Main", "a", "Annotations")]


@pytest.mark.parametrize(("kind", "line", "where"), [*NOT_THERE, ("Segmentation", "a", "SegmentationClass")])
def test_a_name_in_a_list_that_is_not_there(tmp_path: Path, kind: str, line: str, where: str) -> None:
    root = write_voc(tmp_path, OBJECTS)
    (root / "Annotations" / "a.xml").unlink()
    (root / "SegmentationClass" / "a.png").unlink()
    listed = root / "ImageSets" / kind / "train.txt"
    listed.write_text(f"d\n\n{line}\r\n")
    assert f"{listed} has '{line}', which is not in {root}/{where}" in error_of(listed, tmp_path, PackError)


# --- YOLO


def test_yolos_lines_are_boxes_and_polygons_in_pixels(tmp_path: Path) -> None:
    # The middle of a picture of 60 x 40 pixels, and a triangle.
    lines = "1 0.5 0.5 0.5 0.25\n\n0 0 0 1 0 0.5 0.75\n"
    result, samples = packed(write_yolo(tmp_path, {"a": lines, "d": "", "gone": ""}), tmp_path)
    assert (result.classes, result.passed_over) == (("cat", "dog"), 1)
    assert [sample["__key__"] for sample in samples] == ["a", "b_c", "d"]
    box = {"bbox": [15, 15, 30, 10], "category_id": 1}
    outline = {"bbox": [0, 0, 60, 30], "category_id": 0, "segmentation": [[0, 0, 60, 0, 30, 30]]}
    rows = [("a.jpg", 60, 40, [box, outline]), ("b.c.jpg", 40, 60, []), ("d.jpg", 30, 30, [])]
    keys = ("image_id", "file_name", "width", "height", "annotations")
    assert [each["json"] for each in samples] == [dict(zip(keys, (i, *row), strict=True)) for i, row in enumerate(rows)]


@pytest.mark.parametrize(("kind", "orientation"), [("JPEG", 1), ("JPEG", 6), ("TIFF", 6), ("BMP", 1)])
def test_yolo_counts_in_the_upright_picture(tmp_path: Path, kind: str, orientation: int) -> None:
    images = write_yolo(tmp_path, {"a": "0 0.5 0.5 1 1"})
    exif = Image.Exif()
    exif[0x0112] = orientation
    (images / "a.jpg").write_bytes(encoded(picture(40, 60), kind, exif=exif))
    _, samples = packed(images, tmp_path)
    width, height = ImageOps.exif_transpose(Image.open(images / "a.jpg")).size
    assert (samples[0]["json"]["width"], samples[0]["json"]["height"]) == (width, height)
    assert samples[0]["json"]["annotations"][0]["bbox"] == [0, 0, width, height]


@pytest.mark.parametrize(
    ("names", "classes", "expected", "label"),
    [
        ("", None, None, 1),
        ("", ["owl", "cat"], ("owl", "cat"), 1),
        ("names: [cat, dog]", ["dog", "owl", "cat"], ("dog", "owl", "cat"), 0),
    ],
)
def test_the_names_of_yolos_classes(
    tmp_path: Path, names: str, classes: list[str] | None, expected: tuple[str, ...] | None, label: int
) -> None:
    images = write_yolo(tmp_path, {"a": "1 0.5 0.5 0.5 0.5"}, names)
    result, samples = packed(images, tmp_path, classes=classes)
    assert result.classes == expected
    assert [each["category_id"] for each in samples[0]["json"]["annotations"]] == [label]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 0.5 0.5 0.5", "3 numbers behind the class: allowed are 4 of a box and 6, 8, ..."),
        ("cat 0.5 0.5 0.5 0.5", "b'cat 0.5 0.5 0.5 0.5' is not a class and numbers"),
        ("0.5 0.5 0.5 0.5 0.5", "is not a class and numbers"),
        ("nan 0.5 0.5 0.5 0.5", "is not a class and numbers"),
        ("0 0.5 0.5 nan 0.5", "allowed are parts of the width and height, from 0 to 1"),
    ],
)
def test_a_text_file_that_cannot_be_read_leaves_its_picture_out(tmp_path: Path, line: str, message: str) -> None:
    result, samples = packed(write_yolo(tmp_path, {"a": f"0 0.5 0.5 0.1 0.1\n{line}\n"}), tmp_path)
    assert [sample["__key__"] for sample in samples] == ["b_c", "d"]
    assert [(left.key, left.object) for left in result.left_out] == [("a", "")]
    assert f"{tmp_path}/labels/train/a.txt, line 2: " in result.left_out[0].why
    assert message in result.left_out[0].why


def test_a_class_that_yolos_names_lack_is_an_error(tmp_path: Path) -> None:
    images = write_yolo(tmp_path, {"a": "2 0.5 0.5 0.5 0.5"})
    assert "a.txt: unknown class 2: there are 2 classes, from 0 on" in error_of(images, tmp_path, LabelError)


def test_yolos_classes_may_be_floats_and_lines_without_area_are_dropped(tmp_path: Path) -> None:
    lines = "0.0 0.5 0.5 0.5 0.5\n1.000000e+00 0.5 0.5 0.5 0.5\n1 0.5 0.5 0 0.5\n"
    result, samples = packed(write_yolo(tmp_path, {"a": lines}), tmp_path)
    assert [each["category_id"] for each in samples[0]["json"]["annotations"]] == [0, 1]
    assert [(left.key, left.object) for left in result.left_out] == [("a", "annotations[2]")]


@pytest.mark.parametrize(
    "content",
    [
        {"names": ["cat", "dog"], "download": "print('this script is run by others')\n" * 100},
        {"names": {number: f"class {number}" for number in range(10_500)}},  # a recipe may have 10,000 values
    ],
)
def test_data_yaml_may_have_more_than_a_recipe(tmp_path: Path, content: dict[str, Sized]) -> None:
    images = write_yolo(tmp_path, {"a": "1 0.5 0.5 0.5 0.5"}, yaml.safe_dump(content))
    result, _ = packed(images, tmp_path)
    assert result.classes is not None
    assert len(result.classes) == len(content["names"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("names: [cat", "cannot be read as YAML: while parsing"),  # the rest: tests/recipe/test_strict_yaml.py
        ("names: !!python/object/apply:os.system [ls]", "tags are not allowed"),
        ("[cat]", "found ['cat']: allowed is a mapping"),
        ("names: {1: cat}", "its names are {1: 'cat'}: allowed are a list"),
        ("names: [cat]\nkpt_shape: [17, 3]", "key points (`kpt_shape`) cannot be packed"),
    ],
)
def test_what_is_wrong_in_data_yaml_is_named(tmp_path: Path, text: str, message: str) -> None:
    found = error_of(write_yolo(tmp_path, {"a": "0 0.5 0.5 0.5 0.5"}, text), tmp_path, PackError)
    assert str(tmp_path / "data.yaml") in found
    assert message in found


def test_a_picture_that_cannot_be_decoded_is_left_out(tmp_path: Path) -> None:
    images = write_yolo(tmp_path, {})
    (tmp_path / "labels" / "train" / "a.txt").write_text("0 0.5 0.5 0.5 0.5")
    (images / "a.jpg").write_bytes(b"no picture")
    result, samples = packed(images, tmp_path)
    assert [picture.key for picture in result.left_out] == ["a"]
    assert [sample["__key__"] for sample in samples] == ["b_c", "d"]


# --- masks


@pytest.mark.parametrize(("beside", "ending"), [("masks", "jpg"), ("annotations", "png"), ("masks", "bmp")])
def test_masks_stand_beside_their_pictures(tmp_path: Path, beside: str, ending: str) -> None:
    images = tmp_path / "set" / "images" / "training"
    images.mkdir(parents=True)
    kind = {"jpg": "JPEG", "png": "PNG", "bmp": "BMP"}[ending]
    for seed, name in enumerate(SIZES):
        (images / f"{name}.{ending}").write_bytes(encoded(picture(*SIZES[name], seed=seed), kind))
    write_masks(tmp_path / "set" / beside / "training")
    result, samples = packed(images, tmp_path)
    assert (result.samples, result.classes) == (3, None)
    for sample, name in zip(samples, SIZES, strict=True):
        member = "jpg" if ending == "jpg" else "png"
        assert set(sample) == {"__key__", member, "mask.png"}
        assert np.array_equal(Image.open(io.BytesIO(sample["mask.png"])), mask(name))
        assert np.array_equal(Image.open(io.BytesIO(sample[member])), Image.open(images / f"{name}.{ending}"))
    fields = {"mask": Field("mask.png", lambda data: np.asarray(Image.open(io.BytesIO(data))))}
    options: Any = {"preset": "imagenet_eval", "label_from": None, "output": "dict", "fields": fields}
    batch = next(iter(GPULoader(tmp_path / "packed", 3, "cpu", **options)))
    assert [each.shape for each in batch["mask"]] == list(SIZES.values())


def test_hidden_folders_beside_pictures_are_no_classes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    images = write_pictures(tmp_path / "images")
    write_masks(tmp_path / "masks")
    write_tree(images, {"@eaDir/a.jpg/1.jpg": b"", ".x/a.jpg": b"", "__MACOSX/._a.jpg": b""})
    assert packed(images, tmp_path)[0].samples == 3
    assert [message for message in caplog.messages if "2 pictures" in message and ".x/a.jpg" in message]


def test_a_mask_that_is_no_png_leaves_its_picture_out(tmp_path: Path) -> None:
    images = write_pictures(tmp_path / "images")
    write_masks(tmp_path / "masks")
    (tmp_path / "masks" / "a.png").write_bytes(jpeg(40, 60))
    result, samples = packed(images, tmp_path)
    assert [sample["__key__"] for sample in samples] == ["b_c", "d"]
    assert [(left.key, left.object) for left in result.left_out] == [("a", "")]


def test_a_mask_that_the_field_refuses_leaves_its_picture_out(tmp_path: Path) -> None:
    """`Mask` loads what is packed; a mask for the upright picture is for `orientation: apply`."""
    numbers = np.arange(2400).astype(np.uint8).reshape(40, 60) % 3
    exif = Image.Exif()
    exif[0x0112] = 6
    plain, turned = jpeg(40, 60), encoded(picture(40, 60), "JPEG", exif=exif)
    palette = Image.fromarray(numbers, "P")
    palette.putpalette([0, 0, 0, 9, 9, 9, 8, 8, 8])
    rgb, alpha = np.dstack([numbers] * 3), np.full_like(numbers, 255)
    rows: dict[str, tuple[bytes, Image.Image, bool]] = {
        "gray": (plain, Image.fromarray(numbers), True),
        "palette": (plain, palette, True),
        "16 bits": (plain, Image.fromarray(numbers.astype(np.uint16)), True),
        "upright": (turned, Image.fromarray(np.rot90(numbers).copy()), True),
        "stored": (turned, Image.fromarray(numbers), True),
        "exchanged": (plain, Image.fromarray(np.rot90(numbers).copy()), False),
        "half": (plain, Image.fromarray(numbers[::2, ::2].copy()), False),
        "a row less": (plain, Image.fromarray(numbers[1:]), False),
        "RGB": (plain, Image.fromarray(rgb), False),
        "RGBA": (plain, Image.fromarray(np.dstack([rgb, alpha])), False),
        "with alpha": (plain, Image.fromarray(np.dstack([numbers, alpha]), "LA"), False),
    }
    write_tree(tmp_path / "images", {f"{name}.jpg": image for name, (image, *_) in rows.items()})
    write_tree(tmp_path / "masks", {f"{name}.png": encoded(each, "PNG") for name, (_, each, _) in rows.items()})
    result, samples = packed(tmp_path / "images", tmp_path)
    assert {sample["__key__"] for sample in samples} == {name for name, (*_, good) in rows.items() if good}
    assert {left.key for left in result.left_out} == {name for name, (*_, good) in rows.items() if not good}
    options: Any = {"preset": Compose([], batch="list"), "label_from": None, "shuffle": "none", "output": "dict"}
    options |= {"fields": {"mask": Mask("mask.png")}, "on_error": "skip", "last_batch": "partial"}
    with GPULoader(tmp_path / "packed", 5, "cpu", **options) as loader:
        found = {key: each for batch in loader for key, each in zip(batch["key"], batch["mask"], strict=True)}
    assert found.keys() == {"gray", "palette", "16 bits", "stored"}
    assert all(np.array_equal(each, numbers) for each in found.values())


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a_mask.png", "b.c_mask.png"], ["rename a_mask.png to a.png"]),
        (["a-seg.PNG", "b.c.png"], ["rename a-seg.PNG to a.png"]),
        (["ab.png", "b.c.png"], ["add or remove them"]),  # of another picture
        (["a.gif"], ["convert a.gif to a.png", "Image.open("]),
        (["a.tif", "b.c.png", "d.png"], ["convert a.tif to a.png"]),
        (["a.jpg"], ["a.jpg is a JPEG, which changes the numbers", "a.png"]),
        (["a.JPEG", "b.c.png", "d.png"], ["a.JPEG is a JPEG"]),
    ],
)
@pytest.mark.parametrize("folder", ["masks", "annotations"])
def test_masks_of_other_names_have_a_cure(tmp_path: Path, folder: str, names: list[str], words: list[str]) -> None:
    images = write_pictures(tmp_path / "images")
    write_tree(tmp_path / folder, dict.fromkeys(names, encoded(picture(8, 8), "PNG")))
    said = error_of(images, tmp_path, PackError)
    assert [word for word in [f"{images}/a.jpg has no mask", *words] if word not in said] == []


def test_annotations_that_are_no_pictures_are_no_masks(tmp_path: Path) -> None:
    images = write_pictures(tmp_path / "images")
    write_tree(tmp_path / "annotations", {"instances.json": b"{}"})
    assert "neither class folders" in error_of(images, tmp_path, NoSamplesError)


def test_masks_in_two_folders_and_pictures_of_one_name_or_without_a_mask(tmp_path: Path) -> None:
    images = write_pictures(tmp_path / "images")
    write_masks(tmp_path / "masks", ["a"])
    assert f"{images}/b.c.jpg has no mask, as have 2 of 3 pictures" in error_of(images, tmp_path, PackError)
    write_masks(tmp_path / "masks")
    write_masks(tmp_path / "annotations")
    assert "has masks in masks and in annotations beside its images" in error_of(images, tmp_path, PackError)
    (images / "a.png").write_bytes(encoded(picture(8, 8), "PNG"))
    (tmp_path / "annotations" / "a.png").rename(tmp_path / "a.png")
    assert "are called the same" not in error_of(images, tmp_path, PackError)
    (tmp_path / "masks").rename(tmp_path / "other")
    assert f"{images}/a.jpg and a.png are called the same" in error_of(images, tmp_path, PackError)


def test_class_folders_stay_class_folders(tmp_path: Path) -> None:
    """Also where their names are those of pictures and masks."""
    for folder in ("images", "masks"):
        write_class_folders(tmp_path / "photos" / folder, 3)
    result, samples = packed(tmp_path / "photos", tmp_path)
    assert result.classes == ("images", "masks")
    write_class_folders(tmp_path / "set" / "images", 3)
    write_masks(tmp_path / "set" / "masks")
    nested = pack(tmp_path / "set" / "images", tmp_path / "others", workers=1)
    assert nested.classes == ("cat", "dog", "emu")
    assert {sample["__key__"].split("/")[0] for sample in samples} == {"images", "masks"}
