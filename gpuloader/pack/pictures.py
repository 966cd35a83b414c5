"""Handles one picture: decodes it to check it, then copies it, downsizes it, or stores it decoded."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from gpuloader.errors import ConfigError
from gpuloader.pack.records import BadPictureError
from gpuloader.shards.array_header import array_gate, pixels
from gpuloader.shards.image_checks import cause_in_jpeg, cause_in_pnm, cause_in_size
from gpuloader.shards.image_claims import cause_in_claims
from gpuloader.shards.index import ARRAY_EXTENSION

DEFAULT_QUALITY = 90

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "JPEG2000", "PPM")  # Pillow's names of those that the loader reads
_EXTENSIONS = dict(zip(_FORMATS, ("jpg", "png", "webp", "bmp", "tif", "jp2", "ppm"), strict=True))
_ORIENTATION = 0x0112
_TURNED_BACK = {  # Pillow turns TIFFs by their orientation, but no other format; the loader turns none
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@dataclass(frozen=True)
class Rendering:
    """What to do with every picture; see `pack`.

    Attributes:
        max_size: the most pixels of the shorter side; None for any.
        quality: of the JPEGs that downsizing makes.
        decoded: the most pixels of the shorter side of a picture that is stored decoded; None stores it encoded.
    """

    max_size: int | None = None
    quality: int | None = None
    decoded: int | None = None

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
        if self.quality is not None and self.max_size is None:
            raise ConfigError(
                "quality was given without max_size: pictures that are not downsized are copied unchanged"
            )


def render(image: bytes | Image.Image, extension: str | None, rendering: Rendering) -> tuple[str, bytes]:
    """The extension and content of a picture's member.

    Args:
        image: encoded, or the picture itself, which is stored as a PNG unless it is downsized.
        extension: of the encoded image; None uses that of its format. "npy" is decoded already, and stays so.

    Raises:
        BadPictureError: it does not decode fully, or the loader would refuse it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, about metadata
        picture, orientation = _decode(image, extension) if isinstance(image, bytes) else (image, None)
        plain = _as_8_bits(picture)
        limit = rendering.decoded or rendering.max_size
        small = plain if limit is None or min(plain.size) <= limit else _downsize(plain, limit)
        if rendering.decoded is not None or extension == ARRAY_EXTENSION:
            return ARRAY_EXTENSION, _npy(np.asarray(small.convert("RGB")))
        if small is not plain:
            quality = DEFAULT_QUALITY if rendering.quality is None else rendering.quality
            return "jpg", _encode(small, "JPEG", quality=quality, **_orientation_option(orientation))
        if isinstance(image, bytes):
            return extension or _EXTENSIONS.get(picture.format or "", "jpg"), image  # MPO, say, is a JPEG
        return "png", _encode(plain, "PNG")


def _decode(data: bytes, extension: str | None) -> tuple[Image.Image, int | None]:
    """The picture as stored, without EXIF rotation, and the orientation in its EXIF."""
    if not data:
        raise BadPictureError("the file is empty")
    encoded = np.frombuffer(data, np.uint8)
    if extension == ARRAY_EXTENSION:
        size = array_gate(encoded)
        if isinstance(size, str):
            raise BadPictureError(size)
        return Image.fromarray(pixels(encoded, size)), None
    try:
        picture: Image.Image = Image.open(io.BytesIO(data), formats=_FORMATS)
        orientation, cause = None, cause_in_size(picture.height, picture.width) or cause_in_claims(encoded)
        if picture.format in ("JPEG", "MPO"):
            cause = cause or cause_in_jpeg(encoded)
        elif picture.format == "PPM":
            cause = cause or cause_in_pnm(encoded)
        if cause is None:
            # Pillow forgets a TIFF's orientation when it loads it, and would load a PNG to look for one.
            orientation = _orientation(picture) if picture.format == "TIFF" else None
            picture.load()
            orientation = orientation or _orientation(picture)
    except UnidentifiedImageError:
        formats = ", ".join(_FORMATS)
        raise BadPictureError(f"none of {formats}, or a broken header (it begins with {data[:8]!r})") from None
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - Pillow's decoders raise whatever comes up in them
        raise BadPictureError(f"Pillow cannot decode it: {error or type(error).__name__}") from None
    if cause is not None:
        raise BadPictureError(cause)
    if picture.format == "TIFF" and orientation in _TURNED_BACK:
        picture = picture.transpose(_TURNED_BACK[orientation])
        picture.format = "TIFF"
    return picture, orientation


def _as_8_bits(picture: Image.Image) -> Image.Image:
    """The picture as 8-bit RGB or gray. As in the loader, an alpha channel is dropped and 16 bits keep their high 8."""
    if picture.mode in ("RGB", "L"):
        return picture
    if picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format in ("PNG", "PPM")):
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    if picture.mode in ("I", "F"):
        raise BadPictureError(f"Pillow's mode {picture.mode} is not supported: allowed are 8 and 16 bits per sample")
    return picture.convert("L" if picture.mode == "1" else "RGB")


def _downsize(picture: Image.Image, shorter: int) -> Image.Image:
    """Sizes as in torchvision's Resize; antialiased by Pillow."""
    width, height = picture.size
    longer = int(shorter * max(width, height) / min(width, height))
    size = (shorter, longer) if width <= height else (longer, shorter)
    return picture.resize(size, Image.Resampling.BILINEAR)


def _orientation(picture: Image.Image) -> int | None:
    try:
        return picture.getexif().get(_ORIENTATION)
    except Exception:  # noqa: BLE001 - broken metadata makes no bad picture
        return None


def _orientation_option(orientation: int | None) -> dict[str, Image.Exif]:
    """The option of Pillow that keeps the original's orientation in a new file, for readers that turn pictures."""
    if orientation not in _TURNED_BACK:
        return {}
    exif = Image.Exif()
    exif[_ORIENTATION] = orientation
    return {"exif": exif}


def _encode(picture: Image.Image, image_format: str, **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, image_format, **options)
    return file.getvalue()


def _npy(pixels: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.ascontiguousarray(pixels), version=(1, 0), allow_pickle=False)
    return file.getvalue()
