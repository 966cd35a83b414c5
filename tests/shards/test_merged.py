"""One index of many shards: `gpuloader index --merge`, and what is noticed when it does not fit its shards."""

from __future__ import annotations

import builtins
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from changing import CHANGES
from command_line import run
from making import write_samples

from gpuloader import GPULoader
from gpuloader.errors import ConfigError, DataError, IndexFileError, ShardChangedError
from gpuloader.shards import Arena, ShardSet, merge_indexes, resolve_local, resolve_shards
from gpuloader.shards.merged import MergedShards
from gpuloader.tools.index import index_shards


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gpuloader"


@pytest.fixture(params=["in memory", "mapped"])
def merged(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of 4 shards with 12 samples and their merged index."""
    if request.param == "mapped":
        for module in ("index_files", "merged"):
            monkeypatch.setattr(f"gpuloader.shards.{module}.MOST_COPIED_BYTES", 0)
    folder = tmp_path / "shards"
    merge_indexes(resolve_local(write_samples(folder, 12, shards=4)), folder / "all.gpuset")
    return folder


def samples_of(tar: Path | str) -> list[list[int]]:
    with GPULoader(tar, 5, None, preset="imagenet_eval", output="dict", last_batch="partial") as loader:
        return [[*batch["index"].tolist(), *batch["label"].tolist(), int(batch["image"].sum())] for batch in loader]


def test_a_loader_delivers_the_same_with_it(merged: Path) -> None:
    of_folder, of_file = samples_of(merged), samples_of(merged / "all.gpuset")
    listed = samples_of(str(merged / "*.tar"))
    (merged / "all.gpuset").unlink()
    assert of_folder == of_file == listed == samples_of(merged)


def test_its_shards_are_paths_as_they_would_be_listed(merged: Path) -> None:
    shards = resolve_shards(merged)
    assert isinstance(shards, MergedShards)
    assert list(shards) == shards[:] == sorted(merged.glob("*.tar"))
    assert shards[1:3] == [merged / "train-0001.tar", merged / "train-0002.tar"]
    assert resolve_shards([merged / "all.gpuset"])[3] == merged / "train-0003.tar"
    assert resolve_shards([str(merged / "train-000[01].tar"), *shards[2:]]) == list(shards)


def test_nothing_of_a_shard_is_looked_at_before_it_is_read(merged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def note(function: Callable[..., object]) -> Callable[..., object]:
        def noting(path: object, *values: object, **options: object) -> object:
            looked.extend([str(path)] if ".tar" in str(path) else [])
            return function(path, *values, **options)

        return noting

    for module, name in ((os, "stat"), (os, "open"), (os, "access"), (builtins, "open")):
        monkeypatch.setattr(module, name, note(getattr(module, name)))
    opened = ShardSet.open(resolve_shards(merged))
    assert (len(opened), looked) == (12, [])
    opened.read_images(np.array([7]), Arena())
    assert set(looked) == {str(merged / "train-0002.tar")}


# Names.


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda folder: (folder / "train-0001.tar").unlink(), "its folder lacks train-0001.tar. Run `gpuloader index"),
        (lambda folder: (folder / "train-0001.tar").rename(folder / "z.tar"), "its folder lacks train-0001.tar"),
        (lambda folder: shutil.copy(folder / "train-0001.tar", folder / "a.tar"), "it lacks a.tar of its folder. Run"),
    ],
)
def test_other_names_than_its_own_are_an_error(merged: Path, change: Callable[[Path], object], says: str) -> None:
    change(merged)
    for tar in (merged, merged / "all.gpuset"):
        with pytest.raises(IndexFileError, match=says):
            GPULoader(tar, 4, None)
    merge_indexes(resolve_local(str(merged / "*.tar")), merged / "all.gpuset")
    assert len(resolve_shards(merged)) == len(list(merged.glob("*.tar")))


def test_what_is_no_tar_does_not_count(merged: Path) -> None:
    (merged / "folder.tar").mkdir()
    (merged / "classes.txt").touch()
    (merged / ".tar").touch()
    assert len(resolve_shards(merged)) == 4


def test_a_file_of_another_name_may_name_some(merged: Path) -> None:
    for name in ("some.gpuset", "all.gpuset"):
        shards = resolve_local(str(merged / "train-000[02].tar"))
        if name == "all.gpuset":
            with pytest.raises(IndexFileError, match=r"it lacks train-0001\.tar of its folder"):
                merge_indexes(shards, merged / name)
        else:
            merge_indexes(shards, merged / name)
    assert len(samples_of(merged / "some.gpuset")) == 2
    (merged / "train-0002.tar").unlink()
    with pytest.raises(IndexFileError, match=r"its folder lacks train-0002\.tar"):
        resolve_shards(merged / "some.gpuset")


def test_shards_in_folders_below_move_with_the_file(tmp_path: Path) -> None:
    for name in "ab":
        write_samples(tmp_path / "x" / name, 4, shards=2)
    merge_indexes(resolve_local(str(tmp_path / "x/*/*.tar")), tmp_path / "x" / "all.gpuset")
    (tmp_path / "x").rename(tmp_path / "y")
    assert [str(each.relative_to(tmp_path)) for each in resolve_shards(tmp_path / "y")] == [
        "y/a/train-0000.tar",
        "y/a/train-0001.tar",
        "y/b/train-0000.tar",
        "y/b/train-0001.tar",
    ]
    assert len(samples_of(tmp_path / "y")) == 2
    shutil.rmtree(tmp_path / "y" / "b")
    with pytest.raises(DataError, match=r"y/b cannot be read \(No such file or directory\)"):
        resolve_shards(tmp_path / "y")


def test_what_cannot_be_merged_is_refused(tmp_path: Path) -> None:
    shards = resolve_local(write_samples(tmp_path / "shards", 4, shards=2))
    for output, says in (
        (tmp_path / "shards/all.gpuidx", r"all\.gpuidx: name it \*\.gpuset"),
        (tmp_path / "other/all.gpuset", r"\.\./shards/train-0000\.tar is not below .*other: write"),
    ):
        with pytest.raises(ConfigError, match=says):
            merge_indexes(shards, output)


# What is in the file.


@pytest.mark.parametrize("change", ["touched", "cut"])
def test_a_shard_that_changed_is_named_when_it_is_read(merged: Path, change: str) -> None:
    CHANGES[change](merged / "train-0002.tar")
    opened = ShardSet.open(resolve_shards(merged))
    opened.read_images(np.array([0]), Arena())
    with pytest.raises(ShardChangedError, match=r"train-0002\.tar .*all\.gpuset was made: run `gpuloader index"):
        opened.read_images(np.array([0, 7]), Arena())


# The command.


def test_the_command_merges_a_folder_and_merges_it_again(tmp_path: Path) -> None:
    write_samples(tmp_path / "s[1]", 8, shards=2)
    result = run("index", "--merge", tmp_path / "s[1]")
    assert result.stdout.endswith(f"8 samples in 2 shards, merged into {tmp_path}/s[1]/all.gpuset\n"), result.stderr
    assert isinstance(resolve_shards(tmp_path / "s[1]"), MergedShards)
    (tmp_path / "s[1]" / "train-0001.tar").rename(tmp_path / "s[1]" / ".hidden.tar")
    (tmp_path / "s[1]" / "train-0000.tar").unlink()
    result = run("index", "--merge", tmp_path / "s[1]")
    assert result.stdout.endswith(f"4 samples in 1 shard, merged into {tmp_path}/s[1]/all.gpuset\n"), result.stderr
    assert len(resolve_shards(tmp_path / "s[1]")) == 1
    with pytest.raises(ConfigError, match=r"not one folder; name the file: --output FOLDER/NAME\.gpuset"):
        index_shards([str(tmp_path / "s[1]" / ".hidden.tar")], merge=True)
    index_shards([str(tmp_path / "s[1]" / ".hidden.tar")], output=str(tmp_path / "s[1]" / "x.gpuset"))
    assert len(resolve_shards(tmp_path / "s[1]" / "x.gpuset")) == 1


def test_an_index_of_a_folder_is_of_one_split(tmp_path: Path) -> None:
    train, val = write_samples(tmp_path / "s", 4, shards=2)
    val = val.rename(tmp_path / "s" / "val-0000.tar")
    file, told = tmp_path / "s" / "all.gpuset", "s has the splits train, val: give .*s/train-\\*.tar"
    listed = {"folder": [str(tmp_path / "s")], "tars": [str(train), str(val)], "pattern": [str(tmp_path / "s/*.tar")]}
    for name, output in (("folder", None), ("folder", tmp_path / "s/x.gpuset"), ("tars", file), ("pattern", file)):
        with pytest.raises(ConfigError, match=told):
            index_shards(listed[name], merge=True, output=output and str(output))
        assert not list((tmp_path / "s").glob("*.gpuset"))
    index_shards(listed["pattern"], output=str(tmp_path / "s" / "x.gpuset"))  # who names all gets all
    assert len(resolve_shards(tmp_path / "s" / "x.gpuset")) == 2
    (tmp_path / "s" / "x.gpuset").rename(file)
    for tar in (tmp_path / "s", file):
        with pytest.raises(ConfigError, match=told):
            resolve_shards(tar)
        assert len(resolve_shards(tar, mixed=True)) == 2
    index_shards(listed["folder"])


def test_a_folder_of_folders_is_indexed_by_its_file(tmp_path: Path) -> None:
    shards = write_samples(tmp_path / "a", 4, shards=2)
    index_shards([str(tmp_path / "a")], output=str(tmp_path / "all.gpuset"))
    shards[0].with_name("train-0000.tar.gpuidx").unlink()
    rows, place, unsaved = index_shards([str(tmp_path)])
    assert ([row["samples"] for row in rows], place, unsaved) == ([2, 2], None, [])
    assert shards[0].with_name("train-0000.tar.gpuidx").exists()
