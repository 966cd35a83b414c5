"""`Recipe`: a validated recipe, which draws the random parameters of a batch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, cast

import numpy as np
from pydantic import BeforeValidator, Field, InstanceOf, model_validator
from pydantic_core import ArgsKwargs
from typing_extensions import Self

from gpuloader.errors import PresetError
from gpuloader.images.limits import DEFAULT_MAX_PIXELS, MAX_PIXELS
from gpuloader.plan import Draws, LastBatch, Shuffle
from gpuloader.plan.draws import VIEWS
from gpuloader.recipe.augment_params import AugmentParams, Batching
from gpuloader.recipe.crops import FiveCrop, TenCrop
from gpuloader.recipe.graph import Graph, GraphDtype, Layout, OwnCode
from gpuloader.recipe.mix import Mix, as_mix
from gpuloader.recipe.model import MAX_STEPS, Ints, Transform, at_epoch, check_transforms, kept_as, with_inner
from gpuloader.recipe.part import as_plain_values, part, set_values, values_of
from gpuloader.recipe.placement import Shape
from gpuloader.recipe.target_transforms import Floats
from gpuloader.recipe.view import ViewPlan

Transforms: TypeAlias = Annotated[Sequence[Transform], kept_as(tuple[InstanceOf[Transform], ...])]
Count: TypeAlias = Annotated[int, Field(ge=1, le=VIEWS)]

Dtype: TypeAlias = Literal["float32", "float16", "bfloat16", "uint8"]


def _as_yaml_reads(orientation: object) -> object:
    return "off" if orientation is False else orientation  # YAML reads `off` as false


Orientation: TypeAlias = Annotated[Literal["off", "apply"], BeforeValidator(_as_yaml_reads)]
Oversampling: TypeAlias = Annotated[
    Literal["off"] | Annotated[float, Field(ge=1, le=16)] | None, BeforeValidator(_as_yaml_reads)
]

if TYPE_CHECKING:

    class _GivenMix:
        """For type checkers: a recipe takes a `Mix` or a mapping of its keys, and has a `Mix`."""

        def __get__(self, recipe: object, kind: object) -> Mix | None: ...
        def __set__(self, recipe: object, given: Mix | Mapping[str, Any] | None) -> None: ...

else:
    _GivenMix = Annotated[Mix | None, BeforeValidator(as_mix)]

_SEVERAL = (FiveCrop, TenCrop)
_NOT_PIXELS = {"layout"}


@part
class View:
    """One image that a recipe makes of each sample, or `count` images, drawn independently.

    Attributes:
        transforms: as in a recipe; they run after the recipe's own `transforms`.
        count: the number of images.

    Example:
        >>> from gpuloader.transforms import RandomResizedCrop, View
        >>> View([RandomResizedCrop(96)], count=8).count
        8
    """

    transforms: Transforms
    count: Count = 1


@part
class Recipe:
    """The transforms that turn an image into a tensor, and the form of the batch.

    The transforms have a fixed order: first geometry (resize, crop, pad, flip), then pixels (colours, warps, policies,
    flips), then `Normalize`, then `RandomErasing`. After the geometry all images must have the same size, unless
    `batch` allows different sizes.

    Attributes:
        transforms: the transforms of each image. An empty list only decodes, and `batch` must allow different sizes.
        views: the number of images of each sample, drawn independently. Or several `View`s: `transforms` then run
            first, and are drawn once for all views. A batch has a list of image tensors.
        mix: a `Mix` (MixUp and CutMix), or a mapping of its keys; None does not mix.
        dtype: of the output. "uint8" gives levels of 0 to 255; the others give values in [0, 1] without `Normalize`.
            "bfloat16" is rounded from float32 to 8 bits: values change by up to 1/256 of their size.
        layout: "nchw", or "channels_last" for torch's memory format; the shape is (B, 3, H, W) in both.
        max_pixels: the maximum number of pixels, from 1 to 100 million; an image whose header has more is bad.
        orientation: "apply" turns pictures upright by their EXIF orientation, before all transforms. "off" reads them
            as stored, as torchvision does.
        batch: "dense" is a tensor (B, 3, H, W) of images of one size. "list" is a list of B tensors (3, h, w).
            {"pad": N} is a tensor of images padded with 0, at the right and the bottom, to the batch's largest height
            and width, rounded up to multiples of N. "list" and "pad" cannot be combined with `output="tuple"`.
        oversampling: a number from 1 to 16 makes a crop from at least this many decoded pixels, per side, for each
            pixel of the output, where a cheaper source has them: a smaller copy of `gpuloader pack --mipmaps`, or on
            the CPU a JPEG decoded at 1/2, 1/4 or 1/8. It needs filters that antialias. None and "off" decode all of the
            picture; "off" also silences the hint to set it.
    """

    transforms: Transforms = ()
    views: Count | Annotated[Sequence[View], kept_as(tuple[InstanceOf[View], ...], min_length=1, max_length=VIEWS)] = 1
    mix: _GivenMix = cast("_GivenMix", None)
    dtype: Dtype = "float32"
    layout: Layout = "nchw"
    max_pixels: Annotated[int, Field(ge=1, le=MAX_PIXELS)] = DEFAULT_MAX_PIXELS
    orientation: Orientation = "off"
    batch: Batching = "dense"
    oversampling: Oversampling = None

    @model_validator(mode="before")
    @classmethod
    def _check_given(cls, given: ArgsKwargs) -> ArgsKwargs:
        values = given.kwargs or {}
        if "mipmaps" in values:
            raise ValueError("`mipmaps` is called `oversampling`: write `oversampling` with the same value")
        if not given.args and "transforms" not in values and isinstance(values.get("views", 1), int):
            raise ValueError(
                "give `transforms`, or `views` with their own, or both; an empty list of transforms only decodes"
            )
        return given

    @model_validator(mode="after")
    def _check(self) -> Recipe:
        self._check_count()
        views = self.each_view
        for epoch in self._starts:
            self._made_for(epoch, None)
        _ = [view.halves() for view in views if view.own is not None]  # which raises if one cannot be run alone
        if (steps := sum(view.steps for view in views)) > MAX_STEPS:
            raise ValueError(f"{steps} steps that change pixels, in all views: allowed are up to {MAX_STEPS}")
        if self.dtype == "uint8" and any(view.normalize or view.erasing for view in views):
            raise ValueError('dtype "uint8" gives levels: leave Normalize and RandomErasing out, or use a float dtype')
        if self.mix is not None and (len(views) > 1 or self.dtype == "uint8"):
            raise ValueError('`mix` needs one view and a float dtype: leave `views` at 1 and dtype at "float32"')
        if self.mix is not None and self.batch != "dense":
            raise ValueError('`mix` needs images of one size: leave `mix` out, or `batch` at "dense"')
        if self.min_oversampling is not None and (reason := self.refuses_oversampling):
            given = f"`oversampling` {self.min_oversampling:g}"
            raise ValueError(f"{given} is not for this recipe: {reason}, or leave `oversampling` out")
        for view in views:
            view.warn_of_padding()
        return self

    def _check_count(self) -> None:
        """Checks the number of views and transforms, before anything is made from them."""
        views = [View([*self._shared, *view.transforms], view.count) for view in self._views]
        check_transforms([*self._shared, *(each for view in self._views for each in view.transforms)])
        if any(sum(isinstance(each, _SEVERAL) for each in view.transforms) > 1 for view in views):
            raise ValueError("a view may have one FiveCrop or TenCrop: leave the others out")
        if sum(view.count * len(_variants(view.transforms)) for view in views) > VIEWS:
            raise ValueError(f"a recipe may have {VIEWS} views; this has more")

    @property
    def _views(self) -> Sequence[View]:
        return (View(self.transforms, self.views),) if isinstance(self.views, int) else self.views

    @property
    def _shared(self) -> Sequence[Transform]:
        """The transforms that run first and are drawn once for all views."""
        return () if isinstance(self.views, int) else self.transforms

    @cached_property
    def each_view(self) -> tuple[ViewPlan, ...]:
        """The plan of each image of a sample."""
        ways = [
            (own, shared)
            for view in self._views
            for _ in range(view.count)
            for shared in _variants(self._shared)
            for own in _variants(view.transforms)
        ]
        return tuple(ViewPlan(own, number, self.batch, shared) for number, (own, shared) in enumerate(ways))

    @cached_property
    def own_code(self) -> OwnCode | None:
        """The functions between the graphs; None without own code."""
        return OwnCode.of(self.each_view)

    @cached_property
    def graphs(self) -> tuple[Graph, ...]:
        """What DALI runs: a graph, or with own code one before it and one after it."""
        return (self.whole_graph,) if self.own_code is None else self.own_code.graphs(self.whole_graph)

    @cached_property
    def whole_graph(self) -> Graph:
        """The graph of all transforms, without own code."""
        form = self.graph_dtype, self.layout, self.batch
        mixed = self.min_oversampling is not None
        return Graph(((0, self.each_view),), *form, upright=self.orientation == "apply", mixed=mixed)

    @cached_property
    def random(self) -> bool:
        """Whether the output depends on random numbers: true for training, false for evaluation."""
        return self.mix is not None or any(view.random for view in self.each_view)

    @property
    def by_boxes(self) -> str:
        """The names of the transforms that draw by the boxes of a sample, or ""."""
        return ", ".join(dict.fromkeys(view.by_boxes for view in self.each_view if view.by_boxes))

    @property
    def min_oversampling(self) -> float | None:
        """The least decoded pixels, per side, for one pixel of the output; None if all of a picture is decoded."""
        return self.oversampling if isinstance(self.oversampling, float) else None

    def oversampling_on(self, device_id: int | None) -> float | None:
        """Returns `min_oversampling` for JPEGs; None on a GPU, which decodes all of a file."""
        return self.min_oversampling if device_id is None or self.own_code is not None else None

    @cached_property
    def refuses_oversampling(self) -> str:
        """The reason why the recipe cannot take smaller pictures, and what to change; "" if it can."""
        if self.by_boxes:
            return f"{self.by_boxes} draws by boxes, which are read after the copy is chosen; take another transform"
        encoded = (view if view.own is None else view.halves()[0] for view in self.each_view)
        if any(at.interpolation == "nearest" or not at.antialias for at in (view.how_placed for view in encoded)):
            return "without antialiasing, a copy gives other pixels than its picture; use a filter that antialiases"
        return ""

    @property
    def written(self) -> tuple[str, ...]:
        """The keys that are written even at their default."""
        return ("transforms",) if isinstance(self.views, int) else ()

    @property
    def graph_dtype(self) -> GraphDtype:
        """The dtype of the graph's images; for bfloat16, which DALI lacks, float32 is rounded after the graph."""
        return "float32" if self.dtype == "bfloat16" else self.dtype

    def __repr__(self) -> str:
        """Writes the call that makes the recipe, without keys at their default."""
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in set_values(self).items())})"

    @property
    def default_shuffle(self) -> Shuffle:
        """The loader's default order: "full" for training, "none" for evaluation."""
        return "full" if self.random else "none"

    @property
    def default_last_batch(self) -> LastBatch:
        """The loader's default last batch: "drop" for training, "partial" for evaluation."""
        return "drop" if self.random else "partial"

    @property
    def fingerprint(self) -> str:
        """32 hex digits that are equal for recipes with equal pixels."""
        return _digest(self.pixels)

    @property
    def pixels(self) -> dict[str, Any]:
        """The values that decide the pixels, as plain values."""
        left_out = _NOT_PIXELS if self.min_oversampling is not None else {*_NOT_PIXELS, "oversampling"}
        return {name: value for name, value in as_plain_values(self).items() if name not in left_out}

    @property
    def shapes(self) -> list[Shape | None]:
        """(height, width) of each view's output in epoch 0; None if the images of a view differ."""
        return [view.shape for view in self.each_view]

    def at(self, epoch: int, shape: Shape | None = None) -> Self:
        """Returns the recipe of an epoch, without values by epoch.

        Args:
            shape: (height, width) of the output; it overrides the size of the last crop or `Resize`.

        Raises:
            PresetError: no transform in `transforms` decides the output's size, or the `View`s have their own sizes.

        Example:
            >>> from gpuloader import Compose
            >>> from gpuloader.transforms import RandomResizedCrop
            >>> compose = Compose([RandomResizedCrop({0: 128, 30: 224})])
            >>> compose.at(epoch=40).shapes, compose.at(epoch=0, shape=(96, 160)).shapes
            ([(224, 224)], [(96, 160)])
        """
        if shape is None and not self._starts:
            return self
        key = max((start for start in self._starts if start <= epoch), default=0), shape
        if key not in self._made:
            self._made[key] = self._made_for(*key)
        return self._made[key]

    @cached_property
    def _made(self) -> dict[tuple[int, Shape | None], Self]:
        """The results of `at`, which a run calls for every batch."""
        return {}

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        """The epochs in which a value changes."""
        views = (self.transforms, *(view.transforms for view in self._views))
        parts = [*(each for transforms in views for each in with_inner(transforms)), *([self.mix] if self.mix else [])]
        values = [value for each in parts for value in values_of(each).values() if isinstance(value, dict)]
        return tuple(sorted({start for each in values for start in each}))

    @cached_property
    def largest_epoch(self) -> int:
        """The first epoch with the largest output, if sizes change by epoch; otherwise 0."""
        one, size = np.zeros(1, np.int64), np.array([[1000, 1000]])
        return max(self._starts, key=lambda epoch: self.draw(Draws(0, epoch, one), size).pixels[0], default=0)

    def _made_for(self, epoch: int, shape: Shape | None) -> Self:
        views = self.views
        if not isinstance(views, int):
            views = [View(_at(view.transforms, epoch), view.count) for view in views]
        mix = None if self.mix is None else self.mix.at(epoch)
        made = replace(self, transforms=_at(self.transforms, epoch, shape), views=views, mix=mix)
        if shape is not None and set(made.shapes) != {shape}:
            raise PresetError(
                f"shape {shape} cannot replace the recipe's {made.shapes[0] or 'sizes'}: allowed are recipes without "
                f"sizes in `View`s, whose `transforms` end with a crop, RandomResizedCrop, or Resize to [height, width]"
            )
        return made

    @cached_property
    def params_for_none(self) -> AugmentParams:
        """The random parameters of no samples: the names, types and operations that all samples share."""
        return self.draw(Draws(0, 0, np.zeros(0, np.int64)), np.zeros((0, 2), np.int64))

    def draw(
        self, draws: Draws, sizes: Ints, orientations: Ints | None = None, boxes: Sequence[Floats] = ()
    ) -> AugmentParams:
        """Draws the random parameters of n images.

        Args:
            sizes: (n, 2) int64, the heights and widths of the images as they are stored.
            orientations: (n,) of 0 to 8, the EXIF orientations; only with `orientation="apply"`. None if all are
                upright.
            boxes: of each image, (k, 4) left, top, right, bottom in pixels of the upright image, for transforms that
                draw by boxes; empty if no image has boxes.
        """
        return self.at(draws.epoch).whole_graph.draw(draws, sizes, orientations, boxes)


def _at(transforms: Sequence[Transform], epoch: int, shape: Shape | None = None) -> list[Transform]:
    """Resolves values by epoch; `shape`, if given, overrides the last transform's size."""
    made: list[Any] = [_with(each, epoch) for each in transforms]
    sized = [number for number, each in enumerate(made) if getattr(each, "size", "cover") != "cover"]
    if shape is not None and sized:
        made[sized[-1]] = replace(made[sized[-1]], size=shape)
    return made


def _with(transform: Any, epoch: int) -> Transform:  # noqa: ANN401
    """Resolves a transform's values by epoch."""
    own = values_of(transform)
    changed = {name: at_epoch(value, epoch) for name, value in own.items() if isinstance(value, dict)}
    if "transforms" in own:
        changed["transforms"] = _at(own["transforms"], epoch)
    return replace(transform, **changed) if changed else transform


def _digest(values: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16).hexdigest()


def _variants(transforms: Sequence[Transform]) -> list[tuple[Transform, ...]]:
    """Lists the transforms of each view; a `FiveCrop` or `TenCrop` makes several views."""
    variants: list[tuple[Transform, ...]] = [()]
    for each in transforms:
        ways = each.variants() if isinstance(each, _SEVERAL) else [(each,)]
        variants = [before + way for before in variants for way in ways]
    return variants
