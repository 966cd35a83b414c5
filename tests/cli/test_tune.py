"""`gpuloader tune`, run as a user runs it."""

import json
import subprocess
from pathlib import Path

import command_line
import pytest
import yaml

from gpuloader import GPULoader


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return command_line.run("tune", *arguments, "--cpu", "--seconds", "5")


def test_it_says_what_was_best_and_writes_it(shards: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "tuned.yaml"
    result = run(*shards, "--preset", "imagenet_eval", "-o", output)
    assert result.returncode == 0, result.stderr
    batches, verdict, written = result.stdout.splitlines()
    assert batches == "batches of 32, because there are fewer than 128 images; --batch-size sets another"
    assert "images/s" in verdict
    assert written.startswith(f"{output}: arguments of GPULoader, found in ")
    arguments = yaml.safe_load(output.read_text())
    assert arguments["batch_size"] == 32
    with GPULoader(**arguments) as loader:
        assert sum(len(labels) for _, labels in loader) == 40


def test_json_is_all_of_it(shards: list[Path], tmp_path: Path) -> None:
    sizes = ("--batch-size", "8", "--batch-sizes", "4,16")
    printed = json.loads(run(*shards, *sizes, "-o", tmp_path / "tuned.yaml", "--json").stdout)
    assert printed["device"] == "cpu"
    assert printed["search"]["runs"][0]["settings"]["batch_size"] == 8
    assert printed["arguments"]["batch_size"] in (4, 8, 16)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (("--batch-sizes", "64;128"), "--batch-sizes 64;128: allowed are integers with commas between them"),
        (("--batch-size", "41"), "batch_size=41: the shards have 40 samples; give at most that, or leave it out"),
        (("--batch-sizes", "4,41"), "batch_size=41: the shards have 40 samples; give at most that, or leave it out"),
    ],
)
def test_a_mistake_is_one_message(shards: list[Path], sizes: tuple[str, ...], message: str) -> None:
    result = run(*shards, *sizes)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == f"error: {message}"
    assert "Traceback" not in result.stderr
