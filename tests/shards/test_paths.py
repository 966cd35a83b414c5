"""The `tar` argument -> the list of shards."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuloader.errors import ConfigError, ShardNotFoundError
from gpuloader.shards import Tar, resolve_shards

FILES = (
    *(f"train-{number:04d}.tar" for number in range(12)),
    *("train-0000.tar.gpuidx", "train-0000.tar.idx", "train-0000.idx", "val-a.tar", "val-b.tar", "notes.txt"),
    *("deep/er/x.tar", "deep/y.tar", "odd {name}.tar", "odd [1].tar", "no-tar/notes.txt", "data.zip"),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder and the home, with empty files."""
    home = tmp_path / "home"
    for name in FILES:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))
    return home


def train(*numbers: int) -> list[str]:
    return [f"train-{number:04d}.tar" for number in numbers]


@pytest.mark.parametrize(
    ("tar", "expected"),
    [
        ("train-0003.tar", train(3)),
        (Path("train-0003.tar"), train(3)),
        ("./deep/../train-0003.tar", ["deep/../train-0003.tar"]),
        ("data.zip", ["data.zip"]),  # a file that is named is taken, whatever it is called
        ("odd {name}.tar", ["odd {name}.tar"]),  # a file of that very name comes before what the braces mean
        ("odd [1].tar", ["odd [1].tar"]),
        ("deep", ["deep/y.tar"]),  # a folder's own shards, not those of the folders in it
        (Path("deep/"), ["deep/y.tar"]),
        (".", ["odd [1].tar", "odd {name}.tar", *train(*range(12)), "val-a.tar", "val-b.tar"]),
        ("train-{0002..0004}.tar", train(2, 3, 4)),
        ("train-{0004..0002}.tar", train(4, 3, 2)),
        ("train-{0000..0010..5}.tar", train(0, 5, 10)),
        ("train-00{10,02}.tar", train(10, 2)),
        ("{train-0001,val-b,deep/y}.tar", ["train-0001.tar", "val-b.tar", "deep/y.tar"]),
        ("train-{0000,000[12]}.tar", train(0, 1, 2)),  # a glob within braces
        ("{deep,val-a.tar}", ["deep/y.tar", "val-a.tar"]),  # a folder within braces
        ("train-000[3-5].tar", train(3, 4, 5)),
        ("train-*.tar", train(*range(12))),
        ("train-001?.tar", train(10, 11)),
        ("train-0000*", ["train-0000.idx", "train-0000.tar", "train-0000.tar.idx"]),  # but not our own indexes
        ("**/*.tar", None),
        ("deep/**", ["deep/er/x.tar", "deep/y.tar"]),  # files alone
        ("~/val-a.tar", ["~/val-a.tar"]),
        ("~/val-{a,b}.tar", ["~/val-a.tar", "~/val-b.tar"]),
        ("~/val-*.tar", ["~/val-a.tar", "~/val-b.tar"]),
        (["val-b.tar", "train-0001.tar"], ["val-b.tar", "train-0001.tar"]),
        (("val-b.tar", Path("deep"), "train-{0001..0002}.tar"), ["val-b.tar", "deep/y.tar", *train(1, 2)]),
        ((name for name in ["val-b.tar", "val-a.tar"]), ["val-b.tar", "val-a.tar"]),
    ],
    ids=str,
)
def test_each_form_gives_its_shards_in_order(tar: Tar, expected: list[str] | None, folder: Path) -> None:
    if expected is None:
        expected = sorted(name for name in FILES if name.endswith(".tar"))
    assert resolve_shards(tar) == [Path(name).expanduser() for name in expected]


def test_an_absolute_path_and_a_file_url_are_the_same(folder: Path) -> None:
    assert resolve_shards(str(folder / "val-a.tar")) == resolve_shards(f"file://{folder}/val-a.tar")
    assert resolve_shards(folder) == [folder / path for path in resolve_shards(".")]


@pytest.mark.parametrize(
    ("tar", "says"),
    [
        ("trian-0003.tar", ["no such file: trian-0003.tar", "near that name are", "train-0003.tar"]),
        ("something.else", ["no such file: something.else", "the folder . has no such name"]),
        ("nowhere/a.tar", ["no such file: nowhere/a.tar", "there is no folder nowhere either"]),
        (Path("nowhere"), ["no such file: nowhere"]),
        ("nowhere-*.tar", ["no file matches nowhere-*.tar", "check the path", "name the shards in a list"]),
        ("d[e]ep", ["no file matches d[e]ep"]),  # it matches a folder
        ("train-0000.tar.gpu*", ["no file matches"]),
        ("no-tar", ["no *.tar in the folder no-tar", "check the path"]),
        ("train-{0010..0013}.tar", ["no such file: train-0012.tar"]),  # each shard of a pattern must be there
        (["val-a.tar", "val-c.tar"], ["no such file: val-c.tar", "val-a.tar"]),
        ([], ["tar=[] names no shard"]),
    ],
    ids=str,
)
def test_what_is_not_there_is_said_with_what_to_do(tar: Tar, says: list[str]) -> None:
    with pytest.raises(ShardNotFoundError) as caught:
        resolve_shards(tar)
    assert all(part in str(caught.value) for part in says)
    assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize(
    ("tar", "says"),
    [
        (["val-a.tar", "val-b.tar", "val-a.tar"], ["the shard val-a.tar is named twice", "name it once"]),
        (["val-a.tar", "./val-a.tar"], ["val-a.tar is named twice"]),
        (["deep", "deep/y.tar"], ["deep/y.tar is named twice"]),
        ("val-{a,a}.tar", ["val-a.tar is named twice"]),
        ("https://example.org/train-{0000..0009}.tar", ["https:// is not read yet", "copy the shards"]),
        ("s3://bucket/train.tar", ["s3:// is not read yet"]),
        ("train-{0000..0001.tar", ["the brace pattern 'train-{0000..0001.tar' cannot be read"]),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_said_with_what_to_do(tar: Tar, says: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_shards(tar)
    assert all(part in str(caught.value) for part in says)


def test_a_shard_that_is_a_broken_link_is_not_passed_over_in_silence() -> None:
    Path("val-c.tar").symlink_to("nowhere.tar")
    assert Path("val-c.tar") in resolve_shards("val-*.tar")
    assert Path("val-c.tar") in resolve_shards(".")


def test_a_pattern_means_the_same_after_the_indexes_were_made() -> None:
    before = resolve_shards("val-*")
    for shard in before:
        Path(f"{shard}.gpuidx").touch()
    assert resolve_shards("val-*") == before == [Path("val-a.tar"), Path("val-b.tar")]
