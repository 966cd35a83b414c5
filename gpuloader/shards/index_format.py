"""The container of an index: named columns of numbers in one file, which is read or mapped. Version 3:

    bytes       content
    0-7         b"GPULIDX\\x03"; the last byte is the version
    8-15        length of the JSON in bytes, little-endian like all numbers here
    16-23       length of the head in bytes: all that stands between byte 56 and the columns
    24-55       BLAKE2b of bytes 0 to 23 and of the head
    56-         the head, each part padded to a multiple of 8:
                  JSON, padded with spaces: {"counts": {NAME: number of rows}, "table": [[name, type, NAME], ...],
                    "columns": [[name, type, NAME], ...], and the facts that the owner of the file adds}
                  the columns of the table, one after the other: they are few and read at once
                  BLAKE2b of each 1 MiB of what follows; the last part may be shorter
    then        the columns, one after the other, each padded with zeros to a multiple of 8

A type is one of NumPy's with a fixed width, such as "<i8". A reader ignores columns that it does not know.

The head's digest is checked when a file is opened; as the head has the blocks' digests, it stands for all of the file.
The digest of a block, and the values in it, are checked when something in it is used for the first time in a process.

**Mapping.** Who cuts a file that is mapped makes the kernel end every process that reads beyond its new end. So only
files in the user's cache folder are mapped, which this library alone writes, always under another name first; all
others are copied. Before each use, the size and time of the mapped file are compared with those when it was opened: a
file that was cut or overwritten is an `IndexFileError`, and nothing of it is read. One that was removed or replaced
stays as it was, because the mapping holds it. What remains is a cut in the microsecond between comparing and reading.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import IndexFileError
from gpuloader.helpers.regular_file import Read, check_regular
from gpuloader.helpers.values import is_integer

VERSION = 3
BLOCK_BYTES = 1 << 20
DIGEST_BYTES = 32

Kinds: TypeAlias = Mapping[str, tuple[str, str]]
"""For each column: its type, and the name of its number of rows."""
Arrays: TypeAlias = Mapping[str, NDArray[Any]]
ReadHead: TypeAlias = Callable[[Read, int, str], "Head"]
"""Reads a head as `read_head` does, given the size and the path of the file."""
CheckValues: TypeAlias = Callable[["Head", Arrays, str, int, int], None]
"""Raises ValueError if a value in a part of a column is impossible: (head, all columns, name, first row, end)."""

_MAGIC = b"GPULIDX"
_START = struct.Struct("<7sBQQ")
_HEAD_AT = _START.size + DIGEST_BYTES
_MOST_HEAD_BYTES = 2 << 30  # six times that of a billion samples
_TYPE = re.compile(r"[<|][iufV]([1-9][0-9]{0,3})")


@dataclass(frozen=True)
class Column:
    """Where a column is: its first byte in the file, its type, its number of rows."""

    offset: int
    dtype: np.dtype[Any]
    rows: int

    @property
    def end(self) -> int:
        """Where the next column begins."""
        return self.offset + _padded(self.dtype.itemsize * self.rows)


@dataclass(frozen=True, eq=False)
class Head:
    """The head of a file.

    Attributes:
        facts: the JSON.
        table: the columns of the table.
        columns: where each known column is.
        digest: of the head, so it stands for all of the file.
        blocks_at: where the blocks begin.
        block_digests: their digests, one after the other.
        file_bytes: the size of the file.
    """

    facts: Mapping[str, Any]
    table: Arrays
    columns: Mapping[str, Column]
    digest: bytes
    blocks_at: int
    block_digests: bytes
    file_bytes: int

    def rows(self, name: str) -> int:
        """Returns the number of rows that columns of this kind have."""
        return int(self.facts["counts"][name])

    def has_block(self, block: int, content: bytes | memoryview) -> bool:
        """Says whether this is the content of a block, by its digest."""
        return _digest(content) == self.block_digests[block * DIGEST_BYTES : (block + 1) * DIGEST_BYTES]


def read_head(read: Read, file_bytes: int, path: str, table: Kinds, columns: Kinds) -> Head:
    """Reads and checks the head of a file of this size, which must have these columns.

    Raises:
        IndexFileError: it is not such a file, is damaged or of another version.
    """
    start = read(_HEAD_AT, 0)
    if start[: len(_MAGIC)] != _MAGIC or len(start) < _HEAD_AT:
        raise IndexFileError(f"{path} is not an index file of gpuloader")
    _, version, json_bytes, head_bytes = _START.unpack_from(start)
    if version != VERSION:
        raise IndexFileError(f"{path} has format version {version}, this gpuloader reads version {VERSION}")
    if head_bytes > _MOST_HEAD_BYTES:
        raise IndexFileError(f"{path} is damaged: a head of {head_bytes:,} bytes, more than {_MOST_HEAD_BYTES:,}")
    head = read(head_bytes, _HEAD_AT) if head_bytes <= file_bytes - _HEAD_AT else b""
    digest = _digest(start[: _START.size], head)
    if len(head) != head_bytes or digest != start[_START.size :]:
        raise IndexFileError(f"{path} is damaged: the digest of its head is wrong")
    try:
        facts = json.loads(head[:json_bytes])
        return _parse(facts, head, json_bytes, file_bytes, digest, table, columns)
    except (ValueError, RecursionError) as error:  # it was not written by `write`
        raise IndexFileError(f"{path} is damaged: {error}") from None


def _parse(
    facts: Any,  # noqa: ANN401
    head: bytes,
    json_bytes: int,
    file_bytes: int,
    digest: bytes,
    table: Kinds,
    columns: Kinds,
) -> Head:
    if not isinstance(facts, dict) or not isinstance(facts.get("counts"), dict):
        raise ValueError("its header is not an object with counts")
    counts = facts["counts"]
    if not all(is_integer(count, 0, 2**62) for count in counts.values()):
        raise ValueError("its header has wrong counts")
    blocks_at = _HEAD_AT + len(head)
    in_head, end = _places(facts.get("table"), counts, table, _padded(json_bytes))
    in_file, file_end = _places(facts.get("columns"), counts, columns, blocks_at)
    blocks = -(-(file_bytes - blocks_at) // BLOCK_BYTES)
    if end + DIGEST_BYTES * blocks != len(head):
        raise ValueError("its header has a wrong length")
    if file_end != file_bytes:
        raise ValueError("it does not end with its columns")
    arrays = {name: np.frombuffer(head, at.dtype, at.rows, at.offset) for name, at in in_head.items()}
    return Head(facts, arrays, in_file, digest, blocks_at, head[end:], file_bytes)


def _places(listed: object, counts: Mapping[str, int], kinds: Kinds, offset: int) -> tuple[dict[str, Column], int]:
    """Returns where the known columns are, the first one being at `offset`, and where the last one ends."""
    columns: dict[str, Column] = {}
    for entry in listed if isinstance(listed, list) else [None]:
        if not (isinstance(entry, list) and len(entry) == 3 and all(isinstance(part, str) for part in entry)):
            raise ValueError("its header does not list its columns")
        name, kind, rows = entry
        if not (width := _TYPE.fullmatch(kind)) or rows not in counts or name in columns:
            raise ValueError("its header has a column of a wrong type")
        if name in kinds:
            if (kind, rows) != kinds[name]:
                raise ValueError(f"its column {name} has a wrong type")
            columns[name] = Column(offset, np.dtype(kind), counts[rows])
        offset += _padded(int(width[1]) * counts[rows])
    if lacking := sorted(set(kinds) - set(columns)):
        raise ValueError(f"its header needs the columns {', '.join(lacking)}")
    return columns, offset


def write(
    file: IO[bytes],
    facts: Mapping[str, Any],
    counts: Mapping[str, int],
    table: tuple[Kinds, Arrays],
    columns: tuple[Kinds, Iterable[Arrays]],
) -> None:
    """Writes a file from its beginning. The columns come in parts, so that not all of them must be in memory.

    Args:
        file: opened for writing and reading.
        table, columns: the kinds, and the values.

    Raises:
        ValueError: the parts have other numbers of rows than `counts` says.
    """
    (table_kinds, table_values), (kinds, parts) = table, columns
    header = json.dumps(
        {
            "counts": counts,
            "table": [[name, *kind] for name, kind in table_kinds.items()],
            "columns": [[name, *kind] for name, kind in kinds.items()],
            **facts,
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    head = [header, *(_pad(table_values[name], kind) for name, (kind, _) in table_kinds.items())]
    columns_bytes = sum(_padded(np.dtype(kind).itemsize * counts[rows]) for kind, rows in kinds.values())
    blocks = -(-columns_bytes // BLOCK_BYTES)
    head_bytes = sum(map(len, head)) + DIGEST_BYTES * blocks
    blocks_at = _HEAD_AT + head_bytes
    columns_at, end = _places([[name, *kind] for name, kind in kinds.items()], counts, kinds, blocks_at)
    written = dict.fromkeys(kinds, 0)
    file.seek(end - 1)
    file.write(b"\0")
    for part in parts:
        for name, column in columns_at.items():
            values = np.ascontiguousarray(part[name], column.dtype)
            file.seek(column.offset + written[name] * column.dtype.itemsize)
            file.write(values.data if len(values) else b"")
            written[name] += len(values)
    if any(written[name] != column.rows for name, column in columns_at.items()):
        raise ValueError("the columns have another length than was said")
    file.seek(blocks_at)
    head += [_digest(file.read(BLOCK_BYTES)) for _ in range(blocks)]
    start = _START.pack(_MAGIC, VERSION, len(header), head_bytes)
    file.seek(0)
    file.write(start + _digest(start, *head))
    file.write(b"".join(head))


def head_digest(read: Read, path: str) -> str:
    """Returns the digest of the head that a file begins with, in hex; it stands for all of the file.

    Raises:
        IndexFileError: it is not such a file.
    """
    start = read(_HEAD_AT, 0)
    if start[: len(_MAGIC)] != _MAGIC or len(start) < _HEAD_AT:
        raise IndexFileError(f"{path} is not an index file of gpuloader")
    return start[_START.size :].hex()


def blocks(read: Read, head: Head, path: str) -> Iterator[bytes]:
    """Yields the blocks of a file of this head, which follow the head.

    Raises:
        IndexFileError: a block is damaged.
    """
    for block in range(len(head.block_digests) // DIGEST_BYTES):
        content = read(BLOCK_BYTES, head.blocks_at + block * BLOCK_BYTES)
        if not head.has_block(block, content):
            raise IndexFileError(f"{path} is damaged: the digest of block {block} is wrong")
        yield content


class Columns:
    """The columns of a file in memory or mapped. What is used of them is checked first, once in each process.

    Args:
        data: all of the file.
        file: its descriptor, which is closed with this object, if `data` is mapped.
    """

    def __init__(
        self, head: Head, data: bytes | mmap.mmap, path: str, check_values: CheckValues, file: int | None = None
    ) -> None:
        self.head = head
        self._path = path
        self._check_values = check_values
        self._blocks = memoryview(data)[head.blocks_at :]
        self._raw = {name: np.frombuffer(data, at.dtype, at.rows, at.offset) for name, at in head.columns.items()}
        self._unchecked = np.ones(-(-len(self._blocks) // BLOCK_BYTES), np.bool_)
        self._any_unchecked = True
        self._state = None if file is None else _state(file)
        self._file = file

    @classmethod
    def map(cls, path: Path, read_its_head: ReadHead, check_values: CheckValues) -> Columns:
        """Maps a file that only this library writes; see the module's docstring.

        Raises:
            IndexFileError: as `read_head`.
            OSError: it cannot be opened.
        """
        check_regular(path)
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            head = read_its_head(partial(os.pread, file), os.fstat(file).st_size, str(path))
            data = mmap.mmap(file, head.file_bytes, access=mmap.ACCESS_READ)
            return cls(head, data, str(path), check_values, file)
        except BaseException:
            os.close(file)
            raise

    @property
    def is_mapped(self) -> bool:
        """Whether the file is mapped, and not in memory."""
        return self._file is not None

    def __del__(self) -> None:
        if (file := getattr(self, "_file", None)) is not None:
            os.close(file)

    def use(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Returns rows [start, stop) of a column, read-only. If the file is mapped, do not keep them: ask again.

        Raises:
            IndexFileError: the file is damaged, or was changed since it was opened.
        """
        values, column = self._raw[name], self.head.columns[name]
        stop = column.rows if stop is None else stop
        first, size = column.offset - self.head.blocks_at, column.dtype.itemsize
        end = first + stop * size if start < stop else 0
        self._check(slice((first + start * size) // BLOCK_BYTES, -(-end // BLOCK_BYTES)))
        return values[start:stop]

    def at(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Returns a copy of these rows of a column; raises as `use`."""
        column = self.head.columns[name]
        self._check((column.offset - self.head.blocks_at + rows * column.dtype.itemsize) // BLOCK_BYTES)
        values: NDArray[Any] = self._raw[name][rows]
        return values

    def _check(self, blocks: slice | NDArray[np.int64]) -> None:
        """Checks that the file is unchanged, and those of these blocks that were not checked yet."""
        # Before anything is read: pages beyond the end of a file that was cut would end the process by a signal, and
        # an overwritten block would differ from what was checked. Its digest is not compared again at later uses.
        if self._file is not None and _state(self._file) != self._state:
            raise self._refuse("was cut or overwritten while it was in use")
        if self._any_unchecked:
            numbers = np.arange(len(self._unchecked))[blocks]
            for block in np.unique(numbers[self._unchecked[numbers]]).tolist():
                self._check_block(block)
                self._unchecked[block] = False
            self._any_unchecked = bool(self._unchecked.any())

    def _check_block(self, block: int) -> None:
        start = block * BLOCK_BYTES
        content = self._blocks[start : start + BLOCK_BYTES]
        if not self.head.has_block(block, content):
            raise self._refuse(f"is damaged: the digest of block {block} is wrong")
        for name, column in self.head.columns.items():
            before, size = self.head.blocks_at + start - column.offset, column.dtype.itemsize
            first, last = max(0, before // size), min(column.rows, -(-(before + len(content)) // size))
            if first < last:
                try:
                    self._check_values(self.head, self._raw, name, first, last)
                except ValueError as error:
                    raise self._refuse(f"is damaged: {error}") from None

    def _refuse(self, problem: str) -> IndexFileError:
        if self._file is None:
            return IndexFileError(f"{self._path} {problem}")
        with suppress(OSError):
            Path(self._path).unlink()
        return IndexFileError(f"{self._path} {problem}. It was removed: make the loader again, and it is made again")


def _state(file: int) -> tuple[int, int]:
    stat = os.fstat(file)
    return stat.st_size, stat.st_mtime_ns


def _digest(*parts: bytes | memoryview) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()


def _padded(length: int) -> int:
    return -(-length // 8) * 8


def _pad(values: NDArray[Any], kind: str) -> bytes:
    data = np.ascontiguousarray(values, kind).tobytes()
    return data + bytes(-len(data) % 8)
