"""Smaller copies beside images: which samples have them, reading them, the digest of them; against `tarfile`."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from making import jpeg, unpack, write_shard

from gpuloader.errors import ShardChangedError
from gpuloader.images import limits
from gpuloader.images.limits import MAX_ENCODED_BYTES
from gpuloader.shards import Arena, ShardSet
from gpuloader.shards.accepted_sizes import AcceptedSizes
from gpuloader.shards.folder import Folder

IMAGE = jpeg(20, 30)


def sample(key: str, *sides: int, **others: bytes) -> dict[str, bytes | str]:
    """Copies that are told apart by their content."""
    mipmaps = {f"mip{side}": f"copy {side} of {key}".encode() for side in sides}
    return {"__key__": key, "jpg": IMAGE + key.encode(), **mipmaps, **others}


FIRST = [sample("a", 512, 1024), sample("b"), sample("c/d", 1024, 512, cls=b"3"), sample("e", 512, json=b"{}")]
SECOND = [sample("f", 64, 1024, txt=b"x", mip0=b"none", mipmap=b"none"), sample("g"), sample("h", 512)]
HAS = [[0, 1, 1], [0, 0, 0], [0, 1, 1], [0, 1, 0], [1, 0, 1], [0, 0, 0], [0, 1, 0]]


def written(folder: Path, *parts: Sequence[dict[str, bytes | str]]) -> list[Path]:
    folder.mkdir()
    return [write_shard(folder / f"{number}.tar", part) for number, part in enumerate(parts)]


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    return written(tmp_path / "shards", FIRST, [], SECOND)


def read(shard_set: ShardSet, samples: Sequence[int], sides: Sequence[int]) -> list[bytes]:
    views = shard_set.read_images(np.array(samples, np.int64), Arena(), sides=np.array(sides, np.int64))
    return [view.tobytes() for view in views]


@pytest.mark.parametrize("in_folders", [False, True])
def test_a_shard_says_which_samples_have_which_mipmaps(shards: list[Path], tmp_path: Path, in_folders: bool) -> None:
    parts = [Folder(unpack([shard], tmp_path / shard.stem)) for shard in shards[::2]] if in_folders else shards
    opened = ShardSet.open(parts)
    assert opened.mipmap_sides == (64, 512, 1024)
    assert opened.mipmaps_of(np.arange(7)).tolist() == np.array(HAS, bool).tolist()
    for samples in ([], [6], [3, 0, 3], [5, 1], range(6, -1, -1)):
        of_some = opened.mipmaps_of(np.array(samples, np.int64))
        assert of_some.tolist() == np.array(HAS, bool)[list(samples)].reshape(-1, 3).tolist()


def test_a_shard_without_mipmaps_says_so(tmp_path: Path) -> None:
    opened = ShardSet.open(written(tmp_path / "shards", [sample("a"), sample("b", mipmap=b"none", mip07=b"none")]))
    assert opened.mipmap_sides == ()
    assert opened.mipmaps_of(np.arange(2)).shape == (2, 0)


@pytest.mark.parametrize("in_folders", [False, True])
def test_mipmaps_and_images_are_read_together(shards: list[Path], tmp_path: Path, in_folders: bool) -> None:
    parts = [Folder(unpack([shard], tmp_path / shard.stem)) for shard in shards[::2]] if in_folders else shards
    opened = ShardSet.open(parts)
    samples, sides = [4, 0, 2, 0, 1, 6, 0, 3], [64, 512, 1024, 1024, 0, 512, 0, 0]
    keys = ["a", "b", "c/d", "e", "f", "g", "h"]
    expected = [
        f"copy {side} of {keys[sample]}".encode() if side else IMAGE + keys[sample].encode()
        for sample, side in zip(samples, sides, strict=True)
    ]
    assert read(opened, samples, sides) == expected
    assert read(opened, [2, 4], [0, 0]) == [IMAGE + b"c/d", IMAGE + b"f"]
    assert read(opened, [], []) == []
    with pytest.raises(AssertionError):
        read(opened, [0, 1], [0, 512])


def test_the_place_of_a_mipmap_is_said(shards: list[Path], tmp_path: Path) -> None:
    opened = ShardSet.open(shards)
    for number, side, name in ((0, 512, "a.mip512"), (2, 1024, "c/d.mip1024"), (4, 64, "f.mip64"), (4, 0, "f.jpg")):
        where = opened.locate(number, side)
        with tarfile.open(where.shard) as tar:
            assert where.offset == tar.getmember(name).offset_data
        assert where.key == name.partition(".")[0]
    folder = Folder(unpack(shards, tmp_path / "folder"))
    assert ShardSet.open([folder]).locate(0, 512) == (str(folder.path / "a.mip512"), "./a", 0)


def test_a_shard_that_changed_is_an_error_for_mipmaps_too(shards: list[Path]) -> None:
    opened = ShardSet.open(shards)
    with shards[0].open("ab") as file:
        file.write(b"more")
    with pytest.raises(ShardChangedError):
        read(opened, [0], [512])


def test_a_mipmap_of_too_many_bytes_is_not_read(shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    opened = ShardSet.open(shards)
    assert opened.too_large_mipmap(2, 1024) is None
    monkeypatch.setattr(limits, "MAX_ENCODED_BYTES", len("copy 1024 of c/d") - 1)
    monkeypatch.setattr("gpuloader.shards.shard_set.MAX_ENCODED_BYTES", limits.MAX_ENCODED_BYTES)
    assert read(opened, [2, 2, 0], [1024, 512, 512]) == [b"", b"copy 512 of c/d", b"copy 512 of a"]
    assert opened.too_large_mipmap(2, 1024) == f"it has 16 bytes, more than {limits.MAX_ENCODED_BYTES}"
    assert opened.too_large_mipmap(2, 512) is None
    assert MAX_ENCODED_BYTES == 256 << 20


# The digest.


def test_the_digest_says_which_samples_have_which_mipmaps(tmp_path: Path) -> None:
    def digest(*parts: Sequence[dict[str, bytes | str]]) -> str:
        return ShardSet.open(written(tmp_path / str(len(list(tmp_path.iterdir()))), *parts)).mipmap_digest()

    samples = [*FIRST, *SECOND]
    same = [
        digest(samples),
        digest(FIRST, SECOND),  # other borders
        digest(FIRST[:1], [], FIRST[1:] + SECOND),
        digest([{**each, "cls": b"9"} for each in samples]),  # other components
        digest([dict(reversed(each.items())) for each in samples]),
        digest([{**each, "mip512": b"another"} if "mip512" in each else each for each in samples]),  # other bytes
    ]
    assert len(set(same)) == 1
    others = [
        digest([sample(str(number)) for number in range(7)]),
        digest([*samples[:6], sample("h")]),
        digest([*samples[:6], sample("h", 513)]),
        digest([*samples[:6], sample("h", 512, 1024)]),
        digest([*samples[:5], sample("g", 512), sample("h")]),
        digest([sample(str(number), 512) for number in range(7)]),
        digest([sample(str(number), 1024) for number in range(7)]),
        digest([sample(str(number), 512, 1024) for number in range(7)]),
    ]
    assert len({*same, *others}) == 1 + len(others)


def test_the_digest_of_the_first_samples_is_that_of_a_set_of_only_these(tmp_path: Path) -> None:
    samples = [*FIRST, *SECOND]
    whole = ShardSet.open(written(tmp_path / "whole", samples))
    for count in range(1, 8):
        first = ShardSet.open(written(tmp_path / str(count), samples[:count]))
        assert whole.mipmap_digest(count) == first.mipmap_digest()
    assert whole.mipmap_digest(7) == whole.mipmap_digest()


# What the gate accepted.


def test_mipmaps_and_their_images_are_accepted_apart(shards: list[Path]) -> None:
    opened = ShardSet.open(shards)
    accepted = AcceptedSizes(opened.index)
    size, none, samples = [20, 30], [0, 0], np.array([0, 0, 0, 2, 1, 4])
    sides = np.array([512, 1024, 0, 512, 0, 64])
    assert accepted.of(samples, sides).tolist() == [none] * 6
    accepted.note(0, (20, 30), 512)
    accepted.note(0, (20, 31), 1024)  # another size than the index has
    accepted.note(1, (20, 30))
    accepted.note(4, (20, 30), 64)
    assert accepted.of(samples, sides).tolist() == [size, none, none, none, size, size]
    assert accepted.of(samples).tolist() == [none, none, none, none, size, none]
    accepted.forget(0)
    assert accepted.of(samples, sides).tolist() == [none, none, none, none, none, size]
