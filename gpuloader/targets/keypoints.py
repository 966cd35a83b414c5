"""`Keypoints`: points of objects in the image, such as joints and eyes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gpuloader.loading.fields import JsonSource, Ragged, register
from gpuloader.recipe import Shape, ViewParams
from gpuloader.recipe.model import Flag, Integer, Natural, kept_as
from gpuloader.recipe.part import argument
from gpuloader.recipe.target_transforms import move_points, which_are_flipped
from gpuloader.targets.annotations import MOST_POINTS_OF_ONE, parse_points
from gpuloader.targets.target import Target, samples_of

_Pair: TypeAlias = Annotated[Sequence[int], kept_as(tuple[Natural, Natural], "[one, other]")]


@register
@argument
class Keypoints(Target):
    """The key points of each sample, in pixels of the delivered image: a list of B tensors (n, k, 2) float32, x and y.

    They are transformed like `tv_tensors.KeyPoints` of torchvision: a flip maps x to W - 1 - x. With the name `points`,
    the batch also has `points_visibility`, a list of (n, k) int64 tensors: 0 for points that are not labelled or
    outside the image, otherwise as in the file. An annotation without points gets k points that are not labelled.

    Attributes:
        source: "json:NAME" of COCO annotations, objects with "keypoints", or of a list with the points of each object.
        flip_pairs: pairs of point numbers, from 0, that a left-right flip exchanges, such as the left and right eye.
        count: k, such as COCO's 17. None takes k from the first annotation with points in each sample; in a sample
            without points k is 0.
        required: whether a sample without annotations is an error. If False, its n is 0.

    Raises:
        ConfigError: an option is invalid.

    Example:
        >>> from gpuloader import Keypoints
        >>> Keypoints("json:annotations", flip_pairs=[(1, 2)]).columns
        ('visibility',)
    """

    source: JsonSource
    flip_pairs: Annotated[Sequence[tuple[int, int]], kept_as(tuple[_Pair, ...])] = ()
    count: Annotated[Integer, Field(ge=1, le=MOST_POINTS_OF_ONE)] | None = None
    required: Flag = True

    def __post_init__(self) -> None:
        if len({number for pair in self.flip_pairs for number in pair}) < 2 * len(self.flip_pairs):
            raise ValueError(f"flip_pairs={list(self.flip_pairs)}: allowed is each point in one pair at most")
        if self.count is not None and self._largest >= self.count:
            raise ValueError(f"flip_pairs names point {self._largest}, but count is {self.count}")

    @property
    def columns(self) -> tuple[str, ...]:
        return ("visibility",)

    def value(
        self, component: object, size: Shape, drawn: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Parses the sample's points, (n, k, 2), and their visibility, (n, k)."""
        points, visibility = parse_points(self.annotations(component), self.count)
        if points.size and self._largest >= points.shape[1]:
            raise ValueError(f"{points.shape[1]} points: flip_pairs names point {self._largest}")
        return points, visibility

    @property
    def _largest(self) -> int:
        return max((number for pair in self.flip_pairs for number in pair), default=-1)

    def value_of(self, entries: Mapping[str, NDArray[Any]]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        points, visibility = np.asarray(entries[""], np.float64), np.asarray(entries["visibility"], np.int64)
        if points.shape != (*visibility.shape, 2):
            raise ValueError(
                f"points {points.shape} beside visibility {visibility.shape}: allowed are (n, k, 2) and (n, k)"
            )
        return points, visibility

    def moved(
        self, values: Sequence[tuple[NDArray[np.float64], NDArray[np.int64]]], view: ViewParams
    ) -> Iterator[tuple[str, Any]]:
        shapes = [points.shape for points, _ in values]
        counts = np.array([n * k for n, k, _ in shapes], np.int64)
        samples = samples_of(counts)
        points = np.concatenate([np.zeros((0, 2)), *(points.reshape(-1, 2) for points, _ in values)])
        moved, shown = move_points(points, samples, view)
        visibility = np.concatenate([np.zeros(0, np.int64), *(seen.ravel() for _, seen in values)])
        visibility[~shown] = 0
        of_one = np.repeat([k for _, k, _ in shapes], counts)
        first = np.cumsum(counts) - counts
        begins = (np.arange(len(points)) - first[samples]) % np.maximum(of_one, 1) == 0
        flipped = np.flatnonzero(begins & which_are_flipped(view)[samples])
        for left, right in self.flip_pairs:
            for each in (moved, visibility):
                each[flipped + left], each[flipped + right] = each[flipped + right], each[flipped + left]
        yield "", Ragged(moved.astype(np.float32), counts, shapes)
        yield "visibility", Ragged(visibility, counts, [shape[:2] for shape in shapes])
