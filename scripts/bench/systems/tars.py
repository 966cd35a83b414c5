"""The images in shards, for systems without their own reader of shards."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

_IMAGES = (".jpg", ".jpeg")


class Member(NamedTuple):
    """A file in a tar: its name, and where its bytes are."""

    name: str
    offset: int
    size_bytes: int


@cache
def members(shard: Path) -> list[Member]:
    """The files in a shard, in order."""
    with tarfile.open(shard) as tar:
        return [Member(entry.name, entry.offset_data, entry.size) for entry in tar if entry.isfile()]


class Images:
    """The encoded images of shards as a sequence: any process may read from it, also after a fork.

    With other `suffixes`, another component of each sample.
    """

    def __init__(self, shards: Sequence[Path], suffixes: tuple[str, ...] = _IMAGES) -> None:
        self._places = [
            (shard, member) for shard in shards for member in members(shard) if member.name.endswith(suffixes)
        ]
        self._files: dict[Path, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> bytes:
        shard, member = self._places[number]
        if shard not in self._files:
            self._files[shard] = os.open(shard, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._files[shard], member.size_bytes, member.offset)


def made_of(shards: Sequence[Path], work: Path, suffix: str) -> Path:
    """Where in the folder `work`, which is made, something that is made of the shards belongs."""
    facts = [(str(shard.resolve()), shard.stat().st_size, shard.stat().st_mtime_ns) for shard in shards]
    work.mkdir(parents=True, exist_ok=True)
    return work / f"images-{hashlib.blake2b(repr(facts).encode(), digest_size=8).hexdigest()}{suffix}"


def one_tar(shards: Sequence[Path], work: Path, side: int | None = None) -> Path:
    """A tar of all the images in the shards, made where it is not there yet; squashed to squares if `side` says so."""
    path = made_of(shards, work, ".tar" if side is None else f"-{side}.tar")
    if path.exists():
        return path
    part = path.with_suffix(f".{os.getpid()}")
    images = Images(shards)
    with tarfile.open(part, "w") as tar:
        for number in range(len(images)):
            data = images[number] if side is None else _squashed(images[number], side)
            entry = tarfile.TarInfo(f"{number:09d}.jpg")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return part.rename(path)


def one_folder(shards: Sequence[Path], work: Path) -> Path:
    """A folder of all the images in the shards, as CLASS/NUMBER.jpg, made where it is not there yet."""
    path = made_of(shards, work, ".folder")
    if path.exists():
        return path
    part, number = path.with_suffix(f".{os.getpid()}"), 0
    for shard in shards:
        with tarfile.open(shard) as tar:
            data = {entry.name: tar.extractfile(entry).read() for entry in tar if entry.isfile()}  # type: ignore[union-attr]
        for name, image in data.items():
            if name.endswith(_IMAGES):
                label = data[f"{name.rpartition('.')[0]}.cls"].decode().strip()
                (part / label).mkdir(parents=True, exist_ok=True)
                (part / label / f"{number:09d}.jpg").write_bytes(image)
                number += 1
    return part.rename(path)


def _squashed(data: bytes, side: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("RGB").resize((side, side)).save(file, "JPEG", quality=95)
    return file.getvalue()
