"""Packing as a whole: the same bytes whatever happens, going on after a kill, and what is refused."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from false_values import taken
from making import jpeg
from packing import content, samples_of, write_class_folders
from PIL import Image
from serving import wait_for
from warm import Program

from gpuloader import GPULoader
from gpuloader.base.atomic_files import atomic_file
from gpuloader.errors import ConfigError, DataError, LabelError, NoSamplesError, StateError
from gpuloader.pack import LeftOutPicture, pack
from gpuloader.shards import ShardSet, resolve_shards

OPTIONS = {"samples_per_shard": 4, "val_share": 0.3, "max_size": 20, "mipmaps": "16,8", "seed": 3}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 pictures in class folders, and two that are bad. To be read only."""
    source = write_class_folders(tmp_path_factory.mktemp("source") / "photos")
    (source / "dog" / "cut.jpg").write_bytes(jpeg(24, 32)[:-30])
    (source / "emu" / "empty.jpg").touch()
    return source


@pytest.fixture(scope="module")
def expected(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """All files of an undisturbed run in one process."""
    folder = tmp_path_factory.mktemp("expected")
    pack(photos, folder, workers=1, **OPTIONS)
    return dict(content(folder))


# --- what is written


def test_the_loaders_scan_finds_what_the_result_says(photos: Path, tmp_path: Path) -> None:
    result = pack(photos, tmp_path, workers=1, **OPTIONS)
    shard_set = ShardSet.open(resolve_shards([tmp_path / "train", tmp_path / "val"]))
    assert [str(tmp_path / name) for name in result.shards] == [str(path) for path in shard_set.shards]
    assert len(shard_set) == result.samples == 30
    assert not shard_set.index.left_out_count.any()
    assert set(shard_set.index.column("label").tolist()) == {0, 1, 2}
    assert result.bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.tar"))
    assert (result.destination, result.missing, result.written) == (tmp_path, (), len(result.shards))
    assert result.splits == {split: len(samples_of(tmp_path / split)) for split in ("train", "val")}
    assert min(result.splits.values()) > 0


def test_bad_pictures_are_in_the_result_and_in_a_file_for_each_shard(photos: Path, tmp_path: Path) -> None:
    result = pack(photos, tmp_path, samples_per_shard=16, workers=1)
    assert {*result.left_out} == {
        LeftOutPicture(f"{photos}/dog/cut.jpg", "dog/cut", "a JPEG that is cut: it has no end-of-image marker"),
        LeftOutPicture(f"{photos}/emu/empty.jpg", "emu/empty", "the file is empty"),
    }
    listed = [json.loads(line) for path in (tmp_path / "left_out").iterdir() for line in path.read_text().splitlines()]
    assert {entry["name"] for entry in listed} == {picture.name for picture in result.left_out}
    assert result.samples == 30


def test_not_one_good_picture_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "photos" / "a").mkdir(parents=True)
    (tmp_path / "photos" / "a" / "1.jpg").write_bytes(b"?")
    with pytest.raises(NoSamplesError, match=r"none of 1 picture is good: .*a/1\.jpg: none of JPEG, PNG"):
        pack(tmp_path / "photos", tmp_path / "packed", workers=1)


def test_decoded_shards_are_a_source_too(photos: Path, tmp_path: Path) -> None:
    pack(photos, tmp_path / "one", decoded=20, workers=1)
    pack(tmp_path / "one", tmp_path / "copied", shuffle=False, workers=1)
    pack(tmp_path / "one", tmp_path / "smaller", shuffle=False, max_size=10, workers=1)
    one, copied, smaller = (samples_of(tmp_path / name) for name in ("one", "copied", "smaller"))
    assert copied == one
    assert [sample["__key__"] for sample in smaller] == [sample["__key__"] for sample in one]
    preset = {"raw_uint8": {"Resize": None, "CenterCrop": {"size": 10}}}
    with GPULoader(tmp_path / "smaller", 30, None, preset=preset, output="dict") as loader:
        [batch] = loader
    for sample, image in zip(one, batch["image"], strict=True):
        pixels = np.frombuffer(sample["npy"][-20 * 26 * 3 :], np.uint8).reshape(20, 26, 3)
        expected = Image.fromarray(pixels).resize((13, 10), Image.Resampling.BILINEAR)
        assert np.array_equal(image.permute(1, 2, 0), np.asarray(expected)[:, 2:12])


# --- the same bytes


def test_workers_change_nothing(photos: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    pack(photos, tmp_path, workers=3, **OPTIONS)
    assert content(tmp_path) == expected


def test_two_parts_are_the_whole_also_by_another_path(
    photos: Path, tmp_path: Path, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(photos)
    monkeypatch.chdir(tmp_path)
    first = pack("link", "packed", part=(1, 2), workers=1, **OPTIONS)
    written = {str(path.relative_to("packed")) for path in Path("packed").rglob("*.tar")}
    assert set(first.shards) == written
    assert first.written == len(written)
    second = pack(photos, tmp_path / "packed", part=(0, 2), workers=1, **OPTIONS)
    assert set(second.shards) - written == set(first.missing)
    assert second.missing == ()
    assert len(second.left_out) == 2
    tars = {name: data for name, data in content(tmp_path / "packed").items() if "left_out" not in name}
    assert tars == {name: data for name, data in expected.items() if "left_out" not in name}


# --- kills


def start(source: Path, folder: Path, before: str = "", **options: object) -> Program:
    work = (
        "from gpuloader.pack import pack\n"
        f"if __name__ == '__main__':\n    {before or 'pass'}\n"
        f"    pack({str(source)!r}, {str(folder)!r}, **{ ({'workers': 1, **OPTIONS, **options})!r})"
    )
    return Program(work, stderr=subprocess.PIPE)


def wait_while_it_runs(process: Program, condition: Callable[[], object]) -> None:
    def holds() -> object:
        assert process.poll() is None, "it ended before"
        return condition()

    wait_for(holds)


SLOW = "import gpuloader.pack.shard_writer as w, time; r = w.render; w.render = lambda *a: (time.sleep(0.05), r(*a))[1]"


def test_a_killed_run_is_continued_to_the_same_bytes(photos: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    process = start(photos, tmp_path, before=SLOW)
    wait_while_it_runs(process, lambda: len(list(tmp_path.rglob("*.tar"))) >= 2 and list(tmp_path.rglob(".*.tmp")))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.communicate()
    done = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.tar")}
    assert 2 <= len(done) < 8
    assert list(tmp_path.glob("train/.train-*.tmp"))
    result = pack(photos, tmp_path, workers=1, **OPTIONS)
    assert content(tmp_path) == expected
    assert result.written == len(result.shards) - len(done)
    assert {path: path.stat().st_mtime_ns for path in done} == done


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_the_end_of(processes: list[int]) -> None:
    wait_for(lambda: not any(map(is_running, processes)))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures that take two workers some seconds. To be read only."""
    folder = tmp_path_factory.mktemp("many") / "photos"
    (folder / "cat").mkdir(parents=True)
    data = jpeg(900, 1200)
    for i in range(200):
        (folder / "cat" / f"{i:03d}.jpg").write_bytes(data)
    return folder


def test_the_workers_of_a_killed_run_end_with_it(many: Path, tmp_path: Path) -> None:
    process = start(many, tmp_path / "packed", workers=2)
    wait_while_it_runs(process, lambda: list((tmp_path / "packed").rglob("*.tar")))
    workers = children(process.process)
    assert len(workers) >= 2
    process.kill()
    process.communicate()
    wait_for_the_end_of(workers)


def test_a_worker_that_is_killed_is_an_error_that_says_so(many: Path, tmp_path: Path) -> None:
    process = start(many, tmp_path / "packed", workers=2)
    wait_while_it_runs(process, lambda: list((tmp_path / "packed").rglob("*.tar")))
    os.kill(children(process.process)[-1], signal.SIGKILL)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 1
    assert b"PackError: a worker process died: it was killed, perhaps for lack of memory" in told


@pytest.mark.parametrize(("shards", "whole_group"), [(0, True), (1, False)], ids=["a terminal's", "kill -INT"])
def test_ctrl_c_ends_all_processes_without_noise(many: Path, tmp_path: Path, shards: int, whole_group: bool) -> None:
    arguments = ["pack", many, tmp_path / "packed", "--samples-per-shard", 4, "--workers", 2, "--max-size", 20]
    work = "import os; os.setsid(); from gpuloader.cli import main; main()"
    process = Program(work, *arguments, stderr=subprocess.PIPE)
    packed = tmp_path / "packed"
    wait_while_it_runs(
        process, lambda: len(list(packed.glob("*.tar"))) >= shards and len(children(process.process)) >= 3
    )
    workers = children(process.process)
    (os.killpg if whole_group else os.kill)(process.process, signal.SIGINT)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 130
    assert b"Traceback" not in told
    wait_for_the_end_of(workers)
    assert not list((tmp_path / "packed").glob(".*.tmp"))


@pytest.mark.parametrize("mipmaps", [None, (1,)])
def test_a_picture_that_becomes_too_long_for_jpeg_is_left_out(tmp_path: Path, mipmaps: tuple[int, ...] | None) -> None:
    (tmp_path / "photos/a").mkdir(parents=True)
    for name, size in {"good": (60, 40), "long": (140_000, 4), "fits": (131_000, 4), "high": (4, 140_000)}.items():
        Image.new("RGB", size).save(tmp_path / "photos/a" / f"{name}.png")
    result = pack(tmp_path / "photos", tmp_path / "packed", max_size=2, mipmaps=mipmaps, workers=1)
    assert {Path(picture.name).stem for picture in result.left_out if "65,500" in picture.why} == {"long", "high"}
    assert len(result.left_out) == 2
    assert len(ShardSet.open(sorted((tmp_path / "packed").glob("*.tar")))) == 2


def test_what_other_parts_write_is_left_alone(photos: Path, tmp_path: Path) -> None:
    with atomic_file(tmp_path / "train-000001.tar") as file:
        file.write(b"another part's")
        result = pack(photos, tmp_path, part=(0, 2), workers=1, samples_per_shard=16)
        assert [path.name for path in tmp_path.glob(".*.tmp")] == [Path(file.name).name]
    assert result.written == 1
    assert (tmp_path / "train-000001.tar").read_bytes() == b"another part's"


# --- errors of the disk


def test_a_full_disk_is_an_error_that_names_the_shard_and_leaves_no_half_one(many: Path, tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))"  # writing more fails
    process = start(many, tmp_path / "packed", before=limit, max_size=None)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 1
    assert f"OSError: [Errno {errno.EFBIG}] File too large: '{tmp_path}/packed/train/train-000000.tar'".encode() in told
    assert list(content(tmp_path / "packed")) == [
        f"{split}/{name}" for split in ("train", "val") for name in ("classes.json", f"pack-{split}.json")
    ]


# --- what does not belong together


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"samples_per_shard": 5}, "samples_per_shard was 4, is 5, shards was"),
        ({"max_size": None}, "max_size was 20, is None, subsampling was '4:4:4', is None"),
        ({"mipmaps": (8,)}, "mipmaps was [16, 8], is [8]"),
        ({"mipmaps": None}, "mipmaps was [16, 8], is None"),
        ({"prefix": "a"}, "prefix was 'train', is 'a'"),  # it has val too
    ],
)
def test_other_arguments_continue_no_pack(photos: Path, tmp_path: Path, changed: dict[str, object], told: str) -> None:
    pack(photos, tmp_path, part=(0, 2), workers=1, **OPTIONS)
    before = content(tmp_path)
    with pytest.raises(StateError) as raised:
        pack(photos, tmp_path, part=(1, 2), workers=1, **{**OPTIONS, **changed})
    assert f"another pack began its shards ({told}" in str(raised.value)
    assert content(tmp_path) == before


def test_another_source_does_not_continue_a_pack(tmp_path: Path) -> None:
    source = write_class_folders(tmp_path / "photos")
    pack(source, tmp_path / "packed", part=(0, 2), workers=1, **OPTIONS)
    (source / "cat" / "000.jpg").write_bytes(jpeg(9, 9))  # of another size
    with pytest.raises(StateError, match=r"another pack began its shards \(source was '\w{32}', is '\w{32}'"):
        pack(source, tmp_path / "packed", part=(1, 2), workers=1, **OPTIONS)


def test_tars_of_others_are_not_mixed_in(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "train-000000.tar").touch()
    of_no_pack = r"has tars that no pack wrote, such as {}\.tar: move them, or give an empty folder"
    with pytest.raises(StateError, match=of_no_pack.format("train-000000")):
        pack(photos, tmp_path)
    assert content(tmp_path) == {"train-000000.tar": b""}
    (tmp_path / "train-000000.tar").unlink()
    pack(photos, tmp_path, workers=1)
    for name, prefix in (("more", "train"), ("train-000001", "train"), ("train-x", "train"), ("val-000000", "test")):
        (tmp_path / f"{name}.tar").touch()
        with pytest.raises(StateError, match=of_no_pack.format(name)):
            pack(photos, tmp_path, prefix=prefix)
        (tmp_path / f"{name}.tar").unlink()
    assert not list(tmp_path.glob("*test*"))


def test_a_damaged_folder_is_refused(photos: Path, tmp_path: Path) -> None:
    pack(photos, tmp_path, workers=1)
    classes = (tmp_path / "classes.json").read_text()
    (tmp_path / "classes.json").write_text("{")
    with pytest.raises(DataError, match=r"classes\.json cannot be read"):
        pack(photos, tmp_path)
    (tmp_path / "classes.json").write_text(classes)
    (tmp_path / "pack-train.json").write_text("{")
    for prefix in ("train", "val"):
        with pytest.raises(StateError, match=r"pack-train\.json was not written by a pack: give another folder"):
            pack(photos, tmp_path, prefix=prefix)


@pytest.mark.parametrize(
    "text", ["{", "null", "[" * 100_000, "9" * 5000, '"' + "x" * 5_000_000 + '"', '{"shards": [[]]}', "\xff"]
)
def test_a_manifest_or_a_list_that_no_pack_wrote_is_an_error(photos: Path, tmp_path: Path, text: str) -> None:
    left_out = tmp_path / "left_out" / "train-000000.jsonl"
    pack(photos, tmp_path, workers=1)
    left_out.write_text(text)
    with pytest.raises(StateError, match=r"train-000000\.jsonl was not written by a pack") as caught:
        pack(photos, tmp_path, workers=1)
    (tmp_path / "pack-train.json").write_text(text)
    with pytest.raises(StateError, match=r"pack-train\.json(: another| was not)") as at_manifest:
        pack(photos, tmp_path, workers=1)
    assert max(len(str(error.value)) for error in (caught, at_manifest)) < 4000


# --- several packs in one folder


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five pictures of dog and emu: there is no cat. To be read only."""
    folder = tmp_path_factory.mktemp("source") / "held-out"
    for i in range(5):
        path = folder / ("dog", "emu")[i % 2] / f"new-{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(24, 32, seed=100 + i))
    return folder


def test_packs_with_prefixes_of_their_own_share_a_folder(photos: Path, held_out: Path, tmp_path: Path) -> None:
    train = {"samples_per_shard": 16, "workers": 1}
    val = {"samples_per_shard": 3, "workers": 1, "prefix": "val", "shuffle": False}
    pack(photos, tmp_path, **train)
    alone = content(tmp_path)
    result = pack(held_out, tmp_path, **val)
    assert (result.shards, result.samples, result.missing) == (("val-000000.tar", "val-000001.tar"), 5, ())
    assert result.classes == ("cat", "dog", "emu")
    both = content(tmp_path)
    assert {name: both[name] for name in alone} == alone
    assert set(both) - set(alone) == {"pack-val.json", "val-000000.tar", "val-000001.tar"}
    samples = samples_of([tmp_path / name for name in result.shards])
    assert [(sample["__key__"][:3], sample["cls"]) for sample in samples] == [("dog", b"1")] * 3 + [("emu", b"2")] * 2
    for source, options, shard in ((photos, train, "train-000001.tar"), (held_out, val, "val-000001.tar")):
        (tmp_path / shard).unlink()
        assert pack(source, tmp_path, **options).written == 1  # it goes on, whatever else is there
    assert content(tmp_path) == both
    with GPULoader([tmp_path / "train-*.tar", tmp_path / "val-*.tar"], 35, None) as loader:
        assert loader.classes == ("cat", "dog", "emu")
        assert len(loader) == 1


def test_splits_are_in_folders_of_their_own_with_the_same_classes(photos: Path, held_out: Path, tmp_path: Path) -> None:
    pack(photos, tmp_path, workers=1, **OPTIONS)
    both = content(tmp_path)
    assert {Path(name).parts[0] for name in both} == {"train", "val"}
    assert both["train/classes.json"] == both["val/classes.json"]
    assert both["train/pack-train.json"] == both["val/pack-val.json"]
    left_out = {name: data.count(b"\n") for name, data in both.items() if Path(name).parts[1] == "left_out"}
    assert sum(left_out.values()) == 2
    (tmp_path / "train" / "classes.json").unlink()
    pack(photos, tmp_path, workers=1, **OPTIONS)  # it goes on with the classes of val
    assert content(tmp_path) == both
    for split in ("train", "val"):
        with GPULoader(tmp_path / split, 1, None) as loader:
            assert loader.classes == ("cat", "dog", "emu")
    test = pack(held_out, tmp_path, prefix="test", workers=1)  # beside the folders, and numbered as they are
    assert (test.shards, test.classes, test.splits) == (("test-000000.tar",), ("cat", "dog", "emu"), {"test": 5})
    with pytest.raises(StateError, match="labels are names, but here they are bare numbers"):
        pack(tmp_path / "test-000000.tar", tmp_path, prefix="more", workers=1)


@pytest.mark.parametrize("left", ["train-000000.tar", "pack-train.json"])
def test_a_folder_that_has_shards_itself_takes_no_folders_of_splits(photos: Path, tmp_path: Path, left: str) -> None:
    pack(photos, tmp_path, workers=1)
    for path in tmp_path.iterdir():
        if path.is_file() and path.name != left:
            path.unlink()
    before = content(tmp_path)
    with pytest.raises(StateError, match=rf"has {left} itself, but val_share packs into its folders train and val"):
        pack(photos, tmp_path, workers=1, val_share=0.3)
    assert content(tmp_path) == before


def test_a_split_is_not_packed_into_its_source(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "train").symlink_to(photos)
    with pytest.raises(ConfigError, match=r"the destination .*/train is in the source"):
        pack(tmp_path / "train", tmp_path, workers=1, val_share=0.3)


def test_packs_at_once_in_one_folder_do_not_disturb_each_other(photos: Path, tmp_path: Path) -> None:
    for folder in ("one by one", "at once"):
        processes = []
        for options in ({"part": (0, 2)}, {"part": (1, 2)}, {"prefix": "test"}):
            processes.append(start(photos, tmp_path / folder, val_share=0.0, **options))
            if folder == "one by one":
                processes[-1].communicate(timeout=300)
        assert [(process.communicate(timeout=300), process.returncode)[1] for process in processes] == [0, 0, 0]
    assert content(tmp_path / "at once") == content(tmp_path / "one by one")


def test_classes_that_a_folder_lacks_are_an_error_with_its_file(photos: Path, held_out: Path, tmp_path: Path) -> None:
    pack(held_out, tmp_path, prefix="val", workers=1)
    before = content(tmp_path)
    with pytest.raises(LabelError) as raised:
        pack(photos, tmp_path, workers=1)
    assert "unknown class 'cat': the classes are dog, emu (labels are numbered by " in str(raised.value)
    assert f"{tmp_path}/classes.json, as in the other shards there)" in str(raised.value)
    with pytest.raises(StateError, match=r"classes\.json has other classes than the source: give another folder"):
        pack(photos, tmp_path, workers=1, classes=["cat", "dog", "emu"])
    assert content(tmp_path) == before


def test_labels_with_names_and_bare_numbers_are_not_mixed_in_a_folder(photos: Path, tmp_path: Path) -> None:
    pack(photos, tmp_path / "named", workers=1)
    pack(tmp_path / "named", tmp_path / "numbers", workers=1)  # what tars mean by their labels is not known
    for source, folder, told in (
        (photos, "numbers", "whose labels are bare numbers, but here they are names"),
        (tmp_path / "numbers", "named", "whose labels are names, but here they are bare numbers"),
    ):
        before = content(tmp_path / folder)
        with pytest.raises(StateError, match=rf"pack-train\.json is of a pack {told}: give another folder"):
            pack(source, tmp_path / folder, prefix="val", workers=1)
        assert content(tmp_path / folder) == before


@pytest.mark.parametrize("kind", ["csv", "jsonl", "pairs", "yolo"])
def test_bare_numbers_are_not_taken_for_the_numbers_of_a_folders_names(photos: Path, tmp_path: Path, kind: str) -> None:
    path = photos / "cat" / "000.jpg"
    (tmp_path / "a.csv").write_text(f"path,label\n{path},1\n{path},2.0\n")
    (tmp_path / "a.jsonl").write_text(f'{{"path": "{path}", "label": "1"}}\n')
    for name in ("images", "labels"):
        (tmp_path / name / "val").mkdir(parents=True)
    (tmp_path / "images" / "val" / "0.jpg").write_bytes(path.read_bytes())
    (tmp_path / "labels" / "val" / "0.txt").write_text("1 0.5 0.5 0.1 0.1\n")
    sources = {"csv": tmp_path / "a.csv", "jsonl": tmp_path / "a.jsonl", "yolo": tmp_path / "images" / "val"}
    source, val = sources.get(kind, [(path, 1)]), {"prefix": "val", "workers": 1}
    pack(photos, tmp_path / "packed", workers=1)
    before = content(tmp_path / "packed")
    with pytest.raises(StateError, match=r"are names, but here they are bare numbers: .*--classes .*classes\.js"):
        pack(source, tmp_path / "packed", **val)
    assert content(tmp_path / "packed") == before
    given = pack(source, tmp_path / "packed", classes=tmp_path / "packed" / "classes.json", **val)
    assert given.classes == ("cat", "dog", "emu")
    assert b'"category_id": 1' in content(tmp_path / "packed")["val-000000.tar"] or kind != "yolo"


@pytest.mark.parametrize("inside", ["", "cat/packed"])
def test_the_destination_lies_outside_the_source(photos: Path, inside: str) -> None:
    with pytest.raises(ConfigError, match=r"the destination .* is in the source .*: give a folder outside of it"):
        pack(photos, photos / inside)
    assert sorted(path.name for path in photos.iterdir()) == ["cat", "dog", "emu"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"samples_per_shard": 0}, "samples_per_shard=0: allowed is an integer from 1 on"),
        ({"shard_bytes": "0B"}, "shard_bytes=0: allowed is an integer from 1 on"),
        ({"samples_per_shard": 1, "shard_bytes": "1B"}, "both given"),
        ({"seed": -1}, "seed=-1: allowed is an integer in"),
        ({"val_share": 1.0}, r"val_share=1.0: allowed is a share from 0 up to, but not including, 1"),
        ({"val_share": float("nan")}, "val_share=nan: allowed is"),
        ({"prefix": ""}, "prefix='': allowed is"),
        ({"prefix": "a/b"}, "prefix='a/b': allowed is"),
        ({"prefix": ".a"}, "prefix='.a': allowed is"),
        ({"prefix": "val", "val_share": 0.1}, "prefix='val': allowed is .* not 'val' together with val_share"),
        ({"max_size": 5, "quality": 101}, "quality=101: allowed is an integer from 1 to 100"),
        ({"quality": 90}, "quality was given without max_size or mipmaps"),
        ({"mipmaps": (5,), "decoded": 5}, "mipmaps and decoded were both given"),
        ({"max_size": 5, "decoded": 5}, "max_size and decoded were both given"),
        ({"part": (2, 2)}, r"part=2/2: allowed is i/n with i from 0 to n - 1"),
        ({"workers": 0}, r"workers=0: allowed is an integer from 1 on"),
        ({"shard_bytes": 2**20 - 1}, r"shard_bytes=1048575: a number without a unit"),
        ({"mipmaps": "512,large"}, r"mipmaps='512,large': allowed are integers from 1 to 65500, such as 1024,512"),
        ({"mipmaps": ()}, r"mipmaps=\(\): allowed are"),
        ({"mipmaps": (512, 65_501)}, r"mipmaps=\(512, 65501\): allowed are"),
        ({"shard_bytes": "much"}, r"shard_bytes='much': allowed are bytes such as 256MiB, 1GB or 100000000"),
    ],
)
def test_arguments_that_cannot_be_meant(photos: Path, tmp_path: Path, arguments: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        pack(photos, tmp_path / "packed", **arguments)
    assert not (tmp_path / "packed").exists()


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        *((name, "False") for name in ("shuffle", "seekable")),
        ("seed", "0"),
        ("val_share", "0 0.0"),
        *((name, "") for name in ("samples_per_shard", "shard_bytes", "prefix", "classes", "workers", "part")),
        *((name, "") for name in ("max_size", "quality", "decoded", "mipmaps")),
    ],
)
def test_values_that_count_as_false_are_no_defaults(tmp_path: Path, name: str, allowed: str) -> None:
    destinations = (tmp_path / str(number) for number in count())
    call: Any = partial(pack, [(Image.new("RGB", (8, 8)), 0)])
    assert taken(lambda value: call(next(destinations), **{"workers": 1, name: value})) == allowed


@pytest.mark.parametrize(
    ("url", "copying"),
    [
        ("s3://bucket/train/", "aws s3 cp --recursive FOLDER s3://"),
        ("https://me:secret@host/train/", "the store's own command"),  # the message does not show the password
    ],
)
def test_a_store_as_the_destination_names_the_command_that_copies_it(photos: Path, url: str, copying: str) -> None:
    with pytest.raises(ConfigError, match=rf"give a local folder, and copy that with .*{copying}") as error:
        pack(photos, url)
    assert "secret" not in str(error.value)


def test_a_file_where_the_destination_should_be(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for destination in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"the destination .* cannot be made .*: give another folder"):
            pack(photos, destination)


def test_without_ray_it_says_what_to_install(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"needs the package ray: pip install 'gpuloader\[ray\]'"):
        pack(photos, tmp_path, ray="auto")
