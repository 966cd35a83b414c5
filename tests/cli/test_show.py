"""`gpuloader show`, run as a user runs it."""

import json
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

import command_line
import numpy as np
import pytest
from making import damaged_jpeg, jpeg, write_shard
from PIL import Image
from warm import CLI, Program

SMALL = ("--set", "RandomResizedCrop.size=32", "--cpu")


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return command_line.run("show", *arguments)


def test_it_writes_a_picture_and_says_what_is_in_it(shards: list[Path], tmp_path: Path) -> None:
    picture = tmp_path / "grid.png"
    result = run(*shards, *SMALL, "-o", picture, "--count", 3, "--versions", 2)
    assert (result.returncode, result.stdout) == (0, f"{picture}: 3 samples\n")
    with Image.open(picture) as image:
        assert image.size == (424, 580)


def test_as_json_with_a_recipe_changed_and_samples_named(shards: list[Path], tmp_path: Path) -> None:
    changed = ("--preset", "deit", "--set", "mix=null", "--set", "RandomErasing=null")
    chosen = ("--id", 3, "--key", "000007", "--seed", 5, "--json")
    result = run(*shards, *SMALL, *changed, "-o", tmp_path / "a.jpg", *chosen)
    printed = json.loads(result.stdout)
    assert [sample["id"] for sample in printed["samples"]] == [3, 7]
    assert printed["mix_left_out"] is False
    assert printed["picture"] == str(tmp_path / "a.jpg")


def test_mixing_and_bad_images_are_told_and_the_status_is_0(tmp_path: Path) -> None:
    samples = [{"__key__": "a", "jpg": damaged_jpeg()}, {"__key__": "b", "jpg": jpeg(40, 40)}]
    path = write_shard(tmp_path / "a.tar", samples)
    result = run(path, *SMALL, "--preset", "deit", "--label-from", "none", "-o", tmp_path / "a.png")
    assert result.returncode == 0
    assert result.stdout.splitlines()[1:] == [
        "the recipe's MixUp and CutMix are left out",
        f"bad image: a in {path}: DALI's decoder fails on it",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "size"), "error: --set size: allowed is KEY=VALUE, such as RandomResizedCrop.size=160"),
        (("--id", "40"), "error: sample 40: allowed is an id from 0 to 39"),
        (("--serve", "--port", "70000"), "error: port 70000 cannot be used"),
    ],
)
def test_a_mistake_is_one_message(shards: list[Path], tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run(*shards, "--cpu", "-o", tmp_path / "a.png", *arguments)
    assert (result.returncode, result.stdout) == (1, "")
    assert message in result.stderr  # behind the progress of indexing, perhaps
    assert "Traceback" not in result.stderr


def write_loader(folder: Path, **more: object) -> Path:
    """A shard with a box and a loader's file for it; returns the file."""
    content = json.dumps({"annotations": [{"bbox": [8, 16, 32, 32], "category_id": 0}]}).encode()
    write_shard(folder / "a.tar", [{"__key__": "a", "jpg": jpeg(64, 64), "json": content}])
    fields = {"cars": {"Boxes": {"source": "json:annotations", "format": "xywh", "labels": "category_id"}}}
    preset = {"imagenet_train": {"RandomResizedCrop": {"size": 32}}}
    loader = {"tar": str(folder / "a.tar"), "label_from": None, "preset": preset, "fields": fields, "seed": 5, **more}
    (folder / "train.yaml").write_text(json.dumps(loader))  # JSON is YAML
    return folder / "train.yaml"


def test_a_loaders_file_stands_for_its_shards_recipe_and_seed_but_the_command_line_counts_more(tmp_path: Path) -> None:
    by_file, by_hand = tmp_path / "file.png", tmp_path / "hand.png"
    mixture = [{"tar": str(tmp_path / "a.tar"), "weight": 2}]  # the samples of which are those of its sources
    result = run(write_loader(tmp_path, tar=mixture), "--cpu", "-o", by_file, "--json")
    assert result.returncode == 0
    run(tmp_path / "train.yaml", "--cpu", "--seed", 6, "-o", by_file)
    run(tmp_path / "a.tar", "--label-from", "none", *SMALL, "--seed", 6, "-o", by_hand)
    ours, theirs = (np.asarray(Image.open(path))[70:] for path in (by_file, by_hand))  # without the headings
    assert (ours == theirs).all()


def test_what_cannot_be_drawn_is_said(tmp_path: Path) -> None:
    blended = {"transforms": [{"Resize": {"size": [32, 32]}}, "AugMix"]}
    result = run(write_loader(tmp_path, preset=blended), "--cpu", "-o", tmp_path / "a.png", "--versions", 1)
    assert result.returncode == 0
    assert result.stdout.splitlines()[1].startswith("cars not drawn: AugMix blends several warped copies")


def test_it_serves_until_ctrl_c(shards: list[Path]) -> None:
    command = ["show", *shards, *SMALL, "--serve", "--port", "0"]
    with Program(CLI, *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        [url] = re.findall(r"^(http://127\.0\.0\.1:\d+/)    \(Ctrl-C ends it\)$", line.strip())
        with urllib.request.urlopen(f"{url}api/version?id=3") as answer:
            assert answer.read(8) == b"\x89PNG\r\n\x1a\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err
