"""`gpuloader pack`, run as a user runs it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import command_line
import pytest
from annotating import coco_content, write_coco
from making import jpeg
from packing import content, samples_of, write_class_folders
from warm import warm

from gpuloader import Compose
from gpuloader.pack import pack


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return command_line.run("pack", *arguments)


def test_every_option_is_the_librarys(tmp_path: Path) -> None:
    source = write_class_folders(tmp_path / "photos")
    (tmp_path / "names.json").write_text('["cat", "dog", "emu", "owl"]')
    options = "--shard-bytes 4KiB --seed 5 --no-shuffle --val-share 0.2 --prefix photos"
    smaller = "--max-size 20 --quality 80 --mipmaps 16,8"
    result = run(
        *(source, tmp_path / "by-command", *options.split(), *smaller.split()),
        *("--classes", tmp_path / "names.json", "--workers", 2, "--part", "1/2", "--json"),
    )
    assert result.returncode == 0, result.stderr
    given = {"shard_bytes": "4096B", "seed": 5, "shuffle": False, "val_share": 0.2, "prefix": "photos", "part": (1, 2)}
    smaller_copies = {"max_size": 20, "quality": 80, "mipmaps": (8, 16)}
    names = ["cat", "dog", "emu", "owl"]
    expected = pack(source, tmp_path / "by-library", classes=names, workers=1, **given, **smaller_copies)
    assert content(tmp_path / "by-command") == content(tmp_path / "by-library")
    printed = json.loads(result.stdout)
    assert printed["destination"] == f"{tmp_path}/by-command"
    for name in ("shards", "missing", "classes"):
        assert printed[name] == list(getattr(expected, name))
    assert printed["splits"] == expected.splits
    assert (printed["samples"], printed["bytes"], printed["left_out"]) == (expected.samples, expected.bytes, [])


def test_it_says_what_is_there_and_what_is_missing(tmp_path: Path) -> None:
    source = write_class_folders(tmp_path / "photos")
    (source / "cat" / "notes.txt").write_text("no picture")
    first = run(source, tmp_path / "packed", "--samples-per-shard", 10, "--part", "0/2", "--workers", 1)
    size = sum(path.stat().st_size for path in (tmp_path / "packed").glob("*.tar"))
    assert first.stdout == (
        "skipped, because they belong to no sample: 1\n"
        f"20 samples in 2 of 3 shards, {size:,} bytes\n"
        "still missing: train-000001.tar\n"
    )
    assert "packing" in first.stderr
    assert first.returncode == 0
    other = ("--samples-per-shard", 10, "--part", "1/2", "--workers", 1, "--decoded", 8)
    second = run(source, tmp_path / "packed", *other)
    assert second.returncode == 1
    assert "another pack began its shards (decoded was None, is 8)" in second.stderr


def test_it_says_how_many_samples_each_split_has(tmp_path: Path) -> None:
    source = write_class_folders(tmp_path / "photos")
    said = run(source, tmp_path / "packed", "--val-share", 0.2, "--workers", 1).stdout.splitlines()
    train, val = (len(samples_of(tmp_path / "packed" / split)) for split in ("train", "val"))
    assert said[0].startswith("30 samples in 2 of 2 shards, ")
    assert said[1:] == [f"{train} train, {val} val"]


def test_it_says_how_many_pictures_have_mipmaps_and_how_to_load_them(tmp_path: Path) -> None:
    source = write_class_folders(tmp_path / "photos", count=3)
    (source / "cat" / "large.jpg").write_bytes(jpeg(60, 80))
    options = ("--samples-per-shard", 1, "--workers", 1, "--mipmaps", "40,20")
    both = [run(source, tmp_path / "packed", *options, "--part", part).stdout for part in ("0/2", "1/2")]
    line = "to load the copies, add the line `oversampling: 1.5` to the recipe"
    with_mipmaps = [line in said for said in both]
    assert sorted(with_mipmaps) == [False, True]
    said = both[with_mipmaps.index(True)]
    assert f"of what this call wrote, 1 picture with smaller copies; too small for them: 1\n{line}" in said
    [command] = re.findall(r"\(gpuloader presets .*", said)
    bash = ["bash", "-euc", command]
    path = f"{warm().folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(bash, cwd=tmp_path, check=True, env={**os.environ, "PATH": path})
    assert Compose.load(tmp_path / "recipe.yaml").oversampling == 1.5
    said = both[with_mipmaps.index(False)]
    assert "of what this call wrote, 0 pictures with smaller copies; too small for them: 2\n" in said
    assert "copies" not in run(source, tmp_path / "packed", *options).stdout  # it wrote nothing


def test_bad_pictures_are_named_and_make_status_3(tmp_path: Path) -> None:
    source = write_class_folders(tmp_path / "photos", count=3)
    (source / "cat" / "bad.jpg").write_bytes(jpeg(8, 8)[:-2])
    result = run(source, tmp_path / "packed", "--workers", 1)
    assert result.returncode == 3
    cause = "a JPEG that is cut: it has no end-of-image marker"
    assert result.stdout.startswith(f"left out: '{source}/cat/bad.jpg': {cause}\n3 samples in 1 of 1 shard, ")
    assert len(samples_of(tmp_path / "packed")) == 3


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("gone", "packed"), 1, "error: no such source: gone (relative to "),
        (("photos", "packed", "--part", "1"), 2, "--part '1': allowed is i/n"),
        (("photos",), 2, "Missing argument"),
    ],
)
def test_a_users_mistake_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], status: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_class_folders(tmp_path / "photos", count=3)
    result = run(*arguments)
    assert result.returncode == status
    assert result.stdout == ""
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_bad_objects_are_named_and_make_status_3(tmp_path: Path) -> None:
    content = coco_content()
    content["annotations"][0]["bbox"] = []
    result = run(write_coco(tmp_path, content), tmp_path / "packed", "--workers", 1)
    assert result.returncode == 3
    assert result.stdout.startswith(f"left out: '{tmp_path}/train2017/b.c.jpg', annotations[0] (id 5): it has no b")
    assert "3 samples in 1 of 1 shard" in result.stdout
