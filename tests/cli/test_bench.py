"""`gpuloader bench`, run as a user runs it."""

import json
from pathlib import Path

from command_line import run
from making import encoded, write_shard
from PIL import Image


def test_it_prints_the_figures_or_all_of_it_as_json(shards: list[Path], tmp_path: Path) -> None:
    preset = tmp_path / "small.yaml"
    preset.write_text("transforms: [{Resize: {size: 40}}, {CenterCrop: {size: 32}}]\n")
    options = ("bench", *shards, "--preset", preset, "--cpu", "--seconds", "0.2")
    result = run(*options)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "copies" not in result.stdout
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


def test_it_says_what_mipmaps_would_save(tmp_path: Path) -> None:
    image = encoded(Image.new("RGB", (1280, 1280)), "JPEG")
    shard = write_shard(tmp_path / "a.tar", [{"__key__": "a", "jpg": image, "cls": b"0"}])
    options = ("bench", shard, "--preset", "imagenet_eval", "--cpu", "--seconds", "0.1")
    needs = "`gpuloader pack --mipmaps 1024,512` and `oversampling: 1.5` in the recipe"
    line = f"copies   with {needs}, 100% of the crops use a smaller copy: 84% fewer pixels to decode"
    assert line in run(*options).stdout.splitlines()
    mipmaps = json.loads(run(*options, "--json").stdout)["copies"]
    assert (mipmaps["needs"], mipmaps["draws"], round(mipmaps["pixels"], 2)) == (needs, 1, 0.16)


def test_it_measures_the_recipe_with_changed_values(shards: list[Path], tmp_path: Path) -> None:
    preset = tmp_path / "small.yaml"
    preset.write_text("transforms: [{Resize: {size: 40}}, {CenterCrop: {size: 32}}]\n")
    options = ("--set", "CenterCrop.size=16", "--set", "dtype=float16", "--cpu", "--seconds", "0.1", "--json")
    result = run("bench", *shards, "--preset", preset, *options)
    assert result.returncode == 0, result.stderr
    changed = {str(preset): {"CenterCrop": {"size": 16}, "dtype": "float16"}}
    assert json.loads(result.stdout)["settings"]["preset"] == changed
    wrong = run("bench", *shards, "--set", "size")
    assert wrong.returncode == 1
    assert "--set size: allowed is KEY=VALUE" in wrong.stderr


def test_own_code_is_a_stage(shards: list[Path], tmp_path: Path) -> None:
    preset = tmp_path / "own.yaml"
    preset.write_text("transforms: [{CenterCrop: {size: 32}}, {Apply: {name: copy}}]\n")
    options = ("--preset", preset, "--functions", "copy:copy", "--cpu", "--seconds", "0.1", "--json")
    result = run("bench", *shards, *options)
    assert result.returncode == 0, result.stderr
    stages = [stage["stage"] for stage in json.loads(result.stdout)["devices"][0]["stages"]]
    assert stages == ["read", "gate", "decode", "resize", "own code", "loader"]
