"""A key that no sample has is a mistake in the field's option, and no bad sample."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hostile import any_json
from hypothesis import given
from hypothesis import strategies as st
from making import write_shard
from scenes import annotations_of, loader, sample_of

from gpuloader import Boxes, Field, Keypoints, Mask, OneOf, Sampling
from gpuloader.errors import BadImageError, ConfigError
from gpuloader.loading.fields import Component, check_keys
from gpuloader.shards import merge_indexes, resolve_local

LABELLED = Boxes("json:annotations", "xywh", labels="category_id")
ANNOTATION = r"the keys are \['area', 'bbox', 'category_id', 'iscrowd', 'keypoints', 'segmentation'\]"
DOCUMENT = r"the keys are \['about', 'annotations', 'captions', 'labels'\]"


def content_of(number: int) -> dict[str, Any]:
    annotations = annotations_of(number)
    about = {"title": "a scene", "captions": ["a", "b"]}
    return {"annotations": annotations, "labels": [1] * len(annotations), "captions": ["one", "two"], "about": about}


def write(folder: Path, contents: Sequence[dict[str, Any]]) -> Path:
    """A shard with these documents beside its pictures; those of numbers 0, 4, 8 ... have no annotations."""
    samples = [sample_of(n, {"json": json.dumps(content).encode()}) for n, content in enumerate(contents)]
    return write_shard(folder / "a.tar", samples)


def merged(tar: Path) -> Path:
    """A merged index: nothing of a shard is looked at before it is read."""
    merge_indexes(resolve_local(str(tar)), tar.parent / "all.gpuset")
    return tar.parent


def boxes(source: str = "json:annotations", **options: Any) -> Boxes:  # noqa: ANN401
    return Boxes(source, "xywh", **options)


WRONG: list[tuple[Field | Boxes | Mask | Keypoints, str]] = [
    (boxes(labels="category"), rf"Boxes\(labels='category'\): .* \(did you mean category_id\?\): {ANNOTATION}"),
    (boxes(labels="category_id", keys=["iscrowd", "score"]), rf"Boxes\(keys='score'\): .* 'score': {ANNOTATION}"),
    (boxes(leave_out="crowd"), rf"Boxes\(leave_out='crowd'\): .* \(did you mean iscrowd\?\): {ANNOTATION}"),
    (boxes(labels="json:label"), rf"Boxes\(labels='json:label'\): .* \(did you mean labels\?\): {DOCUMENT}"),
    (boxes("json:annotation"), rf"Boxes\(source='json:annotation'\): .*mean annotations\?\): {DOCUMENT}"),
    (Mask("json:objects"), rf"Mask\(source='json:objects'\): .* has the key 'objects': {DOCUMENT}"),
    (Keypoints("json:points"), rf"Keypoints\(source='json:points'\): .* has the key 'points': {DOCUMENT}"),
    (Field("json:caption"), r"Field\(source='json:caption'\): .* the key 'caption' \(did you mean captions\?\)"),
    (OneOf("json:about.caption"), r"OneOf\(source='json:about.caption'\): .*: the keys are \['captions', 'title'\]"),
]


@pytest.mark.parametrize("on_error", ["raise", "replace"])
@pytest.mark.parametrize(("field", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_key_that_no_sample_has_is_an_error_of_its_option(
    tmp_path: Path, field: Field, message: str, on_error: str
) -> None:
    tar = write(tmp_path, [content_of(number) for number in range(6)])
    fields = {"other": Field("json:captions"), "mine": field}
    with pytest.raises(ConfigError, match=f"fields: mine: {message}"):  # at once
        loader(tar, fields=fields, on_error=on_error)
    batches = loader(merged(tar), fields=fields, on_error=on_error)
    with batches, pytest.raises(ConfigError, match=f"fields: mine: {message}"):
        next(iter(batches))


@pytest.mark.parametrize(
    ("field", "kind"), [(Boxes("json:annotations"), "bbox"), (Mask("json:annotations"), "segmentation")]
)
def test_annotations_of_another_form_are_no_bad_samples(tmp_path: Path, field: Boxes | Mask, kind: str) -> None:
    tar = write(tmp_path, [{"annotations": [{"box": [1, 2, 3, 4]}]}] * 4)
    with pytest.raises(ConfigError, match=rf"\(source='json:annotations'\): .* the key '{kind}'.*\['box'\]"):
        loader(tar, fields={"mine": field})


def without(number: int, key: str = "category_id") -> dict[str, Any]:
    annotations = [{name: value for name, value in each.items() if name != key} for each in annotations_of(number)]
    return {**content_of(number), "annotations": annotations}


@pytest.mark.parametrize("batch_size", [4, 1])
def test_a_key_that_some_have_makes_the_others_bad(tmp_path: Path, batch_size: int) -> None:
    tar = write(tmp_path, [without(1), *(content_of(number) for number in (1, 2, 3))])
    for source in (tar, merged(tar)) if batch_size == 4 else (tar,):
        batches = loader(source, batch_size, fields={"boxes": LABELLED}, shuffle="none")
        with batches, pytest.raises(BadImageError, match="allowed is an object with the key 'category_id'"):
            list(batches)
        with loader(source, batch_size, fields={"boxes": LABELLED}, on_error="replace", shuffle="none") as batches:
            assert [number for batch in batches for number in batch["index"].tolist()][1:] == [1, 2, 3]
            assert list(batches.stats().bad) == [0]


def test_the_first_16_samples_with_annotations_that_can_be_delivered_count(tmp_path: Path) -> None:
    background: dict[str, Any] = {"annotations": []}
    wrong, right = without(1), content_of(1)
    fields = {"boxes": LABELLED}
    tar = write(tmp_path, [background] * 20 + [wrong] * 15 + [right])
    loader(tar, fields=fields).close()
    with pytest.raises(ConfigError, match=r"of 15 samples none has the key 'category_id'"):
        loader(tar, fields=fields, sampling=Sampling(subset=slice(0, 35)))
    tar = write(tmp_path, [wrong] * 16 + [right])
    with pytest.raises(ConfigError, match=r"of 16 samples none has the key 'category_id'"):
        loader(tar, fields=fields)
    loader(tar, fields=fields, sampling=Sampling(subset=slice(1, None))).close()


def test_samples_that_tell_nothing_of_the_keys_are_waited_for(tmp_path: Path) -> None:
    """Background pictures, documents that cannot be parsed, and those without annotations that are not required."""
    optional = Boxes("json:annotations", "xywh", labels="category", required=False)
    contents = [{"annotations": []}, {}, {"annotations": []}, {}, without(1), without(2)]
    tar = write(tmp_path, contents)
    with pytest.raises(ConfigError, match=r"of 2 samples none has the key 'category'"):
        loader(tar, fields={"boxes": optional})
    with loader(merged(tar), 4, fields={"boxes": optional}, shuffle="none") as batches:
        epoch = iter(batches)
        assert [len(boxes) for boxes in next(epoch)["boxes"]] == [0, 0, 0, 0]
        with pytest.raises(ConfigError, match=r"of 2 samples none has the key 'category'"):
            next(epoch)


def test_an_error_about_a_component_names_it_in_its_title(tmp_path: Path) -> None:
    bad = {"annotations": [{**annotations_of(1)[0], "bbox": 5}]}
    tar = write(tmp_path, [*map(content_of, range(3)), bad])
    with loader(tar, fields={"boxes": LABELLED}) as batches, pytest.raises(BadImageError) as caught:
        list(batches)
    title, *_, advice = str(caught.value).splitlines()
    assert title.startswith("bad sample: the .json component beside it: annotations[0]['bbox'] is 5")
    assert advice.startswith("Repair or remove the sample")
    assert str(BadImageError("a.tar", "0", 512, "the file is empty")).startswith("bad image: the file is empty")


ANY: dict[str, Component] = {
    "boxes": LABELLED,
    "beside": Boxes("json:annotations", labels="json:labels", keys=["score"], required=False),
    "objects": Mask("json:annotations"),
    "points": Keypoints("json:about.annotations", required=False),
    "caption": OneOf("json:about.caption"),
}


DOCUMENTS = any_json("annotations", "labels", "bbox", "category_id", "about", "caption", leaves=12)


@given(st.lists(st.binary(max_size=3) | DOCUMENTS.map(lambda content: json.dumps(content).encode()), max_size=4))
def test_whatever_the_documents_have_is_no_other_error(documents: list[bytes]) -> None:
    with suppress(ConfigError):
        left = check_keys(ANY, [lambda content=content: content for content in documents])  # type: ignore[misc]
        assert left.keys() <= ANY.keys()


@pytest.mark.parametrize(
    ("label_from", "told"),
    [
        ("json:lable", r"'json:lable': of 3 samples none has the key 'lable' \(did you mean label\?\): .* \['a'"),
        ("json:a.c", r"'json:a.c': of 3 samples none has the key 'c': the keys are \['b', 'x'\]"),
        ("json:d.c", r"'json:d.c': of 3 samples none has the key 'd.c': the keys are \['a', 'label'\]"),
    ],
)
def test_a_label_that_no_sample_has_is_an_error_when_the_loader_is_made(
    tmp_path: Path, label_from: str, told: str
) -> None:
    tar = write(tmp_path, [{"label": 3, "a": {"b": 4}}] * 2 + [{"label": 3, "a": {"b": 4, "x": 5}}])
    with pytest.raises(ConfigError, match=f"label_from={told}"):
        loader(tar, fields={}, label_from=label_from)
    late = loader(merged(tar), 3, fields={}, label_from=label_from)  # a merged index does not look into its shards
    with late, pytest.raises(ConfigError, match=f"label_from={told}"):
        next(iter(late))
    for right, label in (("json:label", 3), ("json:a.b", 4)):
        with loader(tar, 3, fields={}, label_from=right) as batches:
            assert next(iter(batches))["label"].tolist() == [label] * 3
