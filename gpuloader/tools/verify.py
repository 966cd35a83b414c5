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
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from PIL import Image
from typing_extensions import Unpack

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


Outcome: TypeAlias = tuple[str, str, bool]
"""What was found, what is allowed, and whether that holds."""

Looks: TypeAlias = Iterator[tuple[str, Callable[[], Outcome]]]
"""The name of each row, and what finds it out."""


def verify(
    tar: Sources,
    device_id: int | Literal["auto"] | None = "auto",
    *,
    checks: Sequence[str] = (),
    seconds: float = 20.0,
    progress: bool = False,
) -> Verification:
    """Runs the checks, one after the other. An error becomes a row, and the next one is looked at.

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
            rows += _run(name, subject)
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


def _run(check: str, subject: Subject) -> list[Row]:
    rows, looks = [], CHECKS[check](subject)
    while True:
        name = "ended early"
        try:
            name, look = next(looks)
            rows.append(Row(check, name, *look()))
        except StopIteration:
            return rows
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is what was found
            said = (str(error).strip() or "no message").splitlines()[0]
            rows.append(Row(check, name, f"{type(error).__name__}: {said}", "no error", False))


def _already(*outcome: Unpack[Outcome]) -> Callable[[], Outcome]:
    return lambda: outcome


# --- the checks


def machine(subject: Subject) -> Looks:
    """What `gpuloader doctor` finds: versions, JPEG engines, and how a GPU decodes regions."""
    for finding in examine():
        if finding.name.endswith(" folder"):  # a path, which does not belong in a report
            continue
        yield finding.name, _already(finding.found, "", finding.status != "failure")


def recipes(subject: Subject) -> Looks:
    """The pixels of each preset; and MixUp with CutMix."""
    for name in preset_names():
        yield name, partial(_recipe, subject, name)
    yield "MixUp and CutMix", partial(_mixed, subject)


def _recipe(subject: Subject, name: str) -> Outcome:
    preset = load_preset(name, {"mix": None})
    if any(view.normalize for view in preset.each_view):
        preset = load_preset(preset, {"Normalize": None})
    widened = any(view.pixels for view in preset.each_view)
    options = {"preset": preset, "sampling": {"subset": range(min(_IMAGES, subject.samples))}}
    (ours, _), (theirs, _) = _load_both(subject.tar, subject.device_id, **options)
    return _compare(subject, ours, theirs, _WIDER if widened else 1.0)


def _mixed(subject: Subject) -> Outcome:
    mix = {"num_classes": 10, "mixup_alpha": 0.8, "cutmix_alpha": 1.0}
    options = {"preset": {"imagenet_train": {"Normalize": None, "mix": mix}}, "label_from": "cls", "last_batch": "pad"}
    with _tar(map(_jpeg, range(_BATCH_SIZE))) as tar:
        (ours, _), (theirs, _) = _load_both(tar, subject.device_id, **options)
    return _compare(subject, ours, theirs, 1.0)


def repeats(subject: Subject) -> Looks:
    """The same samples with other batches, after a resume, and whatever else the GPU does."""
    options: dict[str, Any] = {"preset": _PLAIN, "sampling": {"subset": range(min(_IMAGES, subject.samples))}}
    load = partial(_load, subject.tar, subject.device_id, **options)
    expected, _ = load()
    ways = {
        "again": load,
        "in batches of 5": partial(load, 5),
        "in one batch": partial(load, _IMAGES),
        "resumed after 7 samples": partial(load, delivered=min(7, subject.samples - 1)),
    }
    if subject.device_id is not None:
        ways["on a stream of its own"] = partial(load, stream=True)
        ways["let go under a busy stream"] = partial(load, busy=True)
    for name, way in ways.items():
        yield name, partial(_repeat, expected, way)


def _repeat(expected: _Images, load: Callable[[], tuple[_Images, _Bad]]) -> Outcome:
    images, _ = load()
    different = [
        key
        for key, views in images.items()
        if not all(torch.equal(one, other) for one, other in zip(views, expected[key], strict=True))
    ]
    found = f"{len(different)} of {len(images)} images differ" if different else f"{len(images)} images are equal"
    return found, "equal bit for bit", not different and bool(images)


def formats(subject: Subject) -> Looks:
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
    for name, image in images.items():
        yield name, partial(_format, subject, image)


def _format(subject: Subject, image: bytes) -> Outcome:
    with _tar([_jpeg(0), image]) as tar:  # one that is refused needs another in its place
        (ours, our_bad), (theirs, their_bad) = _load_both(tar, subject.device_id, preset="raw_uint8")
    if our_bad or their_bad:
        return f"refused: {our_bad[1]}" if our_bad else "decoded", "as on the CPU", our_bad.keys() == their_bad.keys()
    return _compare(subject, ours, theirs, _WIDER)


def bad_images(subject: Subject) -> Looks:
    """Damaged images are named, and cost no other image."""
    bad = {2: _jpeg(2)[:-30], 5: _with_broken_table(_jpeg(5)), 11: b"no image"}
    with _tar([bad.get(number) or _jpeg(number) for number in range(_BATCH_SIZE)]) as tar:
        (ours, our_bad), (theirs, _) = _load_both(tar, subject.device_id, preset="raw_uint8")
        found = ", ".join(map(str, sorted(our_bad))) or "none"
        yield "replaced", _already(found, "2, 5, 11", our_bad.keys() == bad.keys())
        yield "the other images", partial(_compare, subject, ours, theirs, _WIDER)
        yield "raised", partial(_raised, subject, tar)


def _raised(subject: Subject, tar: Path) -> Outcome:
    named = "none"
    try:
        _load(tar, subject.device_id, on_error="raise", preset="raw_uint8")
    except BadImageError as error:
        named = error.key
    return named, "02", named == "02"


def memory(subject: Subject) -> Looks:
    """What loaders that were closed leave behind."""
    options: dict[str, Any] = {"preset": _PLAIN, "sampling": {"subset": range(min(_IMAGES, subject.samples))}}
    taken = []
    for _ in range(_LOADERS):
        _load(subject.tar, subject.device_id, **options)
        taken.append(_taken_bytes(subject))
    growth = max(0, min(taken[-_COMPARED:]) - min(taken[:_COMPARED]))
    allowed = f"up to {format_bytes(_MOST_GROWTH_BYTES)}"
    found = f"{format_bytes(growth)} more at the end"
    yield f"{_LOADERS} loaders", _already(found, allowed, growth <= _MOST_GROWTH_BYTES)


def speed(subject: Subject) -> Looks:
    """Images in a second, of the loader and of the decoder alone."""
    options: dict[str, Any] = {"label_from": None, "on_error": _REPLACE, "world": _ALONE}
    result = bench(subject.tar, None, subject.device_id, seconds=subject.seconds, **options)
    for figures in result.devices:
        for stage in figures.stages:
            if stage.stage in ("gate", "decode", "loader"):
                found = f"{stage.images_per_second:,.0f} images/s, {stage.cpu_seconds_per_1000:.3f} CPU s per 1,000"
                yield f"{figures.device}, {stage.title}", _already(found, "", True)
        yield f"{figures.device}, limit", _already(figures.limit, "", True)


CHECKS: Mapping[str, Callable[[Subject], Looks]] = {
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


_Bad: TypeAlias = dict[int, str]
"""The samples that were replaced, and why."""


def _load_both(tar: Sources, device_id: int | None, **options: Any) -> list[tuple[_Images, _Bad]]:  # noqa: ANN401
    """What is verified, and what is expected."""
    return [_load(tar, device_id, **options), _load(tar, None, decoder=_REFERENCE, **options)]


def _load(
    tar: Sources,
    device_id: int | None,
    batch_size: int = _BATCH_SIZE,
    *,
    delivered: int = 0,
    stream: bool = False,
    busy: bool = False,
    **options: Any,  # noqa: ANN401
) -> tuple[_Images, _Bad]:
    """The images of an epoch, and the bad ones."""
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


@contextmanager
def _tar(images: Iterable[bytes]) -> Iterator[Path]:
    """The images under the keys 00, 01, ..., with labels; what they are, the library tells by their content."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.tar"
        with tarfile.open(path, "w") as tar:
            for number, image in enumerate(images):
                for extension, data in (("jpg", image), ("cls", b"%d" % (number % 10))):
                    member = tarfile.TarInfo(f"{number:02d}.{extension}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        yield path
