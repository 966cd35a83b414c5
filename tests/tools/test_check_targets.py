"""`check` of a loader's fields: one fault of each kind, and what is no fault."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_images import turned
from making import damaged_jpeg, encoded, picture, saved, write_shard
from PIL import Image
from warm import warm

from gpuloader import BadImages, Boxes, Field, GPULoader, Keypoints, Mask
from gpuloader.tools.check import CheckResult, check_shards

HEIGHT, WIDTH = 30, 40
PLAIN, TURNED = encoded(picture(HEIGHT, WIDTH), "PNG"), encoded(picture(HEIGHT, WIDTH), "JPEG", exif=turned(6))
FIELDS = {
    "boxes": Boxes("json:annotations", format="xywh", labels="category_id"),
    "outlines": Mask("json:annotations"),
    "points": Keypoints("json:annotations"),
    "mask": Mask("mask.png"),
    "text": Field("txt"),
}


def annotation(*box: float, label: int = 0, **more: object) -> dict[str, Any]:
    return {"bbox": box, "category_id": label, "segmentation": [[1, 1, 5, 1, 5, 5]], "keypoints": [3, 3, 2], **more}


def annotated(*annotations: Any, width: object = WIDTH, height: object = HEIGHT) -> bytes:  # noqa: ANN401
    return json.dumps({"width": width, "height": height, "annotations": annotations}).encode()


def mask(height: int, width: int) -> bytes:
    return encoded(Image.new("L", (width, height)), "PNG")


GOOD, CORNERS = annotation(1, 1, 5, 5), [annotation(20, 15, 39, 29), annotation(30, 20, 38, 28)]
# what differs from a good sample -> the problem, or "bad", and what is said
ROWS: dict[str, tuple[dict[str, Any], str, str]] = {
    "good": ({}, "", ""),
    "whole": ({"json": annotated(annotation(0, 0, WIDTH, HEIGHT))}, "", ""),
    "a pixel beyond": ({"json": annotated(annotation(-1, -1, WIDTH + 2, HEIGHT + 2))}, "", ""),
    "background": ({"json": annotated()}, "", ""),
    "empty at the edge": ({"json": annotated(annotation(WIDTH, 5, 0, 0))}, "", ""),
    "no size": ({"json": annotated(GOOD, width=None)}, "", ""),
    "left": ({"json": annotated(annotation(-1.1, 0, 9, 9))}, "boxes outside", "boxes[0], -1.1, 0, 7.9, 9, reaches"),
    "top": ({"json": annotated(annotation(0, -2, 9, 9))}, "boxes outside", "reaches 2 pixels"),
    "right": ({"json": annotated(annotation(31, 0, 11, 9))}, "boxes outside", "reaches 2 pixels"),
    "bottom": ({"json": annotated(annotation(0, 20, 9, 13))}, "boxes outside", "reaches 3 pixels"),
    "corners for sizes": ({"json": annotated(GOOD, *CORNERS)}, "boxes outside", "boxes[1] and 1 other box, 20, 15, 59"),
    "apart": ({"json": annotated(annotation(WIDTH, 3, 0.5, 5))}, "boxes outside", "is wholly outside of the image"),
    "label": ({"json": annotated(GOOD, annotation(1, 1, 5, 5, label=2))}, "unknown labels", "boxes[1] has the label 2"),
    "size": ({"json": annotated(GOOD, width=80, height=60)}, "another size", "80x60 pixels, but its image has 40x30"),
    "three numbers": ({"json": annotated(annotation(0, 0, 1))}, "bad", "annotations[0]['bbox'] is [0, 0, 1]"),
    "no JSON": ({"json": b"{"}, "bad", "the .json component beside it"),
    "no label": ({"json": annotated({"bbox": [0, 0, 1, 1]})}, "bad", "category_id"),
    "mask of another size": ({"mask.png": mask(WIDTH, HEIGHT)}, "bad", "(40, 30), but its image has (30, 40)"),
    "no mask": ({"mask.png": None}, "bad", "it has no .mask.png component, which the loader's fields need"),
    "bad image": ({"png": None, "jpg": damaged_jpeg()}, "bad", "DALI's decoder fails on it"),
}


def shard(folder: Path, rows: dict[str, dict[str, Any]]) -> Path:
    (folder / "classes.json").write_text('["cat", "dog"]')
    good = {"png": PLAIN, "json": annotated(GOOD), "mask.png": mask(HEIGHT, WIDTH), "txt": b"a"}
    samples = [
        {"__key__": key, **{name: data for name, data in {**good, **row}.items() if data is not None}}
        for key, row in rows.items()
    ]
    return write_shard(folder / "a.tar", samples)


@pytest.fixture(scope="module", autouse=True)
def _decoding_begins_warm() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(warm().python))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def result(folder: Path) -> CheckResult:
    tar = shard(folder, {key: row for key, (row, *_) in ROWS.items()})
    return check_shards(tar, fields=FIELDS, device_id=None, quarantine=folder / "bad.jsonl")


@pytest.mark.parametrize("key", ROWS)
def test_a_fault_is_found_by_its_kind(result: CheckResult, key: str) -> None:
    _, problem, said = ROWS[key]
    found = [(each.kind, each.cause) for each in result.faults if each.key == key and each.kind[:5] != "lacks"]
    assert [kind for kind, _ in found] == [problem] * bool(problem)
    assert all(said in text for _, text in found)


def test_faults_are_named_by_shard_and_offset(result: CheckResult, folder: Path) -> None:
    content = (folder / "a.tar").read_bytes()
    for each in result.faults:
        if each.kind.startswith("lacks"):
            continue
        assert each.shard == str(folder / "a.tar")
        assert content[each.offset :].startswith(damaged_jpeg() if "image" in each.key.split() else PLAIN)
    assert not result.all_well
    assert ("lacks .mask.png", 1, "no mask") in [(each.kind, each.samples, each.key) for each in result.faults]


def test_bad_ones_are_those_that_a_run_finds_bad_and_the_quarantine_has_them(result: CheckResult, folder: Path) -> None:
    options = {"preset": "cifar10_eval", "label_from": None, "output": "dict", "fields": FIELDS, "shuffle": "none"}
    with GPULoader(folder / "a.tar", 4, None, on_error=BadImages(known=folder / "bad.jsonl"), **options) as loader:
        delivered = {key for batch in loader for key, valid in zip(batch["key"], batch["valid"]) if valid}
    assert delivered == {key for key, (_, problem, _) in ROWS.items() if problem != "bad"}
    assert {each.key for each in result.of("bad")} == ROWS.keys() - delivered


@pytest.mark.parametrize(
    ("orientation", "rows"),
    [
        ("off", {"upright": "fits the upright picture: set `orientation: apply`", "neither": "its image has 40x30"}),
        ("apply", {"stored": "fits the picture as it is stored: set `orientation: off`", "neither": "has 30x40"}),
    ],
)
def test_sizes_that_fit_the_picture_turned_back(tmp_path: Path, orientation: str, rows: dict[str, str]) -> None:
    of = {"stored": (WIDTH, HEIGHT), "upright": (HEIGHT, WIDTH), "neither": (HEIGHT, HEIGHT)}
    box = annotation(0, 0, 30, 30)
    samples = {
        key: {"png": None, "jpg": TURNED, "json": annotated(box, width=width, height=height)}
        for key, (width, height) in of.items()
    }
    preset = {"transforms": [{"Resize": {"size": [16, 16]}}], "orientation": orientation}
    result = check_shards(shard(tmp_path, samples), fields={"boxes": FIELDS["boxes"]}, preset=preset, device_id=None)
    assert [(each.kind, each.key) for each in result.faults] == [("another size", key) for key in of if key in rows]
    assert all(rows[each.key] in each.cause for each in result.faults)


def test_without_fields_components_are_not_read_and_without_classes_labels_not_compared(tmp_path: Path) -> None:
    rows = {key: row for key, (row, problem, _) in ROWS.items() if "label" in key}
    tar = shard(tmp_path, {"good": {}, **rows})
    assert not any(check_shards(tar, device_id=None).of(kind) for kind in ("bad", "unknown labels"))
    (tmp_path / "classes.json").unlink()
    result = check_shards(tar, fields={"boxes": FIELDS["boxes"]}, device_id=None)
    assert ([bad.key for bad in result.of("bad")], result.of("unknown labels")) == (["no label"], [])


def test_arrays_of_which_the_index_has_no_header_are_compared_too(tmp_path: Path) -> None:
    image = saved(np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    far = {"png": None, "npy": image, "json": annotated(annotation(0, 0, WIDTH + 5, 5))}
    result = check_shards(shard(tmp_path, {"a": far}), fields={"boxes": FIELDS["boxes"]}, device_id=None)
    assert [(each.kind, each.key) for each in result.faults] == [("boxes outside", "a")]
