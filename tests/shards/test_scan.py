"""Scanning: a tar that is damaged, what stands before the damage; and tars that are made to take memory or time."""

from __future__ import annotations

import tarfile
import time
import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making import jpeg, saved, write_samples
from numpy.typing import NDArray
from tar_bytes import END, extended, forged, member, record

from gpuloader.errors import NoSamplesError
from gpuloader.shards import Index, ShardSet, scan_to_damage
from gpuloader.shards.scan import scan_bytes

IMAGE = jpeg(8, 8)


def scanned(tar: bytes) -> Index:
    return scan_bytes(lambda count, offset: tar[offset : offset + count], len(tar), 0, "a.tar")


def test_the_members_before_the_damage_are_indexed_and_the_damage_is_named(tmp_path: Path) -> None:
    [tar] = write_samples(tmp_path, 5, shards=1)
    with tarfile.open(tar) as file:
        cut = file.getmember("000003.jpg").offset_data + 100
    tar.write_bytes(tar.read_bytes()[:cut])
    index, damage = scan_to_damage(tar)
    assert [index.key(row) for row in range(len(index))] == ["000000", "000001", "000002"]
    assert damage is not None
    assert damage.problem.startswith("truncated: a member of ")
    assert damage.offset < cut
    assert [item.name for item in index.left_out] == ["000003.cls"]


def test_files_of_no_sample_are_named_with_their_kinds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("a.jpg", "README.md", "b.gif", "c.gif", "LICENSE"):
            tar.addfile(tarfile.TarInfo(name))
    _ = ShardSet.open([tmp_path / "a.tar"])
    [message] = caplog.messages
    assert all(text in message for text in (f"{tmp_path}/a.tar: 4 ", "no sample", ".md", ".gif", "LICENSE"))
    assert message.count(".gif") == 1


@pytest.mark.parametrize(
    ("names", "keys", "words"),
    [
        (["1.jfif", "2.JPE", "3.jpeg"], ["1", "2", "3"], None),
        (["1.png", "1.jfif", "1.jpe"], ["1"], None),
        (["1.cls", "1.gif"], [], ["1.gif", "GIF", "`gpuloader pack`"]),  # the picture is named first
        (["1.json", "1.AVIF", "2.jpg"], ["2"], ["1.AVIF", "AVIF", "`gpuloader pack`"]),
        (["1.gif", "1.png"], ["1"], None),
        (["a/v1.0.cls", "a/v1.0.jpg", "a/v1.1.JPG"], [], ["a/v1.0.jpg", "first dot", "call it v1_0.jpg"]),
        (["at 10.22.10.gif"], [], ["first dot", "22.10.gif", "call it at 10_22_10.gif"]),
        (["1.npy"], [], ["1.npy", "uint8 (height, width, 3)"]),
        (["1.txt"], [], ["1.txt", "its key has no image"]),
    ],
)
def test_what_is_in_no_sample_says_why_and_names_the_cure(
    names: list[str], keys: list[str], words: list[str] | None
) -> None:
    index = scanned(b"".join(member(name, IMAGE) for name in names) + END)
    assert [index.key(row) for row in range(len(index))] == keys
    if words is None:
        assert not index.left_out
        return
    first = index.left_out[0]
    assert [word for word in words if word not in f"{first.name}: {first.why}"] == []
    with pytest.raises(NoSamplesError) if not keys else nullcontext() as raised:
        ShardSet([Path("a.tar")], index)
    assert raised is None or [word for word in words if word not in str(raised.value)] == []


@pytest.mark.parametrize(
    "array", [np.zeros((4, 5, 3), np.float32), np.zeros((4, 5), np.uint8), np.zeros((4, 5, 4), np.uint8)]
)
def test_an_array_that_is_no_image_says_which_are(array: NDArray[Any]) -> None:
    index = scanned(member("1.npy", saved(array)) + END)
    assert "uint8 (height, width, 3)" in index.left_out[0].why


COUNT = 10_000
MEMBERS = {
    "ordinary": [*(f"{i:x}.jpg" for i in range(COUNT)), *(f"{i:x}.cls" for i in range(COUNT))],
    "a key with many extensions": [f"0.{i:x}" for i in range(2 * COUNT)],
    "as many keys with the last of them": [
        *(f"0.{i:x}" for i in range(COUNT)),
        *(f"{i:x}.{COUNT - 1:x}" for i in range(1, COUNT + 1)),
    ],
    "one name again and again": ["0.jpg"] * (2 * COUNT),
}


@pytest.mark.slow(kept=1)
@pytest.mark.parametrize("names", MEMBERS.values(), ids=MEMBERS.keys())
def test_memory_grows_with_the_members_alone_whatever_they_are_called(names: list[str]) -> None:
    tar = b"".join([*map(member, names), END])
    tracemalloc.start()
    scanned(tar)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 500 * len(names)  # of an ordinary one: about 250


def test_time_grows_with_the_members_and_the_records_for_all_not_with_their_product() -> None:
    for_all = [
        extended(b"g", b"".join(record(b"%s%d.%d" % (prefix, i, j), b"v" * 20) for j in range(3000)))
        for i in range(30)
        for prefix in (b"k", b"GNU.no-sparse")
    ]
    tar = b"".join([*for_all, *(member(f"{i}.jpg", IMAGE) for i in range(1500)), END])
    start = time.thread_time()
    assert len(scanned(tar)) == 1500
    assert time.thread_time() - start < 8  # it takes 0.5 s; a product would take 30 s


def test_a_long_name_for_all_costs_its_length_once() -> None:
    """A global record names all later members, so they are all the same component of one sample."""
    for name, count in [("k" * 1_000_000 + ".jpg", 1), ("k." + "É" * 500_000, 0), ("n" * 1_000_000, 0)]:
        tar = b"".join([extended(b"g", record(b"path", name.encode())), forged() * 20_000, END])
        start = time.thread_time()
        index = scanned(tar)
        assert time.thread_time() - start < 8  # it takes 0.5 s; a product would take 20 s
        assert (len(index), index.left_out_count) == (count, 20_000 - count)
        assert len(index.to_bytes()) < 10_000_000  # its file has no name of a member that is left out in full
