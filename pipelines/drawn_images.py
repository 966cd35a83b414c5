"""Validates images in memory, and draws their random parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from gpuloader.errors import ConfigError
from gpuloader.images.gate import admit_each
from gpuloader.images.limits import RefusalError
from gpuloader.images.orientation import image_orientations
from gpuloader.plan import Draws
from gpuloader.recipe import AugmentParams, Recipe, Shape
from gpuloader.recipe.model import Ints


class Mipmap(bytes):
    """A file with a smaller copy of a picture; random parameters are drawn for the picture's (height, width)."""

    picture: Shape

    def __new__(cls, file: bytes, picture: Shape) -> Self:
        mipmap = super().__new__(cls, file)
        mipmap.picture = picture
        return mipmap


class AdmittedImages(NamedTuple):
    """Images in memory, as the graph takes them.

    Attributes:
        files: n files (bytes,), or n arrays (height, width, 3).
        sizes: (n, 2) their heights and widths.
        pictures: (n, 2) those of their pictures, which are larger than mipmaps.
        turned: (n,) the EXIF orientations that the recipe applies; None if there are none.
        refused: why an image cannot be decoded, by row.
    """

    files: list[NDArray[np.uint8]]
    sizes: Ints
    pictures: Ints
    turned: Ints | None
    refused: dict[int, str]


def admit_images(recipe: Recipe, images: Sequence[Any]) -> AdmittedImages:
    """Validates images in memory for a recipe.

    Raises:
        ConfigError: an image is neither a file nor uint8 (height, width, 3).
    """
    turned = None
    if images and isinstance(images[0], (bytes, bytearray)):
        files, sizes, refused = admit_each(images, recipe.max_pixels)
        turned = image_orientations(images) if recipe.orientation == "apply" else None
    else:
        files, refused = _as_arrays(images, upright=recipe.orientation == "apply")
        sizes = np.array([array.shape[:2] for array in files], np.int64)
    sizes = sizes.reshape(-1, 2)
    each = zip(images, sizes.tolist())
    pictures = np.array([image.picture if isinstance(image, Mipmap) else size for image, size in each], np.int64)
    return AdmittedImages(files, sizes, pictures.reshape(-1, 2), turned, refused)


def draw_images(
    recipe: Recipe, images: Sequence[Any], draws: Draws, boxes: Sequence[NDArray[np.float64]] = ()
) -> tuple[list[NDArray[np.uint8]], AugmentParams, dict[int, str]]:
    """Returns (images as the graph takes them, their random parameters, the causes of refused images by row).

    The parameters are for the recipe's first graph. An image is refused if it cannot be decoded or its output would be
    too large. Raises as `admit_images`.
    """
    files, sizes, pictures, turned, refused = admit_images(recipe, images)
    params = recipe.at(draws.epoch).graphs[0].draw(draws, pictures, turned, boxes).in_files(pictures, sizes)
    return files, params, {**params.refused(), **refused}


def _as_arrays(images: Sequence[Any], upright: bool) -> tuple[list[NDArray[np.uint8]], dict[int, str]]:
    """Converts arrays and PIL images to arrays; also returns by row why one cannot be converted."""
    arrays, refused = [np.zeros((1, 1, 3), np.uint8)] * len(images), {}
    for number, image in enumerate(images):
        try:
            array = _as_array(image, upright)
        except RefusalError as error:
            refused[number] = error.cause
            continue
        if not (array.ndim == 3 and array.shape[2] == 3 and array.dtype == np.uint8 and array.size):
            of_numbers = array.dtype.kind in "biuf"
            found = f"{array.dtype} of shape {array.shape}" if of_numbers else f"a {type(image).__name__}"
            raise ConfigError(
                f"image {number} is {found}: allowed are the bytes of a file, PIL images, and uint8 arrays of RGB "
                "(height, width, 3)"
            )
        arrays[number] = array
    return arrays, refused


def _as_array(image: Any, upright: bool) -> NDArray[Any]:  # noqa: ANN401
    """Converts an array or a PIL image to an array; `upright` applies a PIL image's EXIF orientation."""
    try:
        return np.ascontiguousarray(_turn_upright(image) if upright else image)
    except Exception as error:  # PIL's decoders and a user's `__array__` raise errors of any type
        said = str(error) or type(error).__name__
        raise RefusalError(f"this {type(image).__name__} cannot become an array: {said}") from error


def _turn_upright(image: object) -> object:
    from PIL import Image, ImageOps  # imported late: a normal start does not need it

    return ImageOps.exif_transpose(image) if isinstance(image, Image.Image) else image
