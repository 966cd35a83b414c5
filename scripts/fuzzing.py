"""Feeds mutated images to the gate and to DALI, in processes that may die; and mutated data to parsers.

For JPEG 2000, they get what the process for it returns.

Every input depends only on (seed, format, number). These must hold: no process dies, hangs or runs out of memory; an
image that passes the gate is decoded, or triage names it, the graph refuses only that image, and the others of its
batch are decoded without it; a parser refuses data only with the library's errors. A batch that breaks a rule is tried
again, each input alone. Inputs that then break it, too, are saved, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import distributions
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:  # only the workers load the library, and DALI with it
    from fuzzing_data import Examine

    from gpuloader.recipe import Preset

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

IMAGES = {  # format -> how the zoo's images of it are called
    "jpeg": ("jpeg-",),
    "png": ("png-",),
    "webp": ("webp-",),
    "tiff": ("tiff-",),
    "bmp": ("bmp-",),
    "pnm": ("ppm-", "pgm-", "pbm-"),
    "jpeg2000": ("jp2-", "j2k-"),
}
DATA = ("tar", "index", "state", "recipe", "npy", "json")
FORMATS = (*IMAGES, *DATA)
OUTCOMES = ("mutated", "refused", "refused by the decoder", "accepted", "given up")
_BATCH = 64
_SIZE = 32
_HEADER_BYTES = 256
_MOST_SECONDS = 10  # of CPU time, for a batch and, as it is tried again then, for one input
_MOST_WAITING_SECONDS = 120  # for all workers together
_MOST_JOBS = 300  # of one process: the decoders' libraries lose some memory with images that fail in them
_CAUSES = ("death", "hang", "memory", "exception")
# An allocation that fails is no finding, as decoders take it for a broken image; one that does not is.
_LIMIT_OVER_SPARE = 8
_LEAST_LIMIT_BYTES = 1 << 30  # for pipelines
_EXTREMES = (0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0xFFFFFFFF)
_TIFF_TAGS = (256, 257, 258, 259, 262, 273, 274, 277, 278, 279, 284, 317, 320, 322, 323, 324, 325, 338, 339, 347, 530)
_CHUNKS = {"png": (b"eXIf", b"iCCP", b"tRNS", b"PLTE", b"acTL", b"fdAT"), "webp": (b"EXIF", b"ICCP", b"ALPH", b"ANMF")}


class Job(NamedTuple):
    """A batch of inputs, by their numbers."""

    kind: str
    numbers: range
    seed: int


class Result(NamedTuple):
    """The result of a batch.

    Attributes:
        counts: outcome -> how many inputs had it.
        cause: what broke: "death", "hang", "memory" or "exception"; or empty.
        detail: the cause in words.
    """

    counts: Counter[str]
    cause: str = ""
    detail: str = ""


class Finding(NamedTuple):
    """What broke, and the inputs at fault: one, or those of a batch if no single one breaks it."""

    job: Job
    cause: str
    detail: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the fuzzer as the options say, prints what it found, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="inputs of each format")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, default=Path("fuzz-findings"), help="where to save failing inputs")
    parser.add_argument("--spare-mib", type=int, default=1024, help="memory that an input may take")
    parser.add_argument("--json", type=Path, help="a file to write the results to")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    jobs = [
        Job(kind, range(start, min(start + _BATCH, options.count)), options.seed)
        for kind in options.formats
        for start in range(0, options.count, _BATCH)
    ]
    totals = {kind: Counter[str]() for kind in options.formats}
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bars = {kind: progress.add_task(kind, total=options.count) for kind in options.formats}

        def run(jobs: Iterable[Job]) -> list[Finding]:
            """Counts what became of the inputs, but for those of batches that broke something."""
            broken = []
            for job, result in examined(jobs, options.workers, options.spare_mib << 20):
                if result.cause:
                    text = f"{job.kind} {job.numbers}: {result.cause}: {result.detail}"
                    console.print(text, markup=False, highlight=False, soft_wrap=True)
                    broken.append(Finding(job, result.cause, result.detail))
                else:
                    totals[job.kind] += result.counts
                    progress.advance(bars[job.kind], len(job.numbers))
            return broken

        findings = confirmed(run(jobs), run)
    for job, *_ in findings:
        totals[job.kind] += Counter({"mutated": len(job.numbers), "given up": len(job.numbers)})
    console.print(table(totals))
    for job, cause, detail in findings:
        saved = [save(options.folder, job, number) for number in job.numbers]
        text = f"{cause}: {detail}\n  " + "\n  ".join(map(str, saved))
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    if options.json:
        report = summary(options.seed, options.spare_mib, totals, findings, time.monotonic() - started)
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 1 if findings else 0


def confirmed(broken: Sequence[Finding], run: Callable[[Iterable[Job]], list[Finding]]) -> list[Finding]:
    """What each input breaks alone; or a batch together, where that is no matter of its size or the machine's load."""
    found = run([job._replace(numbers=range(n, n + 1)) for job, *_ in broken for n in job.numbers])
    blamed = {(job.kind, *job.numbers) for job, *_ in found}
    together = [
        finding
        for finding in broken
        if finding.cause in ("death", "exception")
        and not any((finding.job.kind, number) in blamed for number in finding.job.numbers)
    ]
    return found + together


def table(totals: dict[str, Counter[str]]) -> Table:
    """The outcomes of each format."""
    result = Table("format", *OUTCOMES)
    for kind, counts in totals.items():
        result.add_row(kind, *(f"{counts[outcome]:,}" for outcome in OUTCOMES))
    return result


def summary(
    seed: int, spare_mib: int, totals: dict[str, Counter[str]], findings: Sequence[Finding], seconds: float
) -> dict[str, object]:
    """The outcome, and all that it depends on."""
    names = ("gpuloader", "nvidia-dali", "nvidia-nvimgcodec", "numpy", "pillow")
    versions = {each.name.lower(): each.version for each in distributions() if each.name.lower().startswith(names)}
    git = ("git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    times = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    causes = Counter(finding.cause for finding in findings)
    return {
        "commit": commit,
        "versions": {"python": sys.version.split()[0], **dict(sorted(versions.items()))},
        "seed": seed,
        "inputs": sum(counts["mutated"] for counts in totals.values()),
        "limits": {"cpu_seconds": _MOST_SECONDS, "memory_mib": spare_mib},
        "found": {cause: causes[cause] for cause in _CAUSES},
        "findings": [
            {"format": job.kind, "numbers": list(job.numbers), "cause": cause, "detail": detail}
            for job, cause, detail in findings
        ],
        "outcomes": {kind: {outcome: counts[outcome] for outcome in OUTCOMES} for kind, counts in totals.items()},
        "seconds": round(seconds),
        "cpu_seconds": round(sum(each.ru_utime + each.ru_stime for each in times)),
    }


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
        try:
            self.connection.recv()  # it is ready: what it takes to begin counts for no input
        except EOFError:
            raise RuntimeError("a worker could not begin, see above") from None
        self.job: Job | None = None
        self.jobs = 0
        self.hangs = False

    def begin(self, job: Job) -> None:
        self.job = job
        self.jobs += 1
        with suppress(BrokenPipeError):  # `result` finds the death
            self.connection.send(job)

    def result(self) -> Result:
        """What the process says of its job, or how it ended."""
        try:
            result: Result = self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            if self.hangs or self.process.exitcode == -signal.SIGXCPU:
                seconds = f"{_MOST_WAITING_SECONDS} s" if self.hangs else f"{_MOST_SECONDS} s of CPU time"
                return Result(Counter(), "hang", f"no end within {seconds}")
            return Result(Counter(), "death", f"the process ended with exit code {self.process.exitcode}")
        return result

    def end(self) -> None:
        with suppress(BrokenPipeError):
            self.connection.send(None)
        self.process.join()


def examined(jobs: Iterable[Job], workers: int, spare_bytes: int) -> Iterator[tuple[Job, Result]]:
    """The results of all jobs, as they come; a process that died is replaced."""
    left = iter(jobs)
    busy: dict[Connection, _Worker] = {}

    def begin(worker: _Worker | None = None) -> None:
        """Gives the next job to that worker, or to a new one."""
        job = next(left, None)
        if job is not None:
            worker = worker or _Worker(spare_bytes)
            worker.begin(job)
            busy[worker.connection] = worker
        elif worker is not None:
            worker.end()

    try:
        for _ in range(workers):
            begin()
        while busy:
            ready = wait(list(busy), timeout=_MOST_WAITING_SECONDS)
            if not ready:
                for worker in busy.values():
                    worker.hangs = True
                    worker.process.kill()  # each is then found dead, with the job that it hung on
                continue
            for connection in ready:
                worker = busy.pop(connection)
                result = worker.result()
                assert worker.job is not None
                yield worker.job, result
                if result.cause not in ("death", "hang") and worker.jobs == _MOST_JOBS:
                    worker.end()
                begin(worker if result.cause not in ("death", "hang") and worker.jobs < _MOST_JOBS else None)
    finally:
        for worker in busy.values():
            worker.process.kill()
            worker.process.join()


def _serve(connection: Connection, spare_bytes: int) -> None:
    from fuzzing_data import examiners

    from gpuloader.pipelines import admit

    sys.stderr = os.fdopen(os.dup(2), "w")  # for Python's own end alone
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the decoders tell at length what is wrong with every image
    logging.disable()
    decoder = _Decoder()
    for kind in IMAGES:  # loads what the first batches would
        decoder.decode([admit(np.frombuffer(image, np.uint8)) for image in seeds(kind)])
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most_bytes = used_bytes + max(_LIMIT_OVER_SPARE * spare_bytes, _LEAST_LIMIT_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory() as folder:
        data = examiners(Path(folder))
        connection.send("ready")
        while (job := connection.recv()) is not None:
            Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
            before_bytes = _peak_bytes()
            # The kernel ends what takes longer, however many threads it runs on and whatever else the machine does.
            resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 1 + _MOST_SECONDS, -1))
            try:
                result = decoder.examine(job) if job.kind in IMAGES else _parsed(job, data[job.kind])
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
                result = Result(Counter(), "exception", f"{type(error).__name__}: {str(error)[:2000]}")
            taken_bytes = _peak_bytes() - before_bytes
            if taken_bytes > spare_bytes and not result.cause:
                result = Result(Counter(), "memory", f"{taken_bytes >> 20:,} MiB taken")
            connection.send(result)


def _peak_bytes() -> int:
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    return int(peak[1]) << 10


def _parsed(job: Job, accepts: Examine) -> Result:
    accepted = sum(accepts(mutated(job.kind, job.seed, number)) for number in job.numbers)
    return Result(Counter({"mutated": len(job.numbers), "refused": len(job.numbers) - accepted, "accepted": accepted}))


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
        from gpuloader.helpers.image_limits import DEFAULT_MAX_PIXELS
        from gpuloader.pipelines import admit

        images = [mutated(job.kind, job.seed, number) for number in job.numbers]
        admitted = [admit(np.frombuffer(image, np.uint8), DEFAULT_MAX_PIXELS) for image in images]
        passed = [image for image in admitted if not isinstance(image, str)]
        bad = set.union(*self.decode(passed)) if passed else ()
        return Result(
            Counter(
                {
                    "mutated": len(images),
                    "refused": len(images) - len(passed),
                    "refused by the decoder": len(bad),
                    "accepted": len(passed) - len(bad),
                }
            )
        )

    def decode(self, admitted: list[tuple[np.ndarray, tuple[int, int]]]) -> list[set[int]]:
        """For each recipe, the rows that cannot be decoded; an error unless the others can."""
        from gpuloader.internals.dali import is_decode_failure
        from gpuloader.pipelines import find_undecodable
        from gpuloader.plan import Draws

        result = []
        arrays, sizes = [image[0] for image in admitted], np.array([image[1] for image in admitted])
        for preset in self._presets:
            drawn = preset.arrays(Draws(0, 0, np.arange(len(arrays))), sizes[:, 0], sizes[:, 1])
            refused: set[int] = set()
            try:
                _run(preset, arrays, drawn)
            except RuntimeError as error:
                if not is_decode_failure(str(error)):
                    raise
                refused = set(find_undecodable(preset, arrays, drawn, device_id=None))
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
    from gpuloader.pipelines import recipe_pipeline

    batch = (images, *drawn.values())
    pipeline = recipe_pipeline(preset=preset, source=lambda: batch, batch_size=len(images), num_threads=2)
    [output] = pipeline.run()
    if len(output) != len(images):
        raise AssertionError(f"{len(output)} images out of {len(images)}")


# --- inputs


def mutated(kind: str, seed: int, number: int) -> bytes:
    """The input of that number: one of the seeds with one to three mutations."""
    rng = random.Random(f"{kind} {seed} {number}")
    data = rng.choice(seeds(kind))
    if kind in DATA:
        from fuzzing_data import mutate

        return mutate(kind, data, rng)
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
    other = rng.choice(seeds(rng.choice(tuple(IMAGES))))
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
    """Whole segments of a JPEG or of a code stream of JPEG 2000 are missing, come twice or stand elsewhere."""
    first, *parts = re.split(rb"(?=\xff[\x4f-\x93\xc0-\xcf\xd8-\xfe])", data)
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
    "jpeg2000": (rearrange, rearrange),
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
    if kind in DATA:
        import fuzzing_data

        return fuzzing_data.seeds(kind)
    from bad_images import good_kinds

    text = (b"P1\n4 2\n1 0 1 0\n0 1 0 1\n", b"P2\n3 2\n255\n0 128 255\n1 2 3\n") if kind == "pnm" else ()
    return (*(image.data for image in good_kinds() if image.name.startswith(IMAGES[kind])), *text)


if __name__ == "__main__":
    sys.exit(main())
