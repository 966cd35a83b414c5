"""Tables: named columns of numbers, and facts about them, in a file that is read or mapped. Version 6:

    bytes       content
    0-7         b"GPULIDX\\x06"; the last byte is the version
    8-15        where the head begins, little-endian like all numbers here
    16-23       length of the head's JSON in bytes
    24-55       BLAKE2b of bytes 0 to 23 and of the head
    56-         the columns, one after the other, each padded with zeros to a multiple of 8
    then        the head, up to the end of the file:
                  JSON, padded with spaces to a multiple of 8: {"counts": {NAME: number of rows}, and the facts}
                  the few columns that are read at once, padded in the same way
                  BLAKE2b of each 1 MiB from byte 56 on; the last part, up to the head, may be shorter

The version determines the columns. The head's digest is checked when a file is opened; because the head has the digests
of the blocks, it identifies the whole file. The digest of a block, and the values in it, are checked at the first use
of the block in a process.

**Mapping.** If a program truncates a mapped file, the kernel ends every process that reads beyond the new end. So only
files in the user's cache folder are mapped, which this library alone writes, always under another name first; other
files are copied. Before each use, the size and time of the mapped file are compared with the values at opening: a file
that was truncated or overwritten raises `IndexFileError`, and is not read. A file that was removed or replaced stays
valid, because the mapping holds it. Only a truncation between comparison and read, within a microsecond, is not found.

safetensors, Arrow and NumPy read their own files as fast, but they do not validate them, and the process ends if a
mapped file is truncated.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from gpuloader.base.regular_file import Read, check_regular
from gpuloader.base.values import is_integer
from gpuloader.errors import IndexFileError

VERSION = 6
BLOCK_BYTES = 1 << 20
DIGEST_BYTES = 32

Kinds: TypeAlias = Mapping[str, tuple[str, str]]
"""The columns: name -> (type, name of the count of rows)."""
Arrays: TypeAlias = Mapping[str, NDArray[Any]]
_Places: TypeAlias = Mapping[str, tuple[int, np.dtype[Any], int]]
"""The columns: name -> (first byte in the file, type, number of rows)."""

_MAGIC = b"GPULIDX"
_START = struct.Struct("<7sBQQ")
COLUMNS_AT = _START.size + DIGEST_BYTES
_MOST_HEAD_BYTES = 2 << 30  # six times the head of a billion samples


class Table:
    """The columns and facts of a file. Parts of columns are validated at their first use in each process.

    A subclass names the columns and validates their values. The constructor reads only the head; `parse` and `map` also
    give the columns.

    Args:
        read: reads the file.
        file_bytes: the size of the file.
        path: the name of the file in errors.

    Attributes:
        facts: the JSON of the head.
        head: the columns in the head.
        seal: the digest of the head, which identifies the whole file.
        file_bytes: the size of the file.

    Raises:
        IndexFileError: it is not a table, is damaged, or has another version.
    """

    HEAD: ClassVar[Kinds]
    COLUMNS: ClassVar[Kinds]

    def __init__(self, read: Read, file_bytes: int, path: str) -> None:
        self.path = path
        self.file_bytes = file_bytes
        self._data: bytes | mmap.mmap | None = None
        self._file: int | None = None  # the descriptor, if the file is mapped
        self._state = 0, 0
        start = _read_start(read, path)
        _, version, self._head_at, json_bytes = _START.unpack_from(start)
        if version != VERSION:
            raise IndexFileError(f"{path} has format version {version}, this gpuloader reads version {VERSION}")
        head_bytes = file_bytes - self._head_at
        if head_bytes > _MOST_HEAD_BYTES:
            raise IndexFileError(f"{path} is damaged: a head of {head_bytes:,} bytes, more than {_MOST_HEAD_BYTES:,}")
        head = read(head_bytes, self._head_at) if head_bytes > 0 else b""
        self.seal = _digest(start[: _START.size], head)
        if len(head) != head_bytes or self.seal != start[_START.size :]:
            raise IndexFileError(f"{path} is damaged: the digest of its head is wrong")
        try:
            self._parse(head, json_bytes)
            self.check_head()
        except (ValueError, RecursionError) as error:  # not written by `write_head`
            raise IndexFileError(f"{path} is damaged: {error}") from None

    def _parse(self, head: bytes, json_bytes: int) -> None:
        facts = json.loads(head[:json_bytes])
        if not isinstance(facts, dict) or not isinstance(facts.get("counts"), dict):
            raise ValueError("its header is not an object with counts")
        self.facts: dict[str, Any] = facts
        self.counts: dict[str, int] = facts["counts"]
        rows = {rows for _, rows in (*self.HEAD.values(), *self.COLUMNS.values())}
        if not all(is_integer(self.counts.get(each), 0, 2**62) for each in rows):
            raise ValueError("its header has wrong counts")
        places, end = _places(self.HEAD, self.counts, _padded(json_bytes))
        blocks = -(-(self._head_at - COLUMNS_AT) // BLOCK_BYTES)
        columns_end = _places(self.COLUMNS, self.counts, COLUMNS_AT)[1]
        if columns_end != self._head_at or end + DIGEST_BYTES * blocks != len(head):
            raise ValueError("its header has a wrong length")
        self.head = _views(head, places)
        self._block_digests = head[end:]

    @classmethod
    def parse(cls, data: bytes, path: str) -> Self:
        """Makes a table from the content of a file."""
        table = cls(lambda count, offset: data[offset : offset + count], len(data), path)
        table._use(data)
        return table

    @classmethod
    def map(cls, path: Path) -> Self:
        """Maps a file that only this library writes; see the module's docstring.

        Raises:
            IndexFileError: it is damaged or has another version. A damaged block raises it at the first use.
            OSError: it cannot be opened.
        """
        check_regular(path)
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            table = cls(partial(os.pread, file), os.fstat(file).st_size, str(path))
            table._use(mmap.mmap(file, table.file_bytes, access=mmap.ACCESS_READ))
            table._state = _state(file)
            table._file = file
            return table
        except BaseException:
            os.close(file)
            raise

    def _use(self, data: bytes | mmap.mmap) -> None:
        self._data = data
        self._places = _places(self.COLUMNS, self.counts, COLUMNS_AT)[0]
        self._raw = _views(data, self._places)
        self._unchecked = np.ones(len(self._block_digests) // DIGEST_BYTES, np.bool_)
        self._any_unchecked = True

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:  # at the end, modules are empty
        if (file := getattr(self, "_file", None)) is not None:
            _close(file)

    def to_bytes(self) -> bytes:
        """Returns the content of the file."""
        assert self._data is not None
        return bytes(self._data)

    def column(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Returns rows [start, stop) of a column, read-only. Do not keep the result; call it again instead.

        Raises:
            IndexFileError: the file is damaged, or was changed since it was opened.
        """
        offset, dtype, rows = self._places[name]
        stop = rows if stop is None else stop
        first, end = (offset - COLUMNS_AT + row * dtype.itemsize for row in (start, stop))
        self._check(slice(first // BLOCK_BYTES, -(-end // BLOCK_BYTES) if start < stop else 0))
        return self._raw[name][start:stop]

    def at(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Returns a copy of these rows of a column; raises the errors of `column`."""
        offset, dtype, _ = self._places[name]
        self._check((offset - COLUMNS_AT + rows * dtype.itemsize) // BLOCK_BYTES)
        values: NDArray[Any] = self._raw[name][rows]
        return values

    def check_copy(self, read: Read) -> None:
        """Checks the digests of all blocks in a copy of the file.

        Raises:
            IndexFileError: a block is damaged.
        """
        for block, at in enumerate(range(COLUMNS_AT, self._head_at, BLOCK_BYTES)):
            self._check_digest(block, read(min(BLOCK_BYTES, self._head_at - at), at))

    def check_head(self) -> None:
        """Validates the head; raises ValueError if it is invalid."""

    def check_values(self, raw: Arrays, name: str, start: int, stop: int) -> None:
        """Validates rows [start, stop) of a column of `raw`; raises ValueError for an impossible value."""

    def refuse(self, problem: str) -> IndexFileError:
        """Returns the error for a file with a problem, and removes the file if it is mapped."""
        if self._file is None:
            return IndexFileError(f"{self.path} {problem}")
        with suppress(OSError):
            Path(self.path).unlink()
        return IndexFileError(f"{self.path} {problem}. It was removed: make the loader again to rebuild it")

    def _check(self, blocks: slice | NDArray[np.int64]) -> None:
        """Checks that the file is unchanged, and validates those of the blocks that were not validated yet."""
        # Before any read: a read beyond the end of a truncated file would end the process by a signal, and an
        # overwritten block could differ from the validated one, because its digest is checked only once.
        if self._file is not None and _state(self._file) != self._state:
            raise self.refuse("was cut or overwritten while it was in use")
        if self._any_unchecked:
            used = np.zeros_like(self._unchecked)
            used[blocks] = True
            for block in np.flatnonzero(used & self._unchecked).tolist():
                self._check_block(block)
                self._unchecked[block] = False
            self._any_unchecked = bool(self._unchecked.any())

    def _check_block(self, block: int) -> None:
        assert self._data is not None
        start = COLUMNS_AT + block * BLOCK_BYTES
        end = min(start + BLOCK_BYTES, self._head_at)
        self._check_digest(block, memoryview(self._data)[start:end])
        for name, (offset, dtype, rows) in self._places.items():
            first, stop = max(0, (start - offset) // dtype.itemsize), min(rows, -((offset - end) // dtype.itemsize))
            if first < stop:
                try:
                    self.check_values(self._raw, name, first, stop)
                except ValueError as error:
                    raise self.refuse(f"is damaged: {error}") from None

    def _check_digest(self, block: int, content: bytes | memoryview) -> None:
        if _digest(content) != self._block_digests[block * DIGEST_BYTES : (block + 1) * DIGEST_BYTES]:
            raise self.refuse(f"is damaged: the digest of block {block} is wrong")


def write_columns(file: IO[bytes], at: int, kinds: Kinds, counts: Mapping[str, int], parts: Iterable[Arrays]) -> int:
    """Writes columns, in consecutive parts, from byte `at` on; returns where they end.

    Raises:
        ValueError: the numbers of rows differ from `counts`.
    """
    places, end = _places(kinds, counts, at)
    written = dict.fromkeys(kinds, 0)
    if end > at:
        file.seek(end - 1)
        file.write(b"\0")  # the bytes before it become zeros
    for part in parts:
        for name, (offset, dtype, _) in places.items():
            values = np.ascontiguousarray(part[name], dtype)
            file.seek(offset + written[name] * dtype.itemsize)
            file.write(values.data if len(values) else b"")
            written[name] += len(values)
    if any(written[name] != rows for name, (_, _, rows) in places.items()):
        raise ValueError("the columns have another length than was said")
    return end


def write_head(file: IO[bytes], at: int, facts: Mapping[str, Any], kinds: Kinds, few: Arrays) -> None:
    """Writes the head of a file, open for writing and reading, whose columns end at byte `at`."""
    header = json.dumps(facts).encode()
    head = [header + b" " * (-len(header) % 8)]
    for name, (kind, _) in kinds.items():
        values = np.ascontiguousarray(few[name], kind).tobytes()
        head.append(values + bytes(-len(values) % 8))
    for block in range(COLUMNS_AT, at, BLOCK_BYTES):
        file.seek(block)
        head.append(_digest(file.read(min(BLOCK_BYTES, at - block))))
    start = _START.pack(_MAGIC, VERSION, at, len(header))
    file.seek(at)
    file.write(b"".join(head))
    file.seek(0)
    file.write(start + _digest(start, *head))


def read_seal(read: Read, path: str) -> str:
    """Returns the seal of a file, in hex.

    Raises:
        IndexFileError: it is not a table.
    """
    return _read_start(read, path)[_START.size :].hex()


def _read_start(read: Read, path: str) -> bytes:
    start = read(COLUMNS_AT, 0)
    if start[: len(_MAGIC)] != _MAGIC or len(start) < COLUMNS_AT:
        raise IndexFileError(f"{path} is not an index file of gpuloader")
    return start


def _places(kinds: Kinds, counts: Mapping[str, int], offset: int) -> tuple[_Places, int]:
    """Returns the locations of columns, the first at `offset`, and the end of the last column."""
    places = {}
    for name, (kind, rows) in kinds.items():
        dtype = np.dtype(kind)
        places[name] = offset, dtype, counts[rows]
        offset += _padded(dtype.itemsize * counts[rows])
    return places, offset


def _views(data: bytes | mmap.mmap, places: _Places) -> Arrays:
    return {name: np.frombuffer(data, dtype, rows, offset) for name, (offset, dtype, rows) in places.items()}


def _padded(length: int) -> int:
    return -(-length // 8) * 8


def _state(file: int) -> tuple[int, int]:
    stat = os.fstat(file)
    return stat.st_size, stat.st_mtime_ns


def _digest(*parts: bytes | memoryview) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()
