"""The process that converts JPEG 2000 to PNM: `python -m gpuloader.helpers.jpeg2000_process`.

It is started at the first such image, and kept. It forks for each image, so that no image is affected by another one;
it imports no more than it needs for that. It writes a line of JSON when it is ready. A request is a line of JSON,
[bytes, most pixels], followed by the file; the answer is a line of JSON, followed by a PNM in the first case:

    {"pnm": bytes}            this many bytes follow
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
from typing import TYPE_CHECKING, Any

from gpuloader.helpers.pipes import write_all

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

# For one image, on top of the process's own memory: OpenJPEG keeps samples in 32 bits, some of them three times.
_SPARE_BYTES = 128 << 20
_BYTES_PER_PIXEL = 48
_BYTES_PER_BYTE = 4
_SECONDS = 10  # of CPU time, plus one for each million pixels and bytes: four times what noise takes


def _serve() -> None:
    from PIL import Jpeg2KImagePlugin, features  # noqa: F401 - the plugin is there in each fork then

    answers, requests = sys.stdout.fileno(), sys.stdin.buffer
    if not features.check("jpg_2000"):
        sys.exit("Pillow was built without OpenJPEG: install one that has it, such as the wheel")
    used_bytes = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: PTH123, SIM115
    write_all(answers, b"{}\n")
    while line := requests.readline():
        size, max_pixels = json.loads(line)
        encoded = requests.read(size)
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
    """The answer for an image whose process ended without one."""
    if status == -signal.SIGXCPU:
        return {"cause": f"decoding it takes more than {_SECONDS} seconds and one for each million pixels and bytes"}
    if status == -signal.SIGKILL:
        return {"error": "the process that decodes a JPEG 2000 image was killed: the machine may lack memory"}
    end = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    return {"cause": f"decoding it ends the process ({end})"}


def _work(encoded: bytes, max_pixels: int, used_bytes: int, file: int) -> None:
    """Runs in a process for this image alone, and ends it."""
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        said, content = _translate(encoded, max_pixels, used_bytes)
        write_all(file, json.dumps(said).encode() + b"\n")
        write_all(file, content)
        status = 0
    finally:
        os._exit(status)


def _translate(encoded: bytes, max_pixels: int, used_bytes: int) -> tuple[dict[str, Any], bytes]:
    from PIL.Jpeg2KImagePlugin import Jpeg2KImageFile

    try:
        _bound(len(encoded), 0, used_bytes)
        picture = Jpeg2KImageFile(io.BytesIO(encoded))
        pixels = picture.width * picture.height
        if pixels > max_pixels:
            return {"size": [picture.height, picture.width]}, b""
        _bound(len(encoded), pixels, used_bytes)
        content = _pnm(picture)
        return {"pnm": len(content)}, content
    except MemoryError:
        room = f"{_SPARE_BYTES >> 20} MiB and {_BYTES_PER_PIXEL} bytes for each pixel"
        return {"cause": f"decoding it takes more than {room}"}, b""
    except SyntaxError as error:
        return {"cause": f"a JPEG 2000 image with a broken header ({error})"}, b""
    except Exception as error:  # noqa: BLE001 - Pillow's decoders raise whatever comes up in them
        return {"cause": f"Pillow cannot decode it: {error or type(error).__name__}"}, b""


def _bound(size_bytes: int, pixels: int, used_bytes: int) -> None:
    """Limits memory and time to what an image of this size may take, on top of the process's own memory."""
    for kind, bound in (
        (resource.RLIMIT_AS, used_bytes + _SPARE_BYTES + _BYTES_PER_BYTE * size_bytes + _BYTES_PER_PIXEL * pixels),
        (resource.RLIMIT_CPU, _SECONDS + (pixels + size_bytes) // 1_000_000),
    ):
        most = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (bound if most == resource.RLIM_INFINITY else min(bound, most), most))


def _pnm(picture: Picture) -> bytes:
    """The form that DALI would give: without alpha, and other colours as RGB."""
    if picture.mode.startswith("I;16"):
        kind, white, content = 5, 65535, picture.tobytes("raw", "I;16B")
    elif picture.mode in ("L", "LA"):
        kind, white, content = 5, 255, picture.convert("L").tobytes()
    else:
        kind, white, content = 6, 255, picture.convert("RGB").tobytes()
    return b"P%d\n%d %d\n%d\n" % (kind, *picture.size, white) + content


if __name__ == "__main__":
    _serve()
