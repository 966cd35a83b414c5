"""`ShardCache`: a folder of shards from stores, with a size limit, shared by all processes of a machine.

    KEY.tar           a shard, complete and checked; its access time is that of its last use, its modification time is 0
    KEY.SIZE.part     a partial download, in progress or left by a process that ended; SIZE bytes are reserved for it
    KEY.gpuidx        a shard's index, from a scan
    KEY.given.gpuidx  a shard's index, from beside the shard on the store
    lock              held while files are added or removed; it names the machine's start in which this was last done

KEY is a hash of the shard's URL, size and tag, so another version is another file. A process that reads a shard holds a
shared lock on it; one that downloads a shard holds an exclusive lock (flock, which ends with its process). Locked files
are not removed. Nobody waits for space while holding a lock on a shard, so there are no deadlocks. Files with other
names do not belong to the cache: they do not count and are not changed.

If a process ends, what it wrote stays; if the machine stops, this may be lost. So partial files from before the
machine's last start are removed. If a shard's size or modification time is wrong, or its content is not what its index
says, something changed or damaged it here, and it is downloaded again.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import logging
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import platformdirs

from gpuloader.errors import ConfigError, DataError, IndexFileError, RemoteError, ShardChangedError
from gpuloader.shards.index import Index
from gpuloader.shards.index_files import INDEX_SUFFIX
from gpuloader.shards.remote.cancellation import POLL_SECONDS, WantedCallback, check_wanted, pause
from gpuloader.shards.remote.indexes import NO_TIME, load_index, save_index, scan_descriptor
from gpuloader.shards.remote.store import Entry, RemoteShard, Version

_CHECKSUM_FILE_BYTES = 4096
_BOOT = Path("/proc/sys/kernel/random/boot_id")
TELL_SECONDS = 10.0
_HELD = re.compile(r"([0-9a-f]{32})\.(?:([0-9]+)\.part|tar)")
_log = logging.getLogger("gpuloader")


@dataclass(frozen=True)
class CacheStats:
    """The statistics of the cache for shards from stores.

    Attributes:
        hits: how often a batch found a shard in the cache.
        misses: how often a batch had to wait for the download of a shard.
        downloaded_bytes: the bytes that this process downloaded since the loader was created.
        held_bytes: the bytes that the folder holds or has reserved, for all processes.
    """

    hits: int
    misses: int
    downloaded_bytes: int
    held_bytes: int


class ShardCache:
    """The cache for shards from stores, see the module's docstring. Threads may share it.

    Args:
        folder: the folder of the cache; None uses a folder in the user's cache.
        limit_bytes: the maximum bytes of shards; None uses half of the sum of free and held bytes.

    Attributes:
        coming: keys of the shards that are needed next; they are removed last.

    Raises:
        ConfigError: the folder cannot be used.
    """

    def __init__(self, folder: Path | None, limit_bytes: int | None) -> None:
        self.folder = platformdirs.user_cache_path("gpuloader") / "shards" if folder is None else folder
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder_stat = self.folder.stat()
        except OSError as error:
            raise ConfigError(
                f"Cache(folder={str(self.folder)!r}) cannot be used: {error.strerror}: name another folder"
            ) from error
        _check_owner(self.folder, folder_stat)
        self._forget_before_start()
        self.limit_bytes = (shutil.disk_usage(self.folder).free + self.held_bytes()) // 2
        if limit_bytes is not None:
            self.limit_bytes = limit_bytes
        self.coming: frozenset[str] = frozenset()
        self._hits = self._misses = self._downloaded_bytes = 0
        self._checked: set[str] = set()
        self._scanned: set[str] = set()

    def check_fits(self, entry: Entry) -> None:
        """Raises ConfigError if a shard is larger than the limit of the cache."""
        if entry.version.size_bytes > self.limit_bytes:
            raise ConfigError(
                f"Cache(max_bytes={self.limit_bytes}): {entry.shard} has {entry.version.size_bytes} bytes: give it at "
                f"least the size of the largest shard, ideally that of all shards, in a folder with enough space "
                f"(Cache(folder=...))"
            )

    def index_file(self, entry: Entry) -> Path:
        """Returns the path of the index made by a scan."""
        return self.folder / f"{entry.key}.gpuidx"

    def given_index_file(self, entry: Entry) -> Path:
        """Returns the path of the index that was beside the shard on the store."""
        return self.folder / f"{entry.key}.given.gpuidx"

    def has_index(self, entry: Entry) -> bool:
        """Returns whether the cache has an index of the shard."""
        return self.index_file(entry).exists() or self.given_index_file(entry).exists()

    def held_bytes(self) -> int:
        """Returns the size of all shards in the folder, including partial ones."""
        return sum(held.size_bytes for held in self._list_held())

    def stats(self) -> CacheStats:
        """Returns the statistics of the cache."""
        return CacheStats(self._hits, self._misses, self._downloaded_bytes, self.held_bytes())

    def has(self, entry: Entry) -> bool:
        """Returns whether the cache has the shard."""
        return self._path(entry).exists()

    def open_for_batch(self, entry: Entry, wanted: WantedCallback) -> int:
        """Opens a shard as `open` does, and counts whether the cache had it."""
        if self.has(entry):
            self._hits += 1
        else:
            self._misses += 1
        return self.open(entry, wanted)

    def open(self, entry: Entry, wanted: WantedCallback) -> int:
        """Opens the shard for reading, after downloading it if necessary. It stays in the cache until `close_shard`.

        Raises:
            InterruptedError: it is no longer `wanted`.
            RemoteError: the store does not deliver it.
            ShardChangedError: the store has another version.
            DataError: the download is not a tar, or does not match its index or checksum.
            ConfigError: a file cannot be written in the folder, or its path is not a regular file.
        """
        tell_at = time.monotonic() + TELL_SECONDS
        while (fd := self._fetch(entry, wanted, only_room_to_spare=False)) is None:
            if time.monotonic() > tell_at:
                tell_at += TELL_SECONDS
                here = _size(self._part(entry))
                _log.info("waiting for %s: %d of %d bytes are downloaded", entry.shard, here, entry.version.size_bytes)
            pause(POLL_SECONDS, wanted)
        return fd

    def fetch(self, entry: Entry, wanted: WantedCallback) -> None:
        """Downloads the shard, unless another process does so, or there is only space in place of `coming` shards."""
        if not self.has(entry) and (fd := self._fetch(entry, wanted, only_room_to_spare=True)) is not None:
            close_shard(fd)

    def _path(self, entry: Entry) -> Path:
        return self.folder / f"{entry.key}.tar"

    def _part(self, entry: Entry) -> Path:
        return self.folder / f"{entry.key}.{entry.version.size_bytes}.part"

    def _try_open(self, entry: Entry) -> int | None:
        path = self._path(entry)
        try:
            fd = _open_file(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            # A process that removes it has the lock briefly; an open file stays readable.
            fcntl.flock(fd, fcntl.LOCK_SH)
            found = os.fstat(fd)
            problem = "was changed in the cache by something else"
            if (found.st_size, found.st_mtime_ns) == (entry.version.size_bytes, NO_TIME):
                problem = self._find_damage(entry, fd, scan=False)
            if not problem:
                os.utime(fd, ns=(time.time_ns(), NO_TIME))
                return fd
            self._discard(entry, fd, problem)
        except BaseException:
            close_shard(fd)
            raise
        close_shard(fd)
        return None

    def discard_if_damaged(self, entry: Entry) -> bool:
        """Removes a shard whose content does not match the loader's index; returns whether it is gone.

        Each shard is looked at once, because that reads all of its headers.
        """
        if entry.key in self._scanned:
            return False
        self._scanned.add(entry.key)
        try:
            fd = _open_file(self._path(entry), os.O_RDONLY)
        except FileNotFoundError:
            return True
        try:
            if problem := self._find_damage(entry, fd, scan=True):
                self._discard(entry, fd, problem)
            return bool(problem)
        finally:
            close_shard(fd)

    def _find_damage(self, entry: Entry, fd: int, scan: bool) -> str:
        """Returns what is wrong with a shard's content, by its index; without an index, or with `scan`, by a scan."""
        if entry.key in self._checked and not scan:
            return ""
        index = None if scan else load_index(self.index_file(entry), entry)
        try:
            # Another process may have downloaded it for another index.
            self._check_content(entry, index if index is not None else scan_descriptor(fd, entry))
        except DataError as error:
            return f"is damaged in the cache ({error})"
        return ""

    def _discard(self, entry: Entry, fd: int, problem: str) -> None:
        path = self._path(entry)
        _log.warning("%s %s, in %s: it is downloaded again", entry.shard, problem, path)
        self._checked.discard(entry.key)
        with self._locked(), suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(fd)):  # otherwise another process has downloaded it again
                path.unlink()

    def _fetch(self, entry: Entry, wanted: WantedCallback, only_room_to_spare: bool) -> int | None:
        """Returns the shard's descriptor; None if another process downloads it, or if there is no space now."""
        if (fd := self._try_open(entry)) is not None:
            return fd
        if (fd := self._begin_download(entry, wanted, only_room_to_spare)) is None:
            return None
        try:
            with io.FileIO(fd, "r+", closefd=False) as file:
                self._download(entry, file, wanted)
        except BaseException:
            close_shard(fd)
            raise
        fcntl.flock(fd, fcntl.LOCK_SH)
        return fd

    def _begin_download(self, entry: Entry, wanted: WantedCallback, only_room_to_spare: bool) -> int | None:
        """Returns the partial file, locked, with space reserved; None if another process has it, or without space."""
        part = self._part(entry)
        with self._locked(wanted):
            if self.has(entry) or not (part.exists() or self._make_room(entry.version.size_bytes, only_room_to_spare)):
                return None
            fd = _open_file(part, os.O_RDWR | os.O_CREAT)
            if _lock(fd):
                return fd
            os.close(fd)
            return None

    def _download(self, entry: Entry, file: io.FileIO, wanted: WantedCallback) -> None:
        part, here_bytes = self._part(entry), file.seek(0, os.SEEK_END)
        try:
            try:
                self._complete(entry, file, wanted)
            except (RemoteError, ShardChangedError):
                raise
            except DataError:
                if not here_bytes:
                    raise
                file.truncate(0)  # the cause may be the part from before
                self._complete(entry, file, wanted)
        except (InterruptedError, RemoteError):
            raise  # the next download continues from here
        except DataError:
            with self._locked():
                part.unlink()
            raise
        except OSError as error:
            raise _unwritable(part, error) from error
        with self._locked(wanted):
            part.rename(self._path(entry))

    def _complete(self, entry: Entry, file: io.FileIO, wanted: WantedCallback) -> None:
        version = entry.shard.download(entry.version, file, wanted, self._count_downloaded)
        _check_sum(entry.shard, version, file, wanted)
        index = scan_descriptor(file.fileno(), entry)
        self._check_content(entry, index)
        save_index(index, self.index_file(entry), entry)
        os.utime(file.fileno(), ns=(time.time_ns(), NO_TIME))
        os.fsync(file.fileno())

    def _check_content(self, entry: Entry, index: Index) -> None:
        """Raises IndexFileError if this loader's index does not match the content in the cache."""
        if entry.digest is None:
            return
        if entry.digest() != index.digest():
            for path in (self.index_file(entry), self.given_index_file(entry)):
                path.unlink(missing_ok=True)
            if entry.version.merged:
                raise IndexFileError(
                    f"{entry.shard} does not match {entry.version.merged}: run `gpuloader index --merge` again"
                )
            raise IndexFileError(
                f"{entry.shard} does not match its index. If the store has an index beside it, "
                f"{entry.shard.beside(INDEX_SUFFIX)} belongs to another shard: delete it on the store, or make it "
                f"again with `gpuloader index` where the shard was written, and upload it. Then make the loader again"
            )
        self._checked.add(entry.key)

    @contextmanager
    def _locked(self, wanted: WantedCallback = lambda: True) -> Iterator[int]:
        """Holds the lock on the folder; waiting for it ends when it is no longer wanted."""
        fd = _open_file(self.folder / "lock", os.O_RDWR | os.O_CREAT)
        try:
            while not _lock(fd):
                pause(POLL_SECONDS / 10, wanted)
            yield fd
        finally:
            close_shard(fd)

    def _forget_before_start(self) -> None:
        """Removes partial files from before the machine's start, because their unsynced parts may be lost."""
        with self._locked() as lock:
            start = _BOOT.read_bytes() if _BOOT.exists() else os.urandom(16)
            if os.pread(lock, len(start) + 1, 0) != start:
                for held in self._list_held():
                    if held.path.suffix == ".part":
                        _remove(held.path)
                try:
                    os.ftruncate(lock, 0)
                    os.pwrite(lock, start, 0)
                except OSError as error:
                    raise _unwritable(self.folder / "lock", error) from error

    def _count_downloaded(self, count: int) -> None:
        self._downloaded_bytes += count

    def _make_room(self, size_bytes: int, only_to_spare: bool) -> bool:
        """Removes unused shards, least recently used first and `coming` ones last, until there is enough space."""
        held = self._list_held()
        free = self.limit_bytes - sum(each.size_bytes for each in held)
        for each in sorted(held, key=lambda each: (each.key in self.coming, each.used_ns)):
            if free >= size_bytes or (only_to_spare and each.key in self.coming):
                break
            if _remove(each.path):
                free += each.size_bytes
        return free >= size_bytes

    def _list_held(self) -> list[_CachedShard]:
        held = []
        with os.scandir(self.folder) as files:
            for file in files:
                if (name := _HELD.fullmatch(file.name)) and file.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):  # it has just been renamed or removed
                        found = file.stat(follow_symlinks=False)
                        used_ns = max(found.st_atime_ns, found.st_mtime_ns)
                        held.append(_CachedShard(Path(file.path), name[1], int(name[2] or found.st_size), used_ns))
        return held


def close_shard(fd: int) -> None:
    """Closes a shard that `ShardCache.open` opened, and releases its lock."""
    fcntl.flock(fd, fcntl.LOCK_UN)  # a forked child may have the descriptor, too
    os.close(fd)


class _CachedShard(NamedTuple):
    path: Path
    key: str
    size_bytes: int
    used_ns: int


def _lock(fd: int) -> bool:
    """Takes an exclusive lock; returns False if a process has a lock already."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove(path: Path) -> bool:
    """Removes a file, unless a process has a lock on it; returns whether it is gone."""
    try:
        fd = _open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        if locked := _lock(fd):
            path.unlink(missing_ok=True)
        return locked
    finally:
        close_shard(fd)


def _check_owner(folder: Path, folder_stat: os.stat_result) -> None:
    """Checks that only you can write to the folder; others could replace its files by links or by other shards."""
    owner, mode = folder_stat.st_uid, stat.S_IMODE(folder_stat.st_mode)
    if owner not in (os.geteuid(), 0) or mode & 0o022:
        raise ConfigError(
            f"Cache(folder={str(folder)!r}) has owner {owner} and mode {mode:o}: allowed is a folder to which "
            f"only you (user {os.geteuid()}) may write, as after `chmod go-w`. Name such a folder, or one that does "
            f"not exist yet, such as {str(folder / 'shards')!r}: it is created that way"
        )


def _open_file(path: Path, flags: int) -> int:
    """Opens a regular file, never through a link; a new file, if `flags` create one, is for its owner only."""
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        problem = "it is a folder or a pipe"
    except FileNotFoundError:
        raise
    except OSError as error:
        problem = "it is a link" if error.errno == errno.ELOOP else str(error.strerror)
    raise ConfigError(f"{path}: a file of the cache cannot be opened: {problem}. Remove it, or name another folder")


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{path} cannot be written: {error.strerror}: make room there, or name another folder by Cache(folder=...)"
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _check_sum(shard: RemoteShard, version: Version, file: io.FileIO, wanted: WantedCallback) -> None:
    """Compares with the store's checksum, or with the first word of URL.sha256, as `sha256sum` writes it."""
    stated = version.checksum
    if stated is None:
        beside = shard.beside(".sha256").read_small(_CHECKSUM_FILE_BYTES, wanted) or b""
        word = beside[:64].decode("ascii", "replace").lower()
        if len(word) != 64 or word.strip("0123456789abcdef"):
            return
        stated = "sha256", word
    name, expected = stated
    file.seek(0)
    digest = hashlib.new(name, usedforsecurity=False)
    while block := file.read(1 << 20):
        check_wanted(wanted)
        digest.update(block)
    if digest.hexdigest() != expected:
        raise DataError(
            f"{shard}: the download has the {name} {digest.hexdigest()}, but it should have {expected}: the "
            f"object is damaged, or its checksum belongs to another version: upload both again"
        )
