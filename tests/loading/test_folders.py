"""A loader over a folder gives what the loader over its tar gives; a file that changes is an error that names it."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaders import CUT, assert_equal, evaluation, loader
from making import SIZES, encoded, jpeg, picture, tar_of, write_tree
from PIL import Image

from gpuloader import BadImages, Field, GPULoader, Sampling
from gpuloader.errors import BadImageError, ShardChangedError
from gpuloader.loading.loader import run_of
from gpuloader.shards.shard_set import Arena

pytestmark = pytest.mark.slow(kept=11, of="folders")

COUNT = 24
CLASSES = ("ant", "ant-eater", "Bee")


def mask(i: int) -> Image.Image:
    return picture(*SIZES[i % len(SIZES)], seed=1000 + i).convert("L")


def files_of(bad: dict[int, bytes] | None = None, masks: bool = False, first: int = 0) -> dict[str, bytes]:
    """The i-th picture is in the class i % 3 and has a JSON beside it; with `masks` also a mask."""
    files = {}
    for i in range(first, first + COUNT):
        stem = f"{CLASSES[i % 3]}/{i:03d}"
        files[f"{stem}.jpg"] = (bad or {}).get(i, jpeg(*SIZES[i % len(SIZES)], seed=i))
        files[f"{stem}.json"] = json.dumps({"number": i}).encode()
        if masks:
            files[f"{stem}.mask.png"] = encoded(mask(i), "PNG")
    return files


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """To be read only."""
    return write_tree(tmp_path_factory.mktemp("folders") / "photos", files_of())


@pytest.fixture(scope="module")
def tar(folder: Path) -> Path:
    return tar_of(folder, folder.with_suffix(".tar"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """To be changed: the same for one test."""
    return write_tree(tmp_path / "photos", files_of())


def np_image(data: bytes) -> list[int]:
    return list(np.asarray(Image.open(io.BytesIO(data))).ravel()[:9].tolist())


def named(folder: Path, number: int) -> Path:
    return folder / CLASSES[number % 3] / f"{number:03d}.jpg"


def opened(source: Any, batch_size: int = 8, **kwargs: Any) -> GPULoader:  # noqa: ANN401
    return loader(source, batch_size, **{"label_from": "auto", "output": "dict", **kwargs})


def three_epochs(loader: GPULoader) -> None:
    """More than what was read ahead."""
    for _ in range(3):
        list(loader)


def assert_equal_batches(ours: Iterable[Any], theirs: Iterable[Any]) -> None:
    ours, theirs = list(ours), list(theirs)
    assert len(ours) > 0
    assert_equal(ours, theirs)


# --- the same batches


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"seed": 1, "shuffle": "block"},
        {"shuffle": False},
        {"preset": {"imagenet_eval": {"CenterCrop": {"size": 32}, "Resize": {"size": 36}}}, "label_from": "folder"},
        {"label_from": None, "last_batch": "partial", "batch_size": 5},
        {"label_from": "json:number", "batch_size": 5},
        {"sampling": Sampling(subset="./Bee/*")},
    ],
    ids=lambda kwargs: "-".join(kwargs) or "default",
)
def test_the_batches_are_those_of_the_tar(folder: Path, tar: Path, kwargs: dict[str, Any]) -> None:
    with opened(folder, **kwargs) as ours, opened(tar, **kwargs) as theirs:
        assert len(ours) == len(theirs)
        for _ in range(2):
            assert_equal_batches(ours, theirs)
        assert ours.state_dict() == theirs.state_dict()


def test_fields_are_those_of_the_files_beside_the_image(tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "photos", files_of(masks=True))
    tar = tar_of(folder, tmp_path / "photos.tar")
    fields = {"facts": Field("json"), "number": Field("json:number"), "mask": Field("mask.png", np_image)}
    with opened(folder, fields=fields) as ours, opened(tar, fields=fields) as theirs:
        batches = list(ours)
        assert_equal_batches(batches, theirs)
    for batch in batches:
        for key, number in zip(batch["key"], batch["number"], strict=True):
            assert int(number) == int(Path(key).name)
        assert_equal(batch["mask"], [np_image(encoded(mask(int(Path(key).name)), "PNG")) for key in batch["key"]])


@pytest.mark.parametrize("step", [1, 2])
def test_a_run_goes_on_from_the_folder_to_the_tar_and_back(folder: Path, tar: Path, step: int) -> None:
    with opened(folder, 5) as ours:
        expected = list(ours)
    for first, second in ((folder, tar), (tar, folder)):
        with opened(first, 5) as before:
            batches = iter(before)
            for _ in range(step):
                next(batches)
            state = before.state_dict()
        with opened(second, 5) as after:
            after.load_state_dict(json.loads(json.dumps(state)))
            assert_equal_batches(after, expected[step:])


# --- bad images


def test_bad_images_are_replaced_as_in_the_tar_and_their_files_are_named(tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "photos", files_of({4: CUT, 9: b"", 17: b"no image"}))
    tar = tar_of(folder, tmp_path / "photos.tar")
    replace, records = BadImages(replace=True, max_share=0.5), []
    with opened(folder, on_error=replace) as ours, opened(tar, on_error=replace) as theirs:
        assert_equal_batches(ours, theirs)
        assert ours.stats().bad == theirs.stats().bad
        for number, each in enumerate((ours, theirs)):
            each.write_quarantine(tmp_path / f"{number}.jsonl")
            records.append([json.loads(line) for line in (tmp_path / f"{number}.jsonl").read_text().splitlines()])
    assert {record["shard"] for record in records[0]} == {
        *("photos/ant-eater/004.jpg", "photos/ant/009.jpg", "photos/Bee/017.jpg")
    }
    assert [(record["key"], record["cause"]) for record in records[0]] == [
        (record["key"], record["cause"]) for record in records[1]
    ]
    with (
        opened(folder, on_error=BadImages(known=tmp_path / "0.jsonl")) as ours,
        opened(tar, on_error=BadImages(known=tmp_path / "1.jsonl")) as theirs,
    ):
        assert_equal_batches(ours, theirs)
    with opened(folder, shuffle=False) as ours, pytest.raises(BadImageError) as caught:
        list(ours)
    assert str(named(folder, 17)) in str(caught.value)  # the first: tar sorts capital letters first


# --- files that change


def replace_by_another(file: Path) -> None:
    """As large and as old."""
    new, before = file.with_name("new"), file.stat()
    new.write_bytes(jpeg(30, 30, seed=99)[: before.st_size].ljust(before.st_size, b"\0"))
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(file)


def become_another(file: Path) -> None:
    """Leads to a picture of the same size elsewhere."""
    other = file.parents[2] / "other.jpg"
    shutil.copy2(file, other)
    file.unlink()
    file.symlink_to(other)


def replace_its_folder(file: Path) -> None:
    """By a link to a copy with the same names, sizes and times."""
    other = file.parents[2] / "copy"
    shutil.copytree(file.parent, other)
    shutil.rmtree(file.parent)
    file.parent.symlink_to(other)


CHANGES: dict[str, Callable[[Path], object]] = {
    "written": lambda file: file.write_bytes(jpeg(30, 30, seed=99)),
    "cut": lambda file: os.truncate(file, file.stat().st_size // 2),
    "touched": lambda file: os.utime(file, ns=(1, 1)),
    "replaced": replace_by_another,
    "a link": become_another,
    "removed": Path.unlink,
    "renamed": lambda file: file.rename(file.with_suffix(".old")),
    "its folder a link to another": replace_its_folder,
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "a device": lambda file: (file.unlink(), file.symlink_to("/dev/zero")),
}


@pytest.mark.parametrize("on_error", ["raise", BadImages(replace=True, max_share=1)], ids=["raise", "replace"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_file_that_changes_is_an_error_that_names_it(
    photos: Path,
    change: Callable[[Path], object],
    on_error: Any,  # noqa: ANN401
) -> None:
    with opened(photos, 4, on_error=on_error, shuffle=False) as ours:
        list(ours)
        change(named(photos, 22))
        with pytest.raises(ShardChangedError, match=r"ant-eater/0\d\d\.jpg") as caught:
            three_epochs(ours)
        assert "Make a new loader once the folder is final" in str(caught.value)


def test_a_component_that_changes_is_an_error_that_names_it(tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "photos", files_of())
    with opened(folder) as ours:
        shards = run_of(ours).shards
        assert shards.read_component(0, "json") is not None
        for change in CHANGES.values():
            file = folder / f"{shards.index.key(0)}.json"
            change(file)
            with pytest.raises(ShardChangedError, match=r"photos/Bee"):
                shards.read_component(0, "json")
            shutil.rmtree(folder)
            write_tree(folder, files_of())
            shards.shards[0].__dict__.pop("listing", None)  # as a new loader lists it
            assert shards.read_component(0, "json") is not None


@pytest.mark.parametrize(
    "change",
    [
        lambda photos: named(photos, 3).chmod(0o600),
        lambda photos: (photos.parent / "link.jpg").hardlink_to(named(photos, 3)),
        lambda photos: (photos / "ant" / "new.jpg").write_bytes(jpeg(9, 9)),
    ],
    ids=["chmod", "link", "another file"],
)
def test_what_changes_no_file_is_no_error(photos: Path, change: Callable[[Path], object]) -> None:
    with evaluation(photos, label_from="auto", output="dict") as ours:
        expected = list(ours)
        change(photos)
        for _ in range(3):
            assert_equal_batches(ours, expected)


def test_a_file_that_is_overwritten_in_place_with_its_old_time_goes_through_the_gate_again(photos: Path) -> None:
    file = named(photos, 7)
    before, good = file.stat(), file.read_bytes()
    with evaluation(photos, 4, label_from="auto", shuffle=False) as ours:
        three_epochs(ours)
        with run_of(ours).shards._lock:  # nothing is read ahead before it has its old time back
            with file.open("r+b") as in_place:  # a cut image, which the decoder takes for a gray one
                in_place.write(good[: len(good) // 2].ljust(len(good), b"\0"))
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(BadImageError, match=str(file)):
            three_epochs(ours)


def test_descriptors_are_closed_after_an_error(photos: Path) -> None:
    with opened(photos) as ours:
        shards = run_of(ours).shards
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        named(photos, 22).unlink()
        for _ in range(5):
            with pytest.raises(ShardChangedError):
                shards.read_images(np.arange(COUNT), Arena())
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
