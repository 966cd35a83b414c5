"""Parts of a check, merged: what one check of all shards finds."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from making import damaged_jpeg, jpeg, write_samples, write_shard, write_tree
from warm import warm

from gpuloader import Boxes, Field
from gpuloader.errors import ConfigError, DataError
from gpuloader.tools.check import CheckResult, check_shards


def fields(**boxes: Any) -> dict[str, Any]:  # noqa: ANN401 - options of any kind
    """Returns the same fields each time, with functions at other addresses."""
    boxes = {"format": "xywh", "labels": "category_id", **boxes}
    return {"boxes": Boxes("json:annotations", **boxes), "text": Field("txt", lambda text: text.decode())}


@pytest.fixture(scope="module", autouse=True)
def _decoding_begins_warm() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(warm().python))
        yield


def sample(key: str, label: int = 0, box: tuple[int, ...] = (0, 0, 5, 5), **other: bytes | None) -> dict[str, Any]:
    content = json.dumps({"annotations": [{"bbox": box, "category_id": label}]}).encode()
    members = {"jpg": jpeg(32, 40), "json": content, "txt": b"text", **other}
    return {"__key__": key} | {name: data for name, data in members.items() if data is not None}


def write_result(file: Path, result: CheckResult) -> None:
    file.write_text(json.dumps(asdict(result)))


def write_faults(folder: Path) -> list[Path]:
    """Shards of two folders, whose classes.json differ in length, and pictures, with a fault of each kind."""
    first, second = folder / "first", folder / "second"
    for each, classes in ((first, ["cat"]), (second, ["cat", "dog"])):
        each.mkdir()
        (each / "classes.json").write_text(json.dumps(classes))
    pictures = {f"{n}.jpg": damaged_jpeg() if n == 1 else jpeg(8, 8) for n in range(3)}
    pictures |= {f"{n}.json": sample("")["json"] for n in range(3)} | {f"{n}.txt": b"text" for n in range(3)}
    written = [
        write_shard(first / "0.tar", [sample("a0"), sample("a1", jpg=damaged_jpeg()), sample("a2", label=2)]),
        write_shard(first / "1.tar", [sample("b0", cls=b"1"), sample("b1", label=1), sample("b2", jpg=b"none")]),
        write_shard(second / "0.tar", [sample("c0", box=(0, 0, 99, 5)), sample("README", jpg=None)]),
        write_shard(second / "1.tar", [sample("d0", txt=b"\xff"), sample("d1", box=(1,)), sample("d2", txt=None)]),
        write_shard(second / "2.tar", [sample("e0", jpg=damaged_jpeg()), sample("e1")]),
        write_shard(second / "3.tar", [sample("README", jpg=None)]),
        second / "4.tar",
        write_tree(
            folder / "pictures", {**pictures, "2.png": jpeg(8, 8), "notes.txt": b"", "classes.json": b'["cat"]'}
        ),
    ]
    cut = written[4].read_bytes()
    written[4].write_bytes(cut[: cut.index(b"e1.jpg") + 600])
    written[6].write_bytes(b"no tar\n" * 200)
    return written


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_faults(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def whole(faults: list[Path]) -> tuple[CheckResult, str]:
    quarantine = faults[-1].parent / "whole.jsonl"
    return check_shards(faults, fields=fields(), device_id=None, quarantine=quarantine), quarantine.read_text()


def test_the_faults_are_of_all_kinds(whole: tuple[CheckResult, str]) -> None:
    result, _ = whole
    assert [bad.key for bad in result.bad] == ["a1", "b2", "d0", "d1", "d2", "e0", "./1"]
    assert [wrong.key for wrong in result.wrong] == ["a2", "c0"]  # and no b1: the other classes.json has its label
    assert [Path(broken.shard).name for broken in result.broken] == ["2.tar", "4.tar"]
    assert len(result.stray) == 6  # a folder's classes.json is none
    assert [(each.extension, each.samples, each.key) for each in result.lacking] == [
        ("txt", 1, "d2"),
        ("cls", 13, "a0"),
    ]


@pytest.mark.parametrize("count", [2, 9])
def test_parts_merged_are_the_whole(
    faults: list[Path], whole: tuple[CheckResult, str], tmp_path: Path, count: int
) -> None:
    for number in range(count):
        part = check_shards(faults, fields=fields(), device_id=None, part=(number, count))
        assert (part.part, part.shards) == ((number, count), len(faults[number::count]))
        write_result(tmp_path / f"{number}.json", part)
    merged = check_shards(faults, fields=fields(), merge=tmp_path, quarantine=tmp_path / "bad.jsonl")
    assert (merged, (tmp_path / "bad.jsonl").read_text()) == whole


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shards of both parts, in `shards`, and their results, in `checked`."""
    folder = tmp_path_factory.mktemp("parts")
    for name in ("shards", "checked"):
        (folder / name).mkdir()
    write_samples(folder / "shards", 4, shards=2)
    for number in range(2):
        write_result(
            folder / f"checked/{number}.json", check_shards(folder / "shards", device_id=None, part=(number, 2))
        )
    return folder


def changed(file: Path, **values: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


UPRIGHT = {"transforms": [{"Resize": {"size": [16, 16]}}], "orientation": "apply"}
PART_0, PART_1 = r"checked/0\.json \(part 0/2\)", r"checked/1\.json \(part 1/2\)"
NO_RESULT = r"checked/1\.json is no result of `gpuloader check --json`: "


@pytest.mark.parametrize(
    ("change", "options", "error", "says"),
    [
        (lambda at: (at / "1.json").unlink(), {}, ConfigError, r"checked has no result of part 1/2: run each"),
        (lambda at: (at / "1.json").rename(at / "1.txt"), {}, ConfigError, r"no result of part 1/2"),
        (lambda at: [file.unlink() for file in at.iterdir()], {}, ConfigError, r"checked has no \*\.json: write"),
        (
            lambda at: (at / "2.json").write_bytes((at / "0.json").read_bytes()),
            {},
            ConfigError,
            rf"{PART_0} and \S+/2\.json \(part 0/2\) do not fit together",
        ),
        (lambda at: changed(at / "1.json", part=[1, 3]), {}, ConfigError, rf"{PART_0} and \S+ \(part 1/3\) do not fit"),
        (lambda at: changed(at / "0.json", part=[1, 2]), {}, ConfigError, r"0\.json \(part 1/2\) and .* do not fit"),
        (
            lambda at: changed(at / "1.json", data="x"),
            {},
            ConfigError,
            rf"{PART_1} has other data, x; here .* 2 samples",
        ),
        (
            lambda at: write_samples(at.parent / "shards", 6, shards=2),
            {},
            ConfigError,
            rf"{PART_0} has other data, 2 samples, .*; here it would have 3 samples, ",
        ),
        (lambda at: None, {"fields": ["cls"]}, ConfigError, rf"{PART_0} has other arguments, fields=\(\), .*\['cls'\]"),
        (lambda at: None, {"preset": UPRIGHT}, ConfigError, r"orientation='off'; here .* orientation='apply'"),
        (lambda at: (at / "1.json").write_text(""), {}, DataError, NO_RESULT + "Expecting value"),
        (lambda at: (at / "1.json").write_text("{}"), {}, DataError, NO_RESULT + "'part'"),
        (lambda at: (at / "1.json").write_text("[]"), {}, DataError, NO_RESULT),
        (lambda at: changed(at / "1.json", bad=[{"sample": 2, "cause": ""}]), {}, DataError, NO_RESULT + "its numbers"),
        (lambda at: changed(at / "1.json", part=[2, 2]), {}, DataError, NO_RESULT + "its numbers do not fit"),
        (lambda at: None, {"part": (0, 2)}, ConfigError, r"part=0/2 with repair or merge: these take all shards"),
    ],
)
def test_parts_that_cannot_be_merged_are_named(
    parts: Path, tmp_path: Path, change: Callable[[Path], object], options: dict[str, Any], error: type, says: str
) -> None:
    copytree(parts, tmp_path, dirs_exist_ok=True)
    change(tmp_path / "checked")
    with pytest.raises(error, match=says):
        check_shards(tmp_path / "shards", merge=tmp_path / "checked", **options)


def test_shards_may_be_elsewhere_when_parts_are_merged(parts: Path, tmp_path: Path) -> None:
    copytree(parts, tmp_path, dirs_exist_ok=True)
    result = check_shards(tmp_path / "shards", merge=tmp_path / "checked")
    assert (result.samples, result.shards, result.all_well) == (4, 2, True)


@pytest.mark.parametrize("part", [(2, 2), (-1, 2), (0, 0)])
def test_a_part_that_there_is_not_is_an_error(parts: Path, part: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match=rf"part={part[0]}/{part[1]}: allowed is i/n with i from 0 to n - 1"):
        check_shards(parts / "shards", part=part)


def test_parts_are_not_repaired(parts: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"part=1/2 with repair or merge: these take all shards; leave part out"):
        check_shards(parts / "shards", part=(1, 2), repair=tmp_path / "clean")
