"""`gpuloader verify`, as a user runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_line import run
from gpu_graph import gpu_graph
from making import write_shard
from typer.testing import CliRunner

from gpuloader.cli.app import app


def test_the_table_has_a_line_for_each_row_and_says_that_there_is_no_gpu(shards: list[Path]) -> None:
    result = run("verify", *shards, "--cpu", "--check", "formats", "--check", "bad-images")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["machine", "decoder", "device"]
    table = [line for line in lines if line.startswith("ok ")]
    assert re.fullmatch(r"ok   formats +JPEG 4:2:0 +mean 0, an image 0, largest 0  \(allowed: 0\)", table[0])
    assert lines[-1].startswith(f"{len(table)} rows, all is well; ")


def test_json_has_all_of_it_and_the_status_is_3_where_something_is_off(tmp_path: Path) -> None:
    tar = write_shard(tmp_path / "a.tar", [{"__key__": "a", "jpg": b"no image"}])
    result = run("verify", tar, "--cpu", "--check", "repeats", "--json")
    assert result.returncode == 3, result.stderr
    printed = json.loads(result.stdout)
    assert (printed["device"], printed["machine"]["cores"] > 0) == ("cpu", True)
    assert printed["versions"]["DALI"].startswith("2.4.")
    assert not any(row["ok"] for row in printed["rows"])


def test_without_shards_it_draws_pictures_and_takes_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuloader.cli.verify._PICTURES", 10)
    with gpu_graph():
        result = CliRunner().invoke(app, ["verify", "--check", "repeats", "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert rows[0]["found"] == "10 images are equal"
    assert "freed while the stream is busy" in [row["name"] for row in rows]
