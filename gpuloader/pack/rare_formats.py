"""Decodes TIFF, BMP, PNM, JPEG 2000, GIF and AVIF with Pillow in a process of its own, which a damaged file may end.

The process is started at the first such picture, and kept. It writes a line of JSON when it is ready. A request is a
line of JSON, the number of bytes, followed by the file. The answer is a line of JSON:

    {"mode": "L" or "RGB", "size": [width, height], "traits": bits}  the pixels follow, as stored
    {"cause": text}                                                  why the picture is bad
"""

from __future__ import annotations

import atexit
import io
import json
import resource
import sys
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError, features
from PIL.BmpImagePlugin import BmpImageFile
from PIL.Jpeg2KImagePlugin import Jpeg2KImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile

from gpuloader.base.child_processes import ChildProcess, write_all
from gpuloader.base.forking import at_fork
from gpuloader.errors import PackError
from gpuloader.images.limits import RefusalError, check_size
from gpuloader.images.traits import ALPHA, ANIMATED, DEEP, PROFILE
from gpuloader.pack.tiff import check_tiff

ORIENTATION = 0x0112
"""The EXIF tag."""

# Pillow turns TIFFs by their orientation, but no other format; the library turns none.
TURNED_BACK = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
"""How to turn back what an EXIF orientation turned."""

# For one picture, on top of the process's own memory: OpenJPEG keeps samples in 32 bits, some of them three times.
_SPARE_BYTES = 128 << 20
_BYTES_PER_PIXEL = 48
_BYTES_PER_BYTE = 4
_SECONDS = 10  # of CPU time, plus one for each million pixels and bytes: four times what noise takes

_ERROR_CHARACTERS = 200
_TIFF_BITS, _J2K, _J2K_BITS_AT = 258, b"\xff\x4f\xff\x51", 42  # the codestream's beginning; its first component
_TAGS_AT, _TAG_BYTES, _TAGS_END = 132, 12, 4096  # of an ICC profile
_FORMATS = (*(kind.format for kind in (TiffImageFile, BmpImageFile, PpmImageFile, Jpeg2KImageFile)), "GIF")


def decode(encoded: bytes) -> tuple[Image.Image, int]:
    """Decodes a picture to 8-bit gray or RGB as stored, without alpha, and not turned; also returns its `traits_of`.

    Raises:
        RefusalError: it cannot be decoded, or it ends the process.
        PackError: the process does not start.
    """
    with _process.lock:
        try:
            found = _ask(encoded) or _ask(encoded)  # the process may have ended since the last one
        except RefusalError:
            raise
        except BaseException:
            _process.close()  # otherwise its late answer would be taken for the next picture's
            raise
    if found is None:
        raise RefusalError(f"decoding it ends the process ({_process.end})")
    return found


def traits_of(picture: Image.Image, announced: int = 0) -> int:
    """Returns the traits of a decoded picture, in Pillow's own mode, given those that its header announces.

    It has ALPHA if a pixel's alpha is below 255, and PROFILE if its ICC profile has no description that names sRGB.
    """
    profile = picture.info.get("icc_profile", b"")
    deep = DEEP * picture.mode.startswith("I")
    tinted = PROFILE * bool((profile or announced & PROFILE) and not _names_srgb(profile))
    frames = ANIMATED * (getattr(picture, "is_animated", False) and picture.format != "MPO")
    return announced & (DEEP | ANIMATED) | deep | tinted | frames | ALPHA * _is_transparent(picture)


def _is_transparent(picture: Image.Image) -> bool:
    if not (picture.mode.lower().endswith("a") or "transparency" in picture.info):
        return False
    if picture.mode.startswith("I"):  # which Pillow converts without comparing it with the transparent level
        return bool((np.asarray(picture) == picture.info["transparency"]).any())
    return bool((np.asarray(picture.convert("RGBA"))[..., 3] < 255).any())


def _names_srgb(profile: bytes) -> bool:
    """Returns whether the tag desc of an ICC profile names sRGB (ICC.1:2022, section 7.3)."""
    for at in range(_TAGS_AT, min(len(profile), _TAGS_END), _TAG_BYTES):
        if profile[at : at + 4] == b"desc":
            start, size = (int.from_bytes(profile[at + each : at + each + 4], "big") for each in (4, 8))
            text = profile[start : start + size]
            return b"sRGB" in text or "sRGB".encode("utf-16-be") in text
    return False


def _is_deep(picture: Image.Image, encoded: bytes) -> bool:
    """Returns whether a picture that Pillow opened, and did not load yet, has more than 8 bits."""
    if isinstance(picture, TiffImageFile):
        return max(picture.tag_v2.get(_TIFF_BITS, (1,))) > 8
    if isinstance(picture, PpmImageFile):  # has its largest level here
        return any(isinstance(each, int) and each > 255 for each in picture.tile[0].args or ())
    return isinstance(picture, Jpeg2KImageFile) and encoded[encoded.find(_J2K) + _J2K_BITS_AT] & 0x7F > 7


def as_8_bits(picture: Image.Image) -> Image.Image:
    """Converts a picture to 8-bit RGB or gray, without an alpha channel; of 16 bits, the high 8 are kept.

    Raises:
        RefusalError: its mode has no levels of 8 or 16 bits, or Pillow does not convert it.
    """
    if picture.mode in ("RGB", "L"):
        return picture
    if picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format in ("PNG", "PPM")):
        return Image.frombytes("L", picture.size, picture.tobytes("raw", "I;16B")[::2])
    if picture.mode in ("I", "F"):
        raise RefusalError(f"Pillow's mode {picture.mode} is not supported: allowed are 8 and 16 bits per sample")
    try:
        return picture.convert("L" if picture.mode in ("1", "LA", "La") else "RGB")
    except ValueError as error:
        raise RefusalError(str(error)) from None


def _ask(encoded: bytes) -> tuple[Image.Image, int] | None:
    """Returns the decoded picture and its traits; None if the process ended."""
    answer = _process.ask(len(encoded), encoded)
    if answer is None:
        return None
    if "cause" in answer:
        raise RefusalError(answer["cause"])
    (width, height), mode = answer["size"], answer["mode"]
    pixels = bytearray(width * height * len(mode))
    filled = _process.fill(memoryview(pixels))
    return (Image.frombytes(mode, (width, height), pixels), answer["traits"]) if filled else None


def serve() -> None:
    """Runs in the process: answers requests until there are no more."""
    Image.MAX_IMAGE_PIXELS = None  # `check_size` has a bound
    warnings.simplefilter("ignore")  # Pillow's, about metadata
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if features.check("avif"):
        from PIL import AvifImagePlugin

        AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # their stacks count
    requests, answers = sys.stdin.buffer, sys.stdout.fileno()
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    write_all(answers, b"{}\n")
    while line := requests.readline():
        answer, pixels = _answer(requests.read(json.loads(line)), used_bytes)
        write_all(answers, json.dumps(answer).encode() + b"\n")
        write_all(answers, pixels)


def _answer(encoded: bytes, used_bytes: int) -> tuple[dict[str, object], bytes]:
    try:
        picture, traits = _decode(encoded, used_bytes)
        return {"mode": picture.mode, "size": picture.size, "traits": traits}, picture.tobytes()
    except RefusalError as error:
        return {"cause": error.cause}, b""
    except MemoryError:
        room = f"{_SPARE_BYTES >> 20} MiB and {_BYTES_PER_PIXEL} bytes for each pixel"
        return {"cause": f"decoding it takes more than {room}"}, b""
    except UnidentifiedImageError:
        return {"cause": "Pillow cannot read its header"}, b""
    except Exception as error:  # noqa: BLE001 - Pillow's decoders raise errors of any type
        return {"cause": f"Pillow cannot decode it: {str(error)[:_ERROR_CHARACTERS] or type(error).__name__}"}, b""
    finally:
        _bound(resource.RLIMIT_AS, None)


def _decode(encoded: bytes, used_bytes: int) -> tuple[Image.Image, int]:
    is_avif = encoded[4:8] == b"ftyp"
    if is_avif and not features.check("avif"):
        raise RefusalError("this Pillow reads no AVIF: `pip install -U pillow` brings one that does, from 11.3 on")
    _bound(resource.RLIMIT_AS, used_bytes + _SPARE_BYTES + _BYTES_PER_BYTE * len(encoded))
    picture: Image.Image = Image.open(io.BytesIO(encoded), formats=("AVIF",) if is_avif else _FORMATS)
    check_size(picture.height, picture.width)
    pixels, turned = picture.width * picture.height, None
    _bound(resource.RLIMIT_AS, used_bytes + _SPARE_BYTES + _BYTES_PER_BYTE * len(encoded) + _BYTES_PER_PIXEL * pixels)
    used_seconds = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    _bound(resource.RLIMIT_CPU, int(used_seconds) + _SECONDS + (pixels + len(encoded)) // 1_000_000)
    if isinstance(picture, TiffImageFile):
        check_tiff(picture, encoded)
        turned = TURNED_BACK.get(picture.getexif().get(ORIENTATION, 1))  # Pillow forgets it in `load`
    announced = DEEP * _is_deep(picture, encoded)
    picture.load()
    traits = traits_of(picture, announced)
    if is_avif:  # whose orientation is no metadata, but part of decoding
        ImageOps.exif_transpose(picture, in_place=True)
    return as_8_bits(picture if turned is None else picture.transpose(turned)), traits


def _bound(kind: int, bound: int | None) -> None:
    """Limits a resource of this process; None removes the limit. An inherited limit stays."""
    most = resource.getrlimit(kind)[1]
    if bound is None or most != resource.RLIM_INFINITY:
        bound = most if bound is None else min(bound, most)
    resource.setrlimit(kind, (bound, most))


_process = ChildProcess("decodes with Pillow", PackError, "-c", f"from {__name__} import serve; serve()")
atexit.register(_process.close)
at_fork(_process, ChildProcess.leave_to_the_parent)
