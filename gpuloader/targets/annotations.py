"""Parses the annotations of a sample, from JSON, into boxes and key points; raises ValueError for invalid ones."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.values import is_integer

BoxFormat: TypeAlias = Literal["xyxy", "xywh", "cxcywh"]
NameOf: TypeAlias = Callable[[int], str]
"""Returns the name of an annotation's value for a message, by its number."""

MOST_ANNOTATIONS = 10_000
MOST_POINTS = 100_000  # in a sample
MOST_POINTS_OF_ONE = 1_000  # annotation
MOST_COORDINATE = 10_000_000  # no image is as large, and float32 has all integers up to there
MOST_FLOAT32 = float(np.finfo(np.float32).max)

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 1


@dataclass(frozen=True, eq=False)
class ParsedBoxes:
    """The boxes of a sample, and their columns.

    Attributes:
        boxes: (n, 4) float64 of x1, y1, x2, y2, in pixels or relative to the image, as in the file.
        columns: by name, (n,) int64, float32 or bool.
        numbers: (n,) int64, the number of each box's annotation in the sample.
    """

    boxes: NDArray[np.float64]
    columns: Mapping[str, NDArray[Any]]
    numbers: NDArray[np.int64]


def parse_boxes(
    annotations: object,
    format: BoxFormat,  # noqa: A002 - the word of users and of torchvision
    columns: Sequence[str] = (),
) -> ParsedBoxes:
    """Returns the boxes of a sample.

    Args:
        annotations: a list of n objects, as in COCO; or, without columns, a list of n boxes.
        format: the format in the file: two corners, a corner and a size, or a centre and a size.
        columns: the keys of further values in each annotation, see `parse_column`. "area" is always float32.
    """
    values, name = values_of(annotations, "bbox")
    for number, value in enumerate(values):
        if not isinstance(value, list) or len(value) != 4:
            raise ValueError(f"{name(number)} is {shown(value)}: allowed are 4 numbers")
    first, second = np.hsplit(as_numbers(chain(*values), lambda index: name(index // 4)).reshape(-1, 4), 2)
    sizes = second - first if format == "xyxy" else second
    if (sizes < 0).any():
        number = int((sizes < 0).any(axis=1).argmax())
        hint = '; COCO\'s boxes are of format="xywh"' if format == "xyxy" else ""
        raise ValueError(
            f"{name(number)} is {shown(values[number])} as {format}: allowed are widths and heights of at least 0{hint}"
        )
    if format == "cxcywh":
        first = first - sizes / 2
    boxes = np.concatenate([first, second if format == "xyxy" else first + sizes], axis=1)
    parsed = {key: _as_column(*_under(annotations, key), key == "area") for key in columns}
    return ParsedBoxes(boxes, parsed, np.arange(len(boxes)))


def parse_column(values: object, n: int) -> NDArray[Any]:
    """Returns a list of values of n boxes as a column, (n,): integers as int64, floats as float32, bools as bool.

    A column without values is int64.
    """
    if not isinstance(values, list) or len(values) != n:
        raise ValueError(f"the values beside {n:,} boxes are {shown(values)}: allowed is a list of {n:,}")
    return _as_column(values, "values[{}]".format)


def parse_points(annotations: object, count: int | None = None) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns the key points of a sample, (n, k, 2) of x and y as in the file, and their visibility, (n, k).

    An annotation without points, such as an empty list or an object without the key, gets k points (0, 0) with the
    visibility 0.

    Args:
        annotations: a list of n objects, as in COCO, each with a list of x, y and visibility, k times; or a list of n
            such lists. A list may also have a list for each point; without a visibility, the visibility is 2.
        count: k. None takes k from the first annotation with points; without points k is 0.
    """
    values, name = values_of(annotations, "keypoints", otherwise=[])
    first = next((number for number, value in enumerate(values) if not isinstance(value, list) or value), None)
    points = [] if first is None else _points_of(values[first], name(first))
    k, width = count or len(points), len(points[0]) if points else 3
    if len(values) * k > MOST_POINTS:
        raise ValueError(f"{len(values):,} annotations have {k:,} points each: allowed are {MOST_POINTS:,} in all")
    rows: list[list[object]] = []
    numbers = []
    for number, value in enumerate(values):
        points = _points_of(value, name(number))
        if not points:
            continue
        if len(points) != k or any(not isinstance(each, list) or len(each) != width for each in points):
            whose = f" as in {name(first or 0)}" if count is None else ", the field's `count`"
            raise ValueError(f"{name(number)} is {shown(value)}: allowed are {k:,} points{whose}")
        rows += points
        numbers.append(number)
    table = np.zeros((len(values), k, 3))
    given = as_numbers(chain(*rows), lambda index: name(numbers[index // (k * width)]))
    table[numbers, :, :width] = given.reshape(len(numbers), k, width)
    if width == 2:
        table[numbers, :, 2] = 2
    visibility = table[..., 2]
    if (wrong := ~np.isin(visibility, (0, 1, 2))).any():
        number, point = np.argwhere(wrong)[0].tolist()
        raise ValueError(f"{name(number)} has {visibility[number, point]:g} as a visibility: allowed are 0, 1 and 2")
    return np.ascontiguousarray(table[..., :2]), visibility.astype(np.int64)


def size_of(document: object) -> tuple[int, int] | None:
    """Returns the (height, width) in pixels of the picture for which a sample's JSON was made; None if it has none."""
    height, width = (document.get(side) if isinstance(document, dict) else None for side in ("height", "width"))
    return (height, width) if is_integer(height, 1) and is_integer(width, 1) else None


def to_pixels(relative: NDArray[np.float64], height: int, width: int) -> NDArray[np.float64]:
    """Converts boxes (..., 4) or points (..., 2) from shares of the image's size to pixels."""
    return relative * np.tile(np.array([width, height], np.float64), relative.shape[-1] // 2)


def values_of(annotations: object, key: str, otherwise: object = None) -> tuple[list[Any], NameOf]:
    """Returns the value under `key` of each annotation, or the annotations if they are lists; and a naming function.

    Args:
        otherwise: the value of an annotation without the key; None raises ValueError.
    """
    listed = as_list(annotations, "annotations", MOST_ANNOTATIONS)
    if listed and isinstance(listed[0], list):
        return listed, "annotations[{}]".format
    return _under(listed, key, otherwise)


def as_list(value: object, name: str, most: int) -> list[Any]:
    """Returns the value; raises ValueError unless it is a list of at most `most` values."""
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"{name} is {shown(value)}: allowed is a list of at most {most:,}")
    return value


def as_numbers(
    values: Iterable[object],
    name: NameOf,
    most: float = MOST_COORDINATE,
    dtype: type[np.float64 | np.float32 | np.int64] = np.float64,
) -> NDArray[Any]:
    """Returns the values as an array; raises ValueError for the first that is not a number in [-most, most].

    Booleans and strings are not numbers.
    """
    listed = list(values)
    for index, value in enumerate(listed):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not -most <= value <= most:
            raise ValueError(
                f"{name(index)} has {shown(value)}: allowed are finite numbers from {-most:,.8g} to {most:,.8g}"
            )
    return np.array(listed, dtype)


def shown(value: object) -> str:
    """Returns a short text for a JSON value, in constant time."""
    if isinstance(value, (dict, list)) and len(value) > _SHORT.maxlist:
        return f"a {type(value).__name__} of {len(value):,}"
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python writes no integers of more than 4,300 digits
        return f"a {type(value).__name__} too large to show"


def _under(annotations: object, key: str, otherwise: object = None) -> tuple[list[Any], NameOf]:
    values = []
    for number, annotation in enumerate(as_list(annotations, "annotations", MOST_ANNOTATIONS)):
        if not isinstance(annotation, dict) or (otherwise is None and key not in annotation):
            raise ValueError(f"annotations[{number}] is {shown(annotation)}: allowed is an object with the key {key!r}")
        values.append(annotation.get(key, otherwise))
    return values, lambda number: f"annotations[{number}][{key!r}]"


def _points_of(value: object, name: str) -> list[Any]:
    listed = as_list(value, name, 3 * MOST_POINTS_OF_ONE)
    if listed and isinstance(listed[0], list):
        if len(listed) <= MOST_POINTS_OF_ONE and len(listed[0]) in (2, 3):
            return listed
    elif len(listed) % 3 == 0:
        return [listed[start : start + 3] for start in range(0, len(listed), 3)]
    raise ValueError(
        f"{name} is {shown(value)}: allowed are x, y and visibility of at most {MOST_POINTS_OF_ONE:,} points, "
        "in one list, or in a list for each point, where x and y are enough"
    )


def _as_column(values: list[object], name: NameOf, is_float: bool = False) -> NDArray[Any]:
    kinds = set(map(type, values))
    if kinds == {bool} and not is_float:
        return np.array(values, np.bool_)
    if kinds <= {int} and not is_float:
        return as_numbers(values, name, 2**63 - 1, np.int64)
    return as_numbers(values, name, MOST_FLOAT32, np.float32)
