"""The process that decodes TIFF, BMP, PNM and JPEG 2000 with Pillow: `python -m gpuloader.images.pillow_process`.

It is started at the first such image, and kept. It forks for each image, so that no image is affected by another one;
it imports only what it needs. It writes a line of JSON when it is ready. A request is a line of JSON,
[bytes, most pixels], followed by the file; the answer is a line of JSON, followed by the pixels in the first case:

    {"size": [height, width], "channels": 1 or 3}  the pixels follow, 8-bit gray or RGB as stored
    {"size": [height, width]} the header says more pixels than asked for; nothing was decoded
    {"cause": text}           why the image cannot be decoded
    {"error": text}           why this process cannot decode any image
"""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import sys
import warnings
from typing import Any

from PIL import Image, UnidentifiedImageError, features
from PIL.BmpImagePlugin import BmpImageFile
from PIL.Jpeg2KImagePlugin import Jpeg2KImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile

from gpuloader.helpers.child_processes import write_all
from gpuloader.images.pillow_modes import TURNED_BACK, as_8_bits
from gpuloader.images.tiff import cause_in_tiff

# For one image, on top of the process's own memory: OpenJPEG keeps samples in 32 bits, some of them three times.
_SPARE_BYTES = 128 << 20
_BYTES_PER_PIXEL = 48
_BYTES_PER_BYTE = 4
_SECONDS = 10  # of CPU time, plus one for each million pixels and bytes: four times what noise takes

_ERROR_CHARACTERS = 200
_ORIENTATION = 0x0112
_FORMATS = tuple(kind.format for kind in (TiffImageFile, BmpImageFile, PpmImageFile, Jpeg2KImageFile))


def _serve() -> None:
    for library in ("jpg_2000", "libtiff"):
        if not features.check(library):
            sys.exit(f"Pillow was built without {library}: install one that has it, such as the wheel")
    Image.preinit()  # here, because it takes longer than to decode an image
    Image.MAX_IMAGE_PIXELS = None  # a request has its own bound
    warnings.simplefilter("ignore")  # Pillow's, about metadata
    answers, requests = sys.stdout.fileno(), sys.stdin.buffer
    used_bytes = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: PTH123, SIM115
    write_all(answers, b"{}\n")
    while line := requests.readline():
        size, max_pixels = json.loads(line)
        encoded = requests.read(size)
        # The answer is first written into memory that both processes share: if the decoding one is killed in the middle
        # of it, the reader gets the reason instead of half an answer.
        file = os.memfd_create("answer")
        process = os.fork()
        if not process:
            _work(encoded, max_pixels, used_bytes, file)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if status:
            os.ftruncate(file, 0)
            os.lseek(file, 0, os.SEEK_SET)
            write_all(file, json.dumps(_explain_end(status)).encode() + b"\n")
        sent, size = 0, os.fstat(file).st_size
        while sent < size:
            sent += os.sendfile(answers, file, sent, size - sent)
        os.close(file)


def _explain_end(status: int) -> dict[str, str]:
    """Makes the answer for an image whose process ended without one."""
    if status == -signal.SIGXCPU:
        return {"cause": f"decoding it takes more than {_SECONDS} seconds and one for each million pixels and bytes"}
    if status == -signal.SIGKILL:
        return {"error": "the process that decodes an image with Pillow was killed: the machine may lack memory"}
    end = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    return {"cause": f"decoding it ends the process ({end})"}


def _work(encoded: bytes, max_pixels: int, used_bytes: int, file: int) -> None:
    """Runs in a process for this image alone, and ends it."""
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        answer, content = _decode(encoded, max_pixels, used_bytes)
        write_all(file, json.dumps(answer).encode() + b"\n")
        write_all(file, content)
        status = 0
    finally:
        os._exit(status)


def _decode(encoded: bytes, max_pixels: int, used_bytes: int) -> tuple[dict[str, Any], bytes]:
    try:
        _bound(len(encoded), 0, used_bytes)
        picture: Image.Image = Image.open(io.BytesIO(encoded), formats=_FORMATS)
        pixels = picture.width * picture.height
        if pixels > max_pixels:
            return {"size": [picture.height, picture.width]}, b""
        _bound(len(encoded), pixels, used_bytes)
        turned = None
        if isinstance(picture, TiffImageFile):
            if cause := cause_in_tiff(picture, encoded):
                return {"cause": cause}, b""
            turned = TURNED_BACK.get(picture.getexif().get(_ORIENTATION, 1))  # Pillow forgets it in `load`
        picture.load()
        picture = as_8_bits(picture if turned is None else picture.transpose(turned))
        return {"size": [picture.height, picture.width], "channels": len(picture.mode)}, picture.tobytes()
    except MemoryError:
        room = f"{_SPARE_BYTES >> 20} MiB and {_BYTES_PER_PIXEL} bytes for each pixel"
        return {"cause": f"decoding it takes more than {room}"}, b""
    except UnidentifiedImageError:
        return {"cause": "Pillow cannot read its header"}, b""
    except Exception as error:  # noqa: BLE001 - Pillow's decoders raise errors of any type
        return {"cause": f"Pillow cannot decode it: {str(error)[:_ERROR_CHARACTERS] or type(error).__name__}"}, b""


def _bound(size_bytes: int, pixels: int, used_bytes: int) -> None:
    """Limits memory and time to what an image of this size may take, on top of the process's own memory."""
    for kind, bound in (
        (resource.RLIMIT_AS, used_bytes + _SPARE_BYTES + _BYTES_PER_BYTE * size_bytes + _BYTES_PER_PIXEL * pixels),
        (resource.RLIMIT_CPU, _SECONDS + (pixels + size_bytes) // 1_000_000),
    ):
        most = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (bound if most == resource.RLIM_INFINITY else min(bound, most), most))


if __name__ == "__main__":
    _serve()
