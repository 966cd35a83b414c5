"""`gpuloader tune`, run as a user runs it."""

import json
import subprocess
from pathlib import Path

import command_line
import pytest
import yaml

from gpuloader import GPULoader


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return command_line.run("tune", *arguments, "--cpu", "--batch-size", "8", "--seconds", "5")


@pytest.fixture(autouse=True, scope="module")
def _compiled(shards: list[Path]) -> None:
    """The kernels, which would take all of the time."""
    for preset in ("imagenet_eval", "imagenet_train"):
        with GPULoader(shards, 8, None, preset=preset) as loader:
            next(iter(loader))


def test_it_says_what_was_best_and_writes_it(shards: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "tuned.yaml"
    result = run(*shards, "--preset", "imagenet_eval", "-o", output)
    assert result.returncode == 0, result.stderr
    assert "images/s" in result.stdout.splitlines()[0]
    assert result.stdout.splitlines()[1].startswith(f"{output}: arguments of GPULoader, found in ")
    with GPULoader(**yaml.safe_load(output.read_text())) as loader:
        assert len(loader) == 5


def test_json_is_all_of_it(shards: list[Path], tmp_path: Path) -> None:
    printed = json.loads(run(*shards, "--batch-sizes", "4,16", "-o", tmp_path / "tuned.yaml", "--json").stdout)
    assert printed["device"] == "cpu"
    assert printed["search"]["runs"][0]["settings"]["batch_size"] == 8
    assert printed["arguments"]["batch_size"] in (4, 8, 16)


def test_a_mistake_is_one_message(shards: list[Path]) -> None:
    result = run(*shards, "--batch-sizes", "64;128")
    assert result.returncode == 1
    assert result.stderr == "error: --batch-sizes 64;128: allowed are integers with commas between them\n"
