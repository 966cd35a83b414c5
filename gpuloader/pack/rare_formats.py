"""Decodes TIFF, BMP, PNM and JPEG 2000 with Pillow in a process of its own, which a damaged file may end.

The process is started at the first such picture, and kept. It writes a line of JSON when it is ready. A request is a
line of JSON, the number of bytes, followed by the file. The answer is a line of JSON:

    {"mode": "L" or "RGB", "size": [width, height]}  the pixels follow, as stored
    {"cause": text}                                  why the picture is bad
"""

from __future__ import annotations

import atexit
import io
import json
import resource
import sys
import warnings

from PIL import Image, UnidentifiedImageError
from PIL.BmpImagePlugin import BmpImageFile
from PIL.Jpeg2KImagePlugin import Jpeg2KImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile

from gpuloader.errors import PackError
from gpuloader.helpers.child_processes import ChildProcess, write_all
from gpuloader.helpers.forking import at_fork
from gpuloader.images.limits import RefusalError, check_size
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
_FORMATS = tuple(kind.format for kind in (TiffImageFile, BmpImageFile, PpmImageFile, Jpeg2KImageFile))


def decode(encoded: bytes) -> Image.Image:
    """Decodes a picture to 8-bit gray or RGB as stored: without an alpha channel, and not turned.

    Raises:
        RefusalError: it cannot be decoded, or it ends the process.
        PackError: the process does not start.
    """
    with _process.lock:
        try:
            picture = _ask(encoded) or _ask(encoded)  # the process may have ended since the last one
        except RefusalError:
            raise
        except BaseException:
            _process.close()  # otherwise its late answer would be taken for the next picture's
            raise
    if picture is None:
        raise RefusalError(f"decoding it ends the process ({_process.end})")
    return picture


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


def _ask(encoded: bytes) -> Image.Image | None:
    """Returns the decoded picture; None if the process ended."""
    answer = _process.ask(len(encoded), encoded)
    if answer is None:
        return None
    if "cause" in answer:
        raise RefusalError(answer["cause"])
    (width, height), mode = answer["size"], answer["mode"]
    pixels = bytearray(width * height * len(mode))
    return Image.frombytes(mode, (width, height), pixels) if _process.fill(memoryview(pixels)) else None


def serve() -> None:
    """Runs in the process: answers requests until there are no more."""
    Image.MAX_IMAGE_PIXELS = None  # `check_size` has a bound
    warnings.simplefilter("ignore")  # Pillow's, about metadata
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    requests, answers = sys.stdin.buffer, sys.stdout.fileno()
    used_bytes = _used_bytes()
    write_all(answers, b"{}\n")
    while line := requests.readline():
        answer, pixels = _answer(requests.read(json.loads(line)), used_bytes)
        write_all(answers, json.dumps(answer).encode() + b"\n")
        write_all(answers, pixels)


def _answer(encoded: bytes, used_bytes: int) -> tuple[dict[str, object], bytes]:
    try:
        picture = _decode(encoded, used_bytes)
        return {"mode": picture.mode, "size": picture.size}, picture.tobytes()
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


def _decode(encoded: bytes, used_bytes: int) -> Image.Image:
    _bound(resource.RLIMIT_AS, used_bytes + _SPARE_BYTES + _BYTES_PER_BYTE * len(encoded))
    picture: Image.Image = Image.open(io.BytesIO(encoded), formats=_FORMATS)
    check_size(picture.height, picture.width)
    pixels, turned = picture.width * picture.height, None
    _bound(resource.RLIMIT_AS, used_bytes + _SPARE_BYTES + _BYTES_PER_BYTE * len(encoded) + _BYTES_PER_PIXEL * pixels)
    used_seconds = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    _bound(resource.RLIMIT_CPU, int(used_seconds) + _SECONDS + (pixels + len(encoded)) // 1_000_000)
    if isinstance(picture, TiffImageFile):
        check_tiff(picture, encoded)
        turned = TURNED_BACK.get(picture.getexif().get(ORIENTATION, 1))  # Pillow forgets it in `load`
    picture.load()
    return as_8_bits(picture if turned is None else picture.transpose(turned))


def _bound(kind: int, bound: int | None) -> None:
    """Limits a resource of this process; None removes the limit. An inherited limit stays."""
    most = resource.getrlimit(kind)[1]
    if bound is None or most != resource.RLIM_INFINITY:
        bound = most if bound is None else min(bound, most)
    resource.setrlimit(kind, (bound, most))


def _used_bytes() -> int:
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[0]) * resource.getpagesize()


_process = ChildProcess("decodes with Pillow", PackError, "-c", f"from {__name__} import serve; serve()")
atexit.register(_process.close)
at_fork(_process, ChildProcess.leave_to_the_parent)
