"""`gpuloader info`, as a user runs it."""

import json
from pathlib import Path

import pytest
from command_line import run
from making import jpeg, write_samples, write_shard

from gpuloader.cli.info import info


def test_it_draws_what_is_in_the_shards(tmp_path: Path) -> None:
    write_samples(tmp_path, 40, sizes=[(60, 80), (60, 80), (60, 80), (120, 160)])
    lines = run("info", tmp_path).stdout.splitlines()
    assert lines[0].startswith("40 samples in 2 shards, ")
    assert lines[1:3] == ["formats     jpg 40", "components  cls 40, jpg 40, json 40"]
    assert "10 classes of 4 to 4 samples" in lines
    start = lines.index("image height, pixels: 60 to 120, median 60, mean 75")
    assert [lines[start + 1].split("█")[0].strip(), lines[start + 1].count("█")] == ["60 - 65", 30]
    assert lines[start + 8].count("█") == 10
    assert lines[start + 8].endswith(" 10")
    assert lines[-5].split() == ["index", *lines[-5].split()[1:-1], "host"]
    # 10 images of 160 x 120 and 30 of 80 x 60, of three bytes a pixel: all are in a batch of 256.
    assert lines[-1].startswith("  largest batch      1.01 MB  device, decoded whole; ")


def test_a_batch_that_can_take_half_of_the_memory_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpuloader.loading.memory.available_memory_bytes", lambda: 1_000_000)
    write_samples(tmp_path, 40, sizes=[(60, 80)])
    info([str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].endswith("576 kB  device, decoded whole; 1 MB on this host")
    assert lines[-1].startswith(
        "warning: the decoded images of one batch can take 576 kB, over half of the 1 MB of mem"
    )


def test_of_many_classes_the_largest_and_the_smallest_are_shown(tmp_path: Path) -> None:
    rows = [
        {"__key__": f"{label}-{copy}", "jpg": jpeg(8, 8), "cls": b"%d" % label}
        for label in range(12)
        for copy in range(label + 1)
    ]
    write_shard(tmp_path / "a.tar", rows)
    lines = run("info", tmp_path).stdout.splitlines()
    start = lines.index("12 classes of 1 to 12 samples")
    shown = [line.split()[0] for line in lines[start + 1 : start + 12]]
    assert shown == ["11", "10", "9", "8", "7", "...", "4", "3", "2", "1", "0"]
    assert lines[start + 6] == "  ... 2 more ..."


def test_a_size_that_all_have_needs_no_bars(tmp_path: Path) -> None:
    write_samples(tmp_path, 4, sizes=[(60, 80)])
    assert "image height, pixels: 60 in all" in run("info", tmp_path).stdout.splitlines()


def test_as_json(tmp_path: Path) -> None:
    write_samples(tmp_path, 40)
    printed = json.loads(run("info", tmp_path, "--json", "--preset", "raw_uint8", "--batch-size", 10).stdout)
    assert (printed["samples"], printed["formats"]) == (40, {"jpg": 40})
    assert printed["classes"][3] == {"label": 3, "name": None, "samples": 4}
    assert sum(printed["height"]["counts"]) == 40
    assert printed["memory"]["output_bytes"] == 4 * 10 * 3 * 224 * 224
