"""Makes masks of outlines, COCO's run lengths and polygons. ValueError says what cannot be used.

pycocotools defines these formats, but trusts what it gets: here, all is checked before memory is spent on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.loading.fields import MOST_MASK_PIXELS
from gpuloader.targets.annotations import MOST_POINTS, NameOf, as_list, as_numbers, shown, values_of

MOST_RUNS = 1_000_000  # in a sample
MOST_POLYGONS = 10_000  # of an instance: as many fit int16
_MOST_LETTERS = 7  # of a run: 5 bits in each
_FINE = 5  # steps to a pixel, to which pycocotools rounds points


def parse_outlines(annotations: object, height: int, width: int) -> NDArray[np.uint8]:
    """Returns the masks of a sample's instances, (n, height, width) of 0 and 1.

    Polygons are filled as by pycocotools, and their union is the mask. Runs are of 0 and 1 in turn, column by column.

    Args:
        annotations: COCO's, a list of n objects with a "segmentation": polygons, lists of x, y, x, y, ... in pixels; or
            run lengths, an object with "size", [height, width], and "counts", a list or pycocotools' text. Or a list of
            n lists of polygons.
        height: of the image, in pixels, as is `width`.

    Raises:
        ValueError: there are more than 10,000 annotations, or their masks take more than 256 MiB; an instance has no
            polygon, or one with fewer than 3 points; all polygons have more than 100,000 points, a coordinate is not
            finite or more than the image's size outside of the image, or the edges cross more than 1,000,000 columns of
            pixels; a size is another, a count is no integer of at least 0, the sum of counts is not height x width, or
            they are more than these, or more than 1,000,000 of all instances.
    """
    outlines, name = values_of(annotations, "segmentation")
    if len(outlines) * height * width > MOST_MASK_PIXELS:
        raise ValueError(
            f"{len(outlines):,} masks of {height} x {width} pixels: allowed are {MOST_MASK_PIXELS:,} pixels in a sample"
        )
    masks = np.zeros((len(outlines), height, width), np.uint8)
    polygons = {}
    runs = 0
    for number, outline in enumerate(outlines):
        if isinstance(outline, dict):
            counts = _counts(outline, height, width, name(number), MOST_RUNS - runs)
            runs += len(counts)
            values = np.resize(np.array([0, 1], np.uint8), len(counts))
            masks[number] = np.repeat(values, counts).reshape(width, height).T
        else:
            polygons[number] = outline
    _fill(polygons, name, masks)
    return masks


def _counts(rle: Mapping[str, Any], height: int, width: int, name: str, most: int) -> NDArray[np.int64]:
    size, counts, pixels = rle.get("size"), rle.get("counts"), height * width
    if size != [height, width]:
        raise ValueError(f"{name} has the size {shown(size)}: allowed is the image's, [{height}, {width}]")
    most = min(most, pixels + 1)
    if isinstance(counts, str):
        numbers = _decode_text(counts, name, most)
    else:
        numbers = as_numbers(as_list(counts, f"the counts of {name}", most), lambda _: name, pixels)
    if (numbers < 0).any() or (numbers > pixels).any() or (numbers % 1).any() or numbers.sum() != pixels:
        raise ValueError(f"{name} has the counts {shown(counts)}: allowed are integers with the sum {height} x {width}")
    return numbers.astype(np.int64)


def _decode_text(text: str, name: str, most: int) -> NDArray[np.int64]:
    """Returns the counts in pycocotools' text, which may be any numbers below 2**55.

    A letter has 5 bits of a number, the lowest first. A sixth bit says that the next letter belongs to it, too, and
    the fifth bit of its last letter is its sign. From the fourth number on, each is the difference to the count before
    the last one.
    """
    letters = text[: most * _MOST_LETTERS + 1].encode("utf-8", "surrogatepass")
    codes = np.frombuffer(letters, np.uint8) - np.uint8(ord("0"))  # those of letters before "0" are large
    ends = np.flatnonzero(codes < 32)
    lengths = np.diff(ends, prepend=-1)
    starts = ends - lengths + 1
    if (codes > 63).any() or len(ends) > most or lengths.sum() != len(codes) or lengths.max(initial=0) > _MOST_LETTERS:
        raise ValueError(
            f"{name} has the counts {shown(text)}: allowed are at most {most:,} as pycocotools writes them"
        )
    shifts = 5 * (np.arange(len(codes)) - np.repeat(starts, lengths))
    counts = np.add.reduceat((codes & 31).astype(np.int64) << shifts, starts)
    counts -= (codes[ends] >> 4).astype(np.int64) << 5 * lengths
    counts[1::2] = counts[1::2].cumsum()
    counts[2::2] = counts[2::2].cumsum()
    return counts


def _fill(outlines: Mapping[int, object], name: NameOf, masks: NDArray[np.uint8]) -> None:
    """Sets to 1 what is inside of the polygons of each instance, in the mask with its number."""
    _, height, width = masks.shape
    polygons, numbers = _listed(outlines, name)
    if not polygons:
        return
    lengths = np.array([len(polygon) // 2 for polygon in polygons])
    number_of = np.repeat(numbers, lengths)
    points = as_numbers(chain(*polygons), lambda index: name(int(number_of[index // 2]))).reshape(-1, 2)
    size = np.array([width, height])
    if (outside := ((points < -size) | (points > 2 * size)).any(axis=1)).any():
        index = int(outside.argmax())
        raise ValueError(
            f"{name(int(number_of[index]))} has the point {points[index].tolist()}: allowed are x from {-width} to "
            f"{2 * width}, y from {-height} to {2 * height}"
        )
    polygon, column, row = _crossings(points, lengths, height, width)
    instance = np.array(numbers)[polygon]
    for number in outlines:
        own = slice(*np.searchsorted(instance, [number, number + 1]))
        columns, rows = column[own], row[own]
        if not len(rows):
            continue
        left, top, right, bottom = columns.min(), rows.min(), columns.max() + 1, rows.max()
        depth = np.zeros((bottom - top + 1, right - left), np.int16)  # how many polygons begin and end at a pixel
        np.add.at(depth, (rows - top, columns - left), np.resize(np.array([1, -1], np.int16), len(rows)))
        np.cumsum(depth, axis=0, out=depth)
        masks[number, top:bottom, left:right] = depth[:-1] > 0


def _listed(outlines: Mapping[int, object], name: NameOf) -> tuple[list[list[object]], list[int]]:
    """Returns the polygons of all instances, and the number of the instance of each."""
    polygons: list[list[object]] = []
    numbers: list[int] = []
    points = 0
    for number, outline in outlines.items():
        if not (own := as_list(outline, name(number), MOST_POLYGONS)):
            raise ValueError(f"{name(number)} is empty: allowed are polygons and run lengths")
        for polygon in own:
            if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2:
                raise ValueError(f"{name(number)} has {shown(polygon)}: allowed are x, y, x, y ... of 3 points or more")
            points += len(polygon) // 2
            if points > MOST_POINTS:
                raise ValueError(f"{name(number)} has point {points:,}: allowed are {MOST_POINTS:,} in a sample")
        polygons += own
        numbers += [number] * len(own)
    return polygons, numbers


def _crossings(
    points: NDArray[np.float64], lengths: NDArray[np.int64], height: int, width: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Returns where the edges of polygons cross columns of pixels: polygon, column and row of each, in this order.

    The row is in [0, height]: pixels of the column above it are on one side of the edge, those from it on are on the
    other side. Each polygon crosses each column an even number of times.

    pycocotools rounds the points to fifths of a pixel and walks along each edge in such steps: of x or, if the edge is
    steep, of y. It crosses a column where it steps from fifth 2, the middle, to fifth 3. Here, these steps alone are
    computed, with the same arithmetic, so that the result is the same to the last bit.
    """
    x, y = (_FINE * points + 0.5).astype(np.int64).T
    ends = lengths.cumsum()
    following = np.arange(1, len(points) + 1)
    following[ends - 1] = ends - lengths
    low, high = np.minimum(x, x[following]), np.maximum(x, x[following])
    first = np.maximum((low + 2) // _FINE, 0)
    often = np.maximum(np.minimum((high - 3) // _FINE, width - 1) + 1 - first, 0)
    if often.sum() > MOST_RUNS:
        raise ValueError(
            f"outlines that cross {often.sum():,} columns of pixels: allowed are {MOST_RUNS:,} in a sample"
        )
    edge = np.repeat(np.arange(len(points)), often)
    column = np.arange(len(edge)) - (often.cumsum() - often - first)[edge]
    middle = _FINE * column + 2

    x0, y0, x1, y1 = x[edge], y[edge], x[following[edge]], y[following[edge]]
    is_steep = abs(x1 - x0) < abs(y1 - y0)
    turned = np.where(is_steep, y0 > y1, x0 > x1)  # each edge is walked along the same way as its reverse
    x0, y0, x1, y1 = (np.where(turned, b, a) for a, b in ((x0, x1), (y0, y1), (x1, x0), (y1, y0)))
    slope = np.where(is_steep, x1 - x0, y1 - y0) / np.where(is_steep, y1 - y0, x1 - x0)

    step = middle - x0
    of_flat = np.minimum(y0 + slope * step + 0.5, y0 + slope * (step + 1) + 0.5)

    # Of a steep edge, the first step behind the middle; its estimate is off by one at most.
    estimate = np.ceil((middle + 0.5 - x0) * (y1 - y0) / (x1 - x0))
    behind = [(x0 + slope * each + 0.5 >= middle + 1) == (x1 > x0) for each in (estimate - 1, estimate)]
    of_steep = y0 + estimate - behind[0] - behind[1]

    fine_row = np.floor(np.where(is_steep, of_steep, of_flat))
    row = np.ceil(np.clip((fine_row + 0.5) / _FINE - 0.5, 0, height)).astype(np.int64)
    polygon = np.repeat(np.arange(len(lengths)), lengths)[edge]
    order = np.lexsort((row, column, polygon))
    return polygon[order], column[order], row[order]
