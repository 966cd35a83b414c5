"""TIFF, BMP, PNM, JPEG 2000, GIF and AVIF: decoded in another process, which may die or want too much."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from bad_images import half, j2k_claiming
from making import encoded, picture, write_shard
from PIL import Image, ImageOps, features
from verdicts import verdict

from gpuloader.images.traits import ANIMATED
from gpuloader.pack import pack, rare_formats

PICTURE = picture(48, 64)
GOOD = encoded(PICTURE, "JPEG2000")
STREAM = encoded(PICTURE, "JPEG2000", no_jp2=True)


def decoded(data: bytes) -> Image.Image | str:
    found = verdict(rare_formats.decode, data)
    return found if isinstance(found, str) else found[0]


def is_good(found: Image.Image | str) -> bool:
    return not isinstance(found, str) and np.array_equal(np.asarray(found), np.asarray(PICTURE))


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (half(GOOD), "Pillow cannot decode it: "),
        (j2k_claiming(2**31, 2**31), "2147483648x2147483648 pixels, more than 100,000,000"),
        # What is in the text of an error is not an address, so the cause is the same each time.
        (encoded(PICTURE, "TIFF")[:8], "Pillow cannot read its header"),
        (half(encoded(PICTURE, "BMP")), "Pillow cannot decode it: image file is truncated"),
    ],
)
def test_what_cannot_be_decoded_has_a_cause(data: bytes, cause: str) -> None:
    said = decoded(data)
    assert isinstance(said, str)
    assert cause in said
    assert decoded(data) == said


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA"])
def test_of_a_gif_the_first_frame_is_decoded(mode: str) -> None:
    frames = [picture(48, 64, seed).convert(mode) for seed in (1, 2)]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    found, traits = rare_formats.decode(data)
    first = Image.open(io.BytesIO(data)).convert("RGB")
    assert np.array_equal(np.asarray(found.convert("RGB")), np.asarray(first))
    assert traits & ANIMATED


needs_avif = pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")


@needs_avif
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_avif_is_decoded_upright(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(PICTURE, "AVIF", exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert np.array_equal(np.asarray(decoded(data)), np.asarray(expected))
    assert expected.size == ((64, 48) if orientation < 5 else (48, 64))


@needs_avif
def test_without_avif_in_pillow_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(PICTURE, "AVIF")
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['PIL._avif'] = None")
    monkeypatch.syspath_prepend(tmp_path)
    rare_formats._process.close()
    said = decoded(data)
    rare_formats._process.close()
    assert "pip install -U pillow" in str(said)


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A decoder that does to its process what is written behind an image."""
    (tmp_path / "sitecustomize.py").write_text(
        "import io, os, resource, signal\n"
        "from PIL.Jpeg2KImagePlugin import Jpeg2KImageFile as kind\n"
        "load = kind.load\n"
        "def odd(self):\n"
        "    if self.fp: exec(self.fp.getvalue().partition(b'#do ')[2])\n"
        "    return load(self)\n"
        "kind.load = odd\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rare_formats._process.close()
    yield
    rare_formats._process.close()


@pytest.mark.usefixtures("odd")
@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "decoding it ends the process (SIGSEGV)"),
        ("os._exit(3)", "decoding it ends the process (exit status 3)"),
        ("bytes(1 << 30)", "decoding it takes more than 128 MiB and 48 bytes for each pixel"),
        ("resource.setrlimit(resource.RLIMIT_CPU, (1, -1))\nwhile 1: 0", "decoding it ends the process (SIGXCPU)"),
        ("raise ValueError(9 < resource.getrlimit(resource.RLIMIT_CPU)[0] < 20)", "Pillow cannot decode it: True"),
        ("raise ValueError(len(os.listdir('/proc/self/task')))", "Pillow cannot decode it: 1"),
    ],
)
def test_what_a_picture_does_to_its_process_is_its_cause_and_no_others(code: str, cause: str) -> None:
    assert is_good(decoded(GOOD))
    assert decoded(GOOD + b"#do " + code.encode()) == cause
    assert is_good(decoded(GOOD))


@pytest.mark.usefixtures("odd")
def test_a_picture_that_ends_its_process_is_left_out_by_name(tmp_path: Path) -> None:
    bad = GOOD + b"#do os.abort()"
    samples = [{"__key__": name, "jp2": data, "cls": b"0"} for name, data in (("a", GOOD), ("b", bad), ("c", STREAM))]
    source = write_shard(tmp_path / "a.tar", samples)
    result = pack(str(source), tmp_path / "packed", workers=1)
    assert [(left.key, left.why) for left in result.left_out] == [("b", "decoding it ends the process (SIGABRT)")]


def test_a_process_that_ended_is_started_again() -> None:
    assert is_good(decoded(GOOD))
    process = rare_formats._process.process
    assert process is not None
    process.kill()
    process.wait()
    assert is_good(decoded(GOOD))


def test_an_answer_that_an_interrupt_left_is_not_taken_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    read, interrupts = os.read, [KeyboardInterrupt]

    def interrupted(*arguments: int) -> bytes:
        if interrupts:
            raise interrupts.pop()
        return read(*arguments)

    decoded(GOOD)
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            decoded(GOOD)
    found = decoded(encoded(picture(20, 30), "JPEG2000"))
    assert not isinstance(found, str)
    assert found.size == (30, 20)


def test_threads_take_turns() -> None:
    images = [encoded(picture(20, 30 + number), "JPEG2000") for number in range(12)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(decoded, images))
    assert [image.size for image in found] == [(30 + number, 20) for number in range(12)]


def test_a_forked_child_has_a_process_of_its_own() -> None:
    decoded(GOOD)
    process = rare_formats._process.process
    assert process is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if not child:
        well = False
        with suppress(BaseException):
            well = is_good(decoded(GOOD))
            rare_formats._process.close()
        os._exit(0 if well else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert process.poll() is None
    assert is_good(decoded(GOOD))


def test_the_process_ends_with_its_parent() -> None:
    code = (
        "import os, sys; from gpuloader.pack import rare_formats; rare_formats.decode(sys.stdin.buffer.read());"
        "print(rare_formats._process.process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    run = subprocess.run([sys.executable, "-c", code], input=GOOD, capture_output=True, check=False)
    assert run.returncode == -signal.SIGKILL
    process = Path(f"/proc/{int(run.stdout)}/stat")
    deadline = time.monotonic() + 30
    while process.exists() and process.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_damaged_files_end_nothing() -> None:
    rng = np.random.default_rng(7)
    files = [GOOD, STREAM, encoded(PICTURE, "GIF"), *([encoded(PICTURE, "AVIF")] if features.check("avif") else ())]
    for number in range(120):
        damaged = np.frombuffer(files[number % len(files)], np.uint8).copy()
        damaged[rng.integers(0, 300, 3)] = rng.integers(0, 256, 3)
        decoded(damaged.tobytes())
    assert is_good(decoded(GOOD))
