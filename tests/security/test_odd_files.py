"""What is no plain file in the place of one, and paths that the system refuses: our errors, and nothing waits."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from annotating import write_voc, write_yolo
from making import jpeg, write_samples

from gpuloader import GPULoader, GPULoaderError, Sampling
from gpuloader.errors import ConfigError, DataError, PackError, ShardChangedError, ShardNotFoundError, StateError
from gpuloader.pack import pack
from gpuloader.shards import ShardSet, open_index, open_set
from gpuloader.tools.check import check_shards
from gpuloader.tools.disk import measure_disk
from gpuloader.tools.info import describe_shards
from gpuloader.tools.show import show

KINDS = {"pipe": "pipe", "socket": "socket", "device": "device", "endless": "device", "folder": "folder"}


@pytest.fixture
def put(tmp_path: Path) -> Iterator[Callable[[str, Path], Path]]:
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


def load(tar: object, folder: Path) -> None:
    GPULoader(tar, 1, None).close()


CALLS: dict[str, Callable[[Any, Path], object]] = {
    "GPULoader": load,
    "info": lambda tar, folder: describe_shards(tar),
    "check": lambda tar, folder: check_shards(tar, device_id=None),
    "show": lambda tar, folder: show(tar, folder / "grid.png", device_id=None),
    "pack": lambda tar, folder: pack(tar, folder / "packed"),
}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "folder"])  # of a folder, the tars in it are meant
@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_file_in_the_place_of_a_shard_is_an_error(
    tmp_path: Path, put: Callable[[str, Path], Path], call: str, kind: str
) -> None:
    odd = put(kind, write_samples(tmp_path / "shards", 2)[1])
    where = odd if call in ("GPULoader", "pack") else odd.parent  # named, or found in a folder
    with pytest.raises(DataError) as caught:
        CALLS[call](where if call == "GPULoader" else str(where), tmp_path)
    assert f"the shard {odd} cannot be read (not a regular file but a {KINDS[kind]})" in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_in_whose_place_something_else_comes_is_an_error(
    tmp_path: Path, put: Callable[[str, Path], Path], kind: str
) -> None:
    shards = write_samples(tmp_path / "shards", 2)
    indexes = [open_index(shard) for shard in shards]
    put(kind, shards[0])
    with pytest.raises(ShardChangedError, match=f"can no longer be opened .not a regular file but a {KINDS[kind]}"):
        ShardSet(shards, open_set(indexes)).read_component(0, "json")
    with pytest.raises(OSError, match=f"not a regular file but a {KINDS[kind]}"):
        measure_disk(shards, seconds=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_pack_reads_no_picture_that_is_no_file(tmp_path: Path, put: Callable[[str, Path], Path], kind: str) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat/a.jpg").write_bytes(jpeg(8, 8))
    odd = put(kind, tmp_path / "cat/b.jpg")
    pairs = [(str(tmp_path / "cat/a.jpg"), 0), (str(odd), 0)]
    with pytest.raises(PackError) as caught:
        pack(pairs, tmp_path / "packed", workers=1)
    assert f"the picture {odd} cannot be read (not a regular file but a {KINDS[kind]})" in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("VOCdevkit/VOC2012/Annotations/a.xml", "VOCdevkit/VOC2012"),
        ("labels/train/a.txt", "images/train"),
        ("data.yaml", "images/train"),
        ("coco.json", "coco.json"),
    ],
)
def test_annotations_are_read_from_files_alone(
    tmp_path: Path, put: Callable[[str, Path], Path], name: str, source: str, kind: str
) -> None:
    write_voc(tmp_path, {"a": []})
    write_yolo(tmp_path, {"a": ""})
    odd = put(kind, tmp_path / name)
    images = tmp_path if source == name else None
    with pytest.raises(PackError) as caught:
        pack(tmp_path / source, tmp_path / "packed", workers=1, images=images)
    assert f"the annotations {odd} cannot be read: not a regular file but a {KINDS[kind]}" in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["pack-train.json", "pack-other.json", "train-000000.tar", "left_out/train-000000.jsonl"]
)
def test_pack_goes_on_with_files_alone(tmp_path: Path, put: Callable[[str, Path], Path], name: str, kind: str) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg(8, 8))
    odd = tmp_path / "packed" / name
    odd.parent.mkdir(parents=True)
    put(kind, odd)
    with pytest.raises(StateError) as caught:
        pack([(str(tmp_path / "a.jpg"), 0)], tmp_path / "packed", workers=1)
    assert str(caught.value) == f"{odd} is not a regular file: remove it, or give another folder"


@pytest.mark.parametrize("kind", KINDS)
def test_lists_are_read_from_files_alone(tmp_path: Path, put: Callable[[str, Path], Path], kind: str) -> None:
    shards = write_samples(tmp_path / "shards", 2)
    keys = put(kind, tmp_path / "keys.txt")
    with pytest.raises(ConfigError, match=f"subset: {keys} cannot be read .not a regular file but a {KINDS[kind]}"):
        GPULoader(shards, 1, None, sampling=Sampling(subset=keys))
    classes = put(kind, tmp_path / "names.json")
    with pytest.raises(ConfigError, match=f"cannot be read: .*not a regular file but a {KINDS[kind]}"):
        pack([("a.jpg", "cat")], tmp_path / "packed", classes=classes)
    picture = put(kind, tmp_path / "grid.png")
    with pytest.raises(ConfigError, match="this is a folder or a device; name a file"):
        show(shards, picture, device_id=None)


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
        (
            "~nobody_such/a.tar",
            ConfigError,
            "the home folder of ~nobody_such is not known: write the folder out",
        ),
        (Path("~nobody_such/a.tar"), ConfigError, "~nobody_such/a.tar: the home folder of"),
        (["train-0000.tar", "~nobody_such/{a,b}.tar"], ConfigError, "the home folder of ~nobody_such is not known"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_paths_that_the_system_refuses_are_our_errors(
    folder: Path,
    tar: Any,  # noqa: ANN401
    kind: type[GPULoaderError],
    says: str,
) -> None:
    with pytest.raises(kind) as caught:
        GPULoader(tar, 1, None)
    assert says in str(caught.value)
    if isinstance(tar, str):
        with pytest.raises(GPULoaderError):
            pack(tar, folder / "packed")
