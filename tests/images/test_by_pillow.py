"""TIFF, BMP, PNM and JPEG 2000: another process decodes them, which may die, hang or want too much without harm."""

from __future__ import annotations

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
import torch
from bad_images import half, j2k_claiming, turned
from making import encoded, jpeg, picture, write_shard
from PIL import Image
from verdicts import verdict

from gpuloader import BadImages, Compose, GPULoader
from gpuloader.errors import BadImageError, DataError, LoaderError
from gpuloader.images import by_pillow
from gpuloader.images.formats import FORMATS
from gpuloader.images.gate import admit
from gpuloader.tools.check import check_shards
from gpuloader.tools.show import Gallery
from gpuloader.transforms import CenterCrop

pytestmark = pytest.mark.slow(kept=31, of="by pillow")

PICTURE = picture(48, 64)
GRAY = PICTURE.convert("L")
CMYK = Image.merge("CMYK", [GRAY, *PICTURE.split()])
WIDE = Image.fromarray(np.asarray(GRAY, np.uint16) * 257)
GOOD = encoded(PICTURE, "JPEG2000")
STREAM = encoded(PICTURE, "JPEG2000", no_jp2=True)
SMALL = {"CenterCrop": {"size": 32}, "Resize": {"size": 36}}
REFUSED = (
    "a JPEG 2000 image: recipes decode these only if `formats` names jpeg2000; `gpuloader pack` writes them as PNG"
)


def admitted(data: bytes, max_pixels: int = 10_000) -> tuple[np.ndarray, tuple[int, int]] | str:
    return verdict(admit, np.frombuffer(data, np.uint8), max_pixels, FORMATS)


# What becomes of each mode, and the formats that can have it.
EVERY = ("TIFF", "BMP", "PPM", "JPEG2000")
MODES = [
    (PICTURE, PICTURE, EVERY),
    (GRAY, GRAY, EVERY),
    (WIDE, GRAY, ("TIFF", "PPM", "JPEG2000")),  # 16 bits
    (PICTURE.convert("1"), PICTURE.convert("1").convert("L"), ("TIFF", "BMP", "PPM")),
    (PICTURE.convert("P"), PICTURE.convert("P").convert("RGB"), ("TIFF", "BMP")),
    (CMYK, CMYK.convert("RGB"), ("TIFF",)),
    # Alpha is dropped, as of a PNG.
    (Image.merge("RGBA", [*PICTURE.split(), GRAY]), PICTURE, ("TIFF", "BMP", "JPEG2000")),
    (Image.merge("LA", [GRAY, PICTURE.split()[0]]), GRAY, ("TIFF", "JPEG2000")),
]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(encoded(image, name), expected, id=f"{name} {image.mode}")
        for image, expected, names in MODES
        for name in names
    ],
)
def test_it_becomes_pnm_of_8_bits_with_the_same_pixels(data: bytes, expected: Image.Image) -> None:
    found = admitted(data)
    assert not isinstance(found, str)
    file, size = found
    assert size == (48, 64)
    assert file.tobytes() == b"P%d\n64 48\n255\n" % (5 if expected.mode == "L" else 6) + expected.tobytes()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_no_orientation_is_applied(orientation: int) -> None:
    # Pillow applies a TIFF's.
    file, size = admitted(encoded(PICTURE, "TIFF", exif=turned(orientation)))
    assert size == (48, 64)
    assert file.tobytes().endswith(PICTURE.tobytes())


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (half(GOOD), "Pillow cannot decode it: "),
        (GOOD[:40], "Pillow cannot decode it: "),
        (GOOD[:12], "Pillow cannot decode it: "),
        (STREAM[:4], "Pillow cannot read its header"),
        (
            encoded(picture(101, 100), "JPEG2000"),
            "100x101 pixels, more than the recipe's 10,000: set `max_pixels: 10100`",
        ),
        (j2k_claiming(2**31, 2**31), "2147483648x2147483648 pixels, more than 100,000,000"),
        (j2k_claiming(0, 0), "Pillow cannot read its header"),
        # What is in the text of an error is not an address, so the cause is the same each time.
        (encoded(PICTURE, "TIFF")[:8], "Pillow cannot read its header"),
        (half(encoded(PICTURE, "BMP")), "Pillow cannot decode it: image file is truncated"),
        (b"P6 " + b"0" * 5000 + b"64 48 255\n" + bytes(64 * 48 * 3), "Token too long in file header"),
        (b"P6\n60000 60000\n255\n", "60000x60000 pixels, more than 100,000,000"),
    ],
)
def test_what_cannot_be_decoded_has_a_cause(data: bytes, cause: str) -> None:
    said = admitted(data)
    assert isinstance(said, str)
    assert cause in said
    assert admitted(data) == said


# --- the process


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
    by_pillow.server.close()
    yield
    by_pillow.server.close()


def doing(code: str) -> bytes:
    return GOOD + b"#do " + code.encode()


@pytest.mark.usefixtures("odd")
@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "decoding it ends the process (SIGSEGV)"),
        ("os._exit(3)", "decoding it ends the process (exit status 3)"),
        ("bytes(1 << 30)", "decoding it takes more than 128 MiB and 48 bytes for each pixel"),
        (
            "resource.setrlimit(resource.RLIMIT_CPU, (1, -1))\nwhile True: pass",
            "decoding it takes more than 10 seconds and one for each million pixels and bytes",
        ),
        ("raise ValueError(resource.getrlimit(resource.RLIMIT_CPU)[0])", "Pillow cannot decode it: 10"),
        ("raise ValueError(len(os.listdir('/proc/self/task')))", "Pillow cannot decode it: 1"),
    ],
)
def test_what_an_image_does_to_its_process_is_its_cause_and_no_others(code: str, cause: str) -> None:
    assert not isinstance(admitted(GOOD), str)
    process = by_pillow.server.process
    assert admitted(doing(code)) == cause
    assert not isinstance(admitted(GOOD), str)
    assert by_pillow.server.process is process


@pytest.mark.usefixtures("odd")
def test_what_is_not_an_images_fault_is_an_error() -> None:
    with pytest.raises(LoaderError, match="was killed: the machine may lack memory"):
        admitted(doing("os.kill(os.getpid(), signal.SIGKILL)"))
    with pytest.raises(LoaderError, match="was ended twice"):
        admitted(doing("os.kill(os.getppid(), signal.SIGKILL)"))
    assert not isinstance(admitted(GOOD), str)


@pytest.mark.usefixtures("odd")
def test_a_process_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    admitted(GOOD)
    monkeypatch.setattr(by_pillow, "MOST_WAITING_SECONDS", 0.3)
    with pytest.raises(LoaderError, match=r"did not answer for 0\.3 seconds"):
        admitted(doing("signal.pause()"))


def test_a_process_that_ended_is_started_again() -> None:
    assert not isinstance(admitted(GOOD), str)
    process = by_pillow.server.process
    assert process is not None
    process.kill()
    process.wait()
    assert not isinstance(admitted(GOOD), str)


def test_a_process_that_does_not_begin_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.exit('a broken installation')\n")
    monkeypatch.syspath_prepend(tmp_path)
    by_pillow.server.close()
    with pytest.raises(LoaderError, match=r"(?s)did not start.*a broken installation"):
        admitted(GOOD)


def test_an_answer_that_an_interrupt_left_is_not_taken_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    read, interrupts = os.read, [KeyboardInterrupt]

    def interrupted(*arguments: int) -> bytes:
        if interrupts:
            raise interrupts.pop()
        return read(*arguments)

    admitted(GOOD)
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            admitted(GOOD)
    found = admitted(encoded(picture(20, 30), "JPEG2000"))
    assert found[1] == (20, 30)


def test_threads_take_turns() -> None:
    images = [encoded(picture(20, 30 + number), "JPEG2000") for number in range(12)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(admitted, images))
    assert [image[1] for image in found] == [(20, 30 + number) for number in range(12)]


def test_a_forked_child_has_a_process_of_its_own() -> None:
    admitted(GOOD)
    process = by_pillow.server.process
    assert process is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if not child:
        well = False
        with suppress(BaseException):
            well = admitted(GOOD)[1] == (48, 64) and by_pillow.server.process.pid != process.pid
            by_pillow.server.close()
        os._exit(0 if well else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert process.poll() is None
    assert not isinstance(admitted(GOOD), str)


def test_the_process_ends_with_its_parent() -> None:
    code = (
        "import os, sys, numpy as np; from gpuloader.images import by_pillow;"
        "by_pillow.decode_by_pillow(np.frombuffer(sys.stdin.buffer.read(), np.uint8), 10000);"
        "print(by_pillow.server.process.pid, flush=True); os.kill(os.getpid(), 9)"
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
    for number in range(60):
        damaged = np.frombuffer((GOOD, STREAM)[number % 2], np.uint8).copy()
        damaged[rng.integers(0, 300, 3)] = rng.integers(0, 256, 3)
        found = admitted(damaged.tobytes())
        assert isinstance(found, (str, tuple))
    assert not isinstance(admitted(GOOD), str)


# --- where images are decoded


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A JPEG, JPEG 2000 under two names, and one that is cut."""
    images = {"a.jpg": jpeg(48, 64), "b.jpg": GOOD, "c.jp2": STREAM, "d.jpg": half(GOOD)}
    samples = [{"__key__": name[0], name[2:]: data} for name, data in images.items()]
    return write_shard(tmp_path_factory.mktemp("jpeg2000") / "a.tar", samples)


def loader(tar: Path, **overrides: object) -> GPULoader:
    options = {"label_from": None, "output": "dict", "on_error": BadImages(replace=True, max_share=1)}
    return GPULoader(tar, 4, None, preset={"imagenet_eval": {**SMALL, **overrides}}, **options)


def test_a_loader_decodes_it_where_the_recipe_names_it(tar: Path) -> None:
    with loader(tar, formats=FORMATS) as batches:
        [batch] = batches
        assert batch["valid"].tolist() == [True, True, True, False]
        assert batches.stats().bad[3].startswith("Pillow cannot decode it")
    assert torch.equal(batch["image"][1], batch["image"][2])
    png = Compose.load("imagenet_eval", **SMALL)(encoded(PICTURE, "PNG"))
    assert torch.equal(batch["image"][1], png)


def test_a_loader_refuses_it_where_the_recipe_does_not(tar: Path) -> None:
    with loader(tar) as batches:
        [batch] = batches
        assert batch["valid"].tolist() == [True, False, False, False]
        assert set(batches.stats().bad.values()) == {REFUSED}
    with pytest.raises(BadImageError, match=REFUSED):
        next(iter(GPULoader(tar, 2, None, preset={"imagenet_eval": SMALL}, label_from=None)))


def test_what_it_becomes_needs_no_name_of_its_own(tar: Path) -> None:
    # It is PNM on its way, but no PNM is allowed here.
    with loader(tar, formats=["jpeg2000"]) as batches:
        [batch] = batches
        assert batch["valid"].tolist() == [False, True, True, False]


def test_a_recipe_that_is_called_does_as_a_loader(tar: Path) -> None:
    assert Compose([CenterCrop(32)], formats=FORMATS)(GOOD).shape == (3, 32, 32)
    with pytest.raises(DataError, match=f"image 1 cannot be decoded: {REFUSED}"):
        Compose([CenterCrop(32)])([jpeg(48, 64), GOOD])


def test_it_is_checked_and_shown_whatever_a_recipe_allows(tar: Path) -> None:
    assert [bad.key for bad in check_shards(tar).bad] == ["d"]
    gallery = Gallery(tar, label_from=None, device_id=None)
    assert gallery.size(1) == (48, 64)
    assert np.array_equal(np.asarray(gallery.original(2, 64)), np.asarray(PICTURE))
    with pytest.raises(BadImageError, match=REFUSED):
        gallery.tensors(Compose([CenterCrop(32)]), 1, 0, 0)
