"""`ShardSet`: many shards as one row of samples, and reading them, against `tarfile`."""

from __future__ import annotations

import errno
import gc
import hashlib
import os
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from changing import CHANGES
from making import jpeg, write_samples, write_shard
from numpy.typing import NDArray

from gpuloader.errors import NoSamplesError, ShardChangedError
from gpuloader.pipelines import read_cached
from gpuloader.shards import Arena, ShardSet
from gpuloader.shards.data_digest import DataDigest
from gpuloader.shards.shard_set import ReadCached, ask_for


def contents(shards: list[Path], extension: str = "jpg") -> list[bytes]:
    """The components of all samples in order, by `tarfile`."""
    found = []
    for shard in shards:
        with tarfile.open(shard) as tar:
            for info in tar:
                if info.name.endswith(f".{extension}"):
                    file = tar.extractfile(info)
                    assert file is not None
                    found.append(file.read())
    return found


def read(shard_set: ShardSet, samples: object) -> list[bytes]:
    return [view.tobytes() for view in shard_set.read_images(np.array(samples, np.int64), Arena())]


def drop(shard: Path) -> None:
    """Removes a shard from the page cache, as far as the system follows this advice."""
    with shard.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def open_files() -> set[str]:
    return {str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()}


@pytest.fixture
def own(tmp_path: Path) -> list[Path]:
    """Three shards of four samples each, to be broken."""
    shards = write_samples(tmp_path / "own", 12, shards=3)
    for shard in shards:
        os.utime(shard, (10**9, 10**9))  # a change at once could else fall into the same tick of the clock
    return shards


# Reading.


@pytest.mark.parametrize(
    "samples",
    [
        range(40),
        range(39, -1, -1),
        [0, 20, 1, 21, 19, 39],  # to and fro between shards
        [7, 7, 7, 30, 7],
        np.random.default_rng(0).permutation(40),
    ],
    ids=str,
)
def test_images_are_those_of_tarfile_in_the_order_asked_for(shards: list[Path], samples: object) -> None:
    expected = [contents(shards)[i] for i in np.array(samples, np.int64)]
    assert read(ShardSet.open(shards), samples) == expected
    assert read(ShardSet.open(shards, read_cached=read_cached), samples) == expected
    drop(shards[1])
    assert read(ShardSet.open(shards, read_cached=read_cached), samples) == expected


@pytest.mark.parametrize("extension", ["jpg", "cls", "json"])
def test_components_are_those_of_tarfile(shards: list[Path], extension: str) -> None:
    shard_set = ShardSet.open(shards)
    assert [shard_set.read_component(i, extension) for i in range(40)] == contents(shards, extension)


def test_a_component_that_a_sample_lacks_is_none(tmp_path: Path) -> None:
    samples = [{"__key__": "a", "jpg": b"1"}, {"__key__": "b", "jpg": b"2", "txt": b""}, {"__key__": "c", "jpg": b"3"}]
    shards = [write_shard(tmp_path / f"{name}.tar", samples) for name in "xy"]
    shard_set = ShardSet.open(shards)
    assert [shard_set.read_component(i, "txt") for i in range(6)] == [None, b"", None] * 2
    assert [shard_set.read_component(i, "npy") for i in range(6)] == [None] * 6
    assert shard_set.index.rows_without("txt").tolist() == [0, 2, 3, 5]
    assert shard_set.index.rows_without("npy").tolist() == list(range(6))
    assert shard_set.index.rows_without("jpg").tolist() == []


def test_shards_without_samples_may_stand_anywhere(tmp_path: Path) -> None:
    full = write_samples(tmp_path / "full", 4, shards=2)
    empty = [write_shard(tmp_path / f"{name}.tar", []) for name in "abcd"]
    shard_set = ShardSet.open([empty[0], full[0], empty[1], empty[2], full[1], empty[3]])
    assert read(shard_set, range(4)) == contents(full)
    assert [shard_set.index.key(i) for i in range(4)] == ["000000", "000001", "000002", "000003"]


def test_an_image_of_no_bytes_is_read_as_such(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "a.tar", [{"__key__": key, "jpg": key.encode() * (key != "b")} for key in "abc"])
    assert read(ShardSet.open([shard]), [1, 0, 1, 2]) == [b"", b"a", b"", b"c"]
    assert read(ShardSet.open([shard], read_cached=read_cached), [1, 0, 1, 2]) == [b"", b"a", b"", b"c"]


@pytest.mark.parametrize("samples", [[], [{"__key__": "a", "cls": b"1"}], [{"__key__": "a", "gif": b"GIF89a"}]])
def test_no_samples_at_all_is_an_error(tmp_path: Path, samples: list[dict[str, bytes | str]]) -> None:
    shards = [write_shard(tmp_path / f"{number}.tar", samples) for number in range(5)]
    with pytest.raises(NoSamplesError, match=r"no images in .*0\.tar, .*2\.tar \.\.\.: a sample needs .*jpg, jpeg"):
        ShardSet.open(shards)


# The arena.


def test_an_arena_is_used_again_and_grows_when_it_must(shards: list[Path]) -> None:
    expected, shard_set, arena = contents(shards), ShardSet.open(shards), Arena()
    few = shard_set.read_images(np.arange(3), arena)
    many = shard_set.read_images(np.arange(30), arena)
    assert [view.tobytes() for view in few] == expected[:3]  # what was there before it grew stays readable
    again = shard_set.read_images(np.arange(30, 40), arena)
    assert np.shares_memory(many[0], again[0])
    assert [view.tobytes() for view in again] == expected[30:40]


# Open files.


def test_files_are_closed_and_opened_again(shards: list[Path]) -> None:
    shard_set = ShardSet.open(shards)
    names = {str(shard) for shard in shards}
    assert not open_files() & names
    before = read(shard_set, [0, 39])
    assert open_files() >= names
    shard_set.close()
    shard_set.close()
    assert not open_files() & names
    assert read(shard_set, [0, 39]) == before
    del shard_set
    gc.collect()
    assert not open_files() & names


# Shards that change.


@pytest.mark.parametrize("begin", [ask_for, read_cached], ids=["asked for", "in one call"])
@pytest.mark.parametrize("change", ["cut", "emptied", "overwritten", "grown", "touched"])
def test_a_shard_that_changes_while_it_is_open_is_an_error(own: list[Path], change: str, begin: ReadCached) -> None:
    shard_set = ShardSet.open(own, read_cached=begin)
    before = read(shard_set, range(12))
    CHANGES[change](own[1])
    with pytest.raises(ShardChangedError, match=r"train-0001\.tar .*[Mm]ake a new loader"):
        read(shard_set, range(12))
    with pytest.raises(ShardChangedError, match=r"train-0001\.tar"):
        shard_set.read_component(5, "json")
    assert read(shard_set, [0, 11]) == [before[0], before[11]]  # the others are as they were


def test_a_shard_that_is_cut_while_a_batch_is_read_is_an_error(own: list[Path]) -> None:
    def cut_and_read(rows: NDArray[np.int64]) -> None:
        os.truncate(own[1], 4096)
        read_cached(rows)

    shard_set = ShardSet.open(own, read_cached=cut_and_read)
    with pytest.raises(ShardChangedError, match=r"train-0001\.tar ends before byte \d+: .*[Mm]ake a new loader"):
        read(shard_set, range(12))


def test_a_disk_that_fails_is_its_own_error(own: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    shard_set = ShardSet.open(own, read_cached=lambda _: None)  # as if nothing were in the page cache
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", fail)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            read(shard_set, range(12))
    assert read(shard_set, range(12)) == contents(own)


@pytest.mark.parametrize("times", range(5))
def test_reading_ends_when_it_is_no_longer_wanted(own: list[Path], times: int) -> None:
    answers = iter([True] * times + [False])
    shard_set = ShardSet.open(own, read_cached=lambda _: None)
    with pytest.raises(InterruptedError):
        shard_set.read_images(np.arange(12), Arena(), lambda: next(answers))
    assert next(answers, None) is None  # it was not asked again
    assert read(shard_set, range(12)) == contents(own)


# The fingerprint.


IMAGE = jpeg(20, 30)
SAMPLES: list[dict[str, bytes | str]] = [{"__key__": f"{i}", "jpg": IMAGE, "cls": b"%d" % i} for i in range(6)]


def set_of(folder: Path, *parts: list[dict[str, bytes | str]]) -> ShardSet:
    """Shards of these samples, in a folder of their own."""
    own = folder / str(len(list(folder.iterdir())))
    own.mkdir()
    return ShardSet.open([write_shard(own / f"{i}.tar", part) for i, part in enumerate(parts)])


def changed(**change: bytes | str) -> list[dict[str, bytes | str]]:
    """The samples, the last of which is changed."""
    return [*SAMPLES[:5], SAMPLES[5] | change]


def test_the_same_samples_have_the_same_fingerprint_however_they_are_stored(tmp_path: Path) -> None:
    comment = IMAGE[:2] + b"\xff\xfe\x00\x04ab" + IMAGE[2:]  # as a copy with restart intervals: other bytes
    in_folder = [{**sample, "__key__": f"./{sample['__key__']}"} for sample in SAMPLES]
    data = [
        (SAMPLES,),
        (SAMPLES[:3], SAMPLES[3:]),  # other borders
        (SAMPLES[:2], [], SAMPLES[2:]),
        (in_folder,),  # as `tar -cf x.tar .` names them
        (changed(cls=b"7"),),  # labels have a digest of their own
        (changed(json=b"{}"),),
        (changed(jpg=comment),),
    ]
    assert len({set_of(tmp_path, *parts).fingerprint for parts in data}) == 1


def test_other_data_has_another_fingerprint(tmp_path: Path) -> None:
    data = [
        (SAMPLES,),
        (SAMPLES[3:], SAMPLES[:3]),
        (SAMPLES[::-1],),
        (SAMPLES[:5],),
        ([*SAMPLES, SAMPLES[5] | {"__key__": "6"}],),
        (changed(__key__="6"),),
        (changed(__key__="././5"),),
        (changed(jpg=jpeg(20, 31)),),
        (changed(jpg=jpeg(30, 20)),),
        (changed(jpg=b"x" * 100),),  # no image: its size is not known
    ]
    assert len({set_of(tmp_path, *parts).fingerprint for parts in data}) == len(data)


def test_the_digest_of_the_first_samples_is_that_of_a_set_of_only_these(tmp_path: Path) -> None:
    whole = set_of(tmp_path, SAMPLES[:2], [], SAMPLES[2:5], SAMPLES[5:])
    for count in range(1, 7):  # at and between the borders of shards
        assert str(whole.digest_of_first(count)) == set_of(tmp_path, SAMPLES[:count]).fingerprint
    assert whole.digest_of_first(0) == DataDigest()


def test_the_digest_is_the_polynomial_described(tmp_path: Path) -> None:
    prime = 2**127 - 1
    base = int.from_bytes(hashlib.blake2b(b"gpuloader's data", digest_size=16).digest(), "little") % prime
    value = 0
    for number in range(6):
        content = struct.pack("<ii", 20, 30) + b"%d" % number
        value = value * base + int.from_bytes(hashlib.blake2b(content, digest_size=16).digest(), "little")
    assert set_of(tmp_path, SAMPLES[:4], SAMPLES[4:]).fingerprint == f"{value % prime:032x}"
