"""The fuzzer of `scripts/fuzz`: mutated images end no process, and what would is found."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FUZZING = Path(__file__).parents[2] / "scripts" / "fuzzing.py"


def fuzz(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "200"}
    command = [sys.executable, FUZZING, "--folder", folder, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)


def rows(output: str) -> dict[str, list[int]]:
    """The table: format -> mutated, refused by the gate, refused by the decoder, decoded, given up, deaths."""
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines() if line.startswith("│")]
    return {name: [int(number.replace(",", "")) for number in numbers] for name, *numbers in cells}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    return fuzz(tmp_path_factory.mktemp("none") / "findings", "--count", "150", "--seed", "1")


def test_no_mutated_image_breaks_anything(run: subprocess.CompletedProcess[str]) -> None:
    assert run.returncode == 0, run.stdout + run.stderr
    assert all((given_up, deaths) == (0, 0) for *_, given_up, deaths in rows(run.stdout).values())


@pytest.mark.parametrize("image_format", ["jpeg", "png", "webp", "tiff", "bmp", "pnm"])
def test_every_input_is_accounted_for(run: subprocess.CompletedProcess[str], image_format: str) -> None:
    mutated, *outcomes, deaths = rows(run.stdout)[image_format]
    assert mutated == sum(outcomes) == 150
    assert deaths == 0


@pytest.mark.parametrize("image_format", ["jpeg", "png", "webp", "tiff", "bmp", "pnm"])
def test_the_mutations_reach_the_gate_the_decoder_and_the_end(
    run: subprocess.CompletedProcess[str], image_format: str
) -> None:
    _, by_the_gate, by_the_decoder, decoded, *_ = rows(run.stdout)[image_format]
    assert min(by_the_gate, by_the_decoder, decoded) > 0


def test_a_process_without_memory_to_spare_is_a_finding_that_is_saved(tmp_path: Path) -> None:
    found = fuzz(tmp_path / "findings", "--count", "16", "--formats", "jpeg", "--spare-mib", "0", "--workers", "1")
    assert found.returncode == 1, found.stdout + found.stderr
    saved = sorted((tmp_path / "findings").iterdir())
    assert saved
    assert all(str(path) in found.stdout for path in saved)
    assert all(path.name.startswith("seed0-") and path.suffix == ".jpeg" for path in saved)


def test_the_inputs_are_the_same_each_time(tmp_path: Path) -> None:
    options = ("--count", "8", "--formats", "png", "--spare-mib", "0", "--workers", "1")
    one, other = ({path.name: path.read_bytes() for path in _saved(tmp_path / name, options)} for name in "ab")
    assert one
    assert one == other


def _saved(folder: Path, options: tuple[str, ...]) -> list[Path]:
    assert fuzz(folder, *options).returncode == 1
    return list(folder.iterdir())
