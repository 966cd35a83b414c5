"""Reads parts of shards: of tars on a disk, of tars on stores, and of the files of folders.

A read is rows of (shard, offset, size, address): the number of a shard, a range of its bytes, and the destination in
memory. The caller holds a lock.
"""

from __future__ import annotations

import os
import resource
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.regular_file import check_regular
from gpuloader.errors import DataError, ShardChangedError
from gpuloader.shards.folder import Folder
from gpuloader.shards.index import Index
from gpuloader.shards.remote import NO_TIME, Entry, ShardCache, WantedCallback, check_wanted, close_shard

EncodedImage: TypeAlias = NDArray[np.uint8]
"""The bytes of an image in a shard, (n,): an image file or an array file."""

ReadCached: TypeAlias = Callable[[NDArray[np.int64]], None]
"""Starts to read rows of (file, offset, size, address): requests them from the disk, or reads them and sets size 0."""

_MOST_OPEN_FILES = 256


def ask_for(rows: NDArray[np.int64]) -> None:
    """Requests rows of (file, offset, size, address) from the disk, ahead of reading them."""
    for file, offset, size, _ in rows.tolist():
        if size:  # a size of 0 would mean the rest of the file
            os.posix_fadvise(file, offset, size, os.POSIX_FADV_WILLNEED)


class TarReader:
    """A reader of tars on a disk, and of tars on stores from the cache. It limits the number of open files.

    Args:
        changed: advice for errors about changed shards.
        read_cached: starts a read.
        forget: called with the number of a shard that may have changed since an earlier read.
        entries: the shards on stores, by number.
        cache: the cache for these shards.
    """

    def __init__(
        self,
        shards: Sequence[object],
        index: Index,
        changed: str,
        read_cached: ReadCached,
        forget: Callable[[int], None],
        entries: Mapping[int, Entry],
        cache: ShardCache | None,
    ) -> None:
        self._read_cached = read_cached
        self._forget = forget
        self._most_open = _most_open()
        self._shards = shards
        self._index = index
        self._changed = changed
        self._entries = entries
        self._cache = cache
        self._files: OrderedDict[int, FileIO] = OrderedDict()
        self._states: dict[int, tuple[int, int, int]] = {}  # device, inode and ctime when last read

    def read(self, rows: NDArray[np.int64], views: Sequence[EncodedImage], wanted: WantedCallback) -> None:
        """Reads rows into their views.

        Raises:
            InterruptedError: they are no longer `wanted`.
            ShardChangedError: a shard is missing, cut, or not the indexed one.
            RemoteError: a store does not deliver a shard.
        """
        shards = list(dict.fromkeys(rows[:, 0].tolist()))
        local = [shard for shard in shards if shard not in self._entries]
        for first in range(0, len(local), self._most_open):
            files = {shard: self._file(shard) for shard in local[first : first + self._most_open]}
            self._read_files(files, rows, views, wanted)
            for shard, file in files.items():
                self._check_state(shard, self._check_unchanged(shard, file, self._index.shard_mtime_ns.item(shard)))
        for shard in sorted(set(shards).difference(local)):  # in turn: the cache may not hold two
            assert self._cache is not None
            file = self._cache.open_for_batch(self._entries[shard], wanted)
            try:
                self._check_unchanged(shard, file, NO_TIME)
                self._read_files({shard: file}, rows, views, wanted)
            finally:
                close_shard(file)

    def _read_files(
        self, files: Mapping[int, int], rows: NDArray[np.int64], views: Sequence[EncodedImage], wanted: WantedCallback
    ) -> None:
        """Reads the rows of the given shards from their open files."""
        chosen = np.flatnonzero(np.isin(rows[:, 0], list(files)))
        to_read = rows[chosen]
        to_read[:, 0] = [files[shard] for shard in to_read[:, 0].tolist()]
        for row, end in _read_open(self._read_cached, to_read, [views[each] for each in chosen.tolist()], wanted):
            shard = self._shards[rows[chosen[row], 0]]
            raise ShardChangedError(f"{shard} ends before byte {end}: {self._changed}")

    def _check_unchanged(self, shard: int, file: int, mtime_ns: int) -> os.stat_result:
        """Checks that an open file has the indexed size and this time; a deleted file is unchanged while open."""
        stat = os.fstat(file)
        now, indexed = (stat.st_size, stat.st_mtime_ns), (self._index.shard_bytes.item(shard), mtime_ns)
        if now != indexed:
            raise ShardChangedError(
                f"{self._shards[shard]} has (size, mtime_ns) {now}, but it was indexed with {indexed}: {self._changed}"
            )
        return stat

    def close(self) -> None:
        """Closes the files; the next read opens them again."""
        while self._files:
            self._close_oldest()

    def _check_state(self, shard: int, stat: os.stat_result) -> None:
        """Calls `forget` if the file may have changed since the last read.

        A program that overwrites a file can restore its modification time, but not its ctime. Another ctime is no
        error, because a link, chmod and deletion change it, too; but the images must be validated again. The comparison
        is after the read, so it covers all changes before it.
        """
        # A file that replaces another in one step may have the same ctime.
        state = stat.st_dev, stat.st_ino, stat.st_ctime_ns
        if self._states.setdefault(shard, state) != state:
            self._states[shard] = state
            self._forget(shard)

    def _file(self, shard: int) -> int:
        file = self._files.get(shard)
        if file is None or file.closed:
            while len(self._files) >= self._most_open:
                self._close_oldest()
            path = str(self._shards[shard])
            try:
                check_regular(Path(path))
                file = self._files[shard] = FileIO(path)  # in C, so that no interrupt loses it
            except OSError as error:
                raise ShardChangedError(f"{path} can no longer be opened ({error.strerror})") from error
        self._files.move_to_end(shard)
        return file.fileno()

    def _close_oldest(self) -> None:
        """Closes the oldest file, then removes it. After an interrupt between the two, it is closed again."""
        shard, file = next(iter(self._files.items()))
        file.close()
        del self._files[shard]


def read_folder(
    folder: Folder,
    rows: NDArray[np.int64],
    views: Sequence[EncodedImage],
    wanted: WantedCallback,
    read_cached: ReadCached,
    forget: Callable[[], None],
) -> None:
    """Reads rows of files of a folder into their views, with the errors and `forget` of a `TarReader`."""
    most_open = _most_open()
    with_bytes = np.flatnonzero(rows[:, 2])
    for first in range(0, len(with_bytes), most_open):
        some = with_bytes[first : first + most_open]
        numbers = folder.files_at(rows[some, 1])
        to_read = rows[some]
        to_read[:, 1] -= folder.listing.start[numbers]
        files: list[int] = []
        try:
            for number in numbers.tolist():
                check_wanted(wanted)
                files.append(folder.open(number))
            to_read[:, 0] = files
            for row, _ in _read_open(read_cached, to_read, [views[each] for each in some.tolist()], wanted):
                number = int(numbers[row])
                folder.check(number, files[row])
                raise DataError(f"{folder.path_of(number)} cannot be read whole: check its disk")
            for number, file in zip(numbers.tolist(), files):
                if folder.check(number, file):
                    forget()
        finally:
            for file in files:
                os.close(file)


def _most_open() -> int:
    soft_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(1, min(_MOST_OPEN_FILES, soft_limit // 4 if soft_limit > 0 else _MOST_OPEN_FILES))


def _read_open(
    read_cached: ReadCached, rows: NDArray[np.int64], views: Sequence[EncodedImage], wanted: WantedCallback
) -> list[tuple[int, int]]:
    """Reads rows of (file, offset, size, address); returns (row, expected end) of incomplete rows."""
    check_wanted(wanted)
    left, short = rows.copy(), []
    read_cached(left)
    for row in np.flatnonzero(left[:, 2]).tolist():
        check_wanted(wanted)
        file, offset, size, _ = rows[row].tolist()
        if os.preadv(file, [views[row]], offset) != size:
            short.append((row, offset + size))
    return short
