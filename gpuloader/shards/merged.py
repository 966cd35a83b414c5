"""Merged indexes: one index file for many shards, which `gpuloader index --merge` writes and a loader opens.

The file, such as `FOLDER/all.gpuset`, has the format of `gpuloader.shards.index` and the names of its shards: their
paths relative to its own folder, which must contain them. Opening it opens no other index, and reads no shard's size
and time. It compares the names with one listing of each folder of the shards:

- each named shard must exist;
- `all.gpuset`, the index of its folder, must name all tars in these folders; a file with another name may name some.

A shard's size and time are compared with the values in the file whenever the shard is read. A file of more than 4 MiB
is copied to the user's cache folder once, block by block with its digest, and mapped there, see `index_files`.

If the shards are on a store, the file is on the store, too. It has the tag of each shard's version instead of a time.
The first process of a machine downloads it to the cache folder, and all processes map it. Folders are not listed; the
version and content of a shard are compared when it is downloaded.
"""

from __future__ import annotations

import io
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import IO, overload
from urllib.parse import unquote

from gpuloader.base.atomic_files import atomic_file
from gpuloader.base.progress import count_long, say_if_long
from gpuloader.base.regular_file import open_regular
from gpuloader.errors import ConfigError, DataError, IndexFileError
from gpuloader.shards.folder import Folder
from gpuloader.shards.index import Index, write_index
from gpuloader.shards.index_files import MOST_COPIED_BYTES, LocalShard, map_set, open_indexes
from gpuloader.shards.remote.cache import ShardCache
from gpuloader.shards.remote.opening import open_again, open_remote
from gpuloader.shards.remote.requests import forget_listings
from gpuloader.shards.remote.store import Entry, RemoteShard, Version
from gpuloader.shards.remote.urls import protocol_of
from gpuloader.shards.shared_arrays import cache_folder
from gpuloader.shards.splits import check_one_split
from gpuloader.shards.table import read_seal

MERGED_SUFFIX = ".gpuset"
MERGED_FILE = f"all{MERGED_SUFFIX}"
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\\]")  # control characters, and the backslash
_MOST_DECODED = 10  # times that a name is percent-decoded
_AT_ONCE = 1000  # indexes of stored shards in memory
_ADVICE = "Run `gpuloader index --merge` again, or remove the file"
_log = logging.getLogger("gpuloader")


class MergedShards(Sequence[Path | RemoteShard]):
    """The shards of a merged index, created on access to save memory.

    Attributes:
        path: the file, or its location on a store.
        set_index: the index of all shards.
        folders: the folders of the shards; empty if they are on a store.
    """

    def __init__(self, path: Path | RemoteShard, set_index: Index, folders: Sequence[Path]) -> None:
        self.path = path
        self.set_index = set_index
        self.folders = folders

    def __len__(self) -> int:
        return len(self.set_index.names)

    @overload
    def __getitem__(self, number: int) -> Path | RemoteShard: ...

    @overload
    def __getitem__(self, number: slice) -> list[Path | RemoteShard]: ...

    def __getitem__(self, number: int | slice) -> Path | RemoteShard | list[Path | RemoteShard]:
        at = self.path.parent.joinpath if isinstance(self.path, Path) else self.path.in_folder
        if isinstance(number, slice):
            return [at(name) for name in self.set_index.names[number]]
        return at(self.set_index.names[number])

    @cached_property
    def entries(self) -> Mapping[int, Entry]:
        """The shards on a store by number, with the versions in the file."""
        return _Entries(self.path, self.set_index) if isinstance(self.path, RemoteShard) else {}


class _Entries(Mapping[int, Entry]):
    def __init__(self, path: RemoteShard, index: Index) -> None:
        self._path = path
        self._index = index

    def __len__(self) -> int:
        return len(self._index.names)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __contains__(self, number: object) -> bool:
        return number in range(len(self))

    def __getitem__(self, number: int) -> Entry:
        index = self._index
        version = Version(index.shard_bytes.item(number), index.tags[number], merged=str(self._path))
        return Entry(self._path.in_folder(index.names[number]), version, partial(index.digest, number))


def has_merged(folder: Path) -> bool:
    """Returns whether a folder has a merged index; False if it may not be read."""
    return os.access(folder / MERGED_FILE, os.F_OK)


def open_merged(path: Path | RemoteShard, mixed: bool = False) -> MergedShards:
    """Opens a merged index, and compares its names with the files in the folders, unless they are on a store.

    Unless they may be `mixed`, the shards of `all.gpuset` must be of one split.

    Raises:
        IndexFileError: it is damaged, or its names differ from the shards.
        OSError: the file or a folder cannot be read.
        ShardNotFoundError, RemoteError: a store does not deliver the file.
        ConfigError: the download cannot be written to the cache folder, or it has several splits.
    """
    with say_if_long("opening %s", path):
        try:
            index = _open_index(path) if isinstance(path, Path) else _download_index(path)
            if bool(index.tags) != isinstance(path, RemoteShard):
                where = "on a disk: merge their URLs" if not index.tags else "on a store: upload it beside them"
                raise IndexFileError(f"{path} is the index of shards {where}")
        except IndexFileError as error:
            raise IndexFileError(f"{error}. {_ADVICE}") from None
        return MergedShards(path, index, _check_names(path, index.names, mixed))


def merge_indexes(shards: Sequence[LocalShard], output: Path) -> None:
    """Writes the merged index of tars, after making missing indexes.

    Raises:
        ConfigError: the file has another suffix, cannot be written, or is not in a folder above all tars; a shard is a
            folder of pictures; or it is `all.gpuset`, but the shards are of several splits.
        IndexFileError: it is `all.gpuset`, but `shards` lacks some tars of the folders.
    """
    _check_ending(output)
    if folder := next((shard for shard in shards if isinstance(shard, Folder)), None):
        raise ConfigError(f"{folder} is a folder of pictures: only the indexes of tars are merged")
    start = os.path.abspath(output.parent)  # noqa: PTH100 - links stay as they are
    names = [os.path.relpath(os.path.abspath(str(shard)), start) for shard in shards]  # noqa: PTH100
    if outside := next((name for name in names if name.startswith("../")), None):
        raise ConfigError(f"{outside} is not below {start}: write the merged index into a folder above all shards")
    _check_names(output, names)
    opened = open_indexes(shards, progress=True)
    with _written(output) as file:
        indexes = count_long((each.loaded() for each in opened), len(opened), "merging indexes", shown=True)
        write_index(file, opened, indexes, names)


def merge_stored(shards: Sequence[Path | Folder | RemoteShard], output: Path | RemoteShard | None) -> MergedShards:
    """Writes the merged index of tars on a store, after making missing indexes.

    Args:
        shards: the tars.
        output: the file. None writes `all.gpuset` into the lowest folder above all tars. A file on a disk must be
            uploaded to this folder, because its names are relative to it.

    Raises:
        ConfigError: the file has another suffix, cannot be written, or is not in a folder above all tars; a tar is on a
            disk; or it is `all.gpuset`, but the tars are of several splits.
        RemoteError: a store does not answer.
    """
    stored = [shard for shard in shards if isinstance(shard, RemoteShard)]
    if local := next((shard for shard in shards if not isinstance(shard, RemoteShard)), None):
        raise ConfigError(f"{local} is on a disk: a merged index of shards on a store has these alone")
    begin = os.path.commonprefix([shard.folder for shard in stored])  # noqa: RUF071 - cut at its last slash
    common = RemoteShard(f"{begin.rpartition('/')[0]}/")
    place = output if isinstance(output, RemoteShard) else common.in_folder(output.name if output else MERGED_FILE)
    _check_ending(place)
    if not isinstance(output, Path) and (protocol := protocol_of(place.url)) in ("http", "https"):
        raise ConfigError(f"{place}: {protocol}:// cannot be written to: name a file by --output, and put it there")
    start = place.folder
    if outside := next((each for each in stored if start.endswith("://") or not each.url.startswith(start)), None):
        raise ConfigError(f"{outside} is not below {start}: write the merged index into a folder above all shards")
    names = [shard.url.partition("?")[0].removeprefix(start) for shard in stored]
    _check_names(place, names)
    cache = ShardCache(None, None)
    entries: list[Entry] = []
    heads: list[Index] = []
    for first in range(0, len(stored), _AT_ONCE):
        for entry, index in open_remote(stored[first : first + _AT_ONCE], cache, progress=True):
            entries.append(entry)
            heads.append(index.without_columns())
    with TemporaryDirectory(prefix="gpuloader-merge-") as folder:
        path = output if isinstance(output, Path) else Path(folder, MERGED_FILE)
        with _written(path) as file:
            again = (open_again(entry, cache, lambda: True) for entry in entries)
            indexes = count_long(again, len(entries), "merging indexes", shown=True)
            write_index(file, heads, indexes, names, [entry.version.tag for entry in entries])
        if path is not output:
            place.upload(path)
        return MergedShards(place, _open_index(path), [])


def _check_ending(output: Path | RemoteShard) -> None:
    if PurePath(output.name).suffix != MERGED_SUFFIX:
        raise ConfigError(f"{output}: name it *{MERGED_SUFFIX}, as a loader knows a merged index by this ending")


@contextmanager
def _written(output: Path) -> Iterator[IO[bytes]]:
    try:
        with atomic_file(output) as file:
            yield file
    except OSError as error:
        raise ConfigError(f"{output} cannot be written ({error.strerror}): name another file by --output") from None


def _open_index(path: Path) -> Index:
    with io.FileIO(open_regular(path)) as file:
        file_bytes, read = os.fstat(file.fileno()).st_size, partial(os.pread, file.fileno())

        def write(to: IO[bytes]) -> None:
            Index(read, file_bytes, str(path)).check_copy(read)
            file.seek(0)
            shutil.copyfileobj(file, to)

        if file_bytes > MOST_COPIED_BYTES:
            try:
                return map_set(read_seal(read, str(path)), write)
            except OSError as error:
                _log.warning("each process has the index %s in its own memory, as it cannot be kept: %s", path, error)
        return Index.parse(file.readall(), str(path))


def _download_index(place: RemoteShard) -> Index:
    forget_listings([place.url])
    version = place.version(lambda: True)

    def write(to: IO[bytes]) -> None:
        def read(count: int, offset: int) -> bytes:
            to.seek(offset)
            return to.read(count)

        place.download(version, to, lambda: True, lambda _: None)
        Index(read, version.size_bytes, str(place)).check_copy(read)

    try:
        return map_set(Entry(place, version).key, write)
    except DataError:  # also if it is an OSError
        raise
    except OSError as error:
        raise ConfigError(
            f"{place} cannot be kept as {error.filename or cache_folder()} ({error.strerror}): make room there, or "
            f"name the folder above it by XDG_CACHE_HOME"
        ) from None


def _check_names(path: Path | RemoteShard, names: Sequence[str], mixed: bool = False) -> list[Path]:
    """Returns the folders of the shards; raises IndexFileError if these contain other shards.

    On a store it does not list folders, and returns none. It checks the splits of `all.gpuset`, see `open_merged`.
    """
    if path.name == MERGED_FILE and not mixed:
        check_one_split(str(path).rpartition("/")[0] or ".", names)
    named: dict[str, set[str]] = {}
    for name in names:
        folder, _, file = name.rpartition("/")
        named.setdefault(folder, set()).add(file)
    if sum(map(len, named.values())) < len(names) or not names:
        raise IndexFileError(f"{path} is damaged: it names a shard twice, or none. {_ADVICE}")
    outside = IndexFileError(f"{path} is damaged: it names shards that are not below its folder. {_ADVICE}")
    if isinstance(path, RemoteShard):
        if path.folder.endswith("://") or not all(map(_is_below_url, names)):
            raise outside
        return []
    if any(name.startswith("/") for name in names) or not all(map(_is_below, named)):
        raise outside
    for folder, files in named.items():
        there = set(os.listdir(path.parent / folder))  # noqa: PTH208 - the names alone
        if gone := sorted(files - there):
            raise IndexFileError(f"{path} does not fit: its folder lacks {PurePath(folder, gone[0])}. {_ADVICE}")
        others = (PurePath(folder, file) for file in sorted(there - files) if file.endswith(".tar"))
        lacking = (str(each) for each in others if each.suffix == ".tar" and not (path.parent / each).is_dir())
        if path.name == MERGED_FILE and (first := next(lacking, None)):
            raise IndexFileError(f"{path} does not fit: it lacks {first} of its folder. {_ADVICE}")
    return [path.parent / folder for folder in named]


def _is_below(folder: str) -> bool:
    """Returns whether a path is a normal relative path to a folder or "", without "..", as from `os.path.relpath`."""
    parts = PurePath(folder).parts
    return "/".join(parts) == folder and ".." not in parts and "\0" not in folder


def _is_below_url(name: str) -> bool:
    """Returns whether a name, appended to the URL of a folder, is a file in or below it, on every server.

    Clients drop some control characters. Servers may decode several times, read a backslash as a slash, and drop spaces
    and text after a semicolon.
    """
    decoded = name
    for _ in range(_MOST_DECODED):
        before, decoded = decoded, unquote(decoded)
        if decoded == before:
            parts = (part.partition(";")[0].strip(" .") for part in decoded.split("/"))
            return set(name).isdisjoint("?#") and not _UNSAFE.search(decoded) and all(parts)
    return False
