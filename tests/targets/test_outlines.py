"""Masks of COCO's run lengths and polygons, against pycocotools, which defines them; and what is refused."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from pycocotools import mask as coco

from gpuloader.targets.outlines import parse_outlines

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy")  # pycocotools'

Polygons = list[list[float]]

NAN = float("nan")
SIZES = st.tuples(st.integers(1, 30), st.integers(1, 30))
SQUARE = [1, 1, 3, 1, 3, 3, 1, 3]


def filled_by_coco(polygons: Polygons, height: int, width: int) -> NDArray[np.uint8]:
    return coco.decode(coco.merge(coco.frPyObjects(polygons, height, width)))


def text_by_coco(mask: NDArray[np.uint8]) -> dict[str, Any]:
    encoded = coco.encode(np.asfortranarray(mask))
    return {"size": encoded["size"], "counts": encoded["counts"].decode()}


def counts_of(mask: NDArray[np.uint8]) -> list[int]:
    changes = np.flatnonzero(np.diff(mask.ravel(order="F"), prepend=0))
    return np.diff(changes, prepend=0, append=mask.size).tolist()


def disk(height: int, width: int) -> NDArray[np.uint8]:
    y, x = np.ogrid[:height, :width]
    return ((x - width / 3) ** 2 + (y - height / 2) ** 2 < (width / 4) ** 2).astype(np.uint8)


def mask_of(outline: object, height: int, width: int) -> NDArray[np.uint8]:
    """The mask of an instance with these run lengths or polygons."""
    [mask] = parse_outlines([{"segmentation": outline}], height, width)
    return mask


# --- run lengths


@pytest.mark.parametrize(
    "mask",
    {
        "nothing": np.zeros((4, 6), np.uint8),
        "everything": np.ones((4, 6), np.uint8),
        "one pixel": np.ones((1, 1), np.uint8),
        "a row": np.array([[0, 1, 1, 0, 1]], np.uint8),
        "each second pixel, from the first": np.resize(np.array([1, 0], np.uint8), (5, 7)),
        "a disk": disk(40, 60),
        "long runs": disk(1000, 2000),
        "more runs than fit a byte": np.random.default_rng(0).integers(0, 2, (100, 90), np.uint8),
    }.values(),
)
def test_a_mask_comes_back_from_its_runs(mask: NDArray[np.uint8]) -> None:
    for rle in (text_by_coco(mask), {"size": list(mask.shape), "counts": counts_of(mask)}):
        decoded = mask_of(rle, *mask.shape)
        assert decoded.dtype == np.uint8
        assert decoded.flags.c_contiguous
        np.testing.assert_array_equal(decoded, mask)


@settings(max_examples=60, deadline=None)
@given(mask=SIZES.flatmap(lambda size: arrays(np.uint8, size, elements=st.integers(0, 1))))
def test_any_mask_comes_back_from_its_runs(mask: NDArray[np.uint8]) -> None:
    np.testing.assert_array_equal(mask_of(text_by_coco(mask), *mask.shape), mask)
    np.testing.assert_array_equal(mask_of({"size": list(mask.shape), "counts": counts_of(mask)}, *mask.shape), mask)


@settings(max_examples=60, deadline=None)
@given(beginning=st.lists(st.integers(0, 3), max_size=40))
def test_runs_may_be_empty(beginning: list[int]) -> None:
    counts = [*beginning, 40]
    size = [sum(counts), 1]
    expected = coco.decode(coco.frPyObjects({"size": size, "counts": counts}, *size))
    np.testing.assert_array_equal(mask_of({"size": size, "counts": counts}, *size), expected)


# --- polygons


@pytest.mark.parametrize(
    "polygons",
    {
        "a square": [SQUARE],
        "a line": [[1, 1, 8, 6, 1, 1]],
        "one point": [[4, 4, 4, 4, 4, 4]],
        "all of the image": [[0, 0, 10, 0, 10, 8, 0, 8]],
        "beyond it on all sides": [[-10, -8, 20, -8, 20, 16, -10, 16]],
        "partly outside": [[-5.2, 3, 4, -7.9, 15.3, 5, 6, 14.2]],
        "wholly outside": [[11, 2, 15, 2, 15, 6]],
        "across itself": [[1, 1, 8, 6, 8, 1, 1, 6]],
        "one in another": [[0, 0, 9, 0, 9, 7, 0, 7], [3, 2, 6, 2, 6, 5, 3, 5]],
    }.values(),
)
def test_polygons_are_filled_as_by_pycocotools(polygons: Polygons) -> None:
    filled = mask_of(polygons, 8, 10)
    assert filled.dtype == np.uint8
    np.testing.assert_array_equal(filled, filled_by_coco(polygons, 8, 10))


@st.composite
def polygons_in_an_image(draw: st.DrawFn) -> tuple[Polygons, int, int]:
    height, width = draw(SIZES)
    fineness = draw(st.sampled_from([1, 2, 5, 10, 1000]))

    def coordinate(size: int) -> st.SearchStrategy[float]:
        return st.integers(-size * fineness, 2 * size * fineness).map(lambda steps: steps / fineness)

    point = st.tuples(coordinate(width), coordinate(height))
    polygon = st.lists(point, min_size=3, max_size=12).map(lambda points: [each for both in points for each in both])
    return draw(st.lists(polygon, min_size=1, max_size=4)), height, width


@settings(max_examples=100, deadline=None)
@given(drawn=polygons_in_an_image())
def test_any_polygons_are_filled_as_by_pycocotools(drawn: tuple[Polygons, int, int]) -> None:
    np.testing.assert_array_equal(mask_of(*drawn), filled_by_coco(*drawn))


# --- annotations


@pytest.mark.parametrize("height_and_width", [(480, 640), (640, 480)])
def test_instances_have_a_mask_each_in_their_order(height_and_width: tuple[int, int]) -> None:
    height, width = height_and_width
    mask = disk(height, width)
    ring = [[50 + 40 * np.cos(t), 90 + 60 * np.sin(t)] for t in np.linspace(0, 6.2, 50)]
    polygons: list[Polygons] = [
        [np.ravel(ring).tolist(), SQUARE],
        [SQUARE],
        [[width + 1, 0, width + 9, 0, width + 1, 9]],
    ]
    annotations = [
        {"segmentation": polygons[0]},
        {"segmentation": text_by_coco(mask)},
        {"segmentation": polygons[1]},
        {"segmentation": {"size": [height, width], "counts": counts_of(mask)}},
        {"segmentation": polygons[2]},
    ]
    first, second, third = (filled_by_coco(each, height, width) for each in polygons)
    masks = parse_outlines(annotations, height, width)
    np.testing.assert_array_equal(masks, np.stack([first, mask, second, mask, third]))
    np.testing.assert_array_equal(parse_outlines(polygons, height, width), np.stack([first, second, third]))


def test_a_background_has_no_masks() -> None:
    masks = parse_outlines([], 3, 5)
    assert (masks.shape, masks.dtype) == ((0, 3, 5), np.uint8)


# --- what is refused


def runs(counts: object, size: object = (2, 3)) -> dict[str, object]:
    return {"size": list(size) if isinstance(size, tuple) else size, "counts": counts}


def instance(value: object) -> object:
    return mask_of(value, 2, 3)


def outlined(value: object) -> object:
    return parse_outlines(value, 2, 3)


Row = tuple[Callable[[Any], object], object, str]

REFUSED: list[Row] = [
    (instance, {}, "has the size None: allowed is the image's, [2, 3]"),
    (instance, runs([6], (3, 2)), "has the size [3, 2]: allowed is the image's, [2, 3]"),
    (instance, {"size": [2, 3]}, "['segmentation'] is None: allowed is a list of at most 7"),
    (instance, runs([5]), "has the counts [5]: allowed are integers with the sum 2 x 3"),
    (instance, runs([1.5, 4.5]), "has the counts [1.5, 4.5]: allowed are integers with the sum 2 x 3"),
    (instance, runs([1, 1, 1, 1, 1, 1, 0, 0]), "is a list of 8: allowed is a list of at most 7"),
    (instance, runs("5"), "has the counts '5': allowed are integers with the sum 2 x 3"),
    (instance, runs("6`"), "has the counts '6`': allowed are at most 7 as pycocotools writes them"),
    (instance, runs("\ud800"), "allowed are at most 7"),
    (instance, runs("ooooooo0"), "allowed are at most 7 as pycocotools writes them"),
    (instance, runs("oooooo?"), "allowed are integers with the sum 2 x 3"),
    (instance, runs("6O1"), "has the counts '6O1': allowed are integers with the sum 2 x 3"),  # 6, -1, 1
    (instance, runs(b"6"), "the counts of annotations[0]['segmentation'] is b'6': allowed is a list of at most 7"),
    (instance, [], "is empty: allowed are polygons and run lengths"),
    (instance, "abc", "is 'abc': allowed is a list of at most 10,000"),
    (instance, SQUARE, "has 1: allowed are x, y, x, y ... of 3 points or more"),
    (instance, [[0, 0, 1, 1]], "has [0, 0, 1, 1]: allowed are x, y, x, y ... of 3 points"),
    (instance, [[0, 0, 1, 1, 2, 2, 3]], "has a list of 7: allowed are x, y, x, y"),
    (instance, [[0, 0, 1, 1, 6.5, 2]], "has the point [6.5, 2.0]: allowed are x from -3 to 6, y from -2 to 4"),
    (outlined, [{"segmentation": [SQUARE]}, {}], "annotations[1] is {}: allowed is an object with the key 'segmentat"),
    (outlined, [[[0, 0, 1, 0, 1, 1]], [[0, 0, 1, 0, 1, 9]]], "annotations[1] has the point [1.0, 9.0]: allowed"),
]


LARGE = (2000, 3000)
STRIPES = (np.arange(LARGE[0] * LARGE[1]) % 2 * (np.arange(LARGE[0] * LARGE[1]) < 600_000)).astype(np.uint8)
STRIPES = STRIPES.reshape(LARGE, order="F")
ZIGZAG = [[-LARGE[1], 0, 2 * LARGE[1], LARGE[0]] * 1000]


def large(value: object) -> object:
    return mask_of(value, *LARGE)


def all_large(value: object) -> object:
    return parse_outlines(value, *LARGE)


HUGE: dict[str, Row] = {
    "a run of all": (large, runs([6 * 10**6 + 1], LARGE), "finite numbers from -6,000"),
    "sums that overflow": (large, runs("oooooo?" * 100_000, LARGE), "with the sum"),
    "more runs than pixels": (instance, runs([0] * 10**6 + [6]), "a list of 1,000,001: allowed is a list of at most 7"),
    "very many runs": (large, runs([0] * 1_000_001, LARGE), "at most 1,000,000"),
    "runs of all": (all_large, [{"segmentation": text_by_coco(STRIPES)}] * 2, "allowed are at most 399,999"),
    "a polygon": (instance, [[0, 0] * 10**6], "has point 1,000,000: allowed are 100,000"),
    "polygons": (instance, [[0] * 6] * 10**6, "is a list of 1,000,000: allowed is a list of at most 10,000"),
    "points of all": (outlined, [[[0] * 600] * 400] * 10_000, "annotations[0] has point 100,200: allowed are 100,000"),
    "edges across the image": (large, ZIGZAG, "has outlines longer than 1,000,000 pixels"),
    "masks": (all_large, [[SQUARE]] * 179, "179 masks of 2000 x 3000 pixels: allowed"),
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
    assert peak_bytes < 60e6
