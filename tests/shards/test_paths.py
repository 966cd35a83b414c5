"""The `tar` argument -> the list of shards."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from naming import named
from oracle import torchvision
from torch.utils.data import TensorDataset

from gpuloader.errors import ConfigError, DataError, ShardNotFoundError
from gpuloader.shards import Folder, Tar, resolve_local, resolve_shards
from gpuloader.shards.remote import RemoteShard

ImageFolder = torchvision.datasets.ImageFolder
FILES = (
    *(f"train-{number:04d}.tar" for number in range(12)),
    *("train-0000.tar.gpuidx", "train-0000.tar.idx", "train-0000.idx", "val-a.tar", "val-b.tar", "notes.txt"),
    *("deep/er/x.tar", "deep/y.tar", "odd {name}.tar", "odd [1].tar", "no-tar/notes.txt", "data.zip"),
    *("two folders/train/0.tar", "two folders/train/1.tar", "two folders/val/0.tar"),
)
PICTURES = (
    *("classes/cat/1.jpg", "classes/README.txt", "two splits/train/cat/1.JPEG", "flat/1.png", "flat/notes.txt"),
    *("nested/a/b/c/d/e/1.webp", "nested/README.md", "shards/x.tar", "shards/preview.jpg", "shards/logs/1.txt"),
    *("shards/.thumbnails/1.jpg", "shards/means/1.npy", "hidden/.1.jpg", "both/x.tar", "both/cat/1.jpg"),
    *("top and splits/train/1.jpg", "top and splits/0.jpg", "splits and classes/train/1.jpg"),
    *("splits and classes/cat/1.jpg", "by name/a.tar/1.jpg", "arrays/1.npy", "shards/__MACOSX/1.jpg"),
    *("two splits/__MACOSX/1.jpg", "dotted/.a/1.jpg", "dotted/@eaDir/1.tar", "dotted/__MACOSX/1.jpg"),
    *("packed/b.TAR", "packed/c.tar.gz"),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder and the home, with empty files."""
    home = tmp_path / "home"
    for name in (*FILES, *(f"pics/{name}" for name in PICTURES)):
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
        ("./deep/../train-0003.tar", ["deep/../train-0003.tar"]),
        ("data.zip", ["data.zip"]),  # a file that is named is taken, whatever it is called
        ("odd {name}.tar", ["odd {name}.tar"]),  # a file of that very name comes before what the braces mean
        ("deep", ["deep/y.tar"]),  # a folder's own shards, not those of the folders in it
        (".", ["odd [1].tar", "odd {name}.tar", *train(*range(12)), "val-a.tar", "val-b.tar"]),
        ("train-{0002..0004}.tar", train(2, 3, 4)),
        ("{train-0001,val-b,deep/y}.tar", ["train-0001.tar", "val-b.tar", "deep/y.tar"]),
        ("train-{0000,000[12]}.tar", train(0, 1, 2)),  # a glob within braces
        ("{deep,val-a.tar}", ["deep/y.tar", "val-a.tar"]),  # a folder within braces
        ("train-000[3-5].tar", train(3, 4, 5)),
        ("train-0000*", ["train-0000.idx", "train-0000.tar", "train-0000.tar.idx"]),  # but not our own indexes
        ("**/*.tar", None),
        ("deep/**", ["deep/er/x.tar", "deep/y.tar"]),  # files alone
        ("~/val-a.tar", ["~/val-a.tar"]),
        ("pics/shards", ["pics/shards/x.tar"]),  # a preview beside tars, hidden pictures and other folders are ignored
        ("pics/both/*", ["pics/both/x.tar"]),  # but not the folders beside tars
        (("val-b.tar", Path("deep"), "train-{0001..0002}.tar"), ["val-b.tar", "deep/y.tar", *train(1, 2)]),
        ((name for name in ["val-b.tar", "val-a.tar"]), ["val-b.tar", "val-a.tar"]),
    ],
    ids=named,
)
def test_each_form_gives_its_shards_in_order(tar: Tar, expected: list[str] | None, folder: Path) -> None:
    if expected is None:
        found = (*FILES, *(f"pics/{name}" for name in PICTURES))
        expected = sorted(name for name in found if name.endswith(".tar"))
    assert resolve_shards(tar) == [Path(name).expanduser() for name in expected]


@pytest.mark.parametrize("protocol", ["s3", "gs", "gcs", "http", "https", "hf"])
def test_urls_are_expanded_as_paths_are_and_not_asked_for(protocol: str) -> None:
    url = f"{protocol}://host/folder"
    expected = [RemoteShard(f"{url}/train-{number:04d}.tar") for number in range(3)]
    assert resolve_shards(f"{url}/train-{{0000..0002}}.tar") == expected
    assert resolve_shards(expected[1].url) == expected[1:2]
    assert resolve_shards([f"{url}/train-0000.tar", f"{url}/train-000{{1,2}}.tar"]) == expected
    assert resolve_shards([f"{url}/train-0000.tar", "val-a.tar"]) == [expected[0], Path("val-a.tar")]


def test_what_reads_local_shards_alone_says_so() -> None:
    assert resolve_local(["val-a.tar", "deep"]) == [Path("val-a.tar"), Path("deep/y.tar")]
    assert resolve_local(["val-a.tar", "pics/flat"]) == [Path("val-a.tar"), Folder(Path("pics/flat"))]
    with pytest.raises(ConfigError, match="only local shards can be used here"):
        resolve_local(["val-a.tar", "s3://bucket/b.tar", "s3://bucket/c.tar"])


def test_a_url_may_have_a_query() -> None:
    signed = "https://user:secret@example.org/train-{0000..0001}.tar?version=[2]&signature=a/b"
    assert [shard.url for shard in resolve_shards(signed) if isinstance(shard, RemoteShard)] == [
        f"https://user:secret@example.org/train-{number:04d}.tar?version=[2]&signature=a/b" for number in range(2)
    ]
    assert [str(shard) for shard in resolve_shards(signed)] == [
        f"https://example.org/train-{number:04d}.tar" for number in range(2)
    ]


def test_an_absolute_path_and_a_file_url_are_the_same(folder: Path) -> None:
    assert resolve_shards(str(folder / "val-a.tar")) == resolve_shards(f"file://{folder}/val-a.tar")
    assert resolve_shards(folder) == [folder / path for path in resolve_shards(".")]


ABSENT: list[tuple[Any, str]] = [
    ("trian-0003.tar", "similar names are .*train-0003.tar"),
    ("something.else", r"the folder \. has no such name"),
    ("nowhere/a.tar", "there is no folder nowhere either"),
    ("*.jpg", r"no file matches \*\.jpg: .* in a list"),
    ("d[e]ep", r"no file matches d\[e\]ep"),  # it matches a folder
    ("no-tar", "nor pictures in the folder no-tar: check"),
    ("two folders", "but in its folders train, val: check"),
    ("train-{0010..0013}.tar", "no such file: train-0012.tar"),  # each shard of a pattern must be there
    (["val-a.tar", "val-c.tar"], "no such file: val-c.tar.*val-a.tar"),
    ([], r"tar=\[\] names no shard"),
    ("pics/packed", r"b\.TAR.*unpack"),
    ("pics/hidden", "nor pictures in the folder pics/hidden: check"),
    ("pics/dotted/*", r"no file matches pics/dotted/\*"),  # it matches hidden folders
    ("pics/dotted", "hidden folders are left out: check"),
]
UNCLEAR: list[tuple[Any, str]] = [
    (["val-a.tar", "val-b.tar", "val-a.tar"], "the shard val-a.tar is named twice"),
    (["s3://bucket/a.tar", "s3://bucket/{a,b}.tar"], "the shard s3://bucket/a.tar is named twice"),
    (["pics/flat", "pics/../pics/flat"], "the shard pics/../pics/flat is named twice"),
    ("ftp://example.org/train.tar", "allowed are local paths and s3://, gs://"),
    ("https://example.org/shards/", "https:// cannot list objects"),
    ("s3://bucket/train-{0000..0001.tar", "the brace pattern 's3://bucket/.*' cannot be read"),
    ("train-{0000..0001.tar", "the brace pattern 'train-.*' cannot be read"),
    *((tar, "tar='': allowed is a path, a URL, a folder") for tar in ("", [""], ["val-a.tar", ""], "file://")),
    ("pics/two splits", "the splits train instead of classes: give .* pics/two splits/train"),
    ("pics/both", r"tars, such as x.tar, and folders of pictures, such as cat: give pics/both/\*\.tar"),
    (3, "tar=3: allowed is a path, a URL"),
    (lambda: ImageFolder("pics/two splits/train"), r"tar=dataset\.root reads .*`gpuloader pack 'pics/two"),
    (TensorDataset, r"gpuloader\.pack\.pack\(dataset, 'shards'\)"),
    (lambda: [TensorDataset()], r"gpuloader\.compat\.UniversalDataModule"),
]


@pytest.mark.parametrize(
    ("tar", "says", "kind"),
    [*((*row, ShardNotFoundError) for row in ABSENT), *((*row, ConfigError) for row in UNCLEAR)],
    ids=named,
)
def test_what_is_not_there_or_cannot_be_meant_is_said_with_what_to_do(
    tar: Tar | Callable[[], Any], says: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=f"(?s){says}") as caught:
        resolve_shards(tar() if callable(tar) else tar)
    assert kind is ConfigError or isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize(
    ("tar", "above"),
    [
        ("pics/classes/*", "pics/classes"),
        ("pics/cl*", "pics/classes"),
        ("pics/classes/**", "pics/classes"),
        ("pics/{classes,nested}/*", "pics/classes"),
        ("pics/classes/*/*.jpg", "pics/classes"),
        ("pics/classes/*/*", "pics/classes"),
        ("pics/classes/cat/1.jpg", "pics/classes"),
        (["pics/classes/cat/1.jpg", "pics/classes/dog/1.JPG"], "pics/classes"),
        (["val-a.tar", "pics/classes/dog/1.JPG"], "pics/classes"),
        (["pics/two splits/train/cat/1.JPEG", "pics/classes/cat/1.jpg"], "pics"),
        ("pics/flat/*.png", "pics/flat for pictures without classes"),
    ],
    ids=named,
)
def test_pictures_and_class_folders_in_place_of_the_folder_above_point_to_it(
    tar: Tar, above: str, folder: Path
) -> None:
    (folder / "pics/classes/dog").mkdir()
    (folder / "pics/classes/dog/1.JPG").touch()
    with pytest.raises(ConfigError) as caught:
        resolve_shards(tar)
    assert re.search(rf" {re.escape(str(folder / above))}[;,]", str(caught.value))
    assert "Sampling(subset=...)" in str(caught.value)
    assert "pack" not in str(caught.value)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["train-000000", "val-000000"], "train, val: give mixed/train-*.tar for one of them"),
        (["test", "train", "valid"], "test, train, valid: give mixed/train.tar"),
        (["test_1", "val_2"], "test, val: give mixed/test_*.tar"),
        (["train0001", "validation0001"], "train, validation: give mixed/train*.tar"),
        (["in1k-train-00000-of-01024", "in1k-val-00000-of-00064"], "train, val: give mixed/in1k-train-*.tar"),
        (["cats-val-0", "dogs_train-0"], "val, train: give mixed/dogs_train-*.tar"),
        (["cats-0", "train-0", "val-0"], "train, val: give mixed/train-*.tar"),
        (["cats-000000", "dogs-000000"], None),
        (["cats-train-0", "dogs-train-0", "train-0"], None),
        (["train-0", "more-0"], None),
        (["trainval-0", "test-0"], None),  # no word for a split begins behind a letter
        (["train-0", "val-a"], None),
        (["strain-0", "val-0", "contest-0"], None),
    ],
)
def test_a_folder_has_one_split(names: list[str], told: str | None) -> None:
    Path("mixed").mkdir()
    paths = sorted(Path("mixed", f"{name}.tar") for name in names)
    for path in paths:
        path.touch()
    assert resolve_shards("mixed/*.tar") == resolve_shards("mixed", mixed=True) == paths  # who names all gets all
    for tar in ("mixed", Path("mixed"), "./mixed/", ["deep", "mixed"], "{deep,mixed}", f"file://{Path.cwd()}/mixed"):
        if told is None:
            assert [path.name for path in resolve_shards(tar)][-len(paths) :] == [path.name for path in paths]
            continue
        with pytest.raises(ConfigError) as caught:
            resolve_shards(tar)
        assert f"mixed has the splits {told.partition(':')[0]}: give " in str(caught.value)
    if told is not None:
        with pytest.raises(ConfigError) as caught:
            resolve_shards("mixed")
        assert told in str(caught.value)
        given = str(caught.value).split("give ")[1].split(" for")[0]
        assert 0 < len(resolve_shards(given)) < len(names)


@pytest.mark.parametrize(
    "tar",
    [
        "pics/flat",  # pictures alone
        "pics/two splits/train",  # one of the splits
        "pics/nested",  # at any depth
        "pics/top and splits",  # pictures outside of the splits
        "pics/splits and classes",  # "train" is a class, too
        "pics/by name",  # a folder that is called like a tar
        "pics/dotted/.a",  # the hidden folder itself
    ],
)
def test_a_folder_of_pictures_is_a_shard(tar: str) -> None:
    assert resolve_shards(tar) == resolve_shards(Path(tar)) == resolve_shards(f"./{tar}/") == [Folder(Path(tar))]
    assert resolve_shards([tar, "val-a.tar"]) == [Folder(Path(tar)), Path("val-a.tar")]
    [folder] = resolve_shards(Path(tar).absolute())
    assert folder == Folder(Path(tar).absolute())


def test_a_folder_of_links_to_itself_is_an_error_at_once() -> None:
    Path("loops").mkdir()
    for number in range(300):
        Path(f"loops/{number}").symlink_to(".")
    with pytest.raises(DataError, match="loops/0 is again within itself, because of a link"):
        resolve_shards("loops")


@pytest.mark.parametrize(
    "tar", [["link/flat", "pics/flat"], ["flat", "pics/flat"], ["link/shards", "pics/shards/x.tar"]]
)
def test_what_is_named_again_by_a_link_to_a_folder_is_named_twice(tar: list[str]) -> None:
    Path("link").symlink_to("pics")
    Path("flat").symlink_to("pics/flat")
    with pytest.raises(ConfigError, match=f"the shard {tar[1]} is named twice"):
        resolve_shards(tar)


def test_links_to_one_tar_are_several_shards() -> None:
    """A store that keeps files by their content makes such links of equal shards."""
    Path("val-c.tar").symlink_to("val-a.tar")
    assert resolve_shards("val-{a,c}.tar") == [Path("val-a.tar"), Path("val-c.tar")]


def test_a_shard_that_is_a_broken_link_is_not_passed_over_in_silence() -> None:
    Path("val-c.tar").symlink_to("nowhere.tar")
    assert Path("val-c.tar") in resolve_shards("val-*.tar")
    assert Path("val-c.tar") in resolve_shards(".")
