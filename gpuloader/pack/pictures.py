"""Handles one picture: decodes it to check it, then copies it, downsizes it, or stores it as PNG or decoded."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from gpuloader.errors import ConfigError
from gpuloader.images.arrays import admit_array
from gpuloader.images.formats import RARE_FORMATS, image_format
from gpuloader.images.jpeg import check_jpeg
from gpuloader.images.limits import Refused, check_size
from gpuloader.images.png import check_data, decoder_png
from gpuloader.images.webp import check_webp
from gpuloader.pack.rare_formats import ORIENTATION, TURNED_BACK, as_8_bits, decode
from gpuloader.pack.seekable import make_seekable, restart_option
from gpuloader.shards.pictures import ARRAY_EXTENSION

DEFAULT_QUALITY = 90

_EXTENSIONS = {"jpeg": "jpg", "png": "png", "webp": "webp"}  # of files that are copied
_CHECKS = {"jpeg": check_jpeg, "png": check_data, "webp": check_webp}


@dataclass(frozen=True)
class Rendering:
    """What to do with every picture; see `pack`.

    Attributes:
        max_size: the most pixels of the shorter side; None for any.
        quality: of the JPEGs that downsizing makes.
        decoded: the most pixels of the shorter side of a picture that is stored decoded; None stores it encoded.
        seekable: the version of the program that rewrites JPEGs with restart intervals; None copies them.
    """

    max_size: int | None = None
    quality: int | None = None
    decoded: int | None = None
    seekable: str | None = None

    def __post_init__(self) -> None:
        for name, value, most in (
            ("max_size", self.max_size, 65_500),
            ("decoded", self.decoded, 65_500),
            ("quality", self.quality, 100),
        ):
            if value is not None and not 1 <= value <= most:
                raise ConfigError(f"{name}={value}: allowed is an integer from 1 to {most}")
        if self.max_size is not None and self.decoded is not None:
            raise ConfigError("max_size and decoded were both given: decoded downsizes, too; leave max_size out")
        if self.seekable is not None and self.decoded is not None:
            raise ConfigError("seekable and decoded were both given: decoded pictures are no JPEGs; leave one out")
        if self.quality is not None and self.max_size is None:
            raise ConfigError(
                "quality was given without max_size: pictures that are not downsized are copied unchanged"
            )


def render(image: bytes | Image.Image, extension: str | None, rendering: Rendering) -> tuple[str, bytes]:
    """Returns the extension and content of a picture's member.

    A JPEG, PNG or WebP is copied unless it is downsized. All others become PNGs, 8-bit gray or RGB, with the pixels
    that the loader would deliver.

    Args:
        image: encoded, or the picture itself.
        extension: of the encoded image; None uses that of its format. "npy" is decoded already, and stays so.

    Raises:
        Refused: it does not decode fully, or the loader would refuse it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, about metadata
        picture = _decode(image, extension) if isinstance(image, bytes) else image
        plain = as_8_bits(picture)
        limit = rendering.decoded or rendering.max_size
        small = plain if limit is None or min(plain.size) <= limit else _downsize(plain, limit)
        if rendering.decoded is not None or extension == ARRAY_EXTENSION:
            return ARRAY_EXTENSION, _npy(np.asarray(small.convert("RGB")))
        if small is not plain:
            quality = DEFAULT_QUALITY if rendering.quality is None else rendering.quality
            intervals = {} if rendering.seekable is None else restart_option(small)
            return "jpg", _encode(small, "JPEG", quality=quality, **intervals, **_orientation_option(image))
        if isinstance(image, bytes) and (file_format := image_format(np.frombuffer(image, np.uint8))) in _EXTENSIONS:
            if file_format == "jpeg" and rendering.seekable is not None:
                image = make_seekable(image, picture)
            return extension or _EXTENSIONS[file_format], image
        return "png", _encode(plain, "PNG", **_orientation_option(image))


def _decode(data: bytes, extension: str | None) -> Image.Image:
    """Decodes a picture as stored, without EXIF rotation."""
    if not data:
        raise Refused("the file is empty")
    encoded = np.frombuffer(data, np.uint8)
    if extension == ARRAY_EXTENSION:
        return Image.fromarray(admit_array(encoded)[0])
    file_format = image_format(encoded)
    if file_format is None:
        raise Refused(_cause_in_header(data))
    if file_format in RARE_FORMATS:
        return decode(data)
    file = decoder_png(encoded) if file_format == "png" else encoded
    try:
        picture = Image.open(io.BytesIO(file), formats=("JPEG", "PNG", "WEBP"))
        check_size(picture.height, picture.width)
        _CHECKS[file_format](file)
        picture.load()
    except (MemoryError, Refused):
        raise
    except UnidentifiedImageError:
        raise Refused(_cause_in_header(data)) from None
    except Exception as error:  # noqa: BLE001 - Pillow's decoders raise errors of any type
        raise Refused(f"Pillow cannot decode it: {error or type(error).__name__}") from None
    return picture


def _cause_in_header(data: bytes) -> str:
    known = ", ".join(["JPEG", "PNG", "WebP", *RARE_FORMATS.values()])
    return f"none of {known}, or a broken header (it begins with {data[:8]!r})"


def _downsize(picture: Image.Image, shorter: int) -> Image.Image:
    """Downsizes as torchvision's Resize does; antialiased by Pillow."""
    width, height = picture.size
    longer = int(shorter * max(width, height) / min(width, height))
    size = (shorter, longer) if width <= height else (longer, shorter)
    return picture.resize(size, Image.Resampling.BILINEAR)


def _orientation_option(image: bytes | Image.Image) -> dict[str, Image.Exif]:
    """Returns Pillow's option that keeps the original's orientation in a new file, for readers that turn pictures."""
    if not isinstance(image, bytes):
        return {}
    try:
        original = Image.open(io.BytesIO(image), formats=("JPEG", "PNG", "WEBP", "TIFF"))
        orientation = Image.Image.getexif(original).get(ORIENTATION)  # a PNG's own method would decode it first
    except Exception:  # noqa: BLE001 - broken metadata makes no bad picture
        return {}
    if orientation not in TURNED_BACK:
        return {}
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return {"exif": exif}


def _encode(picture: Image.Image, image_format: str, **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, image_format, **options)
    return file.getvalue()


def _npy(pixels: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.ascontiguousarray(pixels), version=(1, 0), allow_pickle=False)
    return file.getvalue()
