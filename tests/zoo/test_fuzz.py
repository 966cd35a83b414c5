"""The fuzzer of `scripts/fuzz`: mutated images end no process, and what would is found."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuloader.helpers.image_limits import DEFAULT_FORMATS

IMAGES = ["jpeg", "png", "webp", "tiff", "bmp", "pnm", "jpeg2000"]
DATA = ["tar", "index", "state", "recipe", "npy", "json"]
FUZZING = Path(__file__).parents[2] / "scripts" / "fuzzing.py"


def fuzz(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "200"}
    command = [sys.executable, FUZZING, "--folder", folder, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=environment)


def rows(output: str) -> dict[str, list[int]]:
    """The table: format -> mutated, refused, refused by the decoder, accepted, given up."""
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines() if line.startswith("│")]
    return {name: [int(number.replace(",", "")) for number in numbers] for name, *numbers in cells}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    return fuzz(tmp_path_factory.mktemp("none") / "findings", "--count", "150", "--seed", "1")


def test_nothing_mutated_breaks_anything(run: subprocess.CompletedProcess[str]) -> None:
    assert (run.returncode, run.stderr) == (0, ""), run.stdout + run.stderr
    assert all(given_up == 0 for *_, given_up in rows(run.stdout).values())


@pytest.mark.parametrize("kind", [*IMAGES, *DATA])
def test_every_input_is_accounted_for(run: subprocess.CompletedProcess[str], kind: str) -> None:
    mutated, *outcomes = rows(run.stdout)[kind]
    assert mutated == sum(outcomes) == 150


@pytest.mark.parametrize("image_format", IMAGES)
def test_the_mutations_reach_the_gate_the_decoder_and_the_end(
    run: subprocess.CompletedProcess[str], image_format: str
) -> None:
    _, by_the_gate, by_the_decoder, decoded, _ = rows(run.stdout)[image_format]
    assert min(by_the_gate, decoded) > 0
    # What Pillow makes of the others is whole.
    assert (by_the_decoder > 0) == (image_format in DEFAULT_FORMATS)


@pytest.mark.parametrize("kind", DATA)
def test_the_mutations_reach_the_parsers_and_what_is_behind(run: subprocess.CompletedProcess[str], kind: str) -> None:
    _, refused, _, accepted, _ = rows(run.stdout)[kind]
    assert min(refused, accepted) > 0


@pytest.fixture(scope="module")
def fuzzing() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(FUZZING)))


def test_a_process_without_memory_to_spare_is_a_finding_that_is_saved(tmp_path: Path, fuzzing: SimpleNamespace) -> None:
    options = ("--count", "16", "--formats", "jpeg", "--spare-mib", "0", "--workers", "1")
    found = fuzz(tmp_path / "findings", *options, "--json", str(tmp_path / "report.json"))
    assert found.returncode == 1, found.stdout + found.stderr
    saved = sorted((tmp_path / "findings").iterdir())
    assert saved
    assert all(str(path) in found.stdout for path in saved)
    # Its name says how to make it again, in any process.
    made = {path: re.fullmatch(r"seed(\d+)-(\d+)\.jpeg", path.name) for path in saved}
    assert all(
        name and path.read_bytes() == fuzzing.mutated("jpeg", int(name[1]), int(name[2])) for path, name in made.items()
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["inputs"] == 16
    assert report["found"] == {"death": 0, "hang": 0, "memory": len(saved), "exception": 0}
    assert len(report["commit"].removesuffix("-dirty")) == 40


def test_what_an_input_does_alone_is_what_counts(fuzzing: SimpleNamespace) -> None:
    jobs = [fuzzing.Job("png", range(8 * number, 8 * number + 8), 0) for number in range(4)]
    causes = ("hang", "death", "memory", "exception")
    broken = [fuzzing.Finding(job, cause, "together") for job, cause in zip(jobs, causes, strict=True)]
    alone = fuzzing.Finding(fuzzing.Job("png", range(9, 10), 0), "death", "alone")

    def run(jobs: list[Any]) -> list[Any]:
        assert [number for job in jobs for number in job.numbers] == list(range(32))
        assert all(len(job.numbers) == 1 for job in jobs)
        return [alone]

    # A hang is the machine's load, and memory that of all; an exception of a batch is none of the machine's.
    assert fuzzing.confirmed(broken, run) == [alone, broken[3]]
