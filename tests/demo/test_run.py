"""What the demonstration says and leaves, with few pictures. That it learns is with the README's snippets."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from packing import samples_of

from gpuloader import GPULoader
from gpuloader.cli import main
from gpuloader.demo import run
from gpuloader.demo.pictures import CLASSES

FEW = {"TRAIN_PICTURES": 64, "VAL_PICTURES": 20, "PICTURES_PER_SHARD": 32, "EPOCHS": 2}
EPOCH = r"epoch {}/2  accuracy \d+%  \d+ images/s  waiting \d+%"


@pytest.fixture
def _few_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in FEW.items():
        monkeypatch.setattr(run, name, value)


def gpuloader(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The command's exit status."""
    monkeypatch.setattr(sys, "argv", ["gpuloader", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.usefixtures("_few_pictures")
def test_it_says_where_it_is_and_what_came_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "demo.png"
    assert gpuloader(monkeypatch, "demo", "--cpu", "--output", picture) == 0
    printed, said = capsys.readouterr()
    assert [line.split("  ")[0] for line in printed.splitlines()] == [
        "device",
        "accuracy",
        "training",
        "waiting for data",
        "predictions",
    ]
    assert printed.split()[:2] == ["device", "cpu"]
    assert "% of 20 pictures that it had not seen, each once" in printed
    stages = [line for line in said.splitlines() if line.startswith(("making", "epoch"))]
    for stage, expected in zip(
        stages, ["making 84 pictures of 10 classes", EPOCH.format(1), EPOCH.format(2)], strict=True
    ):
        assert re.fullmatch(expected, stage), stage
    assert picture.exists()


@pytest.mark.usefixtures("_few_pictures")
def test_the_pictures_are_kept_where_asked_and_never_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert gpuloader(monkeypatch, "demo", "--cpu", "--keep", "kept") == 0
    tars = ["train/train-0000.tar", "train/train-0001.tar", "val/val-0000.tar"]
    assert sorted(str(tar.relative_to("kept/shards")) for tar in Path().rglob("*.tar")) == tars
    for part, samples in (("train", 64), ("val", 20)):
        with GPULoader(f"kept/photos/{part}", 4, None) as loader:
            assert (len(loader), loader.classes) == (samples // 4, CLASSES)
        in_shards = [
            (CLASSES[int(each["cls"])], each["__key__"], each["jpg"])
            for each in samples_of(Path(f"kept/shards/{part}"))
        ]
        photos = sorted(Path(f"kept/photos/{part}").rglob("*.*"), key=lambda photo: photo.name)
        assert [(photo.parent.name, photo.stem, photo.read_bytes()) for photo in photos] == in_shards

    before = [path.stat() for path in sorted(Path("kept").rglob("*.*"))]
    capsys.readouterr()
    assert gpuloader(monkeypatch, "demo", "--cpu", "--keep", "kept") == 1
    assert capsys.readouterr().err.splitlines() == ["error: kept/photos exists already: give an empty folder"]
    assert [path.stat() for path in sorted(Path("kept").rglob("*.*"))] == before
