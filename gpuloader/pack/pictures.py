"""Handles one picture: decodes it to check it, then copies, downsizes or converts it, and makes smaller copies."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from gpuloader.images.arrays import MAGIC, admit_array
from gpuloader.images.formats import RARE_FORMATS, image_format
from gpuloader.images.header import image_header
from gpuloader.images.jpeg import check_jpeg, decoder_jpeg
from gpuloader.images.limits import RefusalError, check_size
from gpuloader.images.mipmaps import LARGEST_SIDE, are_made, extension_of, size_of
from gpuloader.images.png import check_data, decoder_png
from gpuloader.images.traits import PROFILE
from gpuloader.images.webp import check_webp
from gpuloader.pack.options import SUBSAMPLING, Options
from gpuloader.pack.rare_formats import ORIENTATION, TURNED_BACK, as_8_bits, decode, traits_of
from gpuloader.pack.seekable import make_seekable, restart_option
from gpuloader.shards.pictures import ARRAY_EXTENSION

DEFAULT_QUALITY = 90

_EXTENSIONS = {"jpeg": "jpg", "png": "png", "webp": "webp"}  # of files that are copied
_FILES = {"jpeg": decoder_jpeg, "png": decoder_png}
_CHECKS = {"jpeg": check_jpeg, "png": check_data, "webp": check_webp}


class EncodedPicture(NamedTuple):
    """A picture as it is packed.

    Attributes:
        extension, image: the member of the picture.
        mipmaps: its mipmaps, by extension; None if no mipmaps are asked for, and the mipmaps in the source still
            fit.
        traits: of the source's picture, as `traits_of` returns them.
    """

    extension: str
    image: bytes
    mipmaps: Mapping[str, bytes] | None
    traits: int = 0


def render(image: bytes | Image.Image, extension: str | None, options: Options) -> EncodedPicture:
    """Returns a picture's member, and its mipmaps.

    A JPEG, PNG or WebP is copied unless it is downsized. All others become PNGs, 8-bit gray or RGB, with the pixels
    that the loader would deliver.

    Args:
        image: encoded, or the picture itself.
        extension: of the encoded image; None uses the extension of its format. "npy" is decoded already, and stays
            decoded.

    Raises:
        RefusalError: it does not decode fully, or the loader would refuse it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, about metadata
        picture, traits = _decode(image, extension) if isinstance(image, bytes) else (image, traits_of(image))
        plain = as_8_bits(picture)
        limit = options.decoded or options.max_size
        small = plain
        if limit is not None and min(plain.size) > limit:  # as torchvision's Resize; antialiased by Pillow
            height, width = size_of(plain.height, plain.width, limit)
            small = plain.resize((width, height), Image.Resampling.BILINEAR)
        if options.decoded is not None or extension == ARRAY_EXTENSION:
            return EncodedPicture(ARRAY_EXTENSION, _npy(np.asarray(small.convert("RGB"))), {}, traits)
        if small is not plain and max(small.size) > LARGEST_SIDE:
            raise RefusalError(
                f"downsized to {small.width}x{small.height} pixels, it is longer than a JPEG may be, {LARGEST_SIDE:,}: "
                f"crop it, or lower max_size"
            )
        makes_jpegs = options.mipmaps is not None or small is not plain
        written = {"quality": options.quality or DEFAULT_QUALITY, "subsampling": SUBSAMPLING}
        written |= _orientation_option(image) if makes_jpegs else {}
        mipmaps = _mipmaps(small, options.mipmaps or (), written) if makes_jpegs else None
        if small is not plain:
            intervals = restart_option(small) if options.seekable else {}
            return EncodedPicture("jpg", _encode(small, "JPEG", **written, **intervals), mipmaps, traits)
        if isinstance(image, bytes) and (file_format := image_format(np.frombuffer(image, np.uint8))) in _EXTENSIONS:
            if file_format == "jpeg" and options.seekable:
                image = make_seekable(image, picture)
            return EncodedPicture(extension or _EXTENSIONS[file_format], image, mipmaps, traits)
        return EncodedPicture("png", _encode(plain, "PNG", **_orientation_option(image)), mipmaps, traits)


def _mipmaps(picture: Image.Image, sides: Sequence[int], options: Mapping[str, object]) -> dict[str, bytes]:
    """Makes the mipmaps of a picture as seekable JPEGs; none if it is too small for them.

    Each mipmap is made from the one before: this takes two thirds of the time, and costs 0.1 dB.
    """
    mipmaps, mipmap = {}, picture
    for side in sides if are_made(np.array([[picture.height, picture.width]]), sides).all() else ():
        height, width = size_of(picture.height, picture.width, side)
        mipmap = mipmap.resize((width, height), Image.Resampling.LANCZOS)
        mipmaps[extension_of(side)] = _encode(mipmap, "JPEG", **options, **restart_option(mipmap))
    return mipmaps


def _decode(data: bytes, extension: str | None) -> tuple[Image.Image, int]:
    """Decodes a picture as stored, without EXIF rotation; returns its traits, too."""
    if not data:
        raise RefusalError("the file is empty")
    encoded = np.frombuffer(data, np.uint8)
    if extension == ARRAY_EXTENSION or data.startswith(MAGIC):
        return Image.fromarray(admit_array(encoded)[0]), 0
    file_format = image_format(encoded)
    if file_format is None:
        raise RefusalError(_cause_in_header(data))
    if file_format in RARE_FORMATS:
        return decode(data)
    file = _FILES[file_format](encoded) if file_format in _FILES else encoded
    try:
        picture = Image.open(io.BytesIO(file), formats=("JPEG", "PNG", "WEBP"))
        check_size(picture.height, picture.width)
        _CHECKS[file_format](file)
        picture.load()
    except (MemoryError, RefusalError):
        raise
    except UnidentifiedImageError:
        raise RefusalError(_cause_in_header(data)) from None
    except Exception as error:  # noqa: BLE001 - Pillow's decoders raise errors of any type
        raise RefusalError(f"Pillow cannot decode it: {error or type(error).__name__}") from None
    announced = image_header(lambda count, offset: data[offset : offset + count])[2]
    if file_format == "png" and announced & PROFILE:
        with suppress(Exception):  # Pillow raises errors of any type
            picture.info["icc_profile"] = Image.open(io.BytesIO(data), formats=("PNG",)).info["icc_profile"]
    return picture, traits_of(picture, announced)


def _cause_in_header(data: bytes) -> str:
    known = ", ".join(["JPEG", "PNG", "WebP", *RARE_FORMATS.values()])
    return f"none of {known}, or a broken header (it begins with {data[:8]!r})"


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
