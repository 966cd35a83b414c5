"""`verify`: whether a GPU decodes and delivers what it should, in one table; without a GPU, whether the CPU does.

Each check is a function of the subject that gives rows. What is expected of a GPU is what one thread of the CPU makes
of the same samples, from whole images; of the CPU, the same bit for bit.
"""

from __future__ import annotations

import ctypes
import io
import logging
import os
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from PIL import Image

from gpuloader.errors import BadImageError, ConfigError
from gpuloader.helpers.progress import progress_bar
from gpuloader.helpers.units import format_bytes
from gpuloader.helpers.versions import decoder_versions
from gpuloader.loading.arguments import resolve_device
from gpuloader.loading.loader import GPULoader
from gpuloader.loading.options import BadImages, Decoder
from gpuloader.loading.selection import Sources
from gpuloader.loading.world import World
from gpuloader.recipe import load_preset, preset_names
from gpuloader.tools.bench import bench
from gpuloader.tools.doctor import examine
from gpuloader.tools.machine import Machine, this_machine
from gpuloader.tools.measuring import count_samples, images_of

_IMAGES = 32
_BATCH_SIZE = 16
_LOADERS = 12
_COMPARED = 4  # the least of that many is compared, as memory comes and goes
_MOST_GROWTH_BYTES = 128 << 20
_BUSY_SIDE = 4096
_BUSY_STEPS = 20
_REPLACE = BadImages(replace=True, max_share=1.0)
_ALONE = World(0, 1)  # whatever a launcher says of ranks
_REFERENCE = Decoder(num_threads=1, region=False)
_PLAIN: Mapping[str, Any] = {"imagenet_train": {"Normalize": None}}

# On a GPU, of the mean difference in levels. Decoders differ by 1 or 2, and what is done to the pixels can widen that;
# an image that was not decoded, or that is another one, is off by 60.
_MOST_LEVELS = 1.5
_MOST_LEVELS_OF_AN_IMAGE = 10.0
_WIDER = 3.0


@dataclass(frozen=True)
class Row:
    """One thing that was looked at.

    Attributes:
        check: of which check it is.
        name: what it is.
        found: what was found.
        allowed: what may be; empty where all may.
        ok: whether that holds.
    """

    check: str
    name: str
    found: str
    allowed: str = ""
    ok: bool = True


@dataclass(frozen=True)
class Verification:
    """What was found.

    Attributes:
        date: of the start, in UTC.
        device: what was verified, "cuda:N" or "cpu".
        machine: where that was.
        versions: of the driver, DALI and nvImageCodec.
        elapsed_seconds: what all of it took.
        rows: all that was looked at, in order.
    """

    date: str
    device: str
    machine: Machine
    versions: dict[str, str]
    elapsed_seconds: float
    rows: tuple[Row, ...]

    @property
    def all_well(self) -> bool:
        """Whether nothing is off."""
        return all(row.ok for row in self.rows)


class Subject(NamedTuple):
    """What is verified.

    Attributes:
        tar: the shards.
        samples: how many they have.
        device_id: a GPU, or None for the CPU.
        seconds: how long to measure the speed.
    """

    tar: Sources
    samples: int
    device_id: int | None
    seconds: float

    @property
    def device(self) -> torch.device:
        """That of its batches."""
        return torch.device("cpu") if self.device_id is None else torch.device("cuda", self.device_id)


Found: TypeAlias = Iterator[tuple[str, str, str, bool]]
"""The name, what was found, what is allowed and whether it holds, of each row."""


def verify(
    tar: Sources,
    device_id: int | Literal["auto"] | None = "auto",
    *,
    checks: Sequence[str] = (),
    seconds: float = 20.0,
    progress: bool = False,
) -> Verification:
    """Runs the checks, one after the other. What one of them raises becomes a row, and the next one runs.

    Args:
        tar: shards, as `GPULoader` takes them; 32 of their samples are compared.
        device_id: what to verify, as `GPULoader` takes it: "auto" is the GPU, or the CPU where there is none.
        checks: some of `CHECKS`; all unless given.
        seconds: how long to measure the speed, on each device.
        progress: show a bar on stderr.

    Raises:
        ConfigError: there is no such check.
        DeviceError: there is no such GPU.
        DataError: there are no such shards, or they have no samples.
    """
    if unknown := [name for name in checks if name not in CHECKS]:
        raise ConfigError(f"no check is called {unknown[0]!r}: allowed are {', '.join(CHECKS)}")
    date, started = datetime.now(timezone.utc).isoformat(timespec="seconds"), time.monotonic()
    device = resolve_device(device_id, _ALONE)
    samples = count_samples(tar, None, {"preset": "raw_uint8", "label_from": None, "world": _ALONE})
    subject = Subject(tar, samples, device, seconds)
    rows: list[Row] = []
    with progress_bar(progress) as bar, _without_warnings():
        task = bar.add_task("verifying", total=len(checks or CHECKS))
        for name in checks or CHECKS:
            bar.update(task, description=f"verifying {name}")
            rows += _guarded(name, subject)
            bar.advance(task)
    return Verification(
        date=date,
        device=str(subject.device),
        machine=this_machine(),
        versions=decoder_versions(),
        elapsed_seconds=time.monotonic() - started,
        rows=tuple(rows),
    )


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Of bad images, which are there on purpose."""
    logger = logging.getLogger("gpuloader")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _guarded(check: str, subject: Subject) -> list[Row]:
    rows = []
    try:
        for found in CHECKS[check](subject):
            rows.append(Row(check, *found))
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is what was found
        said = (str(error).strip() or "no message").splitlines()[0]
        rows.append(Row(check, "ended early", f"{type(error).__name__}: {said}", "no error", False))
    return rows


# --- the checks


def machine(subject: Subject) -> Found:
    """What `gpuloader doctor` finds: versions, JPEG engines, and how a GPU decodes regions."""
    for finding in examine():
        yield finding.name, finding.found, "", finding.status != "failure"


def recipes(subject: Subject) -> Found:
    """The pixels of each preset; and MixUp with CutMix."""
    for name in preset_names():
        preset = load_preset(name, {"mix": None})
        if any(view.normalize for view in preset.each_view):
            preset = load_preset(preset, {"Normalize": None})
        options: dict[str, Any] = {"preset": preset, "sampling": {"subset": range(min(_IMAGES, subject.samples))}}
        ours, theirs = _load(subject, **options), _load_reference(subject, **options)
        widened = any(view.pixels for view in preset.each_view)
        yield name, *_compare(subject, ours, theirs, _WIDER if widened else 1.0)
    mixing = {
        "imagenet_train": {"Normalize": None, "mix": {"num_classes": 10, "mixup_alpha": 0.8, "cutmix_alpha": 1.0}}
    }
    with tempfile.TemporaryDirectory() as folder:
        tar = _write_tar(Path(folder) / "labelled.tar", map(_jpeg, range(_BATCH_SIZE)))
        options = {"preset": mixing, "label_from": "cls", "last_batch": "pad"}
        ours, theirs = (_load_shards(tar, device, decoder=decoder, **options)[0] for device, decoder in _both(subject))
        yield "MixUp and CutMix", *_compare(subject, ours, theirs, 1.0)


def repeats(subject: Subject) -> Found:
    """The same samples with other batches, after a resume, and whatever else the GPU does."""
    options: dict[str, Any] = {"preset": _PLAIN, "sampling": {"subset": range(min(_IMAGES, subject.samples))}}
    expected = _load(subject, **options)
    ways: dict[str, Callable[[], _Images]] = {
        "again": lambda: _load(subject, **options),
        "in batches of 5": lambda: _load(subject, 5, **options),
        "in one batch": lambda: _load(subject, _IMAGES, **options),
        "resumed after 7 samples": lambda: _load(subject, delivered=min(7, subject.samples - 1), **options),
    }
    if subject.device_id is not None:
        ways["on a stream of its own"] = lambda: _load(subject, stream=True, **options)
        ways["let go under a busy stream"] = lambda: _load(subject, busy=True, **options)
    for name, load in ways.items():
        images = load()
        different = [key for key, views in images.items() if not _same(views, expected[key])]
        found = f"{len(different)} of {len(images)} images differ" if different else f"{len(images)} images are equal"
        yield name, found, "equal bit for bit", not different and bool(images)


def formats(subject: Subject) -> Found:
    """An image of each kind, decoded; or refused, as on the CPU."""
    images = {
        "JPEG 4:2:0": _jpeg(0),
        "JPEG 4:2:2": _jpeg(1, subsampling="4:2:2"),
        "JPEG 4:4:4": _jpeg(2, subsampling="4:4:4"),
        "JPEG, gray": _encoded(_picture(3).convert("L"), "JPEG"),
        "JPEG, CMYK": _encoded(_picture(4).convert("CMYK"), "JPEG"),
        "JPEG, progressive": _jpeg(5, progressive=True),
        "JPEG, turned by EXIF": _jpeg(6, exif=_turned()),
        "PNG": _encoded(_picture(7), "PNG"),
        "PNG, palette": _encoded(_picture(8).convert("P"), "PNG"),
        "PNG, transparent": _encoded(_picture(9).convert("RGBA"), "PNG"),
        "PNG, 16 bits": _encoded(_sixteen_bits(_picture(10)), "PNG"),
        "TIFF": _encoded(_picture(11), "TIFF"),
        "WebP": _encoded(_picture(12), "WEBP"),
        "WebP, lossless": _encoded(_picture(13), "WEBP", lossless=True),
        "BMP": _encoded(_picture(14), "BMP"),
    }
    with tempfile.TemporaryDirectory() as folder:
        tar = _write_tar(Path(folder) / "formats.tar", images.values())
        both = [_load_or_refuse(tar, device, decoder) for device, decoder in _both(subject)]
    for number, name in enumerate(images):
        (ours, our_bad), (theirs, their_bad) = both
        key = f"{number:02d}"
        if number in our_bad or number in their_bad:
            found = f"refused: {our_bad[number]}" if number in our_bad else "decoded"
            allowed = "refused" if number in their_bad else "decoded"
            yield name, found, f"{allowed}, as on the CPU", (number in our_bad) == (number in their_bad)
        else:
            yield name, *_compare(subject, {key: ours[key]}, {key: theirs[key]}, _WIDER)


def bad_images(subject: Subject) -> Found:
    """Damaged images are named, and cost no other image."""
    bad = {2: _jpeg(2)[:-30], 5: _with_broken_table(_jpeg(5)), 11: b"no image"}
    images = [bad.get(number, _jpeg(number)) for number in range(_BATCH_SIZE)]
    with tempfile.TemporaryDirectory() as folder:
        tar = _write_tar(Path(folder) / "bad.tar", images)
        (ours, our_bad), (theirs, _) = (_load_or_refuse(tar, device, decoder) for device, decoder in _both(subject))
        found = ", ".join(map(str, sorted(our_bad))) or "none"
        yield "replaced", found, "2, 5, 11", our_bad.keys() == bad.keys()
        yield "the other images", *_compare(subject, ours, theirs, _WIDER)
        try:
            _load_shards(tar, subject.device_id, on_error="raise", preset="raw_uint8")
            named = "none"
        except BadImageError as error:
            named = error.key
        yield "raised", named, "02", named == "02"


def memory(subject: Subject) -> Found:
    """What loaders that were closed leave behind."""
    taken = []
    for _ in range(_LOADERS):
        _load(subject, preset=_PLAIN, sampling={"subset": range(min(_IMAGES, subject.samples))})
        taken.append(_taken_bytes(subject))
    growth = max(0, min(taken[-_COMPARED:]) - min(taken[:_COMPARED]))
    allowed = f"up to {format_bytes(_MOST_GROWTH_BYTES)}"
    yield f"{_LOADERS} loaders", f"{format_bytes(growth)} more at the end", allowed, growth <= _MOST_GROWTH_BYTES


def speed(subject: Subject) -> Found:
    """Images in a second, of the loader and of the decoder alone."""
    options: dict[str, Any] = {"label_from": None, "on_error": _REPLACE, "world": _ALONE}
    result = bench(subject.tar, None, subject.device_id, seconds=subject.seconds, **options)
    for figures in result.devices:
        for stage in figures.stages:
            if stage.stage in ("gate", "decode", "loader"):
                found = f"{stage.images_per_second:,.0f} images/s, {stage.cpu_seconds_per_1000:.3f} CPU s per 1,000"
                yield f"{figures.device}, {stage.title}", found, "", True
        yield f"{figures.device}, limit", figures.limit, "", True


CHECKS: Mapping[str, Callable[[Subject], Found]] = {
    "machine": machine,
    "recipes": recipes,
    "repeats": repeats,
    "formats": formats,
    "bad-images": bad_images,
    "memory": memory,
    "speed": speed,
}
"""By name, in the order in which they run."""


# --- what is compared

_Images: TypeAlias = dict[str, list[torch.Tensor]]
"""The views of each sample by its key, on the CPU; of samples that were replaced none."""


def _both(subject: Subject) -> list[tuple[int | None, Decoder]]:
    return [(subject.device_id, Decoder()), (None, _REFERENCE)]


def _load(subject: Subject, batch_size: int = _BATCH_SIZE, **options: Any) -> _Images:  # noqa: ANN401
    return _load_shards(subject.tar, subject.device_id, batch_size, **options)[0]


def _load_reference(subject: Subject, **options: Any) -> _Images:  # noqa: ANN401
    return _load_shards(subject.tar, None, decoder=_REFERENCE, **options)[0]


def _load_or_refuse(tar: Path, device_id: int | None, decoder: Decoder) -> tuple[_Images, dict[int, str]]:
    return _load_shards(tar, device_id, preset="raw_uint8", decoder=decoder)


def _load_shards(
    tar: Sources,
    device_id: int | None,
    batch_size: int = _BATCH_SIZE,
    *,
    delivered: int = 0,
    stream: bool = False,
    busy: bool = False,
    **options: Any,  # noqa: ANN401
) -> tuple[_Images, dict[int, str]]:
    """The images of an epoch, and the bad ones: sample and cause."""
    common = {"shuffle": "none", "last_batch": "partial", "label_from": None, "on_error": _REPLACE, "world": _ALONE}
    parts: list[tuple[list[str], torch.Tensor, list[torch.Tensor]]] = []
    with GPULoader(tar, batch_size, device_id, output="dict", **{**common, **options}) as loader:
        on_gpu = loader.device.type == "cuda"
        work = torch.rand((_BUSY_SIDE, _BUSY_SIDE), device=loader.device) if busy and on_gpu else None
        loader.load_state_dict({**loader.state_dict(), "delivered": delivered})
        with torch.cuda.stream(torch.cuda.Stream(loader.device)) if stream and on_gpu else nullcontext():  # type: ignore[no-untyped-call]
            for batch in loader:
                if work is not None:
                    for _ in range(_BUSY_STEPS):
                        torch.matmul(work, work)
                # Where the GPU is busy the copy waits, and the batch is let go before it is made.
                parts.append((batch["key"], batch["valid"], [images.clone() for images in images_of(batch)]))
                del batch
            if on_gpu:
                torch.cuda.synchronize(loader.device)
        bad = dict(loader.stats().bad)
    images = {
        key: [view[row].cpu() for view in views]
        for keys, valid, views in parts
        for row, (key, is_valid) in enumerate(zip(keys, valid.tolist(), strict=True))
        if is_valid
    }
    return images, bad


def _compare(subject: Subject, ours: _Images, theirs: _Images, factor: float) -> tuple[str, str, bool]:
    """What was found, what is allowed, and whether it holds; the factor is of what is allowed on a GPU."""
    if ours.keys() != theirs.keys() or not ours:
        missing = ", ".join(sorted(ours.keys() ^ theirs.keys())[:5]) or "all"
        return f"other samples: {missing}", "the CPU's samples", False
    images = [_differences(ours[key], theirs[key]) for key in ours]
    means = [each.mean().item() for each in images]
    mean, worst, largest = sum(means) / len(means), max(means), max(each.max().item() for each in images)
    found = f"mean {mean:.3g}, an image {worst:.3g}, largest {largest:.3g}"
    if subject.device_id is None:
        return found, "0", largest == 0
    most, most_of_an_image = factor * _MOST_LEVELS, factor * _MOST_LEVELS_OF_AN_IMAGE
    return found, f"mean {most:g}, an image {most_of_an_image:g}", mean <= most and worst <= most_of_an_image


def _differences(ours: Iterable[torch.Tensor], theirs: Iterable[torch.Tensor]) -> torch.Tensor:
    """In levels, of all views together."""
    return torch.cat(
        [
            (one.float() - other.float()).abs().flatten() * (1 if one.dtype == torch.uint8 else 255)
            for one, other in zip(ours, theirs, strict=True)
        ]
    )


def _same(ours: Iterable[torch.Tensor], theirs: Iterable[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def _taken_bytes(subject: Subject) -> int:
    """On the GPU, by all processes; or of this process, without what the C library keeps."""
    if subject.device_id is None:
        ctypes.CDLL(None).malloc_trim(0)
        resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
        return resident_pages * os.sysconf("SC_PAGE_SIZE")
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(subject.device_id)
    return total - free


# --- pictures


def _picture(seed: int) -> Image.Image:
    """A smooth picture with some texture."""
    rng = np.random.default_rng(seed)
    few = Image.fromarray(rng.integers(0, 256, (4, 4, 3), np.uint8))
    smooth = np.asarray(few.resize((160, 120), Image.Resampling.BICUBIC), np.int16)
    return Image.fromarray((smooth + rng.integers(-12, 13, smooth.shape)).clip(0, 255).astype(np.uint8))


def _sixteen_bits(picture: Image.Image) -> Image.Image:
    return Image.fromarray(np.asarray(picture.convert("L"), np.uint16) * 257)


def _turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees; training does not
    return exif.tobytes()


def _jpeg(seed: int, **options: Any) -> bytes:  # noqa: ANN401
    return _encoded(_picture(seed), "JPEG", **{"quality": 90, "subsampling": "4:2:0", **options})


def _encoded(picture: Image.Image, image_format: str, **options: Any) -> bytes:  # noqa: ANN401
    file = io.BytesIO()
    picture.save(file, image_format, **options)
    return file.getvalue()


def _with_broken_table(jpeg: bytes) -> bytes:
    """With an impossible table of Huffman codes, which no header tells of."""
    data, table = bytearray(jpeg), jpeg.index(b"\xff\xc4")
    data[table + 5 : table + 21] = bytes([255] * 16)
    return bytes(data)


def _write_tar(path: Path, images: Iterable[bytes]) -> Path:
    """The images under the keys 00, 01, ..., with labels; what they are, the library tells by their content."""
    with tarfile.open(path, "w") as tar:
        for number, image in enumerate(images):
            for extension, data in (("jpg", image), ("cls", b"%d" % (number % 10))):
                member = tarfile.TarInfo(f"{number:02d}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path
