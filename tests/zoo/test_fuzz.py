"""The fuzzer of `scripts/fuzz`: its mutants have a structure, and what breaks a rule is found, counted and saved."""

import ctypes
import json
import mmap
import os
import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import active_children, forkserver
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_images import HEIGHT, PNG, WIDTH, chunk
from fuzzing import report
from fuzzing.__main__ import main as fuzz
from fuzzing.annotations import takes_annotations
from fuzzing.cuts import Cutter
from fuzzing.images import Decoder, compare
from fuzzing.jobs import BATCH, Finding, Job, Result, Tally, examine_all, plan_jobs
from fuzzing.layouts import LAYOUTS, Layout, Part
from fuzzing.material import DATA, IMAGES, material
from fuzzing.mutants import KINDS, MOST_BYTES, mutant, mutator_of, mutators
from fuzzing.processes import examined
from fuzzing.seekable import with_regular_end, with_restarts_in_order
from numpy.typing import NDArray

from gpuloader.loading.fields import Ragged
from gpuloader.pipelines.kernels.cutting import cut_jpegs
from gpuloader.targets.annotations import Annotated

ROOT = Path(__file__).parents[2]


# --- files and their parts


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_file_that_is_taken_apart_and_put_together_is_the_same(kind: str) -> None:
    for data in material(kind):
        layout = LAYOUTS[kind]
        taken = layout.split(data)
        assert len(taken) > 1
        assert all(inner.join(inner.split(content)) == content for inner, content in composed(layout, taken))
        assert layout.join(taken) == data


def composed(layout: Layout, taken: list[Part]) -> list[tuple[Layout, bytes]]:
    inner = [(layout.inner[part.name], part.content) for part in taken if part.name in layout.inner]
    return [(within, content[start:]) for (start, within), content in inner]


def test_the_files_have_the_parts_of_their_formats() -> None:
    names: dict[str, set[bytes]] = {kind: set() for kind in LAYOUTS}
    for kind, found in names.items():
        for data in material(kind):
            layout = LAYOUTS[kind]
            taken = layout.split(data)
            found |= {part.name for part in taken}
            found |= {part.name for inner, content in composed(layout, taken) for part in inner.split(content)}
    assert {b"\xc0", b"\xc2", b"\xc4", b"\xda", b"\xdb", b"\xd9"} <= names["jpeg"]
    assert {b"\xc0", b"\xdd", b"\xda", b"\xd0", b"\xd7", b"\xd9"} <= names["seekable"]
    assert {b"IHDR", b"PLTE", b"tRNS", b"acTL", b"fcTL", b"IDAT", b"fdAT", b"IEND"} <= names["png"]
    assert {b"VP8X", b"VP8 ", b"VP8L", b"ANMF", b"EXIF"} <= names["webp"]
    assert {b"0", b"2", b"x", b"g", b"L", b"path", b"comment"} <= names["tar"]


# --- mutants


@pytest.mark.parametrize("kind", KINDS)
def test_a_mutant_depends_on_its_seed_and_number_alone(kind: str) -> None:
    made = [mutant(kind, 5, number) for number in range(40)]
    assert [mutant(kind, 5, number) for number in reversed(range(40))] == made[::-1]
    assert len(set(made)) > 30  # some small changes are the same
    assert len(set(made) & set(material(kind))) < 5
    assert sum(mutant(kind, 6, number) == data for number, data in enumerate(made)) < 5


def test_each_number_is_in_one_batch_of_one_mutator() -> None:
    jobs = list(plan_jobs("webp", 1001, 3))
    assert sorted(number for job in jobs for number in job.numbers) == list(range(1001))
    assert all(len({mutator_of("webp", number) for number in job.numbers}) == 1 for job in jobs)
    assert max(len(job.numbers) for job in jobs) == BATCH
    assert {job.recipe for job in jobs} == {0, 1}


# --- two splits of a batch


@pytest.mark.parametrize(
    ("once", "again", "outcomes", "suspects"),
    [
        ({1: "a", 2: "b"}, {2: "b", 1: "a"}, {"accepted": 2}, []),
        ({1: "a", 2: "replaced"}, {2: "replaced", 1: "a"}, {"accepted": 1, "replaced": 1}, []),
        ({1: "refused", 2: "replaced"}, {2: "refused", 1: "refused"}, {"refused": 1}, [2]),
        ({1: "a", 2: "b"}, {2: "c", 1: "a"}, {"accepted": 1}, [2]),  # other pixels
        ({1: "a", 2: "replaced", 3: "replaced"}, {3: "c", 2: "replaced", 1: "replaced"}, {"replaced": 1}, [1, 3]),
        ({}, {}, {}, []),
    ],
)
def test_splits_that_differ_are_a_finding(
    once: dict[int, str], again: dict[int, str], outcomes: dict[str, int], suspects: list[int]
) -> None:
    result = compare(once, again)
    assert (+result.outcomes, list(result.suspects)) == (Counter(outcomes), suspects)
    assert result.cause == ("split" if suspects else "")


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder()


@pytest.mark.parametrize("kind", IMAGES)
def test_whole_images_are_the_same_in_both_splits(decoder: Decoder, kind: str) -> None:
    images = dict(enumerate(material(kind)))
    for recipe in (0, 1):
        result = decoder.examine(Job(kind, range(len(images)), 0, recipe), images)
        assert (result.outcomes["accepted"], result.cause) == (len(images), ""), result


def test_memory_that_no_decoder_wrote_differs() -> None:
    # DALI 2.4 returns such an animation as it found the memory; it must not get it, so the gate is left out here.
    header, frames = PNG[:33], chunk(b"acTL", struct.pack(">II", 2, 0))
    frame = chunk(b"fcTL", struct.pack(">IIIIIHHBB", 0, WIDTH, HEIGHT, 0, 0, 1, 10, 0, 0))
    empty = header + frames + frame + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    decoder = Decoder(admit=lambda image: (np.frombuffer(image, np.uint8), (HEIGHT, WIDTH)))
    for recipe in (0, 1):
        result = decoder.examine(Job("png", range(3), 0, recipe), {0: PNG, 1: empty, 2: PNG})
        assert (result.cause, list(result.suspects)) == ("split", [1])
        assert +result.outcomes == Counter({"accepted": 2})


# --- what is left of JPEGs that are cut


def cut_all(mutants: Sequence[bytes], cut: Any = cut_jpegs) -> Result:  # noqa: ANN401
    return Cutter(MOST_BYTES, cut).examine(Job("seekable", range(len(mutants)), 0), dict(enumerate(mutants)))


def test_what_is_left_of_whole_images_has_their_pixels() -> None:
    whole = material("seekable")
    assert cut_all(whole) == Result(Counter({"accepted": len(whole)}))


def test_other_pixels_in_what_is_left_are_found() -> None:
    def shift(files: Sequence[NDArray[np.uint8]], windows: NDArray[np.int64]) -> NDArray[np.int64]:
        left = cut_jpegs(files, windows)
        return left - [[0, 0, int(left[0, 2] > 0)]]

    result = cut_all(material("seekable") * 4, shift)
    assert (result.cause, len(result.suspects) > 10) == ("split", True)
    assert result.outcomes["accepted"] + len(result.suspects) == len(material("seekable")) * 4


def test_what_is_written_beside_a_file_is_found() -> None:
    def write(files: Sequence[NDArray[np.uint8]], windows: NDArray[np.int64]) -> NDArray[np.int64]:
        address = files[0].__array_interface__["data"][0]
        if address % mmap.PAGESIZE:  # otherwise this process ends here
            ctypes.memset(address - 1, 0, 1)
        return cut_jpegs(files, windows)

    with pytest.raises(AssertionError, match="it writes before the file"):
        cut_all(material("seekable"), write)


def test_a_file_without_the_next_restart_marker_ends_there() -> None:
    whole = material("seekable")[0]
    second = whole.index(b"\xff\xd1", whole.index(b"\xff\xda"))
    assert with_regular_end(whole) == whole
    assert with_regular_end(whole[:second] + b"\xff\xd3" + whole[second + 2 :]) == whole[:second] + b"\xff\xd9"
    assert with_restarts_in_order(whole[:second] + b"\xff\xd3" + whole[second + 2 :]) == whole


# --- annotations


def move_boxes_out(_: object, values: Sequence[Annotated], __: object) -> Iterator[tuple[str, Ragged]]:
    counts = np.array([len(value.boxes) for value in values])
    yield "", Ragged(np.tile([30.0, 0, 50, 9], (counts.sum(), 1)), counts)
    for name in ("labels", "iscrowd", "area", "number"):
        yield name, Ragged(np.zeros(counts.sum()), counts)


@pytest.mark.parametrize(
    ("function", "instead", "message"),
    [
        ("boxes.Boxes.moved", move_boxes_out, "boxes right of the image"),
        ("keypoints.move_points", lambda points, *_: (points + 1000, np.ones(len(points), bool)), "can be seen"),
        ("masks.move_mask", lambda _, __, ___, ____, into, **_____: into.fill(7), "masks of other numbers"),
    ],
)
def test_targets_outside_of_the_image_are_found(
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    instead: Any,  # noqa: ANN401
    message: str,
) -> None:
    whole = material("annotations")
    assert all(map(takes_annotations, whole))
    monkeypatch.setattr(f"gpuloader.targets.{function}", instead)
    with pytest.raises(AssertionError, match=message):
        takes_annotations(whole[0])


# --- what is counted


def examine(results: dict[tuple[int, ...], Result]) -> tuple[list[Finding], dict[str, int]]:
    """The findings and the counts of two batches of four, whose mutants, and these alone, have such results."""
    jobs = [Job("png", range(first, first + 16, 4), 0) for first in (0, 16)]

    def run(jobs: Iterable[Job]) -> Iterator[tuple[Job, Result]]:
        for job in jobs:
            fine = Result(Counter({"accepted": len(job.numbers)}))
            yield job, results.get(tuple(job.numbers), fine)._replace(seconds=1.0, taken_bytes=max(job.numbers))

    tallies: dict[tuple[str, str], Tally] = {}
    findings = list(examine_all(jobs, run, tallies))
    [(names, tally)] = tallies.items()
    assert (names, tally.peak_bytes) == (("png", "bytes"), 28)
    return findings, dict(+tally.counts)


FIRST, SECOND = (0, 4, 8, 12), (16, 20, 24, 28)


def broken(cause: str, suspects: tuple[int, ...], accepted: int = 0) -> Result:
    return Result(Counter({"accepted": accepted}), cause, f"{cause} of {suspects}", suspects)


def test_a_mutant_that_breaks_something_alone_is_counted_once() -> None:
    findings, counts = examine({FIRST: broken("crash", FIRST), (4,): broken("crash", (4,))})
    assert [(list(job.numbers), cause) for job, cause, _ in findings] == [([4], "crash")]
    assert counts == {"mutants": 8, "accepted": 7, "crash": 1}


def test_only_suspects_are_tried_again() -> None:
    findings, counts = examine({SECOND: broken("split", (20, 28), 2), (20,): broken("split", (20,))})
    assert [list(job.numbers) for job, *_ in findings] == [[20]]
    assert counts == {"mutants": 8, "accepted": 7, "split": 1}


@pytest.mark.parametrize("cause", ["crash", "error", "split"])
def test_a_batch_that_breaks_something_together_is_counted_once(cause: str) -> None:
    findings, counts = examine({FIRST: broken(cause, FIRST)})
    assert [(tuple(job.numbers), cause) for job, cause, _ in findings] == [(FIRST, cause)]
    assert counts == {"mutants": 8, "accepted": 8, cause: 1}


@pytest.mark.parametrize("cause", ["hang", "memory"])
def test_the_time_and_memory_of_a_batch_are_no_finding(cause: str) -> None:
    # A hang may be the machine's load, and the memory is that of all.
    assert examine({FIRST: broken(cause, FIRST)}) == ([], {"mutants": 8, "accepted": 8})


# --- whole runs


@pytest.fixture(scope="module")
def server() -> Iterator[None]:
    """Where the fuzzer's processes are forked from; it loads the libraries once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT / "scripts", ROOT / "tests/support"))))
        yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def run(server: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of a small run."""
    folder = tmp_path_factory.mktemp("run")
    report = folder / "report.json"
    assert fuzz(["--count", "100", "--seed", "9", "--folder", str(folder / "findings"), "--json", str(report)]) == 0
    return json.loads(report.read_text())


def test_nothing_mutated_breaks_anything(run: dict[str, Any]) -> None:
    assert (run["findings"], run["mutants"]) == ([], 100 * len(KINDS))
    assert len(run["commit"].removesuffix("-dirty")) == 40


@pytest.mark.parametrize("kind", KINDS)
def test_every_mutant_is_accounted_for(run: dict[str, Any], kind: str) -> None:
    assert run["outcomes"][kind].keys() == mutators(kind).keys()
    for counts in run["outcomes"][kind].values():
        assert counts["mutants"] == counts["refused"] + counts["replaced"] + counts["accepted"]
    assert sum(counts["mutants"] for counts in run["outcomes"][kind].values()) == 100


@pytest.mark.parametrize("kind", [*IMAGES, "seekable"])
@pytest.mark.parametrize("mutator", ["bytes", "parts", "values"])
def test_the_mutations_reach_the_gate_the_decoder_and_the_end(run: dict[str, Any], kind: str, mutator: str) -> None:
    counts = run["outcomes"][kind][mutator]
    assert min(counts["refused"], counts["accepted"]) > 0
    assert sum(each["replaced"] for each in run["outcomes"][kind].values()) > 0


@pytest.mark.parametrize("kind", DATA)
def test_the_mutations_reach_the_parsers_and_what_is_behind(run: dict[str, Any], kind: str) -> None:
    counts = run["outcomes"][kind].values()
    assert min(sum(each[outcome] for each in counts) for outcome in ("refused", "accepted")) > 0


@pytest.mark.usefixtures("server")
def test_a_process_without_memory_to_spare_is_a_finding_that_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--count", "16", "--kinds", "jpeg", "--spare-mib", "0", "--workers", "1"]
    folder, json_file = tmp_path / "findings", tmp_path / "report.json"
    assert fuzz([*options, "--folder", str(folder), "--json", str(json_file)]) == 1
    saved, printed = sorted(folder.iterdir()), capsys.readouterr().out
    assert saved
    assert all(str(path) in printed for path in saved)
    # Its name says how to make it again.
    made = {path: re.fullmatch(r"seed(\d+)-(\d+)\.jpeg", path.name) for path in saved}
    assert all(name and path.read_bytes() == mutant("jpeg", int(name[1]), int(name[2])) for path, name in made.items())
    results = json.loads(json_file.read_text())
    assert results["mutants"] == 16
    assert (
        sum(each["memory"] for each in results["outcomes"]["jpeg"].values()) == len(saved) == len(results["findings"])
    )


@pytest.mark.usefixtures("server")
def test_a_process_that_dies_is_counted_and_replaced() -> None:
    jobs = [Job("json", range(3 * number, 3 * number + 3), 0) for number in range(4)]
    results = examined(jobs, 1, 1 << 30)
    [*first] = [next(results)]
    for process in active_children():
        process.kill()
        process.join()
    job, died = next(results)
    assert (died.cause, died.detail, died.suspects) == ("crash", "the process ended with exit code -9", (3, 4, 5))
    assert job == jobs[1]
    rest = [*first, *results]
    assert [job for job, _ in rest] == [jobs[0], *jobs[2:]]
    assert all(result.cause == "" and result.outcomes.total() == 3 for _, result in rest)


# --- the page


def test_the_page_has_the_committed_results() -> None:
    page, results = report.PAGE.read_text(), json.loads(report.RESULTS.read_text())
    assert report.replaced(page, report.describe(results)) == page
    assert report.replaced(page, "") != page
