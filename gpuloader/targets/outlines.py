"""Makes masks from COCO's polygons and run lengths; raises ValueError for invalid ones.

pycocotools fills the polygons. It does not validate its input, so this module does, before it spends memory and time.
Run lengths are decoded here: if they are too few, pycocotools returns uninitialised memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import ConfigError
from gpuloader.loading.fields import MOST_MASK_PIXELS
from gpuloader.targets.annotations import MOST_POINTS, NameOf, as_list, as_numbers, shown, values_of

MOST_RUNS = 1_000_000  # in a sample
MOST_POLYGONS = 10_000  # of an instance: as many fit int16
_MOST_LETTERS = 7  # of a run: 5 bits in each
Runs: TypeAlias = NDArray[np.int64]
Polygons: TypeAlias = list[list[float]]


def pycocotools_mask() -> Any:  # noqa: ANN401 - it has no types
    """Returns `pycocotools.mask`; raises ConfigError if it is not installed."""
    try:
        from pycocotools import mask
    except ImportError as error:
        raise ConfigError(
            f"Mask(\"json:NAME\") needs the package pycocotools: pip install 'gpuloader[targets]' ({error})"
        ) from None
    return mask


def parse_outlines(annotations: object, height: int, width: int) -> NDArray[np.uint8]:
    """Returns the masks of a sample's instances, (n, height, width) of 0 and 1.

    The union of an instance's polygons, filled as by pycocotools, is its mask. Run lengths are of 0 and 1 in turn,
    column by column.

    Args:
        annotations: a list of n objects, as in COCO, with a "segmentation": polygons, lists of x, y, x, y, ... in
            pixels; or run lengths, an object with "size", [height, width], and "counts", a list or pycocotools' text.
            Or a list of n lists of polygons.
        height, width: the size of the image, in pixels.
    """
    runs, polygons = check_outlines(annotations, height, width)
    if (n := len(runs) + len(polygons)) * height * width > MOST_MASK_PIXELS:
        raise ValueError(
            f"{n:,} masks of {height} x {width} pixels: allowed are {MOST_MASK_PIXELS:,} pixels in a sample"
        )
    masks = np.zeros((n, height, width), np.uint8)
    for number, counts in runs.items():
        _draw(counts, masks[number])
    for number, outline in polygons.items():
        filled = pycocotools_mask().merge(pycocotools_mask().frPyObjects(outline, height, width))
        counts = _decode_text(filled["counts"].decode(), f"annotations[{number}]['segmentation']", MOST_RUNS)
        _draw(counts, masks[number])
    return masks


def check_outlines(annotations: object, height: int, width: int) -> tuple[dict[int, Runs], dict[int, Polygons]]:
    """Returns the run lengths and the polygons of instances by number, without memory for masks; else as above."""
    outlines, name = values_of(annotations, "segmentation")
    runs: dict[int, Runs] = {}
    left = MOST_RUNS
    for number, outline in enumerate(outlines):
        if isinstance(outline, dict):
            runs[number] = _counts(outline, height, width, name(number), left)
            left -= len(runs[number])
    polygons = {number: outline for number, outline in enumerate(outlines) if not isinstance(outline, dict)}
    return runs, _checked(polygons, name, height, width)


def _counts(rle: Mapping[str, Any], height: int, width: int, name: str, most: int) -> Runs:
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


def _decode_text(text: str, name: str, most: int) -> Runs:
    """Returns the counts in pycocotools' text, which may be any numbers below 2**55.

    A letter has 5 bits of a number, the lowest bits first. A sixth bit marks that the next letter belongs to the same
    number; the fifth bit of the last letter is the sign. From the fourth number on, each is the difference to the count
    before the last one.
    """
    letters = text[: most * _MOST_LETTERS + 1].encode("utf-8", "surrogatepass")
    codes = np.frombuffer(letters, np.uint8) - np.uint8(ord("0"))  # letters before "0" wrap to large codes
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


def _checked(outlines: Mapping[int, object], name: NameOf, height: int, width: int) -> dict[int, Polygons]:
    """Returns the polygons of each instance, after checking their number, points, location and length."""
    checked: dict[int, Polygons] = {}
    points, length = 0, 0.0
    for number, outline in outlines.items():
        if not (own := as_list(outline, name(number), MOST_POLYGONS)):
            raise ValueError(f"{name(number)} is empty: allowed are polygons and run lengths")
        checked[number] = []
        for polygon in own:
            if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2:
                raise ValueError(f"{name(number)} has {shown(polygon)}: allowed are x, y, x, y ... of 3 points or more")
            points += len(polygon) // 2
            if points > MOST_POINTS:
                raise ValueError(f"{name(number)} has point {points:,}: allowed are {MOST_POINTS:,} in a sample")
            corners = _corners_of(polygon, name(number), height, width)
            length += abs(corners - np.roll(corners, 1, axis=0)).max(axis=1).sum()
            if length > MOST_RUNS:
                raise ValueError(f"{name(number)} has outlines longer than {MOST_RUNS:,} pixels, all in a sample")
            checked[number].append(corners.ravel().tolist())
    return checked


def _corners_of(polygon: list[object], name: str, height: int, width: int) -> NDArray[np.float64]:
    corners, size = as_numbers(polygon, lambda _: name).reshape(-1, 2), np.array([width, height])
    if (outside := ((corners < -size) | (corners > 2 * size)).any(axis=1)).any():
        raise ValueError(
            f"{name} has the point {corners[outside.argmax()].tolist()}: allowed are x from {-width} to {2 * width}, "
            f"y from {-height} to {2 * height}"
        )
    return corners


def _draw(counts: Runs, mask: NDArray[np.uint8]) -> None:
    """Sets the pixels of every second run to 1, column by column, in a mask of 0."""
    height = len(mask)
    changes = counts.cumsum()[: len(counts) // 2 * 2]  # the starts and ends of the runs of 1
    if not len(changes):
        return
    left, right = changes[0] // height, -(-changes[-1] // height)
    runs = np.diff(changes, prepend=left * height, append=right * height)
    columns = np.repeat(np.resize(np.array([0, 1], np.uint8), len(runs)), runs)
    mask[:, left:right] = columns.reshape(-1, height).T
