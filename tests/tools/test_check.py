"""`check`: what is wrong with shards, by name; and the quarantine."""

from __future__ import annotations

import gzip
import json
import sys
import tarfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import pytest
from making import damaged_jpeg, encoded, jpeg, picture, unpack, write_samples, write_shard
from serving import Server
from warm import warm

from gpuloader.errors import NoSamplesError, TarError
from gpuloader.shards import Folder, ShardSet, read_quarantine
from gpuloader.tools.check import CheckResult, Fault, check_shards

Sample = dict[str, bytes | str]


@pytest.fixture(autouse=True)
def _decoding_begins_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(warm().python))


def samples(count: int, bad: Iterable[int] = ()) -> list[Sample]:
    rows = set(bad)
    return [
        {
            "__key__": f"{number:03d}",
            "jpg": damaged_jpeg() if number in rows else jpeg(32, 40, seed=number),
            "cls": b"%d" % (number % 10),
        }
        for number in range(count)
    ]


def lacks(result: CheckResult) -> list[tuple[str, int, str]]:
    """The extension of each component that samples lack, how many lack it, and the first of them."""
    faults = [fault for fault in result.faults if fault.kind.startswith("lacks .")]
    return [(fault.kind.removeprefix("lacks ."), fault.samples, fault.key) for fault in faults]


# --- what is found


def test_good_shards_are_well(tmp_path: Path) -> None:
    result = check_shards(write_samples(tmp_path, 41, shards=3))
    assert (result.shards, result.samples, result.all_well) == (3, 41, True)
    assert (result.faults, result.left_out_count) == ((), 0)


@pytest.mark.parametrize("bad", [[0], [9, 10], list(range(20))])
def test_bad_images_are_named_in_their_order(tmp_path: Path, bad: list[int]) -> None:
    all_samples = samples(20, bad)
    tars = [write_shard(tmp_path / f"{n}.tar", all_samples[10 * n : 10 * n + 10]) for n in range(2)]
    result = check_shards(tars)
    assert [(sample.shard, sample.key) for sample in result.of("bad")] == [
        (str(tars[n // 10]), f"{n:03d}") for n in bad
    ]
    for sample in result.of("bad"):
        assert Path(sample.shard).read_bytes()[sample.offset :].startswith(damaged_jpeg())
        assert sample.cause == "DALI's decoder fails on it"


def test_all_sources_of_a_mixture_are_checked(tmp_path: Path) -> None:
    tars = [write_shard(tmp_path / f"{n}.tar", samples(4, [n])) for n in range(3)]
    mixture = [{"tar": tars[0], "weight": 3}, {"tar": tars[1:], "weight": {0: 1, 2: 0}}]
    result = check_shards(mixture, quarantine=tmp_path / "bad.jsonl")
    assert [(sample.sample, sample.shard) for sample in result.of("bad")] == [(5 * n, str(tars[n])) for n in range(3)]
    assert list(read_quarantine(tmp_path / "bad.jsonl", ShardSet.open(tars))) == [0, 5, 10]


def test_the_bad_pictures_of_a_folder_are_named_by_their_paths(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "a.tar", samples(6, [1, 4]))
    folder = unpack([shard], tmp_path / "photos")
    (folder / "notes.txt").write_text("no picture")
    (folder / "classes.json").write_text('["cat"]')  # which belongs to it
    expected, result = check_shards(shard), check_shards(folder, quarantine=tmp_path / "bad.jsonl")
    assert [(bad.shard, bad.key, bad.offset) for bad in result.of("bad")] == [
        (str(folder / f"{number:03d}.jpg"), f"./{number:03d}", 0) for number in (1, 4)
    ]
    assert [bad.cause for bad in result.of("bad")] == [bad.cause for bad in expected.of("bad")]
    assert result.of("left out") == [Fault("left out", str(folder), "./notes.txt", 0, "its key has no image")]
    assert (result.samples, result.left_out_count) == (6, 1)
    assert list(read_quarantine(tmp_path / "bad.jsonl", ShardSet.open([Folder(folder)]))) == [1, 4]


def test_damage_that_few_crops_show_is_found(tmp_path: Path) -> None:
    good = encoded(picture(256, 64), "PNG")
    checksum = len(good) - 16  # of the last rows, before the chunk that ends the file
    damaged = good[:checksum] + bytes(4) + good[checksum + 4 :]
    tar = write_shard(tmp_path / "a.tar", [{"__key__": "good", "png": good}, {"__key__": "bad", "png": damaged}])
    assert [bad.key for bad in check_shards(tar).of("bad")] == ["bad"]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["jpg cls", "jpg", "jpg cls"], [("cls", 1, "1")]),
        (["jpg cls txt", "jpg json", "jpg cls"], [("cls", 1, "1"), ("json", 2, "0"), ("txt", 2, "1")]),
        (["jpg cls", "png cls", "webp cls"], []),  # one image each
        (["jpg png", "png", "jpg"], [("png", 1, "2")]),  # another image beside it
    ],
)
def test_components_that_some_lack_are_counted(
    tmp_path: Path, rows: list[str], expected: list[tuple[str, int, str]]
) -> None:
    content = {"jpg": jpeg(8, 8), "png": encoded(picture(8, 8), "PNG"), "webp": encoded(picture(8, 8), "WEBP")}
    samples: list[Sample] = [
        {"__key__": f"{n}"} | {extension: content.get(extension, b"1") for extension in row.split()}
        for n, row in enumerate(rows)
    ]
    write_shard(tmp_path / "a.tar", samples[:1])
    write_shard(tmp_path / "b.tar", samples[1:])
    result = check_shards(tmp_path)
    assert lacks(result) == expected
    assert all(each.shard == str(tmp_path / ("a.tar" if each.key == "0" else "b.tar")) for each in result.faults)
    assert result.all_well == (not expected)


@pytest.mark.parametrize(
    ("content", "offset", "says"),
    [(b"no tar\n" * 200, 0, "not a tar file"), (gzip.compress(bytes(10_240)) + bytes(1000), 0, "compressed with gzip")],
)
def test_what_is_no_tar_is_reported_beside_what_is(tmp_path: Path, content: bytes, offset: int, says: str) -> None:
    (tmp_path / "a.tar").write_bytes(content)
    write_shard(tmp_path / "b.tar", samples(3, bad=[1]))
    result = check_shards(tmp_path)
    [broken] = result.of("broken")
    assert (broken.shard, broken.offset) == (str(tmp_path / "a.tar"), offset)
    assert says in broken.cause
    assert [sample.key for sample in result.of("bad")] == ["001"]


def test_shards_that_are_all_broken_are_a_result(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"no tar\n" * 200)
    (tmp_path / "bad.jsonl").write_text("of an earlier check\n")
    result = check_shards(tmp_path / "a.tar", quarantine=tmp_path / "bad.jsonl")
    assert (result.samples, len(result.of("broken")), result.all_well) == (0, 1, False)
    assert (tmp_path / "bad.jsonl").read_text() == ""


def test_shards_without_samples_are_an_error(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", [{"__key__": "a", "txt": b"no image"}])
    with pytest.raises(NoSamplesError, match="no images in"):
        check_shards(tmp_path)


# --- on a store


def test_shards_on_a_store_have_the_faults_of_local_ones(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    write_shard(tmp_path / "local/a.tar", [*samples(4, bad=[1]), {"__key__": "README", "txt": b"no image"}])
    write_shard(tmp_path / "local/b.tar", [{"__key__": "c", "jpg": jpeg(8, 8)}, *samples(9, bad=[2])])
    local = check_shards(tmp_path / "local", quarantine=tmp_path / "local.jsonl")
    with Server(tmp_path / "local") as server:
        cache = {"folder": tmp_path / "cache"}
        stored = check_shards(f"{server.url}/{{a,b}}.tar", quarantine=tmp_path / "stored.jsonl", cache=cache)
        assert {Path(sample.shard).name: sample.shard for sample in stored.of("bad")} == {
            name: f"{server.url}/{name}" for name in ("a.tar", "b.tar")
        }
    here = json.dumps(asdict(local)).replace(str(tmp_path / "local"), server.url)
    assert json.dumps(asdict(stored)) == here
    assert (tmp_path / "stored.jsonl").read_text() == (tmp_path / "local.jsonl").read_text()
    assert [sample.sample for sample in local.of("bad")] == [1, 7]


def test_a_broken_shard_on_a_store_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"no tar\n" * 200)
    with Server(tmp_path) as server, pytest.raises(TarError, match=r"/a\.tar: not a tar file"):
        check_shards(f"{server.url}/a.tar", cache={"folder": tmp_path / "cache"})


# --- the quarantine


def test_the_quarantine_leaves_out_broken_shards_which_no_loader_takes(tmp_path: Path) -> None:
    whole = write_shard(tmp_path / "a.tar", samples(4, bad=[1]))
    broken = write_shard(tmp_path / "b.tar", samples(4, bad=[2]))
    broken.write_bytes(broken.read_bytes()[:-10_000])
    result = check_shards([broken, whole], quarantine=tmp_path / "bad.jsonl")
    assert len(result.of("broken")) == 1
    assert '"a.tar"' in (tmp_path / "bad.jsonl").read_text()
    assert '"b.tar"' not in (tmp_path / "bad.jsonl").read_text()


# --- cut shards


def test_a_cut_shard_has_its_whole_samples_wherever_it_is_cut(tmp_path: Path) -> None:
    tar = write_shard(tmp_path / "whole.tar", samples(4))
    content = tar.read_bytes()
    with tarfile.open(tar) as file:
        ends = [member.offset_data + member.size for member in file.getmembers()]
    assert len(ends) == 8
    for cut in range(ends[3] + 1, ends[-1], 700):
        (tmp_path / "cut.tar").write_bytes(content[:cut])
        whole = sum(end <= cut for end in ends[1::2])
        result = check_shards(tmp_path / "cut.tar")
        assert result.samples - len(result.of("bad")) == whole, cut


def test_a_sample_that_is_cut_between_its_members_is_bad_and_says_what_it_lacks(tmp_path: Path) -> None:
    tar = write_shard(tmp_path / "a.tar", [{**sample, "json": b"{}", "txt": b"of this"} for sample in samples(3)])
    with tarfile.open(tar) as file:
        cut = next(member.offset for member in file.getmembers() if member.name == "002.json")
    tar.write_bytes(tar.read_bytes()[:cut])
    result = check_shards(tar, quarantine=tmp_path / "bad.jsonl")
    assert [(sample.key, sample.cause) for sample in result.of("bad")] == [
        ("002", "the shard is cut after it, and it lacks .json, .txt")
    ]
    assert "no end marker" in result.of("left out")[0].cause
    assert '"002"' in (tmp_path / "bad.jsonl").read_text()  # a loader takes shards without an end
