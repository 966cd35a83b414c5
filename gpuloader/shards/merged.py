"""One index of many shards in a file, which `gpuloader index --merge` writes and a loader opens instead of theirs.

The file, such as `FOLDER/all.gpuset`, has the form of `gpuloader.shards.index` and names its shards: their paths from
its own folder on, in which or below which they all are. Opening it opens no other index, and asks for no shard's size
and time. It compares the names with one listing of each folder that the shards are in:

- a shard that is named must be there;
- `all.gpuset`, which stands for its folder, must name all tars in these folders; a file of another name may name some.

A shard's size and time are compared with those in the file whenever the shard is read. A file of more than 4 MiB is
copied to the user's cache folder once, block by block with its digest, and mapped there, as `index_files` says.
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import IO, overload

from gpuloader.errors import ConfigError, IndexFileError
from gpuloader.helpers.atomic_files import atomic_file
from gpuloader.helpers.progress import count_long, say_if_long
from gpuloader.helpers.regular_file import open_regular
from gpuloader.helpers.text import counted
from gpuloader.shards.folder import Folder
from gpuloader.shards.index import SetIndex, read_index_head, write_index
from gpuloader.shards.index_files import MOST_COPIED_BYTES, LocalShard, loaded, map_set, open_indexes
from gpuloader.shards.index_format import copy, head_digest

MERGED_SUFFIX = ".gpuset"
MERGED_FILE = f"all{MERGED_SUFFIX}"
_NAMED = 3
_ADVICE = "Run `gpuloader index --merge` again, or remove the file"
_log = logging.getLogger("gpuloader")


class MergedShards(Sequence[Path]):
    """The shards that a merged index names; their paths are made when they are used, because a million take memory.

    Attributes:
        path: the file.
        set_index: of all of them.
        folders: in which they are.
    """

    def __init__(self, path: Path, set_index: SetIndex, folders: Sequence[Path]) -> None:
        self.path = path
        self.set_index = set_index
        self.folders = folders

    def __len__(self) -> int:
        return len(self.set_index.names)

    @overload
    def __getitem__(self, number: int) -> Path: ...

    @overload
    def __getitem__(self, number: slice) -> list[Path]: ...

    def __getitem__(self, number: int | slice) -> Path | list[Path]:
        if isinstance(number, slice):
            return [self.path.parent / name for name in self.set_index.names[number]]
        return self.path.parent / self.set_index.names[number]


def has_merged(folder: Path) -> bool:
    """Says whether a folder has a merged index; False also if it may not be read."""
    return os.access(folder / MERGED_FILE, os.F_OK)


def open_merged(path: Path) -> MergedShards:
    """Opens a merged index, and compares its names with what is in their folders.

    Raises:
        IndexFileError: it is damaged, or names other shards than there are.
        OSError: it or a folder cannot be read.
    """
    with say_if_long("opening %s", path):
        try:
            index = _open_index(path)
        except IndexFileError as error:
            raise IndexFileError(f"{error}. {_ADVICE}") from None
        return MergedShards(path, index, _check_names(path, index.names))


def merge_indexes(shards: Sequence[LocalShard], output: Path) -> None:
    """Writes one index of tars, after making those that are missing.

    Raises:
        ConfigError: the file has another ending, cannot be written, or is not above all of the tars; or a shard is a
            folder of pictures.
        IndexFileError: it is `all.gpuset`, but these are not all tars of their folders.
    """
    if output.suffix != MERGED_SUFFIX:
        raise ConfigError(f"{output}: name it *{MERGED_SUFFIX}, as a loader knows a merged index by this ending")
    if folder := next((shard for shard in shards if isinstance(shard, Folder)), None):
        raise ConfigError(f"{folder} is a folder of pictures: only the indexes of tars are merged")
    start = os.path.abspath(output.parent)  # noqa: PTH100 - links stay as they are
    names = [os.path.relpath(os.path.abspath(str(shard)), start) for shard in shards]  # noqa: PTH100
    if outside := next((name for name in names if name.startswith("../")), None):
        raise ConfigError(f"{outside} is not below {start}: write the merged index into a folder above all shards")
    _check_names(output, names)
    opened = open_indexes(shards, progress=True)
    try:
        with atomic_file(output) as file:
            indexes = count_long(map(loaded, opened), len(opened), "merging indexes", shown=True)
            write_index(file, opened, indexes, names)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written ({error.strerror}): name another file by --output") from None


def _open_index(path: Path) -> SetIndex:
    with io.FileIO(open_regular(path)) as file:
        file_bytes, read = os.fstat(file.fileno()).st_size, partial(os.pread, file.fileno())

        def write(to: IO[bytes]) -> None:
            copy(read, read_index_head(read, file_bytes, str(path)), str(path), to)

        if file_bytes > MOST_COPIED_BYTES:
            try:
                return map_set(head_digest(read, str(path)), write)
            except OSError as error:
                _log.warning("each process has the index %s in its own memory, as it cannot be kept: %s", path, error)
        return SetIndex.parse(file.readall(), str(path))


def _check_names(path: Path, names: Sequence[str]) -> list[Path]:
    """Returns the folders of the shards; raises IndexFileError if they have other shards than these."""
    named: dict[str, set[str]] = {}
    for name in names:
        folder, _, file = name.rpartition("/")
        named.setdefault(folder, set()).add(file)
    if sum(map(len, named.values())) < len(names) or not names:
        raise IndexFileError(f"{path} is damaged: it names a shard twice, or none. {_ADVICE}")
    if any(name.startswith("/") for name in names) or not all(map(_is_below, named)):
        raise IndexFileError(f"{path} is damaged: it names shards that are not below its folder. {_ADVICE}")
    gone, lacking = [], []
    for folder, files in named.items():
        there = set(os.listdir(path.parent / folder))  # noqa: PTH208 - the names alone
        gone += [os.path.join(folder, file) for file in files - there]  # noqa: PTH118
        others = (PurePath(folder, file) for file in there - files if file.endswith(".tar"))
        lacking += [str(each) for each in others if each.suffix == ".tar" and not (path.parent / each).is_dir()]
    problems = [f"it names {counted(len(gone), 'shard')} that its folder lacks, such as {_some(gone)}"] if gone else []
    if lacking and path.name == MERGED_FILE:
        problems.append(f"it lacks {counted(len(lacking), 'shard')} of its folder, such as {_some(lacking)}")
    if problems:
        raise IndexFileError(f"{path} does not fit: {'; '.join(problems)}. {_ADVICE}")
    return [path.parent / folder for folder in named]


def _is_below(folder: str) -> bool:
    """Says whether this is how `os.path.relpath` names a folder that is or is below another one, "" for the same."""
    parts = PurePath(folder).parts
    return "/".join(parts) == folder and ".." not in parts and "\0" not in folder


def _some(names: Sequence[str]) -> str:
    return ", ".join(sorted(names)[:_NAMED])
