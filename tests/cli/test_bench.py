"""`gpuloader bench`, run as a user runs it."""

import json
from pathlib import Path

from command_line import run


def test_it_prints_the_figures_or_all_of_it_as_json(shards: list[Path], tmp_path: Path) -> None:
    preset = tmp_path / "small.yaml"
    preset.write_text("transforms: [{Resize: {size: 40}}, {CenterCrop: {size: 32}}]\n")
    options = ("bench", *shards, "--preset", preset, "--cpu", "--seconds", "0.2")
    result = run(*options)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[1].startswith("data     40 images of ")
    assert "threads, batch 32 " in lines[3]
    assert [line[:8] for line in lines[4:9]] == ["read, fr", "+ header", "+ decode", "+ resize", "the load"]
    assert "measuring, cpu" in result.stderr
    printed = json.loads(
        run(*options, "--label-from", "none", "--shuffle", "block", "--batch-size", "8", "--json").stdout
    )
    assert (printed["settings"]["batch_size"], printed["settings"]["shuffle"]) == (8, "block")
    [device] = printed["devices"]
    assert [stage["stage"] for stage in device["stages"]][-1] == "loader"
