"""Feeds mutated images to the gate, and those that pass to DALI, in processes that may die.

Every input is a function of (seed, format, number). What must hold: no process dies, hangs or runs out of memory; what
passes the gate is decoded, or triage names it, the graph refuses it alone, and the others of its batch are decoded
without it. What breaks that is saved, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import re
import resource
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:  # only the workers load the library, and DALI with it
    from gpuloader.recipe import Preset

FORMATS = ("jpeg", "png", "webp", "tiff", "bmp", "pnm")
_BATCH = 8
_SIZE = 32
_HEADER_BYTES = 256
_TIMEOUT_SECONDS = 120
_LIMIT_OVER_SPARE = (
    8  # an allocation that fails is no finding, as decoders take it for a broken image; one that does not is
)
_EXTREMES = (0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0xFFFFFFFF)
_TIFF_TAGS = (256, 257, 258, 259, 262, 273, 274, 277, 278, 279, 284, 317, 320, 322, 323, 324, 325, 338, 339, 347, 530)
_CHUNKS = {"png": (b"eXIf", b"iCCP", b"tRNS", b"PLTE", b"acTL", b"fdAT"), "webp": (b"EXIF", b"ICCP", b"ALPH", b"ANMF")}


class Job(NamedTuple):
    """A batch of inputs, by their numbers."""

    kind: str
    numbers: range
    seed: int


class Result(NamedTuple):
    """What became of a batch.

    Attributes:
        counts: outcome -> how many inputs had it.
        violation: what broke, or nothing.
        numbers: the inputs to blame for it.
    """

    counts: Counter[str]
    violation: str = ""
    numbers: Sequence[int] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the fuzzer as the options say, prints what it found, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="inputs of each format")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, default=Path("fuzz-findings"), help="where offending inputs are saved")
    parser.add_argument("--spare-mib", type=int, default=1024, help="memory that a batch of inputs may take")
    options = parser.parse_args(arguments)
    jobs = [
        Job(kind, range(start, min(start + _BATCH, options.count)), options.seed)
        for kind in options.formats
        for start in range(0, options.count, _BATCH)
    ]
    totals = {kind: Counter[str]() for kind in options.formats}
    violations: list[str] = []
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bars = {kind: progress.add_task(kind, total=options.count) for kind in options.formats}
        for job, result in examined(jobs, options.workers, options.spare_mib << 20):
            totals[job.kind] += result.counts
            progress.advance(bars[job.kind], len(job.numbers))
            if result.violation:
                saved = [save(options.folder, job, number) for number in result.numbers]
                violations.append(f"{result.violation}\n  " + "\n  ".join(map(str, saved)))
    console.print(table(totals))
    for violation in violations:
        console.print(violation, markup=False, highlight=False, soft_wrap=True)
    return 1 if violations else 0


def table(totals: dict[str, Counter[str]]) -> Table:
    """The outcomes of each format."""
    outcomes = ("mutated", "refused by the gate", "refused by the decoder", "decoded", "given up", "deaths")
    result = Table("format", *outcomes)
    for kind, counts in totals.items():
        result.add_row(kind, *(f"{counts[outcome]:,}" for outcome in outcomes))
    return result


def save(folder: Path, job: Job, number: int) -> Path:
    """Writes an input into the folder, under a name that says how to make it again."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed{job.seed}-{number}.{job.kind}"
    path.write_bytes(mutated(job.kind, job.seed, number))
    return path


# --- processes


class _Worker:
    """A process that examines one job after another."""

    def __init__(self, spare_bytes: int) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, spare_bytes), daemon=True)
        self.process.start()
        theirs.close()
        self.job: Job | None = None

    def begin(self, job: Job | None) -> None:
        self.job = job
        with suppress(BrokenPipeError):  # `result` finds the death
            self.connection.send(job)

    def result(self) -> Result:
        """What the process says of its job, or how it ended."""
        assert self.job is not None
        try:
            result: Result = self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            counts = Counter({"mutated": len(self.job.numbers), "given up": len(self.job.numbers), "deaths": 1})
            return Result(
                counts, f"the process ended with exit code {self.process.exitcode} on one of", self.job.numbers
            )
        return result

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def examined(jobs: Iterable[Job], workers: int, spare_bytes: int) -> Iterator[tuple[Job, Result]]:
    """The results of all jobs, as they come; a process that died is replaced."""
    left = iter(jobs)
    busy: dict[Connection, _Worker] = {}

    def begin(worker: _Worker, job: Job | None) -> None:
        worker.begin(job)
        if job is not None:
            busy[worker.connection] = worker

    try:
        for _, job in zip(range(workers), left):
            begin(_Worker(spare_bytes), job)
        while busy:
            ready = wait(list(busy), timeout=_TIMEOUT_SECONDS)
            if not ready:
                for worker in busy.values():
                    worker.process.kill()  # each is then found dead, with the job that it hung on
                continue
            for connection in ready:
                worker = busy.pop(connection)
                assert worker.job is not None
                job, result = worker.job, worker.result()
                following = next(left, None)
                if following is not None:
                    alive = worker.process.is_alive() and not result.counts["deaths"]
                    begin(worker if alive else _Worker(spare_bytes), following)
                else:
                    worker.begin(None)
                yield job, result
    finally:
        for worker in busy.values():
            worker.kill()


def _serve(connection: Connection, spare_bytes: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the decoders tell at length what is wrong with every image
    decoder = _Decoder()
    for kind in FORMATS:  # loads and compiles what the first batches would
        decoder.decode(list(seeds(kind)))
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most_bytes = used_bytes + _LIMIT_OVER_SPARE * spare_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    while (job := connection.recv()) is not None:
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
        before_bytes = _peak_bytes()
        try:
            result = decoder.examine(job)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
            result = _given_up(job, f"{type(error).__name__}: {error}", job.numbers)
        taken_bytes = _peak_bytes() - before_bytes
        if taken_bytes > spare_bytes and not result.violation:
            result = _given_up(job, f"{taken_bytes >> 20:,} MiB of memory taken by", job.numbers)
        connection.send(result)


def _peak_bytes() -> int:
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    return int(peak[1]) << 10


def _given_up(job: Job, violation: str, numbers: Sequence[int]) -> Result:
    """A batch that something broke: nothing more is said of its inputs."""
    return Result(Counter({"mutated": len(job.numbers), "given up": len(job.numbers)}), violation, numbers)


class _Decoder:
    """The gate and the graphs of two recipes: the middle of an image, and a random window."""

    def __init__(self) -> None:
        from gpuloader.recipe import load_preset

        self._presets = (
            load_preset("raw_uint8", {"Resize": {"size": _SIZE}, "CenterCrop": {"size": _SIZE}}),
            load_preset("imagenet_train", {"RandomResizedCrop": {"size": _SIZE}}),
        )

    def examine(self, job: Job) -> Result:
        """Gate, decode, and triage where that fails."""
        from gpuloader.pipelines import gate

        counts = Counter(mutated=len(job.numbers))
        passed: dict[int, bytes] = {}
        for number in job.numbers:
            image = mutated(job.kind, job.seed, number)
            try:
                refused = isinstance(gate(np.frombuffer(image, np.uint8)), str)
            except Exception as error:  # noqa: BLE001 - it is to say why, not to raise
                return _given_up(job, f"the gate raises {type(error).__name__}: {error}", [number])
            counts["refused by the gate"] += refused
            if not refused:
                passed[number] = image
        refusals = self.decode(list(passed.values())) if passed else [set()]
        bad = set.union(*refusals)
        counts["refused by the decoder"] = len(bad)
        counts["decoded"] = len(passed) - len(bad)
        return Result(counts)

    def decode(self, images: list[bytes]) -> list[set[int]]:
        """For each recipe, the rows that cannot be decoded; an error unless the others can."""
        from gpuloader.pipelines import gate, is_decode_failure, undecodable
        from gpuloader.plan import Draws

        result = []
        arrays = [np.frombuffer(image, np.uint8) for image in images]
        sizes = np.array([gate(array) for array in arrays])
        for preset in self._presets:
            drawn = preset.arrays(Draws(0, 0, np.arange(len(arrays))), sizes[:, 0], sizes[:, 1])
            refused: set[int] = set()
            try:
                _run(preset, arrays, drawn)
            except RuntimeError as error:
                if not is_decode_failure(str(error)):
                    raise
                refused = set(undecodable(preset, arrays, drawn, device_id=None))
                if not refused:
                    raise RuntimeError(f"triage decodes every image of a batch that fails: {error}") from None
                rest = [row for row in range(len(arrays)) if row not in refused]
                if rest:
                    _run(preset, *_of(rest, arrays, drawn))
                if any(_decodes(preset, *_of([row], arrays, drawn)) for row in refused):
                    raise RuntimeError("triage refuses an image that the graph decodes") from None
            result.append(refused)
        return result


def _decodes(preset: Preset, images: list[np.ndarray], drawn: dict[str, np.ndarray]) -> bool:
    try:
        _run(preset, images, drawn)
    except RuntimeError:
        return False
    return True


def _of(
    rows: list[int], images: list[np.ndarray], drawn: dict[str, np.ndarray]
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Those of some rows."""
    return [images[row] for row in rows], {name: array[rows] for name, array in drawn.items()}


def _run(preset: Preset, images: list[np.ndarray], drawn: dict[str, np.ndarray]) -> None:
    """One batch through the graph; every image must come out."""
    from gpuloader.pipelines import build

    batch = (images, *drawn.values())
    pipeline = build(preset, drawn, lambda: batch, batch_size=len(images), num_threads=2, device_id=None, prefetch=1)
    [output] = pipeline.run()
    if len(output) != len(images):
        raise AssertionError(f"{len(output)} images out of {len(images)}")


# --- inputs


def mutated(kind: str, seed: int, number: int) -> bytes:
    """The input of that number: one of the seeds with one to three mutations."""
    rng = random.Random(f"{kind} {seed} {number}")
    data = rng.choice(seeds(kind))
    for _ in range(rng.choice((1, 1, 2, 3))):
        data = rng.choice(_MUTATIONS + _MUTATIONS_OF.get(kind, ()))(data, rng)
    if kind == "png" and rng.random() < 0.5:
        data = with_checksums(data)  # else most would be refused for those alone
    return data


def flip(data: bytes, rng: random.Random) -> bytes:
    """Some bits, anywhere."""
    result = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        if result:
            result[rng.randrange(len(result))] ^= 1 << rng.randrange(8)
    return bytes(result)


def flip_in_header(data: bytes, rng: random.Random) -> bytes:
    """Bytes near the beginning."""
    return flip(data[:_HEADER_BYTES], rng) + data[_HEADER_BYTES:]


def cut(data: bytes, rng: random.Random) -> bytes:
    """The end is missing."""
    return data[: rng.randrange(len(data) + 1)]


def remove(data: bytes, rng: random.Random) -> bytes:
    """Some bytes within are missing."""
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.choice((1, 2, 4, 16, 100)) :]


def insert(data: bytes, rng: random.Random) -> bytes:
    """Random bytes are put in."""
    start = rng.randrange(len(data) + 1)
    return data[:start] + rng.randbytes(rng.choice((1, 2, 4, 16, 100))) + data[start:]


def repeat(data: bytes, rng: random.Random) -> bytes:
    """A part comes twice."""
    start, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    return data[:end] + data[start:]


def splice(data: bytes, rng: random.Random) -> bytes:
    """The beginning of one and the end of another, of any format."""
    other = rng.choice(seeds(rng.choice(FORMATS)))
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other)) :]


def set_field(data: bytes, rng: random.Random) -> bytes:
    """A number in the header is an extreme one."""
    size = rng.choice((1, 2, 4))
    value = (rng.choice(_EXTREMES) % (1 << 8 * size)).to_bytes(size, rng.choice(("big", "little")))
    start = rng.randrange(min(len(data), _HEADER_BYTES) + 1)
    return data[:start] + value + data[start + size :]


def set_last_field(data: bytes, rng: random.Random) -> bytes:
    """A number near the end is an extreme one: that is where Pillow puts a TIFF's directory."""
    tail = data[-_HEADER_BYTES:]
    return data[: len(data) - len(tail)] + set_field(tail, rng)


def rearrange(data: bytes, rng: random.Random) -> bytes:
    """Whole segments of a JPEG are missing, come twice or stand elsewhere."""
    first, *parts = re.split(rb"(?=\xff[\xc0-\xcf\xd8-\xfe])", data)
    for _ in range(rng.choice((1, 1, 2, 5)) if parts else 0):
        part = rng.choice(parts)
        what = rng.choice(("drop", "repeat", "move"))
        if what != "repeat" and len(parts) > 1:
            parts.remove(part)
        if what != "drop":
            parts.insert(rng.randrange(len(parts) + 1), part)
    return first + b"".join(parts)


def set_length(kind: str, data: bytes, rng: random.Random) -> bytes:
    """The length of a chunk of a PNG or WebP is another, near what is left of the file or an extreme."""
    places = list(chunks(kind, data))
    if not places:
        return data
    place = rng.choice(places)
    left = len(data) - place
    return with_length(kind, data, place, rng.choice((*_EXTREMES, left - 12, left - 11, left - 8, left - 7, left)))


def insert_chunk(kind: str, data: bytes, rng: random.Random) -> bytes:
    """One more chunk of a PNG or WebP, which may be said to be longer than it is."""
    place = rng.choice([*chunks(kind, data), len(data)])
    content = rng.randbytes(rng.choice((0, 4, 8, 26)))
    name = rng.choice(_CHUNKS[kind])
    chunk = bytes(4) + name + content + bytes(4) if kind == "png" else name + bytes(4) + content
    chunk = with_length(kind, chunk, 0, rng.choice((len(content), len(content), *_EXTREMES)))
    result = bytearray(data[:place] + chunk + data[place:])
    if kind == "webp" and result[12:16] == b"VP8X":
        result[20] |= rng.choice((0, 2, 8, 0x10, 0x20))  # which chunks are said to be there
    return bytes(result)


def set_tag(data: bytes, rng: random.Random) -> bytes:
    """In the directory of a TIFF, as Pillow writes it, a tag is another, or its type, count or value is."""
    result = bytearray(data)
    start = int.from_bytes(data[4:8], "little")
    number = int.from_bytes(data[start : start + 2], "little")
    for _ in range(rng.choice((1, 1, 2, 4)) if number and start + 2 + 12 * number <= len(data) else 0):
        place = start + 2 + 12 * rng.randrange(number)
        what = rng.choice(("tag", "type", "count", "value", "value"))
        if what == "tag":
            result[place : place + 2] = rng.choice(_TIFF_TAGS).to_bytes(2, "little")
        elif what == "type":
            result[place + 2 : place + 4] = rng.randrange(20).to_bytes(2, "little")
        else:
            offset = 4 if what == "count" else 8
            value = rng.choice((*_EXTREMES, 16 * rng.randrange(10_000)))
            result[place + offset : place + offset + 4] = value.to_bytes(4, "little")
    return bytes(result)


_MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip,
    flip_in_header,
    cut,
    remove,
    insert,
    repeat,
    splice,
    set_field,
    set_field,
    set_last_field,
)
_MUTATIONS_OF: dict[str, tuple[Callable[[bytes, random.Random], bytes], ...]] = {
    "jpeg": (rearrange, rearrange, rearrange),
    "png": (partial(set_length, "png"), partial(insert_chunk, "png")),
    "webp": (partial(set_length, "webp"), partial(insert_chunk, "webp")),
    "tiff": (set_tag, set_tag, set_tag),
}


def chunks(kind: str, data: bytes) -> Iterator[int]:
    """Where the chunks of a PNG or WebP begin, as far as they can be walked."""
    position, order, offset, more = (8, "big", 0, 12) if kind == "png" else (12, "little", 4, 8)
    while position + 8 <= len(data):
        yield position
        length = int.from_bytes(data[position + offset : position + offset + 4], order)
        position += more + length + (length % 2 if kind == "webp" else 0)


def with_length(kind: str, data: bytes, place: int, length: int) -> bytes:
    """The chunk at a place is said to be so long."""
    order, offset = ("big", 0) if kind == "png" else ("little", 4)
    return data[: place + offset] + (length % 2**32).to_bytes(4, order) + data[place + offset + 4 :]


def with_checksums(data: bytes) -> bytes:
    """A PNG whose chunks, as far as they can be walked, have right checksums."""
    result, position = bytearray(data), 8
    while position + 12 <= len(data):
        end = position + 8 + int.from_bytes(data[position : position + 4], "big")
        if end + 4 > len(data):
            break
        result[end : end + 4] = zlib.crc32(data[position + 4 : end]).to_bytes(4, "big")
        position = end + 4
    return bytes(result)


@cache
def seeds(kind: str) -> tuple[bytes, ...]:
    """Whole files to start from."""
    rgb = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((96, 64))
    gray, palette, alpha = rgb.convert("L"), rgb.convert("P"), Image.merge("RGBA", [*rgb.split(), rgb.convert("L")])
    wide = Image.fromarray(np.asarray(gray, np.uint16) * 257)
    images: dict[str, list[tuple[Image.Image, dict[str, object]]]] = {
        "jpeg": [
            (rgb, {"subsampling": "4:2:0"}),
            (rgb, {"subsampling": "4:4:4"}),
            (rgb, {"progressive": True}),
            (rgb, {"restart_marker_blocks": 2}),
            (rgb, {"exif": _exif()}),
            (gray, {}),
            (rgb.convert("CMYK"), {}),
        ],
        "png": [(rgb, {}), (gray, {}), (palette, {"transparency": 3}), (alpha, {}), (wide, {}), (rgb.convert("1"), {})],
        "webp": [
            (rgb, {}),
            (rgb, {"lossless": True}),
            (alpha, {}),
            (rgb, {"exif": _exif()}),
            (rgb, {"save_all": True, "append_images": [rgb.rotate(180)]}),
        ],
        "tiff": [
            (rgb, {}),
            (rgb, {"compression": "tiff_lzw"}),
            (rgb, {"compression": "tiff_adobe_deflate"}),
            (rgb, {"compression": "jpeg"}),
            (gray, {}),
            (palette, {}),
            (wide, {}),
        ],
        "bmp": [(rgb, {}), (gray, {}), (palette, {}), (rgb.convert("1"), {}), (alpha, {})],
        "pnm": [(rgb, {}), (gray, {}), (rgb.convert("1"), {}), (wide, {})],
    }
    return tuple(_encoded(image, kind, options) for image, options in images[kind])


def _exif() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def _encoded(image: Image.Image, kind: str, options: dict[str, object]) -> bytes:
    file = io.BytesIO()
    image.save(file, "ppm" if kind == "pnm" else kind, **options)
    return file.getvalue()


if __name__ == "__main__":
    sys.exit(main())
