"""The fuzzer of `scripts/fuzz`: its mutants have a structure, and what breaks a rule is found, counted and saved."""

import ctypes
import json
import mmap
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing import active_children, forkserver
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing.__main__ import PAGE, RESULTS, describe, replaced
from fuzzing.__main__ import main as fuzz
from fuzzing.annotations import takes_annotations
from fuzzing.cuts import Cutter
from fuzzing.formats import FORMATS, in_order, with_regular_end
from fuzzing.images import Decoder, SplitError
from fuzzing.material import DATA, IMAGES, KINDS, material
from fuzzing.mutants import MOST_BYTES, mutant
from fuzzing.processes import Finding, Job, Result, Worker, examine
from fuzzing.scales import Scaler
from numpy.typing import NDArray

from gpuloader.errors import DataError
from gpuloader.images.scaled import decode_scaled
from gpuloader.pipelines.kernels.cutting import cut_jpegs

ROOT = Path(__file__).parents[2]


# --- mutants


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_is_taken_apart_and_put_together_is_the_same(kind: str) -> None:
    for data in material(kind):
        parts = FORMATS[kind].split(data)
        assert len(parts) > 1
        assert FORMATS[kind].join(parts) == data


@pytest.mark.parametrize("kind", KINDS)
def test_a_mutant_depends_on_its_seed_and_number_alone(kind: str) -> None:
    made = [mutant(kind, 5, number) for number in range(40)]
    assert [mutant(kind, 5, number) for number in reversed(range(40))] == made[::-1]
    assert len(set(made)) > 30  # some small changes are the same
    assert len(set(made) & set(material(kind))) < 5
    assert sum(mutant(kind, 6, number) == data for number, data in enumerate(made)) < 5


# --- images in two batches


@pytest.mark.parametrize("turn", [0, 1])
def test_whole_images_are_the_same_in_all_batches(turn: int) -> None:
    decoder = Decoder()
    for kind in IMAGES:
        images = dict(enumerate(material(kind)))
        assert decoder.examine(images, turn) == Counter(refused=0, replaced=0, accepted=len(images))


def level(images: list[bytes]) -> list[NDArray[Any]]:
    return [np.array([len(image)]) for image in images]


def by_place(images: list[bytes]) -> list[NDArray[Any]]:
    return [np.array([place]) for place in range(len(images))]


def refusing_several(images: list[bytes]) -> list[NDArray[Any]]:
    if len(images) > 1:
        raise DataError("image 1 cannot be decoded: cut; image 0 cannot be decoded: cut")
    return level(images)


def test_pixels_and_verdicts_that_depend_on_others_are_found() -> None:
    images = dict(enumerate(material("png")[:4]))
    assert Decoder([(level, level)]).examine(images)["accepted"] == 4
    for other in (by_place, refusing_several):
        with pytest.raises(SplitError, match="other pixels or verdicts"):
            Decoder([(level, other)]).examine(images)
    with pytest.raises(SplitError):
        Decoder([(refusing_several, refusing_several)]).examine(dict(list(images.items())[:2]))


# --- what is left of JPEGs that are cut


def cut_all(mutants: Sequence[bytes], cut: Any = cut_jpegs) -> Counter[str]:  # noqa: ANN401
    return Cutter(MOST_BYTES, cut).examine(dict(enumerate(mutants)))


def test_what_is_left_of_whole_images_has_their_pixels() -> None:
    whole = material("seekable")
    assert cut_all(whole) == Counter(accepted=len(whole))


def test_other_pixels_in_what_is_left_are_found() -> None:
    def shift(files: Sequence[NDArray[np.uint8]], windows: NDArray[np.int64]) -> NDArray[np.int64]:
        left = cut_jpegs(files, windows)
        return left - [[0, 0, int(left[0, 2] > 0)]]

    with pytest.raises(SplitError, match="other pixels in what is left"):
        cut_all(material("seekable"), shift)


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
    damaged = whole[:second] + b"\xff\xd3" + whole[second + 2 :]
    assert with_regular_end(whole) == whole
    assert with_regular_end(damaged) == whole[:second] + b"\xff\xd9"
    assert in_order(damaged) == whole


# --- JPEGs that are decoded at a part of their size


def scale_all(mutants: Sequence[bytes], decode: Any = decode_scaled) -> Counter[str]:  # noqa: ANN401
    return Scaler(MOST_BYTES, decode).examine(dict(enumerate(mutants)))


def test_whole_jpegs_are_decoded_or_left_to_dali() -> None:
    whole = material("seekable")
    cmyk = [data for data in whole if b"Adobe" in data[:200]]
    assert cmyk
    assert scale_all(whole) == Counter(accepted=len(whole) - len(cmyk), replaced=len(cmyk))


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda image, _: image[:, :-1], AssertionError),  # another size
        (lambda image, _: np.add(image, np.random.default_rng().integers(1, 255)), SplitError),  # unwritten memory
        (lambda image, bottom: image + np.uint8(bottom % 251), SplitError),  # other pixels above the needed rows
    ],
)
def test_what_depends_on_memory_or_rows_is_found(spoil: Any, error: type[Exception]) -> None:  # noqa: ANN401
    def decode(file: NDArray[np.uint8], factor: int, bottom: int) -> Any:  # noqa: ANN401
        image = decode_scaled(file, factor, bottom)
        return None if image is None else spoil(image, bottom)

    with pytest.raises(error):
        scale_all(material("seekable"), decode)


def test_a_file_that_is_changed_is_found() -> None:
    def decode(file: NDArray[np.uint8], factor: int, bottom: int) -> Any:  # noqa: ANN401
        image, file[-1] = decode_scaled(file, factor, bottom), 0
        return image

    with pytest.raises(AssertionError, match="it changes the file"):
        scale_all(material("seekable"), decode)


# --- what is counted


ALL = (0, 1, 2, 3)


def broken(cause: str) -> Result:
    return Result(Counter(), cause, cause)


@pytest.mark.parametrize(
    ("results", "found", "outcomes"),
    [
        ({}, [], {"accepted": 4}),
        ({ALL: broken("crash"), (2,): broken("crash")}, [((2,), "crash")], {"accepted": 3, "crash": 1}),
        ({ALL: broken("split")}, [(ALL, "split")], {"accepted": 4, "split": 1}),  # only together
        ({ALL: broken("hang")}, [], {"accepted": 4}),  # the machine's load, or the time of all
        ({ALL: broken("memory")}, [], {"accepted": 4}),
    ],
)
def test_a_mutant_that_breaks_a_rule_is_counted_by_what_it_does_alone(
    results: dict[tuple[int, ...], Result], found: list[tuple[tuple[int, ...], str]], outcomes: dict[str, int]
) -> None:
    def ask(job: Job) -> Result:
        return results.get(tuple(job.numbers), Result(Counter(accepted=len(job.numbers))))

    result, findings = examine(Job("png", range(4), 0), ask)
    assert [(tuple(job.numbers), cause) for job, cause, _ in findings] == found
    assert +result.outcomes == Counter(outcomes)
    assert all(isinstance(finding, Finding) for finding in findings)


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
    assert fuzz(["--count", "128", "--seed", "9", "--folder", str(folder / "findings"), "--json", str(report)]) == 0
    return json.loads(report.read_text())


def test_nothing_mutated_breaks_anything(run: dict[str, Any]) -> None:
    assert run["findings"] == []
    assert len(run["commit"].removesuffix("-dirty")) == 40


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow(kept=0)
def test_every_mutant_is_accounted_for_and_some_reach_the_end(run: dict[str, Any], kind: str) -> None:
    counts = run["outcomes"][kind]
    assert counts["mutants"] == 128 == counts["refused"] + counts["replaced"] + counts["accepted"]
    assert min(counts["refused"], counts["accepted"]) > 0
    assert (counts["replaced"] > 0) == (kind not in DATA)


def test_whole_annotations_are_taken() -> None:
    assert all(map(takes_annotations, material("annotations")))


@pytest.mark.usefixtures("server")
@pytest.mark.slow(kept=0)
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
    assert results["outcomes"]["jpeg"]["memory"] == len(saved) == len(results["findings"])


@pytest.mark.usefixtures("server")
def test_a_process_that_dies_is_a_crash_and_is_replaced() -> None:
    worker, job = Worker(1 << 30), Job("tar", range(3), 0)
    assert worker.ask(job).outcomes.total() == 3
    for process in active_children():
        process.kill()
        process.join()
    died = worker.ask(job)
    assert (died.cause, died.detail) == ("crash", "the process ended with exit code -9")
    assert worker.ask(job).outcomes.total() == 3
    worker.end()


# --- the page


def test_the_page_has_the_committed_results() -> None:
    page, results = PAGE.read_text(), json.loads(RESULTS.read_text())
    assert replaced(page, describe(results)) == page
    assert replaced(page, "") != page
