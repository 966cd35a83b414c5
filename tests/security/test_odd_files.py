"""What is no plain file in the place of one, and paths that the system refuses: our errors, and nothing waits."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer
from typing import Any, TypeAlias

import pytest
from annotating import write_voc, write_yolo
from making import jpeg, write_samples

from gpuloader import GPULoader, GPULoaderError, Sampling
from gpuloader.errors import ConfigError, DataError, PackError, ShardChangedError, ShardNotFoundError, StateError
from gpuloader.pack import pack
from gpuloader.shards import ShardSet, Tar, open_index, open_set, read_class_names, read_quarantine
from gpuloader.shards.scan import scan
from gpuloader.tools.check import check_shards
from gpuloader.tools.disk import measure_disk
from gpuloader.tools.info import describe_shards
from gpuloader.tools.show import show

KINDS = {"pipe": "pipe", "socket": "socket", "device": "device", "endless": "device", "folder": "folder"}
Put: TypeAlias = Callable[[str, Path], Path]


@pytest.fixture
def put(tmp_path: Path) -> Iterator[Put]:
    """Puts one of `KINDS` at a path. Whoever opens a pipe as a file gets its end, soon: no test waits for ever."""
    endings: list[Timer] = []

    def put_there(kind: str, path: Path) -> Path:
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
            endings.append(Timer(10, lambda: os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))))
            endings[-1].start()
        elif kind == "socket":
            path.parent.mkdir(exist_ok=True)
            with socket.socket(socket.AF_UNIX) as listening:
                folder = os.open(path.parent, os.O_RDONLY)
                listening.bind(f"/proc/self/fd/{folder}/{path.name}")  # a socket's path must be short
                os.close(folder)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to({"device": "/dev/null", "endless": "/dev/zero"}[kind])
        return path

    yield put_there
    for ending in endings:
        ending.cancel()


def cannot_be_read(kind: str) -> str:
    return f"not a regular file but a {KINDS[kind]}"


CALLS: dict[str, Callable[[Any, Path], object]] = {
    "GPULoader": lambda tar, folder: GPULoader(tar, 1, None).close(),
    "info": lambda tar, folder: describe_shards(str(tar.parent)),  # found in a folder
    "check": lambda tar, folder: check_shards(str(tar.parent), device_id=None),
    "show": lambda tar, folder: show(str(tar.parent), folder / "grid.png", device_id=None),
    "pack": lambda tar, folder: pack(str(tar), folder / "packed"),
}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "folder"])  # of a folder, the tars in it are meant
def test_what_is_no_file_in_the_place_of_a_shard_is_an_error(tmp_path: Path, put: Put, kind: str) -> None:
    odd = put(kind, write_samples(tmp_path / "shards", 2)[1])
    for name, call in CALLS.items():
        with pytest.raises(DataError, match=cannot_be_read(kind)) as caught:
            call(odd, tmp_path)
        assert str(odd) in str(caught.value), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_in_whose_place_something_else_comes_is_an_error(tmp_path: Path, put: Put, kind: str) -> None:
    shards = write_samples(tmp_path / "shards", 2)
    indexes = [open_index(shard) for shard in shards]
    put(kind, shards[0])
    with pytest.raises(ShardChangedError, match=cannot_be_read(kind)):
        ShardSet(shards, open_set(indexes)).read_component(0, "json")
    with pytest.raises(OSError, match=cannot_be_read(kind)):
        measure_disk(shards, seconds=0.01)


# Each is a file that is named, and what reads it: the file itself, or a folder with it.
ANNOTATIONS = ("VOCdevkit/VOC2012/Annotations/a.xml", "labels/train/a.txt", "data.yaml", "coco.json")
SOURCES = ("VOCdevkit/VOC2012", "images/train", "images/train", "coco.json")
PACKED = ("pack-train.json", "pack-other.json", "train-000000.tar", "left_out/train-000000.jsonl")


@pytest.mark.parametrize("kind", KINDS)
def test_pack_reads_pictures_and_annotations_from_files_alone(tmp_path: Path, put: Put, kind: str) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg(8, 8))
    odd = put(kind, tmp_path / "b.jpg")
    pairs = [(str(tmp_path / "a.jpg"), 0), (str(odd), 0)]
    with pytest.raises(PackError, match=cannot_be_read(kind)) as caught:
        pack(pairs, tmp_path / "packed", workers=1)
    assert str(odd) in str(caught.value)
    for name, source in zip(ANNOTATIONS, SOURCES, strict=True):
        root = tmp_path / name.replace("/", "-")
        write_voc(root, {"a": []})
        write_yolo(root, {"a": ""})
        odd = put(kind, root / name)
        with pytest.raises(PackError, match=cannot_be_read(kind)) as caught:
            pack(root / source, root / "packed", workers=1, images=root if source == name else None)
        assert str(odd) in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_pack_goes_on_with_files_alone(tmp_path: Path, put: Put, kind: str) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg(8, 8))
    for number, name in enumerate(PACKED):
        odd = tmp_path / str(number) / name
        odd.parent.mkdir(parents=True)
        put(kind, odd)
        with pytest.raises(StateError, match=f"{odd} is not a regular file"):
            pack([(str(tmp_path / "a.jpg"), 0)], tmp_path / str(number), workers=1)


@pytest.mark.parametrize("kind", KINDS)
def test_lists_are_read_from_files_alone(tmp_path: Path, put: Put, kind: str) -> None:
    shards = write_samples(tmp_path / "shards", 2)
    keys = put(kind, tmp_path / "keys.txt")
    with pytest.raises(ConfigError, match=cannot_be_read(kind)):
        GPULoader(shards, 1, None, sampling=Sampling(subset=keys))
    classes = put(kind, tmp_path / "names.json")
    with pytest.raises(ConfigError, match=cannot_be_read(kind)):
        pack([("a.jpg", "cat")], tmp_path / "packed", classes=classes)
    picture = put(kind, tmp_path / "grid.png")
    with pytest.raises(ConfigError, match="a folder or a device"):
        show(shards, picture, device_id=None)
    for name in ("bad.jsonl", "classes.json"):
        put(kind, tmp_path / name)
    with pytest.raises(DataError, match=r"classes\.json cannot be read"):
        read_class_names(tmp_path)
    with pytest.raises(DataError, match=r"bad\.jsonl cannot be read"):
        read_quarantine(tmp_path / "bad.jsonl", ShardSet.open(shards))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "device"])  # an empty file may be an index
def test_what_cannot_be_an_index_is_not_read(tmp_path: Path, put: Put, kind: str) -> None:
    [shard] = write_samples(tmp_path, 2, shards=1)
    put(kind, tmp_path / "train-0000.tar.gpuidx")
    assert open_index(shard).digest() == scan(shard).digest()


def test_a_key_file_is_read_as_text_is(tmp_path: Path) -> None:
    shards = write_samples(tmp_path / "shards", 4)
    keys = tmp_path / "keys.txt"
    keys.write_bytes(b"\xef\xbb\xbf000002\r\n 000000 \r000003\n\n")
    with GPULoader(shards, 3, None, sampling=Sampling(subset=keys), shuffle="none", output={"key": "key"}) as loader:
        assert next(iter(loader))["key"] == ["000002", "000000", "000003"]


# --- paths


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with two shards and links that lead nowhere."""
    write_samples(tmp_path, 2)
    (tmp_path / "loop.tar").symlink_to("loop.tar")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("tar", "kind", "says"),
    [
        ("x" * 300, DataError, "cannot be read (File name too long): check the path"),
        ("y/" * 3000 + "a.tar", DataError, "cannot be read (File name too long)"),
        ("loop.tar", DataError, "loop.tar cannot be read (Too many levels of symbolic links)"),
        ("loop.tar/a.tar", DataError, "cannot be read (Too many levels of symbolic links)"),
        ("a\0b.tar", ShardNotFoundError, r"no such file: a\x00b.tar"),
        ("train-0000.tar/a.tar", ShardNotFoundError, "there is no folder train-0000.tar either"),
        ("~nobody_such/a.tar", ConfigError, "the home folder of ~nobody_such is not known"),
        (Path("~nobody_such/a.tar"), ConfigError, "~nobody_such/a.tar: the home folder of"),
        (["train-0000.tar", "~nobody_such/{a,b}.tar"], ConfigError, "the home folder of ~nobody_such is not known"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_paths_that_the_system_refuses_are_our_errors(
    folder: Path, tar: Tar, kind: type[GPULoaderError], says: str
) -> None:
    with pytest.raises(kind) as caught:
        GPULoader(tar, 1, None)
    assert says in str(caught.value)
    if isinstance(tar, str):
        with pytest.raises(GPULoaderError):
            pack(tar, folder / "packed")
