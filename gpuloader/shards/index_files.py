"""Finds index files, and makes missing ones; makes one index of those of many shards.

The index of `train-0000.tar` is `train-0000.tar.gpuidx` beside it if that folder is writable, otherwise a file in the
user's cache folder, named by a hash of the shard's path. That of a folder of files is in the user's cache folder, or
beside the folder if `gpuloader index` was asked to put it there. DALI's index files (`.idx`) are something else.

The index of many shards is in memory if it is small. A larger one is a file in the user's cache folder, named by the
digests of the shards' indexes, so it is never out of date; all processes of a machine map it. It is removed once no
loader used it for 90 days.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TypeAlias

from gpuloader.errors import ConfigError, IndexFileError
from gpuloader.helpers.progress import count_long, follow
from gpuloader.helpers.regular_file import open_regular
from gpuloader.helpers.text import counted
from gpuloader.shards.folder import Folder
from gpuloader.shards.index import (
    SetIndex,
    ShardFacts,
    ShardIndex,
    check_fresh,
    facts_of_one,
    most_bytes,
    read_index_head,
    write_index,
)
from gpuloader.shards.kept import cache_folder, open_kept
from gpuloader.shards.scan import scan, scan_folder

INDEX_SUFFIX = ".gpuidx"

MOST_COPIED_BYTES = 4 << 20
"""The most bytes that an index of many shards has in the memory of each process; a larger one is mapped."""

_THREADS = 8
_NAMED = 3
_NOT_INDEXED, _NO_SIZE = -1, -2  # instead of a file's size in an index
_log = logging.getLogger("gpuloader")

LocalShard: TypeAlias = Path | Folder


@dataclass(frozen=True, eq=False)
class IndexFile(ShardFacts):
    """The index file of a shard, of which only the head was read: it fits the shard, and `digest` identifies it."""

    path: Path
    shard: LocalShard
    file_bytes: int
    digest: bytes

    def load(self) -> ShardIndex:
        """Reads all of it; if it is damaged, the shard is scanned again."""
        try:
            return ShardIndex.load(self.path, self.shard)
        except (IndexFileError, OSError) as error:
            _log.info("%s; the file is ignored", error)
            return _make(self.shard)


Opened: TypeAlias = "IndexFile | ShardIndex"
"""The index of a shard: in its file, or in memory."""


def index_file(shard: LocalShard) -> Path:
    """Returns the path to which an index of the shard is written."""
    is_elsewhere = isinstance(shard, Folder) and not _beside(shard).is_file()
    return _in_cache(shard) if is_elsewhere else _beside_if_writable(shard)


def _beside_if_writable(shard: LocalShard) -> Path:
    beside = _beside(shard)
    # A folder without any write bit is meant to stay unchanged, even if the user is root.
    writable = beside.parent.stat().st_mode & 0o222 and os.access(beside.parent, os.W_OK)
    return beside if writable else _in_cache(shard)


def keep_beside(folder: Folder) -> None:
    """Writes the index of a folder beside it, as FOLDER.gpuidx, where it is then kept; if it may not, into the cache.

    Raises:
        DataError: the folder cannot be listed.
        ConfigError: the index cannot be written there.
    """
    path, index = _beside_if_writable(folder), open_index(folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        index.save(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: the index of {folder} cannot be written there ({error.strerror}): remove what is at this path"
        ) from None


def _beside(shard: LocalShard) -> Path:
    path = shard.path.resolve() if isinstance(shard, Folder) else shard  # ".." and "." have no name
    return path.parent / f"{path.name}{INDEX_SUFFIX}"


def _in_cache(shard: LocalShard) -> Path:
    name = hashlib.blake2b(os.fsencode(os.path.realpath(str(shard))), digest_size=16).hexdigest()
    return cache_folder() / f"{name}{INDEX_SUFFIX}"


def open_index(shard: LocalShard) -> ShardIndex:
    """Opens the index of a shard: from its file if that is valid, otherwise from a new scan, which is then kept."""
    return loaded(_open(shard))


def open_indexes(shards: Sequence[LocalShard], progress: bool = False) -> list[Opened]:
    """Opens the index files of many shards, and makes missing ones in parallel; shows a progress bar if that is long.

    Only those that cannot be saved are in memory.
    """
    with ThreadPoolExecutor(min(_THREADS, len(shards))) as threads:
        found = threads.map(_find, shards)
        opened: list[Opened | None] = list(count_long(found, len(shards), "opening indexes", progress))
        for number, shard in enumerate(shards):
            if isinstance(shard, Folder) and opened[number] is None:
                opened[number] = _open(shard, progress)  # in threads of its own
        missing = [number for number, index in enumerate(opened) if index is None]
        # Processes that start together share the work: each checks for a new file before it scans.
        random.Random().shuffle(missing)
        pending = {threads.submit(_open, shards[number]): number for number in missing}
        try:
            for future in follow(pending, "indexing shards", progress) if pending else ():
                opened[pending[future]] = future.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return [index for index in opened if index is not None]


def open_set(opened: Sequence[Opened]) -> SetIndex:
    """Makes one index of those of many shards, in their order: in memory if it is small, otherwise a mapped file."""
    sizes, digests = zip(*map(_size_and_digest, opened))
    if sum(sizes) <= MOST_COPIED_BYTES:
        return SetIndex.of([loaded(each) for each in opened])
    digest = hashlib.blake2b(b"".join(digests), digest_size=16).hexdigest()
    try:
        return map_set(digest, lambda file: write_index(file, opened, map(loaded, opened)))
    except OSError as error:
        _log.warning("each process has the index of all shards in its own memory, because it cannot be kept: %s", error)
        return SetIndex.of([loaded(each) for each in opened])


def map_set(digest: str, write: Callable[[IO[bytes]], None]) -> SetIndex:
    """Maps the index of many shards in the cache folder, which is named by a digest; as `open_kept`."""
    return open_kept(cache_folder() / f"set-{digest}{INDEX_SUFFIX}", SetIndex.map, write)


def _size_and_digest(opened: Opened) -> tuple[int, bytes]:
    """Returns the size in bytes and the digest of an index file, or of that which an index in memory would have."""
    of = opened if isinstance(opened, IndexFile) else SetIndex.parse(opened.to_bytes(), "an index").head
    return of.file_bytes, of.digest


def loaded(opened: Opened) -> ShardIndex:
    """Returns the index of a shard in memory."""
    return opened if isinstance(opened, ShardIndex) else opened.load()


def _open(shard: LocalShard, progress: bool = False) -> Opened:
    file = _find(shard)
    if file is None:
        index = _make(shard, progress)
        file = _find(shard)
    return index if file is None else file


def _find(shard: LocalShard) -> IndexFile | None:
    """Opens the index file, also beside a shard in a read-only folder; None if no file is valid."""
    for path in (_beside(shard), _in_cache(shard)):
        try:
            return _open_file(path, shard)
        except FileNotFoundError:
            continue
        except (IndexFileError, OSError) as error:
            _log.info("%s; the file is ignored", error)
    return None


def _open_file(path: Path, shard: LocalShard) -> IndexFile:
    stat = shard.stat()
    fd = open_regular(path)
    try:
        file_bytes = os.fstat(fd).st_size
        if file_bytes > most_bytes(stat.st_size):
            raise IndexFileError(f"{path} has {file_bytes} bytes, more than an index of {shard} can have")
        head = read_index_head(partial(os.pread, fd), file_bytes, str(path))
    finally:
        os.close(fd)
    facts = facts_of_one(head, str(path))
    check_fresh(facts, path, shard, stat)
    return IndexFile(**vars(facts), path=path, shard=shard, file_bytes=file_bytes, digest=head.digest)


def _make(shard: LocalShard, progress: bool = False) -> ShardIndex:
    path = index_file(shard)
    if isinstance(shard, Folder):
        index = scan_folder(shard, progress)
        _say_what_changed(shard, path)
        if shard.listing.unread:  # once they can be read, nothing else of them has changed
            _log.warning("the index of %s is made again next time, because files of it cannot be read", shard)
            return index
    else:
        index = scan(shard)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        index.save(path)
    except OSError as error:
        _log.warning("the index of %s cannot be saved, so it will be made again next time: %s", shard, error)
    return index


def _say_what_changed(folder: Folder, path: Path) -> None:
    """Says how a folder's files differ from those of its last index, if there is one."""
    try:
        indexed_ns = path.stat().st_mtime_ns
        index = ShardIndex.read(path, max(folder.stat().st_size, path.stat().st_size))
    except (IndexFileError, OSError):
        return
    listing, before = folder.listing, _sizes_of_files(index)
    written = (listing.ctime_ns > indexed_ns).tolist()
    files = [(f"./{listing.name(number)}", size) for number, size in enumerate(listing.size.tolist())]
    all_named = index.left_out_count == len(index.left_out)
    kinds = ("added", "removed", "of another size", "written or touched since")
    differences: dict[str, list[str]] = {kind: [] for kind in kinds}
    for (name, size), is_written in zip(files, written):
        size_before = before.pop(_as_indexed(name), _NOT_INDEXED)
        if size_before == _NOT_INDEXED and (all_named or is_written):
            differences["added"].append(name)
        elif size_before not in (size, _NOT_INDEXED, _NO_SIZE):
            differences["of another size"].append(name)
        elif is_written:
            differences["written or touched since"].append(name)
    differences["removed"] = sorted(name for name, size in before.items() if size != _NO_SIZE)
    said = [
        f"{counted(len(names), 'file')} {how} ({', '.join(names[:_NAMED])}{', ...' if len(names) > _NAMED else ''})"
        for how, names in differences.items()
        if names
    ]
    what = ", ".join(said) or "other inodes, or files in no sample"
    _log.warning("%s changed since it was indexed: %s; it is indexed again", folder, what)


def _sizes_of_files(index: ShardIndex) -> dict[str, int]:
    """Returns the size in bytes of each file that an index names."""
    sizes = {_as_indexed(item.name): _NO_SIZE for item in index.left_out}
    for row in range(len(index)):
        sizes |= {f"{index.key(row)}.{extension}": size for extension, _, size in index.components(row)}
    return sizes


def _as_indexed(name: str) -> str:
    """Returns a file's name with its extension in lower case."""
    folder, slash, file_name = name.rpartition("/")
    stem, dot, extension = file_name.partition(".")
    return f"{folder}{slash}{stem}{dot}{extension.lower()}"
