"""Validates images in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import ConfigError
from gpuloader.images.gate import admit_each
from gpuloader.images.limits import RefusalError
from gpuloader.images.orientation import image_orientations
from gpuloader.recipe import Recipe
from gpuloader.recipe.model import Ints


def admit_images(
    recipe: Recipe, images: Sequence[Any]
) -> tuple[list[NDArray[np.uint8]], Ints, Ints | None, dict[int, str]]:
    """Validates images in memory for a recipe.

    Returns:
        n files (bytes,) or n arrays (height, width, 3), for the graph; (n, 2) their heights and widths; (n,) the EXIF
        orientations that the recipe applies, or None if there are none; and the causes of refused images by row.

    Raises:
        ConfigError: an image is neither a file nor uint8 (height, width, 3).
    """
    if images and isinstance(images[0], (bytes, bytearray)):
        files, sizes, refused = admit_each(images, recipe.max_pixels)
        return files, sizes, image_orientations(images) if recipe.orientation == "apply" else None, refused
    files, refused = _as_arrays(images, upright=recipe.orientation == "apply")
    return files, np.array([array.shape[:2] for array in files], np.int64).reshape(-1, 2), None, refused


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
