"""`Boxes`: the boxes of objects in the image."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gpuloader.base.values import innermost
from gpuloader.loading.fields import JsonSource, Ragged, register, under
from gpuloader.recipe import Shape, ViewParams
from gpuloader.recipe.model import Flag, Positive, Share, kept_as
from gpuloader.recipe.part import argument
from gpuloader.recipe.target_transforms import move_boxes, which_boxes_stay
from gpuloader.targets.annotations import MOST_FLOAT32, BoxFormat, ParsedBoxes, parse_boxes, parse_column, to_pixels
from gpuloader.targets.target import Target, samples_of

_BESIDE = "json:"
_FLOATS = ("area", "score")
_Key: TypeAlias = Annotated[str, Field(min_length=1)]


@register
@argument
class Boxes(Target):
    """The boxes of each sample, in pixels of the delivered image: a list of B tensors (n, 4) float32, x1, y1, x2, y2.

    They are transformed like `tv_tensors.BoundingBoxes` of torchvision. Boxes are clamped to the image; a rotated box
    becomes the smallest upright box around it. Boxes outside the crop are dropped, with their values in all columns.

    With the name `boxes`, the batch also has `boxes_labels` and the other columns, lists of (n,) tensors, and
    `boxes_number`, int64 (n,): the number of each box's annotation in the sample.

    Attributes:
        source: "json:NAME" of a list of boxes, or of COCO annotations, objects with a "bbox".
        format: the format in the file: two corners, a corner and a size, or a centre and a size.
        relative: whether boxes are shares of the image's width and height, instead of pixels.
        labels: the key of the label in each annotation, or "json:NAME" of a list of labels beside the boxes.
        keys: further keys of each annotation, such as "iscrowd"; each becomes a column of int64. "area", which is
            scaled with its box, and "score" are float32.
        leave_out: a key of each annotation, such as "iscrowd". Annotations where it is not 0 or false are dropped
            before the recipe, so they do not affect crops. None drops no annotation.
        min_size: drops boxes whose width or height, in pixels of the delivered image, is smaller; above 0.
        min_visibility: drops boxes of whose area less than this share, in [0, 1], is inside the image. After a
            rotation, the area is the area of the upright box.
        pad_to: delivers tensors (B, pad_to, 4), padded with zeros (integer columns with -1), and `boxes_count`, int64
            (B,). None delivers lists.
        required: whether a sample without annotations is an error. If False, it is a background picture with n = 0.

    Raises:
        ConfigError: an option is invalid.

    Example:
        >>> import numpy as np
        >>> from gpuloader import Boxes, GPULoader
        >>> from webdataset import TarWriter
        >>> cat = {"bbox": [8, 16, 32, 32], "category_id": 3}
        >>> with TarWriter("boxes.tar") as writer:
        ...     _ = writer.write({"__key__": "0", "jpg": np.zeros((64, 64, 3)), "json": {"annotations": [cat]}})
        >>> fields = {"boxes": Boxes("json:annotations", format="xywh", labels="category_id")}
        >>> [batch] = GPULoader("boxes.tar", 1, "cpu", preset="cifar10_eval", fields=fields)
        >>> batch["boxes"], batch["boxes_labels"]  # the image is resized to half its size
        ([tensor([[ 4.,  8., 20., 24.]])], [tensor([3])])
    """

    has_boxes: ClassVar[bool] = True

    source: JsonSource
    format: BoxFormat = "xyxy"
    relative: Flag = False
    labels: str | None = None
    keys: Annotated[Sequence[str], kept_as(tuple[_Key, ...])] = ()
    leave_out: _Key | None = None
    min_size: Annotated[float, Field(gt=0)] = 1.0
    min_visibility: Share = 0.0
    pad_to: Positive | None = None
    required: Flag = True

    def __post_init__(self) -> None:
        if len(set(self.columns)) < len(self.columns) or self.labels in self.keys:
            raise ValueError(
                f"labels={self.labels!r} and keys={list(self.keys)!r}: a key is named twice, or as a column that "
                f"batches have: labels, number, and count with pad_to"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self._parsed, "number", *(() if self.pad_to is None else ("count",)))

    @property
    def _parsed(self) -> tuple[str, ...]:
        return (*(() if self.labels is None else ("labels",)), *self.keys)

    @property
    def keys_of_annotations(self) -> Iterator[tuple[str, str]]:
        yield f"source={self.source!r}", "bbox"
        if self.labels is not None and not self.labels.startswith(_BESIDE):
            yield f"labels={self.labels!r}", self.labels
        yield from ((f"keys={key!r}", key) for key in self.keys)
        if self.leave_out is not None:
            yield f"leave_out={self.leave_out!r}", self.leave_out

    def named_keys(self, document: Any) -> Iterator[tuple[str, str, Collection[str]]]:  # noqa: ANN401
        of_annotations = list(super().named_keys(document))
        yield from of_annotations
        if of_annotations and self.labels is not None and self.labels.startswith(_BESIDE):
            searched, last = innermost(document, self.labels.removeprefix(_BESIDE))
            yield f"labels={self.labels!r}", last, searched.keys() if isinstance(searched, dict) else ()

    def value(self, component: object, size: Shape, drawn: NDArray[np.float64]) -> ParsedBoxes:
        _, *keys = (key for _, key in self.keys_of_annotations)  # the first is the box
        parsed = parse_boxes(self.annotations(component), self.format, columns=keys)
        columns = {("labels" if key == self.labels else key): column for key, column in parsed.columns.items()}
        if self.labels is not None and "labels" not in columns:  # they are beside the boxes
            labels = under(self.labels.removeprefix(_BESIDE), component, bool(len(parsed.boxes)))
            columns["labels"] = parse_column(labels if len(parsed.boxes) else [], len(parsed.boxes))
        boxes = to_pixels(parsed.boxes, *size) if self.relative else parsed.boxes
        stay = slice(None) if self.leave_out is None else parsed.columns[self.leave_out] == 0
        typed = {name: _typed(name, columns[name])[stay] for name in self._parsed}
        return ParsedBoxes(boxes[stay], typed, parsed.numbers[stay])

    def entries(self, value: ParsedBoxes, view: ViewParams) -> dict[str, NDArray[Any]]:
        return super(Boxes, replace(self, pad_to=None)).entries(value, view)

    def value_of(self, entries: Mapping[str, NDArray[Any]]) -> ParsedBoxes:
        boxes = np.asarray(entries[""], np.float64).reshape(-1, 4)
        *columns, numbers = (np.asarray(entries[name]) for name in (*self._parsed, "number"))
        if not np.isfinite(boxes).all() or any(len(column) != len(boxes) for column in (*columns, numbers)):
            rows = {name: len(entries[name]) for name in (*self._parsed, "number")}
            raise ValueError(f"{len(boxes)} boxes, and {rows}: allowed are finite boxes, with a row of each column")
        return ParsedBoxes(boxes, dict(zip(self._parsed, columns)), numbers)

    def moved(self, values: Sequence[ParsedBoxes], view: ViewParams) -> Iterator[tuple[str, Any]]:
        counts = np.array([len(value.boxes) for value in values], np.int64)
        samples = samples_of(counts)
        before = np.concatenate([np.zeros((0, 4)), *(value.boxes for value in values)])
        boxes = np.clip(move_boxes(before, samples, view), 0, np.tile(view.placement.shape[samples, ::-1], 2))
        kept = (boxes[:, 2:] - boxes[:, :2] >= self.min_size).all(1) & (areas(before) > 0)
        kept &= which_boxes_stay(before, samples, view)
        if self.min_visibility:
            whole = areas(move_boxes(before, samples, view, clamped=False))
            kept &= areas(boxes) >= self.min_visibility * whole
        counts = np.bincount(samples[kept], minlength=len(values))
        yield "", self._gathered(boxes[kept].astype(np.float32), counts)
        for name in self._parsed:
            column = np.concatenate([np.zeros(0, _dtype(name)), *(value.columns[name] for value in values)])[kept]
            if name == "area":
                with np.errstate(over="ignore"):  # a rotation can enlarge an almost empty box
                    column = column * areas(boxes[kept]) / areas(before[kept])
                column = np.clip(column, -MOST_FLOAT32, MOST_FLOAT32).astype(np.float32)
            yield name, self._gathered(column, counts)
        numbers = np.concatenate([np.zeros(0, np.int64), *(value.numbers for value in values)])
        yield "number", self._gathered(numbers[kept], counts)
        if self.pad_to is not None:
            yield "count", counts

    def _gathered(self, rows: NDArray[Any], counts: NDArray[np.int64]) -> NDArray[Any] | Ragged:
        if self.pad_to is None:
            return Ragged(rows, counts)
        if len(counts) and counts.max() > self.pad_to:
            raise ValueError(f"{counts.max()} boxes are left of a sample: Boxes(pad_to={self.pad_to}) is too small")
        padding = 0 if rows.dtype.kind == "f" else -1
        padded = np.full((len(counts), self.pad_to, *rows.shape[1:]), padding, rows.dtype)
        padded[np.arange(self.pad_to) < counts[:, None]] = rows
        return padded


def areas(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the areas of boxes, (N, 4), in square pixels."""
    return (boxes[:, 2:] - boxes[:, :2]).prod(1)


def _dtype(name: str) -> type[np.float32 | np.int64]:
    return np.float32 if name in _FLOATS else np.int64


def _typed(name: str, column: NDArray[Any]) -> NDArray[Any]:
    if len(column) and column.dtype.kind == "f" and name not in _FLOATS:
        raise ValueError(f"{name} has fractions, such as {column[column % 1 != 0][:1].tolist()}: allowed are integers")
    return column.astype(_dtype(name))
