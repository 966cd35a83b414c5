"""Writes one shard from its records."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from gpuloader.base.atomic_files import atomic_file, naming, write_sample
from gpuloader.errors import PackError, StateError
from gpuloader.images.limits import RefusalError
from gpuloader.images.mipmaps import side_of
from gpuloader.pack.options import Options
from gpuloader.pack.pictures import render
from gpuloader.pack.records import Dropped, Fit, Record, SourceSample
from gpuloader.shards.pictures import ARRAY_EXTENSION, IMAGE_EXTENSIONS

LEFT_OUT = "left_out"


@dataclass(frozen=True)
class LeftOutPicture:
    """A bad picture, which is in no shard; or a bad object of a picture in a shard.

    Attributes:
        name: the file, row or item of the source.
        key: the key of its sample, or the key that its sample would have had.
        why: what is wrong with it.
        object: the object of the picture that was dropped, such as "annotations[2]"; "" for the whole picture.
    """

    name: str
    key: str
    why: str
    object: str = ""


class ShardTask(NamedTuple):
    """A shard to be written: its samples as keys and records, in order, and `fit` as in `OpenedSource`."""

    path: Path
    samples: Sequence[tuple[str, Record]]
    options: Options
    fit: Fit | None


class ShardCounts(NamedTuple):
    """The counts of a written shard: its records, and the traits and mipmaps of its good pictures."""

    records: int
    traits: bytes
    with_mipmaps: int


def write_shard(task: ShardTask) -> ShardCounts:
    """Writes a shard, and before it the list of pictures and objects left out.

    The bytes depend on the task's samples alone: times, users and modes are fixed.

    Raises:
        PackError: a sample cannot be stored.
    """
    left_out: list[LeftOutPicture] = []
    with_mipmaps, traits = 0, bytearray()
    with atomic_file(task.path) as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for key, record in task.samples:
                try:
                    with naming(record.name):
                        members, found, dropped = _members(record.reader(record), task, record.name)
                except RefusalError as refused:
                    left_out.append(LeftOutPicture(record.name, key, refused.cause))
                else:
                    write_sample(tar, key, members)
                    with_mipmaps += any(map(side_of, members))
                    traits.append(found)
                    left_out += (LeftOutPicture(record.name, key, why, each) for each, why in dropped)
        _write_left_out(_left_out_file(task.path), left_out)
    return ShardCounts(len(task.samples), bytes(traits), with_mipmaps)


def _members(sample: SourceSample, task: ShardTask, name: str) -> tuple[dict[str, bytes], int, Dropped]:
    if sample.extension == ARRAY_EXTENSION and task.options.mipmaps:
        raise PackError(f"{name} is decoded, as .{ARRAY_EXTENSION}, and can have no mipmaps: leave mipmaps out")
    extension, image, mipmaps, traits = render(sample.image, sample.extension, task.options)
    if extension == ARRAY_EXTENSION and (others := sorted(set(IMAGE_EXTENSIONS) & set(sample.fields))):
        raise PackError(f"{name} has .{others[0]} beside its image; a decoded sample must not have that")
    fields, dropped = (sample.fields, ()) if task.fit is None else task.fit(sample.fields, image)
    if mipmaps is not None:
        fields = {**{name: data for name, data in fields.items() if side_of(name) is None}, **mipmaps}
    return {**fields, extension: image}, traits, dropped


def _write_left_out(path: Path, pictures: Sequence[LeftOutPicture]) -> None:
    """Writes one JSON object a line; no file if there are no pictures."""
    if not pictures:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(exist_ok=True)
    with atomic_file(path) as file:
        file.writelines(json.dumps(asdict(picture)).encode() + b"\n" for picture in pictures)


def read_left_out(shard: Path) -> list[LeftOutPicture]:
    """Reads which pictures were left out of a shard.

    Raises:
        StateError: the file that lists them is not one that `pack` wrote.
    """
    path = _left_out_file(shard)
    if not path.exists():
        return []
    try:
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        if not all(isinstance(value, str) for entry in entries for value in entry.values()):
            raise ValueError("a value that is no text")
        return [LeftOutPicture(**entry) for entry in entries]
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise StateError(f"{path} was not written by a pack ({error}): give another folder") from None


def _left_out_file(shard: Path) -> Path:
    return shard.parent / LEFT_OUT / f"{shard.stem}.jsonl"
