"""`ShardCache`: a folder of shards from stores, no larger than it may be, that all processes of a machine share.

    KEY.tar           a shard, whole and checked; its time of access is that of its last use, its time of change is 0
    KEY.SIZE.part     one that is being downloaded, or was when its process ended: SIZE bytes are set aside for it
    KEY.gpuidx        a shard's index, as it was scanned
    KEY.given.gpuidx  one that lay beside the shard on the store
    lock              held while files appear and go; it names the machine's start since which they did

KEY is a hash of the shard's URL, size and tag, so another version is another file. Who reads a shard holds a shared
lock on it, who downloads one an exclusive lock (flock, which ends with its process); neither is removed meanwhile.
Nobody waits for room while they hold a lock on a shard, so none waits for another without end. Files of other names are
somebody else's: they do not count, and stay.

A process that ends leaves what it wrote, a machine that stops may not: partial files from before its last start go. A
shard whose size or time of change is another one was changed here: it is downloaded again.
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
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from gpuloader.errors import ConfigError, DataError, IndexFileError, RemoteError, ShardChangedError
from gpuloader.shards.index import ShardIndex
from gpuloader.shards.index_files import INDEX_SUFFIX
from gpuloader.shards.remote.indexes import NO_TIME, load_index, save_index, scan_descriptor
from gpuloader.shards.remote.store import Entry
from gpuloader.shards.remote.waiting import POLL_SECONDS, Wanted, check_wanted, pause

_CHECKSUM_FILE_BYTES = 4096
_BOOT = Path("/proc/sys/kernel/random/boot_id")
TELL_SECONDS = 10.0
_HELD = re.compile(r"([0-9a-f]{32})\.(?:([0-9]+)\.part|tar)")
_log = logging.getLogger("gpuloader")


@dataclass(frozen=True)
class CacheStats:
    """What the cache of shards from stores did for a loader.

    Attributes:
        hits: how often a batch found a shard that it needs in the cache.
        misses: how often a batch had to wait until a shard was downloaded.
        downloaded_bytes: by this process, since the loader was made.
        held_bytes: what the folder holds or has set aside, for all processes.
    """

    hits: int
    misses: int
    downloaded_bytes: int
    held_bytes: int


class ShardCache:
    """See the module's text. Threads may share it.

    Args:
        folder: None for a folder in the user's cache.
        limit_bytes: the most that shards may take; None for half of what is free there, with what it holds already.

    Attributes:
        coming: keys of the shards that are needed next: the last ones to be removed.

    Raises:
        ConfigError: the folder cannot be used.
    """

    def __init__(self, folder: Path | None, limit_bytes: int | None) -> None:
        self.folder = platformdirs.user_cache_path("gpuloader") / "shards" if folder is None else folder
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.folder.stat()
        except OSError as error:
            raise ConfigError(
                f"Cache(folder={str(self.folder)!r}) cannot be used: {error.strerror}: name another folder"
            ) from error
        _check_owner(self.folder, found)
        self._forget_before_start()
        self.limit_bytes = (shutil.disk_usage(self.folder).free + self.held_bytes()) // 2
        if limit_bytes is not None:
            self.limit_bytes = limit_bytes
        self.coming: frozenset[str] = frozenset()
        self._hits = self._misses = self._downloaded_bytes = 0
        self._expected: dict[str, bytes] = {}  # by key, what a loader's index says of the content
        self._checked: set[str] = set()

    def expect(self, entry: Entry, index: ShardIndex) -> None:
        """From now on the shard is opened only if it is what this index says."""
        self._expected[entry.key] = index.digest()
        self._checked.discard(entry.key)

    def check_fits(self, entry: Entry) -> None:
        """Raises ConfigError where a shard is larger than the cache may be."""
        if entry.version.size_bytes > self.limit_bytes:
            raise ConfigError(
                f"Cache(max_bytes={self.limit_bytes}): {entry.shard} has {entry.version.size_bytes} bytes: allowed is "
                f"at least the size of the largest shard, and better that of all, in a folder with room for it "
                f"(Cache(folder=...))"
            )

    def index_file(self, entry: Entry) -> Path:
        """Where the index is kept that was made by scanning."""
        return self.folder / f"{entry.key}.gpuidx"

    def given_index_file(self, entry: Entry) -> Path:
        """Where the index is kept that lay beside the shard."""
        return self.folder / f"{entry.key}.given.gpuidx"

    def held_bytes(self) -> int:
        """What shards take in the folder, those included that are not whole yet."""
        return sum(held.size_bytes for held in self._list_held())

    def stats(self) -> CacheStats:
        """What it did so far."""
        return CacheStats(self._hits, self._misses, self._downloaded_bytes, self.held_bytes())

    def has(self, entry: Entry) -> bool:
        """Whether the shard is there."""
        return self._path(entry).exists()

    def open_for_batch(self, entry: Entry, wanted: Wanted) -> int:
        """As `open`, and counts whether it was there."""
        if self.has(entry):
            self._hits += 1
        else:
            self._misses += 1
        return self.open(entry, wanted)

    def open(self, entry: Entry, wanted: Wanted) -> int:
        """A descriptor of the shard for reading: it stays in the cache until `close_shard`. Downloads it if need be.

        Raises:
            InterruptedError: it is not `wanted` any more.
            RemoteError: the store does not give it.
            ShardChangedError: the store has another version.
            DataError: what was downloaded is no tar, or not as its index or checksum says.
            ConfigError: a file cannot be written in the folder, or something else is in its place.
        """
        tell_at = time.monotonic() + TELL_SECONDS
        while (fd := self._fetch(entry, wanted, only_room_to_spare=False)) is None:
            if time.monotonic() > tell_at:
                tell_at += TELL_SECONDS
                here = _size(self._part(entry))
                _log.info("waiting for %s: %d of %d bytes are here", entry.shard, here, entry.version.size_bytes)
            pause(POLL_SECONDS, wanted)
        return fd

    def fetch(self, entry: Entry, wanted: Wanted) -> None:
        """Downloads the shard, unless another one does, or there is only room in place of those that are `coming`."""
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
            fcntl.flock(fd, fcntl.LOCK_SH)  # who removes it holds it for a moment; an open file is read on even so
            found = os.fstat(fd)
            if (found.st_size, found.st_mtime_ns) == (entry.version.size_bytes, NO_TIME):
                if entry.key not in self._checked:  # others may have downloaded it, for another index
                    index = load_index(self.index_file(entry), entry)
                    self._check_content(entry, index if index is not None else scan_descriptor(fd, entry))
                os.utime(fd, ns=(time.time_ns(), NO_TIME))
                return fd
        except BaseException:
            close_shard(fd)
            raise
        _log.warning("%s was changed in the cache, by something else (%s): it is downloaded again", entry.shard, path)
        path.unlink(missing_ok=True)
        close_shard(fd)
        return None

    def _fetch(self, entry: Entry, wanted: Wanted, only_room_to_spare: bool) -> int | None:
        """The descriptor of the shard; None where another one downloads it, or there is no room now."""
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

    def _begin_download(self, entry: Entry, wanted: Wanted, only_room_to_spare: bool) -> int | None:
        """The partial file, locked, with room set aside; None where another one downloads it, or there is no room."""
        part = self._part(entry)
        with _Locked(self.folder / "lock", wanted):
            if self.has(entry) or not (part.exists() or self._make_room(entry.version.size_bytes, only_room_to_spare)):
                return None
            fd = _open_file(part, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
            return fd

    def _download(self, entry: Entry, file: io.FileIO, wanted: Wanted) -> None:
        part, here_bytes = self._part(entry), file.seek(0, os.SEEK_END)
        try:
            try:
                self._complete(entry, file, wanted)
            except (RemoteError, ShardChangedError):
                raise
            except DataError:
                if not here_bytes:
                    raise
                file.truncate(0)  # what was here may be to blame
                self._complete(entry, file, wanted)
        except (InterruptedError, RemoteError):
            raise  # the next one goes on from here
        except DataError:
            with _Locked(self.folder / "lock", lambda: True):
                part.unlink()
            raise
        except OSError as error:
            raise ConfigError(
                f"Cache(folder={str(self.folder)!r}): a shard cannot be written there: {error.strerror}"
            ) from error
        with _Locked(self.folder / "lock", wanted):
            part.rename(self._path(entry))

    def _complete(self, entry: Entry, file: io.FileIO, wanted: Wanted) -> None:
        entry.shard.download(entry.version, file, wanted, self._count_downloaded)
        _check_sum(entry, file, wanted)
        index = scan_descriptor(file.fileno(), entry)
        self._check_content(entry, index)
        save_index(index, self.index_file(entry), entry)
        os.utime(file.fileno(), ns=(time.time_ns(), NO_TIME))
        os.fsync(file.fileno())

    def _check_content(self, entry: Entry, index: ShardIndex) -> None:
        """Raises IndexFileError where this loader's index is not that of what is in the cache."""
        expected = self._expected.get(entry.key)
        if expected is not None and expected != index.digest():
            for path in (self.index_file(entry), self.given_index_file(entry)):
                path.unlink(missing_ok=True)
            raise IndexFileError(
                f"{entry.shard} is not what its index says. If the store has one, "
                f"{entry.shard.beside(INDEX_SUFFIX)} is the index of another shard: delete it on the store, or make it "
                f"again with `gpuloader index` where the shard was written, and upload it. Then make the loader again"
            )
        self._checked.add(entry.key)

    def _forget_before_start(self) -> None:
        """Removes partial files from before the machine's start: what was not synced of them may be lost."""
        with _Locked(self.folder / "lock", lambda: True) as lock:
            start = _BOOT.read_bytes() if _BOOT.exists() else os.urandom(16)
            if os.pread(lock, len(start) + 1, 0) != start:
                for held in self._list_held():
                    if held.path.suffix == ".part":
                        _remove(held.path)
                os.ftruncate(lock, 0)
                os.pwrite(lock, start, 0)

    def _count_downloaded(self, count: int) -> None:
        self._downloaded_bytes += count

    def _make_room(self, size_bytes: int, only_to_spare: bool) -> bool:
        """Removes what was used longest ago and nobody uses, until there is room; what is needed next at last."""
        held = self._list_held()
        free = self.limit_bytes - sum(each.size_bytes for each in held)
        for each in sorted(held, key=lambda each: (each.key in self.coming, each.used_ns)):
            if free >= size_bytes or (only_to_spare and each.key in self.coming):
                break
            if _remove(each.path):
                free += each.size_bytes
        return free >= size_bytes

    def _list_held(self) -> list[_Held]:
        found = []
        with os.scandir(self.folder) as files:
            for file in files:
                if (name := _HELD.fullmatch(file.name)) and file.is_file(follow_symlinks=False):
                    try:
                        found.append(_Held.of(file, name))
                    except FileNotFoundError:
                        continue  # it was renamed or removed meanwhile
        return found


def close_shard(fd: int) -> None:
    """Gives a shard back that `ShardCache.open` opened."""
    fcntl.flock(fd, fcntl.LOCK_UN)  # a forked child may have the descriptor too
    os.close(fd)


@dataclass(frozen=True)
class _Held:
    path: Path
    key: str
    size_bytes: int
    used_ns: int

    @classmethod
    def of(cls, file: os.DirEntry[str], name: re.Match[str]) -> _Held:
        found = file.stat(follow_symlinks=False)
        used_ns = max(found.st_atime_ns, found.st_mtime_ns)
        return cls(Path(file.path), name[1], int(name[2] or found.st_size), used_ns)


class _Locked:
    """Holds an exclusive lock on a file for a block; waiting for it ends once it is not wanted any more."""

    def __init__(self, path: Path, wanted: Wanted) -> None:
        self._path = path
        self._wanted = wanted

    def __enter__(self) -> int:
        self._fd = _open_file(self._path, os.O_RDWR | os.O_CREAT)
        try:
            while True:
                try:
                    fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return self._fd
                except BlockingIOError:
                    pause(POLL_SECONDS / 10, self._wanted)
        except BaseException:
            os.close(self._fd)
            raise

    def __exit__(self, *_: object) -> None:
        close_shard(self._fd)


def _remove(path: Path) -> bool:
    """Removes a file unless somebody has a lock on it."""
    try:
        fd = _open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    finally:
        close_shard(fd)
    return True


def _check_owner(folder: Path, found: os.stat_result) -> None:
    """Others who may write to the folder could put links, or shards of their own, in the place of its files."""
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in (os.geteuid(), 0) or mode & 0o022:
        raise ConfigError(
            f"Cache(folder={str(folder)!r}) has owner {found.st_uid} and mode {mode:o}: allowed is a folder that only "
            f"you (user {os.geteuid()}) may write to, as after `chmod go-w`. Name one, or one that is not there yet, "
            f"such as {str(folder / 'shards')!r}: it is made so"
        )


def _open_file(path: Path, flags: int) -> int:
    """A descriptor of a file, never of what a link points to; made for its owner alone where `flags` say so."""
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


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _check_sum(entry: Entry, file: io.FileIO, wanted: Wanted) -> None:
    """Compares with what the store says, or the first word of URL.sha256, as `sha256sum` writes it."""
    stated = entry.version.checksum
    if stated is None:
        beside = entry.shard.beside(".sha256").read_small(_CHECKSUM_FILE_BYTES, wanted) or b""
        word = beside[:64].decode("ascii", "replace").lower()
        if len(word) != 64 or word.strip("0123456789abcdef"):
            return
        stated = "sha256", word
    name, expected = stated
    file.seek(0)
    found = hashlib.new(name, usedforsecurity=False)
    while block := file.read(1 << 20):
        check_wanted(wanted)
        found.update(block)
    if found.hexdigest() != expected:
        raise DataError(
            f"{entry.shard}: what was downloaded has the {name} {found.hexdigest()}, it should have {expected}: the "
            f"object is damaged, or its checksum is that of another version: upload both again"
        )
