"""A folder of files, read as the tar that `tar -h --hard-dereference --sort=name -cf FOLDER.tar -C FOLDER .` makes.

It is a virtual shard: its files in the tar's order, each after a header of 512 bytes and its name. So an offset in the
folder is an offset in one of its files, and the index of a folder has the format of a tar's index.
"""

from __future__ import annotations

import hashlib
import os
import stat
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.progress import ProgressLog
from gpuloader.errors import DataError, ShardChangedError
from gpuloader.shards.pictures import in_hidden_folder, is_picture

_COLUMNS = ("name_end", "size", "inode", "mtime_ns", "ctime_ns")
_HEADER_BYTES = 512
_KINDS = {stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
CHANGED = "it changed since this loader was created. Make a new loader once the folder is final"
# The maximum entries that links reach again: n folders with two links each to the next folder have 2^n paths.
_MOST_AGAIN, _MOST_AGAIN_FOR_EACH = 100_000, 10


@dataclass(frozen=True, eq=False)
class Listing:
    """The regular files of a folder that are not in hidden folders, in the order of the tar.

    Attributes:
        names: (bytes,) uint8, the concatenated paths below the folder.
        name_end: (n,) int64, the end of each path.
        start: (n,) int64, the offset of each file's content.
        size, mtime_ns, inode: (n,) int64, the values when the folder was listed.
        ctime_ns: (n,) int64, the value when the file was last read.
        pictures: (m,) int64, the numbers of the files for which `is_picture` is true.
        top_folders: the names of the folders at the top, except hidden ones.
        others: (path, reason) of entries that are not regular files or cannot be accessed.
        hidden: how many pictures are in hidden folders, and the path of the first, or "".
        unread: the numbers of files that could not be read when the folder was indexed.
    """

    names: NDArray[np.uint8]
    name_end: NDArray[np.int64]
    start: NDArray[np.int64]
    size: NDArray[np.int64]
    mtime_ns: NDArray[np.int64]
    inode: NDArray[np.int64]
    ctime_ns: NDArray[np.int64]
    pictures: NDArray[np.int64]
    top_folders: Sequence[str]
    others: Sequence[tuple[str, str]]
    hidden: tuple[int, str]
    unread: list[int]

    def __len__(self) -> int:
        return len(self.name_end)

    def name(self, number: int) -> str:
        """Returns the path of a file below the folder."""
        first = self.name_end[number - 1] if number else 0
        return os.fsdecode(self.names[first : self.name_end[number]].tobytes())

    def identity(self) -> tuple[int, int]:
        """Returns the identity of the files, in place of a tar's size and time.

        It is the end offset, and a digest of the names, sizes, times and inodes of files, of the names of other
        entries, and of the hidden pictures.
        """
        digest = hashlib.blake2b(digest_size=8)
        for column in (self.names, self.name_end, self.size, self.mtime_ns, self.inode):
            digest.update(np.ascontiguousarray(column))
        digest.update(os.fsencode("\0".join([*(name for name, _ in self.others), ascii(self.hidden)])))
        end = int(self.start[-1] + self.size[-1]) if len(self) else 0
        return end, int.from_bytes(digest.digest(), "big") >> 1


@dataclass(frozen=True)
class Folder:
    """A folder of files, as one shard.

    Attributes:
        path: the folder. It is listed once, at the first use.
    """

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @cached_property
    def listing(self) -> Listing:
        """The files of the folder.

        Raises:
            DataError: the folder or a subfolder cannot be read, or contains itself by a link.
        """
        return list_files(self.path)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return Path(os.path.abspath(self.path)).name  # noqa: PTH100 - it resolves ".."

    def files_at(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the numbers of the files that contain these offsets."""
        return np.searchsorted(self.listing.start, offsets, side="right") - 1

    def path_of(self, number: int) -> Path:
        """Returns the path of a file."""
        return self.path / self.listing.name(number)

    def open(self, number: int) -> int:
        """Opens a file for reading; returns its descriptor.

        Raises:
            ShardChangedError: it cannot be opened, or is not a file any more.
        """
        path = f"{self.path}/{self.listing.name(number)}"  # a Path would take as long as opening
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # it may have become a pipe
        except OSError as error:
            raise ShardChangedError(f"{path} cannot be opened ({error.strerror}): {CHANGED}") from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise ShardChangedError(f"{path} is no file any more: {CHANGED}")
        return fd

    def check(self, number: int, fd: int) -> bool:
        """Checks that an open file is the listed file; returns whether its ctime changed since the last check.

        Raises:
            ShardChangedError: it is another file, or has another size or time.
        """
        listing, now = self.listing, os.fstat(fd)
        found = now.st_size, now.st_mtime_ns, _as_int64(now.st_ino)
        expected = tuple(column[number].item() for column in (listing.size, listing.mtime_ns, listing.inode))
        if found != expected:
            raise ShardChangedError(
                f"{self.path_of(number)} has (size, mtime_ns, inode) {found}, but it was listed with "
                f"{expected}: {CHANGED}"
            )
        touched = bool(now.st_ctime_ns != listing.ctime_ns[number])
        listing.ctime_ns[number] = now.st_ctime_ns
        return touched

    def read(self, count: int, offset: int) -> bytes:
        """Reads like `os.pread`, within one file; raises OSError, and the errors of `open` and `check`."""
        number = int(self.files_at(np.array(offset)))
        fd = self.open(number)
        try:
            data = os.pread(fd, count, offset - int(self.listing.start[number]))
            self.check(number, fd)
        finally:
            os.close(fd)
        return data


def list_files(folder: Path) -> Listing:
    """Lists the files of a folder in the order of GNU tar's `--sort=name`, and follows links.

    Raises:
        DataError: the folder or a subfolder cannot be read, or contains itself by a link; or links to folders reach too
            many files again: more than 100,000, and more than ten times the number of files.
    """
    work = ProgressLog("listing the files of %s: %s so far")
    paths, numbers, pictures = bytearray(), array("q"), array("q")
    top_folders: list[str] = []
    others: list[tuple[str, str]] = []
    hidden = 0, ""
    try:
        for path, found in _walk(os.fspath(folder)):
            work.reached(folder, len(numbers) // len(_COLUMNS))
            if isinstance(found, str):
                others.append((path, found))
            elif stat.S_ISDIR(found.st_mode) and in_hidden_folder(f"{path}/"):
                walked = os.walk(folder / path)  # what cannot be read there does not matter
                below = [f"{top}/{name}" for top, _, names in walked for name in names if is_picture(name)]
                hidden = hidden[0] + len(below), hidden[1] or min(below, default="").removeprefix(f"{folder}/")
            elif stat.S_ISDIR(found.st_mode):
                top_folders += [path] if "/" not in path else []
            elif not stat.S_ISREG(found.st_mode):
                others.append((path, f"a {_KINDS.get(stat.S_IFMT(found.st_mode), 'device')}, not a file"))
            else:
                if is_picture(path):
                    pictures.append(len(numbers) // len(_COLUMNS))
                paths += os.fsencode(path)
                times = found.st_mtime_ns, found.st_ctime_ns
                numbers.extend((len(paths), found.st_size, _as_int64(found.st_ino), *times))
    except OSError as error:
        raise DataError(
            f"{error.filename} cannot be read ({error.strerror}): check your permissions, or leave the folder out"
        ) from None
    columns = dict(zip(_COLUMNS, np.frombuffer(numbers, np.int64).reshape(-1, len(_COLUMNS)).T.copy()))
    ends = np.cumsum(columns["size"]) + np.arange(1, len(columns["size"]) + 1) * _HEADER_BYTES
    return Listing(
        np.frombuffer(bytes(paths), np.uint8),
        start=ends - columns["size"] + columns["name_end"],
        pictures=np.array(pictures, np.int64),
        top_folders=top_folders,
        others=others,
        hidden=hidden,
        unread=[],
        **columns,
    )


def _walk(root: str) -> Iterator[tuple[str, os.stat_result | str]]:
    """Yields (path below the folder, stat or error) of all entries that are in no hidden folder."""
    begun = Path(root).stat()
    above = [(begun.st_dev, begun.st_ino)]
    listed = set(above)
    names = _sorted_names(root)
    there, again = len(names), 0
    waiting = [("", iter(names))]
    while waiting:
        prefix, left = waiting[-1]
        if (name := next(left, None)) is None:
            waiting.pop()
            above.pop()
            continue
        below = f"{prefix}{name}"
        try:
            found = os.stat(f"{root}/{below}")  # noqa: PTH116 - a Path would take three times as long
        except OSError as error:
            yield below, error.strerror or "it cannot be looked at"
            continue
        yield below, found
        if not stat.S_ISDIR(found.st_mode) or in_hidden_folder(f"{below}/"):
            continue
        identity = found.st_dev, found.st_ino
        if identity in above:
            raise DataError(f"the folder {root}/{below} is again within itself, because of a link: remove the link")
        inner = _sorted_names(f"{root}/{below}")
        if identity in listed:
            again += len(inner)
        else:
            there += len(inner)
        if again > _MOST_AGAIN + _MOST_AGAIN_FOR_EACH * there:
            raise DataError(
                f"links to folders in {root} lead {again:,} times to files and folders that are listed already: "
                f"allowed are {_MOST_AGAIN:,}, and {_MOST_AGAIN_FOR_EACH} for each of the {there:,} that are there. "
                f"Remove such links"
            )
        listed.add(identity)
        above.append(identity)
        waiting.append((f"{below}/", iter(inner)))


def _sorted_names(folder: str) -> list[str]:
    return sorted(os.listdir(folder), key=os.fsencode)  # noqa: PTH208 - the names alone


def _as_int64(inode: int) -> int:
    """Returns an unsigned 64-bit inode as a signed number."""
    return inode - (1 << 64) if inode >> 63 else inode
