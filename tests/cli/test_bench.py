"""`gpuloader bench`, run as a user runs it."""

import json
import subprocess
from pathlib import Path

import command_line


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return command_line.run("bench", *arguments, "--cpu", "--seconds", "0.2")


def test_it_prints_the_figures_and_one_sentence(shards: list[Path], tmp_path: Path) -> None:
    preset = tmp_path / "small.yaml"
    preset.write_text("transforms: [{Resize: {size: 40}}, {CenterCrop: {size: 32}}]\n")
    result = run(*shards, "--preset", preset)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[1].startswith("data     40 images of ")
    assert lines[2] == "batch    32, because there are fewer than 128 images; --batch-size sets another"
    assert lines[4].split()[:5] == ["cpu,", lines[4].split()[1], "threads,", "batch", "32"]
    assert [line[:8] for line in lines[5:10]] == [
        "read, fr",
        "+ header",
        "+ decode",
        "+ resize",
        "the load",
    ]
    assert "measuring, cpu" in result.stderr


def test_json_is_all_of_it(shards: list[Path]) -> None:
    result = run(*shards, "--label-from", "none", "--shuffle", "block", "--batch-size", "8", "--json")
    printed = json.loads(result.stdout)
    assert printed["data"]["images"] == 40
    assert (printed["settings"]["batch_size"], printed["settings"]["shuffle"]) == (8, "block")
    [device] = printed["devices"]
    assert [stage["stage"] for stage in device["stages"]][-1] == "loader"
