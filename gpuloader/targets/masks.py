"""`Mask`: the class of each pixel, or the outline of each object."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field
from typing_extensions import Self

from gpuloader.collators import read_array
from gpuloader.images.formats import image_format
from gpuloader.images.gate import admit
from gpuloader.loading.fields import MOST_MASK_PIXELS, Ragged, Source, register
from gpuloader.recipe import AugmentParams, Shape, ViewParams
from gpuloader.recipe.model import Flag, Integer
from gpuloader.recipe.part import argument
from gpuloader.recipe.target_transforms import move_mask
from gpuloader.targets.outlines import parse_outlines, pycocotools_mask
from gpuloader.targets.target import Target

_MODES = ("1", "L", "P", "I", "I;16")
_TYPES = (np.uint8, np.int16, np.int32, np.int64)  # that torch supports


def _check_source(source: str) -> str:
    if not source.startswith("json:") and source.lower().rpartition(".")[2] not in ("png", "npy"):
        raise ValueError(f'found {source!r}: allowed are "png", "npy", also as "mask.png", and "json:NAME"')
    return source


@register
@argument
class Mask(Target):
    """The mask of each sample, in the size of the delivered image: (B, H, W) int64, the class of each pixel.

    It is transformed like `tv_tensors.Mask` of torchvision, with nearest interpolation. With `instances`, or a source
    "json:NAME", the batch has a list of B tensors (n, H, W) uint8 instead, 1 where an object is.

    If the recipe's `batch` is "list", class masks are a list of B tensors (h, w). If it pads the images, class masks
    are padded with `fill`, and object masks with 0.

    Attributes:
        source: "png" for a picture with one channel or a palette, whose numbers are the classes; "npy" for an array
            (H, W) of integers; or "json:NAME" of COCO annotations, objects with a "segmentation", polygons or RLE. The
            last one needs `pip install 'gpuloader[targets]'`.
        fill: the class of pixels outside the image, such as 255 for a loss with `ignore_index=255`.
        instances: whether each number other than 0 is an object; objects are in the order of their numbers.
        required: whether a sample without a mask is an error. If False, all of its pixels are `fill`, or its n is 0.
        interpolation: the source pixel in a resize: "nearest" takes the pixel at the top left corner of the new pixel,
            as torchvision does; "nearest-exact" takes the pixel at its centre, as PIL does.

    Raises:
        ConfigError: an option is invalid.

    Example:
        >>> from gpuloader import Mask
        >>> Mask("png", fill=255).extension
        'png'
    """

    may_repeat: ClassVar[bool] = True

    source: Annotated[Source, AfterValidator(_check_source)]
    fill: Annotated[Integer, Field(ge=-(2**31), lt=2**31)] = 0
    instances: Flag = False
    required: Flag = True
    interpolation: Literal["nearest", "nearest-exact"] = "nearest"

    def resolve(self) -> Self:
        if self.path:
            pycocotools_mask()  # raises now if it is not installed
        return self

    @property
    def _of_objects(self) -> bool:
        return self.instances or bool(self.path)

    @property
    def in_threads(self) -> bool:
        return self.extension.endswith("png")

    @property
    def is_widened(self) -> bool:
        return not self._of_objects

    @property
    def keys_of_annotations(self) -> list[tuple[str, str]]:
        return [(f"source={self.source!r}", "segmentation")]

    @property
    def may_be_pasted(self) -> bool:
        """Whether CutMix may paste parts of other samples: True for class masks, False for object masks."""
        return not self._of_objects

    def value(self, component: Any, size: Shape, drawn: NDArray[np.float64]) -> NDArray[Any]:  # noqa: ANN401
        """Returns the mask of the sample, (H, W), or the masks of its objects, (n, H, W)."""
        if self.path:
            return parse_outlines(self.annotations(component), *size)
        if component is None:
            return np.zeros((0, *size), np.uint8) if self.instances else _narrowed(np.full(size, self.fill), self.fill)
        mask = _read_png(component, size) if self.extension.endswith("png") else _read_npy(component, size)
        if not self.instances:
            return _narrowed(mask, self.fill)
        numbers = np.unique(mask)
        numbers = numbers[numbers != 0]
        if len(numbers) * size[0] * size[1] > MOST_MASK_PIXELS:
            raise ValueError(
                f"{len(numbers):,} masks of {size[1]}x{size[0]} pixels: allowed are {MOST_MASK_PIXELS:,} pixels in all"
            )
        return (mask == numbers[:, None, None]).view(np.uint8)

    def value_of(self, entries: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        mask = np.asarray(entries[""])
        if mask.dtype.kind not in "biu" or mask.ndim != 2 + self._of_objects:
            raise ValueError(
                f"a mask of {mask.dtype} {mask.shape}: allowed are integers, with {2 + self._of_objects} axes"
            )
        return mask.astype(np.uint8) if self._of_objects else _narrowed(mask, self.fill)

    def count_masks(self, value: NDArray[Any]) -> int:
        return len(value) if self._of_objects else 0

    def collated(self, values: list[Any], params: AugmentParams) -> dict[str, list[Any]]:
        pixels = sum(map(self.count_masks, values)) * sum(prod(view.shape) for view in params.views if view.shape)
        if pixels > len(values) * MOST_MASK_PIXELS:  # only padding can exceed this
            raise ValueError(
                f"masks of objects with {pixels:,} pixels, padded to the largest image of the batch: allowed are "
                f'{MOST_MASK_PIXELS:,} for each sample; set the recipe\'s batch to "list", or make its images smaller'
            )
        return super().collated(values, params)

    def moved(self, values: Sequence[NDArray[Any]], view: ViewParams) -> Iterator[tuple[str, Any]]:
        fill = 0 if self._of_objects else self.fill
        sides = view.placement.shape.tolist()
        shapes = [(*mask.shape[:-2], *(view.shape or shown)) for mask, shown in zip(values, sides)]
        counts = np.array([prod(shape) for shape in shapes], np.int64)
        made = np.empty(counts.sum(), np.result_type(np.uint8, *{mask.dtype for mask in values}))
        for row, (mask, part, (height, width)) in enumerate(zip(values, np.split(made, counts.cumsum()[:-1]), sides)):
            whole = part.reshape(shapes[row])
            move_mask(mask, row, view, fill, whole[..., :height, :width], exact=self.interpolation == "nearest-exact")
            whole[..., height:, :] = whole[..., width:] = fill  # padding
        is_ragged = self._of_objects or view.shape is None
        yield "", Ragged(made, counts, shapes) if is_ragged else made.reshape(len(values), *(view.shape or ()))


def _read_png(component: bytes, size: Shape) -> NDArray[Any]:
    from PIL import Image  # imported here, because most loaders have no masks

    encoded = np.frombuffer(component, np.uint8)
    if image_format(encoded) != "png":
        raise ValueError("it is no PNG")
    file, shape = admit(encoded)
    _check_shape(shape, size)
    try:
        with Image.open(io.BytesIO(file), formats=("PNG",)) as picture:
            if picture.mode not in _MODES:
                raise ValueError(f"a PNG of the mode {picture.mode}: allowed are one channel and a palette")
            return np.asarray(picture)
    except (OSError, SyntaxError) as error:
        raise ValueError(f"the PNG cannot be decoded: {error}") from None


def _read_npy(component: bytes, size: Shape) -> NDArray[Any]:
    array = read_array(component)
    if array.dtype.kind not in "iub":
        raise ValueError(f"an array of {array.dtype}: allowed are integers")
    _check_shape(array.shape, size)
    return array


def _narrowed(mask: NDArray[Any], fill: int) -> NDArray[Any]:
    """Returns a mask in the smallest integer type for its numbers and the fill."""
    low, high = min(int(mask.min()), fill), max(int(mask.max()), fill)
    for dtype in _TYPES:
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return mask.astype(dtype, copy=False)
    raise ValueError(f"the mask has the number {high}: allowed are numbers below 2**63")


def _check_shape(shape: Sequence[int], size: Shape) -> None:
    if tuple(shape) != tuple(size):
        raise ValueError(f"the mask's shape is {tuple(shape)}, but its image has {tuple(size)}")
