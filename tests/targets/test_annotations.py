"""Boxes, columns and key points: what COCO's annotations and plain lists give, and what is refused."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hostile import VALUES, any_json
from hypothesis import given, settings
from torchvision.transforms.v2.functional import convert_bounding_box_format

from gpuloader.targets import outlines
from gpuloader.targets.annotations import BoxFormat, parse_boxes, parse_column, parse_points, to_pixels

NAN, INFINITE = float("nan"), float("inf")
FORMATS: tuple[BoxFormat, ...] = ("xyxy", "xywh", "cxcywh")
BOXES = [[0.1, 2.7, 10.3, 20.9], [3, 4, 3, 4], [-5.5, 0, 700.25, 1e6]]
MANY = 200_000


# --- boxes


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("box_format", FORMATS)
def test_a_box_has_the_corners_that_torchvision_gives_it(box_format: BoxFormat, relative: bool) -> None:
    in_file = np.array(BOXES) / ([640, 480, 640, 480] if relative else 1)
    expected = convert_bounding_box_format(torch.from_numpy(in_file.copy()), box_format.upper(), "XYXY").numpy()
    for given_as in (in_file.tolist(), [{"bbox": box} for box in in_file.tolist()]):
        boxes = parse_boxes(given_as, box_format).boxes
        assert boxes.dtype == np.float64
        np.testing.assert_array_equal(boxes, expected)


@pytest.mark.parametrize("box_format", FORMATS)
def test_a_background_has_no_boxes(box_format: BoxFormat) -> None:
    annotated = parse_boxes([], box_format, columns=["category_id", "area"])
    assert annotated.boxes.shape == (0, 4)
    assert {key: (each.shape, each.dtype.name) for key, each in annotated.columns.items()} == {
        "category_id": ((0,), "int64"),
        "area": ((0,), "float32"),
    }


@pytest.mark.parametrize(
    ("size", "relative", "pixels"),
    [
        ((480, 640), [[0.5, 0.5, 1.0, 0.75]], [[320, 240, 640, 360]]),  # a box
        ((480, 640), [[[0.5, 0.5], [1.0, 0.75]]], [[[320, 240], [640, 360]]]),  # points
        ((480, 640), np.zeros((0, 4)), np.zeros((0, 4))),
        ((1, 3), [[-1.0, -1.0, 2.0, 2.0]], [[-3, -1, 6, 2]]),
    ],
)
def test_relative_numbers_become_pixels(size: tuple[int, int], relative: object, pixels: object) -> None:
    np.testing.assert_array_equal(to_pixels(np.array(relative), *size), np.array(pixels, np.float64))


# --- columns


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([3, 90], "int64"),
        ([2**62, -1], "int64"),
        ([0.1, 2.5], "float32"),
        ([1, 2.5], "float32"),
        ([True, False], "bool"),
        ([], "int64"),
    ],
)
def test_a_column_has_the_type_of_its_values(values: list[Any], dtype: str) -> None:
    beside = [{"bbox": [0, 0, 1, 1], "other": value} for value in values]
    for column in (parse_column(values, len(values)), parse_boxes(beside, "xyxy", columns=["other"]).columns["other"]):
        assert column.dtype == dtype
        np.testing.assert_array_equal(column, np.array(values, dtype))


def test_an_area_is_float32_even_if_all_are_integers() -> None:
    area = parse_boxes([{"bbox": [0, 0, 1, 1], "area": 12}], "xyxy", columns=["area"]).columns["area"]
    assert (area.dtype, area.tolist()) == ("float32", [12.0])


# --- key points


@pytest.mark.parametrize(
    ("given_as", "points", "visibility"),
    [
        ([{"keypoints": [4, 5, 2, 0, 0, 0]}], [[[4, 5], [0, 0]]], [[2, 0]]),
        ([[4, 5, 2, 0, 0, 0], [1.5, 2, 1, 3, 4, 2]], [[[4, 5], [0, 0]], [[1.5, 2], [3, 4]]], [[2, 0], [1, 2]]),
        ([[[4, 5, 2], [0, 0, 0]]], [[[4, 5], [0, 0]]], [[2, 0]]),
        ([[[4, 5], [0, 0]]], [[[4, 5], [0, 0]]], [[2, 2]]),
        ([{"keypoints": [[4, 5], [0, 0]]}], [[[4, 5], [0, 0]]], [[2, 2]]),
        ([], np.zeros((0, 0, 2)), np.zeros((0, 0))),
        ([{"keypoints": []}, {"keypoints": []}], np.zeros((2, 0, 2)), np.zeros((2, 0))),
        ([{}, {"id": 3}], np.zeros((2, 0, 2)), np.zeros((2, 0))),  # nothing says how many
        # Those without points have as many as the first that has some.
        ([{}, {"keypoints": [4, 5, 2]}, {"keypoints": []}], [[[0, 0]], [[4, 5]], [[0, 0]]], [[0], [2], [0]]),
        ([[], [[4, 5], [6, 7]], []], [[[0, 0]] * 2, [[4, 5], [6, 7]], [[0, 0]] * 2], [[0, 0], [2, 2], [0, 0]]),
    ],
)
def test_key_points_are_split_from_their_visibility(given_as: object, points: object, visibility: object) -> None:
    found = parse_points(given_as)
    assert [each.dtype for each in found] == [np.float64, np.int64]
    np.testing.assert_array_equal(found[0], np.array(points, np.float64))
    np.testing.assert_array_equal(found[1], np.array(visibility, np.int64))


@pytest.mark.parametrize("given_as", [[{}, {"keypoints": []}], [[], []], [{"id": 1}, {"keypoints": [0] * 51}]])
def test_a_count_says_how_many_points_those_have_that_have_none(given_as: object) -> None:
    points, visibility = parse_points(given_as, 17)
    assert (points.shape, visibility.tolist()) == ((2, 17, 2), [[0] * 17] * 2)
    assert parse_points([], 17)[0].shape == (0, 17, 2)


# --- what is refused


def boxes_of(value: object) -> object:
    return parse_boxes(value, "xywh")


def labels_of(value: object) -> object:
    return parse_boxes(value, "xywh", columns=["label"])


def column_of(value: object) -> object:
    return parse_column(value, 2)


REFUSED: list[tuple[Callable[[object], object], object, str]] = [
    (boxes_of, {"bbox": [1, 2, 3, 4]}, "annotations is {'bbox': [...]}: allowed is a list of at most 10,000"),
    (boxes_of, [{"bbox": [1, 2, 3, 4]}, {"box": 1}], "annotations[1] is {'box': 1}: allowed is an object with the key"),
    (boxes_of, [[1, 2, 3, 4], {"bbox": [1, 2, 3, 4]}], "annotations[1] is {'bbox': [...]}: allowed are 4 numbers"),
    (boxes_of, [{"bbox": [1, 2, 3]}], "annotations[0]['bbox'] is [1, 2, 3]: allowed are 4 numbers"),
    (boxes_of, [[1, 2, 3, 4], [1, 2, NAN, 4]], "annotations[1] has nan: allowed are finite numbers"),
    (boxes_of, [[1, 2, 3, -10_000_001]], "has -10000001: allowed are finite numbers from -10,000,000 to 10,000,000"),
    (boxes_of, [[1, 2, 3, 10**400]], ": allowed are finite numbers from"),
    (boxes_of, [[1, 2, 3, True]], "annotations[0] has True: allowed are finite numbers"),
    (boxes_of, [[1, 2, 3, 4], [1, 2, 3, -1]], "annotations[1] is [1, 2, 3, -1] as xywh: allowed are widths"),
    (lambda value: parse_boxes(value, "cxcywh"), [[1, 2, -0.5, 1]], "annotations[0] is [1, 2, -0.5, 1] as cxcywh: all"),
    (lambda value: parse_boxes(value, "xyxy"), [[1, 2, 3, 1]], 'at least 0; COCO\'s boxes are of format="xywh"'),
    (labels_of, [[1, 2, 3, 4]], "annotations[0] is [1, 2, 3, 4]: allowed is an object with the key 'label'"),
    (labels_of, [{"bbox": [1, 2, 3, 4], "label": "cat"}], "annotations[0]['label'] has 'cat': allowed are finite num"),
    (column_of, [1, 2, 3], "the values beside 2 boxes are [1, 2, 3]: allowed is a list of 2"),
    (column_of, [1, 2**63], "values[1] has 9223372036854775808: allowed are finite numbers from -9.2"),
    (parse_points, [[1, 2, 2], [1, 2, 2, 3, 4, 2]], "annotations[1] is [1, 2, 2, 3, 4, 2]: allowed are 1 points as in"),
    (parse_points, [[[1, 2], [1, 2, 2]]], "annotations[0] is [[...], [...]]: allowed are 2 points as in"),
    (parse_points, [[1, 2]], "annotations[0] is [1, 2]: allowed are x, y and visibility of at most 1,000 points"),
    (parse_points, [{}, {"keypoints": [1, 2, 2]}, {"keypoints": [1, 2, 2] * 2}], "are 1 points as in annotations[1]"),
    (lambda value: parse_points(value, 17), [[1, 2, 2]], "annotations[0] is [1, 2, 2]: allowed are 17 points, the"),
    (lambda value: parse_points(value, 17), [[]] * 9000, "9,000 annotations have 17 points each: allowed are 100,000"),
    (parse_points, [[1, 2, 2], [1, 2, 3]], "annotations[1] has 3 as a visibility: allowed are 0, 1 and 2"),
]


HUGE: dict[str, tuple[Callable[[object], object], object, str]] = {
    "annotations": (boxes_of, [{"bbox": [1, 2, 3, 4]}] * MANY, "is a list of 200,000: allowed is a list of at most"),
    "a box": (boxes_of, [[0] * MANY], "is a list of 200,000: allowed are 4 numbers"),
    "keys": (boxes_of, [dict.fromkeys(map(str, range(MANY)))], "is a dict of 200,000: allowed is an object"),
    "lists in a box": (boxes_of, [[[0] * MANY] * 4], "has a list of 200,000: allowed are finite"),
    "a column": (column_of, [0] * MANY, "a list of 200,000: allowed is a list of 2"),
    "points of one": (parse_points, [[0] * MANY], "is a list of 200,000: allowed is a list"),
    "points in lists": (parse_points, [[[0, 0]] * 1001], "is a list of 1,001: allowed are x, y"),
    "points of all": (parse_points, [[0] * 3000] * 101, "101 annotations have 1,000 points each: allowed are 100,000"),
}


@pytest.mark.parametrize(
    ("parse", "value", "message"), [*REFUSED, *HUGE.values()], ids=[*(repr(value) for _, value, _ in REFUSED), *HUGE]
)
def test_what_cannot_be_used_is_named_at_once(parse: Callable[[object], object], value: object, message: str) -> None:
    tracemalloc.start()
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        parse(value)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(str(raised.value)) < 300
    assert peak_bytes < 4e6


def test_the_largest_that_is_allowed_is_parsed() -> None:
    assert parse_boxes([[1, 2, 3, 4]] * 10_000, "xywh").boxes.shape == (10_000, 4)
    assert parse_points([[0] * 3000] * 100)[0].shape == (100, 1000, 2)


# --- hostile JSON

PARSERS: tuple[Callable[[Any], object], ...] = (
    *(boxes_of, labels_of, column_of, parse_points),
    lambda value: outlines.parse_outlines(value, 2, 3),
    lambda value: outlines.parse_outlines([{"segmentation": {"size": [2, 3], "counts": value}}], 2, 3),
)


def parse_all(value: object) -> None:
    """Gives a value to each parser, as all of it, as an annotation, and as what is in one."""
    for parse in PARSERS:
        for hostile in (value, [value], [{"bbox": value, "label": 0, "keypoints": value, "segmentation": value}]):
            with suppress(ValueError):
                parse(hostile)


@settings(max_examples=60, deadline=None)
@given(value=any_json("bbox", "label", "keypoints", "segmentation", "size", "counts"))
def test_any_json_is_parsed_or_refused(value: object) -> None:
    parse_all(value)


@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [value] * 4, lambda value: {"label": value}])
def test_each_hostile_value_is_parsed_or_refused(wrap: Callable[[object], object]) -> None:
    for value in (*VALUES, 10**5000, [10**5000], json.loads("[" * 900 + "]" * 900)):
        parse_all(wrap(value))
