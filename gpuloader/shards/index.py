"""The index of shards: where their samples are, how large the images are, which labels they have.

Its file is a container of columns (`gpuloader.shards.index_format`). The index of one shard and that of many have the
same format; that of many has the samples of all shards, in order. Its JSON has, besides what is listed there:

    extensions  the components' extensions, without the dot, in lower case
    left_out    the first members that are in no sample: [name, offset, why, number of the shard]
    names       the shards' names, or [] if the file does not name them
    tags        only if the shards are on a store: the tags of their versions, as in `gpuloader.shards.remote.store`

    counts      columns of the table and of the file, each with as many rows
    shards      shard_bytes i8, shard_mtime_ns i8: size and time of the indexed tar, from stat
                sample_end i8: the samples of the shards up to and with this one
                left_out_count i8: all members that are in no sample
                data_digest V16: `DataDigest` of its samples
    samples     image_offset i8, image_size i8: in the tar, in bytes
                height i4, width i4: in pixels as stored; 0 if the header did not say
                orientation u1: EXIF's, 1 to 8; 0 if it is not known
                seekable u1: 1 if parts of the image can be cut, by its header (`gpuloader.images.header`); 0 if not
                label i8: from `.cls`, or NO_LABEL, or BAD_LABEL
                key_end i8, component_end i8: where the sample's key and components end in the columns below
    components  component_extension i4: the number of its extension; component_offset i8, component_size i8
    key_bytes   key_bytes u1: the keys in UTF-8 (surrogateescape)

A file is never used if a digest, the shard's size or its time differs, or if it has a value that a scan cannot have
written. The digests detect damage; the checks of the values detect a forged file.

A sample is the members with the same key: the member's path up to the first dot of its file name, as in WebDataset. The
rest, in lower case, is the component's extension. A key's components may be anywhere in the tar.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import IndexFileError
from gpuloader.helpers.atomic_files import atomic_file
from gpuloader.helpers.regular_file import Read, read_regular
from gpuloader.helpers.values import is_integer
from gpuloader.shards.data_digest import DataDigest
from gpuloader.shards.index_format import Arrays, Columns, Head, read_head, write
from gpuloader.shards.kept import kept

if TYPE_CHECKING:
    from gpuloader.shards.folder import Folder, FolderStat

ARRAY_EXTENSION = "npy"
"""The extension of a decoded image, see `gpuloader.images.arrays`; other arrays have it, too."""

JPEG_EXTENSIONS = ("jpg", "jpeg")
IMAGE_EXTENSIONS = (*JPEG_EXTENSIONS, "png", "webp", "bmp", "tif", "tiff", "jp2", "ppm", "pgm", "pnm", ARRAY_EXTENSION)
"""The extensions of images. If a sample has several, the first in this order is used. Other arrays do not count."""

NO_LABEL = -(2**63)
"""The label of a sample without a `.cls` component."""

BAD_LABEL = NO_LABEL + 1
"""The label of a sample whose `.cls` component is not an integer in ASCII."""

TABLE = {
    "shard_bytes": ("<i8", "shards"),
    "shard_mtime_ns": ("<i8", "shards"),
    "sample_end": ("<i8", "shards"),
    "left_out_count": ("<i8", "shards"),
    "data_digest": ("|V16", "shards"),
}
COLUMNS = {
    "image_offset": ("<i8", "samples"),
    "image_size": ("<i8", "samples"),
    "height": ("<i4", "samples"),
    "width": ("<i4", "samples"),
    "orientation": ("|u1", "samples"),
    "seekable": ("|u1", "samples"),
    "label": ("<i8", "samples"),
    "key_end": ("<i8", "samples"),
    "component_end": ("<i8", "samples"),
    "component_extension": ("<i4", "components"),
    "component_offset": ("<i8", "components"),
    "component_size": ("<i8", "components"),
    "key_bytes": ("|u1", "key_bytes"),
}
LEFT_OUT_KEPT = 1000
"""The most members in no sample that an index lists; it counts all."""

_ENDS = {"key_end": "key_bytes", "component_end": "components"}
_NO_BYTES = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # surrogates that surrogateescape never makes
_MOST_BYTES_PER_SHARD_BYTE = 8  # one byte of a name takes up to six in JSON; each member takes 512 bytes of the tar
_MOST_BYTES_BESIDE = 1 << 20
_LARGEST_ORIENTATION = 8
_BLOCK_ROWS = 1 << 14
_ANSWERS = 1  # to be raised when the answer to a question about all samples changes


@dataclass(frozen=True)
class LeftOut:
    """A member of a tar that is in no sample: its name, the offset of its data, why, and the number of the shard."""

    name: str
    offset: int
    why: str
    shard: int = 0


@dataclass(frozen=True, eq=False)
class ShardFacts:
    """What the head of an index says of a shard.

    Attributes:
        shard_bytes, shard_mtime_ns: the tar's size and time when it was scanned.
        extensions: the extensions that the column `component_extension` refers to by number.
        left_out: the first members that are in no sample; `left_out_count` counts all of them.
        data_digest: of its samples.
        counts: the numbers of rows of the columns.
    """

    shard_bytes: int
    shard_mtime_ns: int
    extensions: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    left_out_count: int
    data_digest: DataDigest
    counts: Mapping[str, int]


class Index(ABC):
    """The samples of one shard or of many, as rows."""

    extensions: tuple[str, ...]

    @abstractmethod
    def column(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Returns rows [start, stop) of a column of the module's docstring. Do not keep them, but ask again."""

    @abstractmethod
    def __len__(self) -> int:
        """Counts the samples."""

    def key(self, row: int) -> str:
        """Returns the key of one sample."""
        key = self.column("key_bytes", *self._part("key_end", row))
        return key.tobytes().decode("utf-8", "surrogateescape")

    def each_key(self, start: int = 0, stop: int | None = None) -> Iterator[str]:
        """Yields the keys of samples [start, stop)."""
        for block in row_blocks(len(self) if stop is None else stop, start):
            for key in self._encoded_keys(*block):
                yield key.decode("utf-8", "surrogateescape")

    def all_keys(self) -> list[str]:
        """Returns the keys of all samples."""
        return list(self.each_key())

    def components(self, row: int) -> list[tuple[str, int, int]]:
        """Returns (extension, offset, size) of a sample's components, in bytes."""
        part = self._part("component_end", row)
        numbers, *offsets_and_sizes = (
            self.column(f"component_{each}", *part).tolist() for each in ("extension", "offset", "size")
        )
        return [(self.extensions[number], offset, size) for number, offset, size in zip(numbers, *offsets_and_sizes)]

    def component(self, row: int, extension: str) -> tuple[int, int] | None:
        """Returns (offset, size) in bytes of a sample's component, or None if it has none with that extension."""
        return next(((offset, size) for name, offset, size in self.components(row) if name == extension), None)

    def rows_without(self, extension: str) -> NDArray[np.int64]:
        """Returns the samples without a component of that extension."""
        if extension not in self.extensions:
            return np.arange(len(self))
        number = self.extensions.index(extension)

        def lacks(start: int, stop: int) -> NDArray[np.bool_]:
            ends = self._ends_of_components(start, stop)
            is_one = self.column("component_extension", ends[0].item(), ends[-1].item()) == number
            return ~np.logical_or.reduceat(is_one, ends[:-1] - ends[0])

        return self.kept(f"lacks {extension}", lambda: find_rows(len(self), lacks))

    def image_extensions(self, start: int = 0, stop: int | None = None) -> NDArray[np.int32]:
        """Returns (n,) the number of the extension of the image of each sample in [start, stop)."""
        stop = len(self) if stop is None else stop
        numbers = np.full(stop - start, -1, np.int32)
        for begin, end in row_blocks(stop, start):
            ends = self._ends_of_components(begin, end)
            part = ends[0].item(), ends[-1].item()
            rows = np.repeat(np.arange(begin, end), np.diff(ends))
            is_image = self.column("component_offset", *part) == self.column("image_offset", begin, end)[rows - begin]
            numbers[rows[is_image] - start] = self.column("component_extension", *part)[is_image]
        return numbers

    def decoded(self, start: int = 0, stop: int | None = None) -> NDArray[np.bool_]:
        """Returns (n,) whether the image is an array, which needs no decoding, for samples [start, stop)."""
        if ARRAY_EXTENSION not in self.extensions:
            return np.zeros((len(self) if stop is None else stop) - start, np.bool_)
        return np.asarray(self.image_extensions(start, stop) == self.extensions.index(ARRAY_EXTENSION))

    def count_jpegs(self) -> tuple[int, int]:
        """Counts the images that are JPEGs, by their extensions and headers; and those of them that are seekable."""
        named = [number for number, extension in enumerate(self.extensions) if extension in JPEG_EXTENSIONS]

        def is_jpeg(start: int, stop: int) -> NDArray[np.bool_]:
            is_named: NDArray[np.bool_] = np.isin(self.image_extensions(start, stop), named)
            return is_named | (self.column("seekable", start, stop) == 1)

        return count_rows(len(self), is_jpeg), self.count(lambda seekable: seekable == 1, "seekable")

    def find(self, test: Callable[..., NDArray[np.bool_]], *columns: str) -> NDArray[np.int64]:
        """Returns the samples whose values pass a test: it gets parts of the columns, (k,), and returns (k,) bools."""
        return find_rows(len(self), self._tested(test, columns))

    def count(self, test: Callable[..., NDArray[np.bool_]], *columns: str) -> int:
        """Counts what `find` finds."""
        return count_rows(len(self), self._tested(test, columns))

    def kept(self, what: str, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Returns what `make` makes of all samples; a mapped index keeps it for the next processes."""
        return make()

    def data_digest_of(self, start: int, stop: int) -> DataDigest:
        """Returns the `DataDigest` of samples [start, stop), from their keys and sizes."""
        digest = DataDigest()
        for block in row_blocks(stop, start):
            sides = (self.column(side, *block).tolist() for side in ("height", "width"))
            digest += DataDigest.of(zip(self._encoded_keys(*block), *sides))
        return digest

    def _tested(
        self, test: Callable[..., NDArray[np.bool_]], columns: Sequence[str]
    ) -> Callable[[int, int], NDArray[np.bool_]]:
        return lambda start, stop: test(*(self.column(name, start, stop) for name in columns))

    def _encoded_keys(self, start: int, stop: int) -> Iterator[bytes]:
        """Yields the bytes of the keys of a block of at least one sample."""
        first, ends = self._part("key_end", start)[0], self.column("key_end", start, stop).tolist()
        keys = self.column("key_bytes", first, ends[-1]).tobytes()
        return (keys[a - first : b - first] for a, b in zip([first, *ends], ends))

    def _ends_of_components(self, start: int, stop: int) -> NDArray[np.int64]:
        """Returns where the components of a block of at least one sample begin, and then where each sample's end."""
        return np.append(self._part("component_end", start)[0], self.column("component_end", start, stop))

    def _part(self, ends: str, row: int) -> tuple[int, int]:
        bounds = self.column(ends, max(0, row - 1), row + 1).tolist()
        return (bounds[0] if row else 0), bounds[-1]


@dataclass(frozen=True, eq=False)
class ShardIndex(ShardFacts, Index):
    """The samples of one tar, in its order; see the module's docstring.

    Attributes:
        columns: those of the module's docstring, by name.
    """

    columns: Arrays

    def __len__(self) -> int:
        return len(self.columns["height"])

    def column(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        return self.columns[name][start:stop]

    def facts(self) -> ShardFacts:
        """Returns what its head says."""
        return ShardFacts(**{each.name: getattr(self, each.name) for each in fields(ShardFacts)})

    def digest(self) -> bytes:
        """Identifies the indexed content: everything except the tar's time, the members left out and `seekable`."""
        return _digest(f"{self.shard_bytes}", self.extensions, self.columns)

    def save(self, path: Path) -> None:
        """Writes its file, first beside `path`, then over it in one step."""
        with atomic_file(path) as file:
            write_index(file, [self], [self])

    def to_bytes(self) -> bytes:
        """Returns the content of its file; `parse` makes the same index from it."""
        file = io.BytesIO()
        write_index(file, [self], [self])
        return file.getvalue()

    @classmethod
    def load(cls, path: Path, shard: Path | Folder) -> ShardIndex:
        """Reads an index file, and checks it against itself and against the shard as it is now.

        Raises:
            IndexFileError: it is damaged or of another version, or the shard is not the one that was indexed.
            OSError: it cannot be read, or is larger than an index of that shard can be.
        """
        stat = shard.stat()
        index = cls.read(path, stat.st_size)
        check_fresh(index, path, shard, stat)
        return index

    @classmethod
    def read(cls, path: Path, shard_bytes: int) -> ShardIndex:
        """Reads an index file if it is not too large for a shard of that size, and checks it only against itself.

        Raises:
            IndexFileError: it is damaged, or of another version.
            OSError: it cannot be read, or is larger than an index of such a shard can be.
        """
        return cls.parse(read_regular(path, most_bytes(shard_bytes)), str(path))

    @classmethod
    def parse(cls, data: bytes, path: str) -> ShardIndex:
        """Makes an index from the content of a file, which `path` names; checks it only against itself.

        Raises:
            IndexFileError: it is damaged, of another version, or of several shards.
        """
        index = SetIndex.parse(data, path)
        columns = {name: index.column(name) for name in COLUMNS}
        return cls(**vars(facts_of_one(index.head, path)), columns=columns)


class SetIndex(Index):
    """The samples of many shards, one after the other, from one file that is in memory or mapped.

    Attributes:
        names: the names of the shards, if the file has them.
        tags: the tags of the shards' versions, if they are on a store.
        sample_end, shard_bytes, shard_mtime_ns, left_out_count: (shards,) int64, as in the module's docstring.
    """

    def __init__(self, columns: Columns) -> None:
        self.head = columns.head
        self._columns = columns
        facts, table = self.head.facts, self.head.table
        self.extensions = tuple(facts["extensions"])
        self.left_out = tuple(LeftOut(*item) for item in facts["left_out"])
        self.names: tuple[str, ...] = tuple(facts["names"])
        self.tags: tuple[str, ...] = tuple(facts.get("tags", ()))
        self.sample_end: NDArray[np.int64] = table["sample_end"]
        self.shard_bytes: NDArray[np.int64] = table["shard_bytes"]
        self.shard_mtime_ns: NDArray[np.int64] = table["shard_mtime_ns"]
        self.left_out_count: NDArray[np.int64] = table["left_out_count"]

    def __len__(self) -> int:
        return int(self.sample_end[-1]) if len(self.sample_end) else 0

    @classmethod
    def of(cls, indexes: Sequence[ShardIndex]) -> SetIndex:
        """Makes one index of several, in memory."""
        file = io.BytesIO()
        write_index(file, indexes, indexes)
        return cls.parse(file.getvalue(), "the index of several shards")

    @classmethod
    def parse(cls, data: bytes, path: str) -> SetIndex:
        """Takes the content of a file, which `path` names; raises IndexFileError as `map` does."""
        head = read_index_head(lambda count, offset: data[offset : offset + count], len(data), path)
        return cls(Columns(head, data, path, _check_values))

    @classmethod
    def map(cls, path: Path) -> SetIndex:
        """Maps a file that only this library writes, see `gpuloader.shards.index_format`.

        Raises:
            IndexFileError: it is damaged or of another version. Using a damaged block raises it later.
            OSError: it cannot be opened.
        """
        return cls(Columns.map(path, read_index_head, _check_values))

    def column(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        return self._columns.use(name, start, self.head.rows(COLUMNS[name][1]) if stop is None else stop)

    def at(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Returns a copy of these rows of a column."""
        return self._columns.at(name, rows)

    def kept(self, what: str, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        of = f"{_ANSWERS} {self.head.digest.hex()} {len(self.sample_end)}"
        return kept(f"{of} {what}", make) if self._columns.is_mapped else make()

    def data_digests(self, first: int = 0, end: int | None = None) -> Iterator[DataDigest]:
        """Yields the digest of the samples of each of the shards [first, end)."""
        return _data_digests(self.head, first, len(self.sample_end) if end is None else end)

    def digest(self) -> bytes:
        """Identifies the indexed content: everything except the tars' times, the members left out and `seekable`."""
        shards = f"{self.shard_bytes.tolist()} {self.sample_end.tolist()}"
        return _digest(shards, self.extensions, {name: self.column(name) for name in COLUMNS})

    def digest_of(self, shard: int) -> bytes:
        """Returns the `digest` of the index of one of the shards, by its number."""
        first, end = (self.sample_end.item(shard - 1) if shard else 0), self.sample_end.item(shard)
        parts = {"samples": (first, end)}
        for ends, rows in _ENDS.items():
            parts[rows] = (self._part(ends, first)[0], self._part(ends, end - 1)[1]) if first < end else (0, 0)
        columns = {name: self.column(name, *parts[rows]) for name, (_, rows) in COLUMNS.items()}
        columns |= {ends: columns[ends] - parts[rows][0] for ends, rows in _ENDS.items()}
        # A shard's index numbers the extensions in the order of their first component.
        numbers, first_use, which = np.unique(columns["component_extension"], return_index=True, return_inverse=True)
        order = np.argsort(first_use)
        columns["component_extension"] = np.argsort(order).astype(np.int32)[which]
        extensions = tuple(self.extensions[number] for number in numbers[order].tolist())
        return _digest(f"{self.shard_bytes.item(shard)}", extensions, columns)


def write_index(
    file: IO[bytes],
    facts: Sequence[ShardFacts],
    indexes: Iterable[ShardIndex],
    names: Sequence[str] = (),
    tags: Sequence[str] = (),
) -> None:
    """Writes the index of one shard, or one index of several, from the beginning of a file.

    Args:
        file: opened for writing and reading.
        facts: of the shards.
        indexes: of the shards, in the same order; only one of them needs to be in memory at a time.
        names: of the shards, or none.
        tags: of the shards' versions, if they are on a store.

    Raises:
        IndexFileError: an index does not have what its facts say.
    """
    number_of = {
        name: number for number, name in enumerate(dict.fromkeys(n for each in facts for n in each.extensions))
    }
    left_out = (replace(item, shard=shard) for shard, each in enumerate(facts) for item in each.left_out)
    counts = {name: sum(each.counts[name] for each in facts) for _, name in COLUMNS.values()}
    table = {
        "shard_bytes": np.array([each.shard_bytes for each in facts], np.int64),
        "shard_mtime_ns": np.array([each.shard_mtime_ns for each in facts], np.int64),
        "sample_end": np.cumsum([each.counts["samples"] for each in facts], dtype=np.int64),
        "left_out_count": np.array([each.left_out_count for each in facts], np.int64),
        "data_digest": np.array([each.data_digest.to_bytes() for each in facts], "|V16"),
    }

    def parts() -> Iterator[Arrays]:
        before = dict.fromkeys(_ENDS, 0)
        for index in indexes:
            part = {name: index.column(name) for name in COLUMNS}
            if index.extensions != tuple(number_of):
                numbers = np.array([number_of[name] for name in index.extensions], np.int32)
                part["component_extension"] = numbers[part["component_extension"]]
            for name, rows in _ENDS.items():
                part[name] = part[name] + before[name]
                before[name] += index.counts[rows]
            yield part

    try:
        write(
            file,
            {
                "extensions": list(number_of),
                "left_out": [list(astuple(item)) for item in islice(left_out, LEFT_OUT_KEPT)],
                "names": list(names),
                **({"tags": list(tags)} if tags else {}),
            },
            {"shards": len(facts), **counts},
            (TABLE, table),
            (COLUMNS, parts()),
        )
    except (KeyError, ValueError) as error:
        raise IndexFileError(f"the index of a shard is not what its head says: {error}") from error


def read_index_head(read: Read, file_bytes: int, path: str) -> Head:
    """Reads and checks the head of an index; raises IndexFileError if it is damaged or of another version."""
    head = read_head(read, file_bytes, path, TABLE, COLUMNS)
    try:
        _check_head(head)
    except ValueError as error:
        raise IndexFileError(f"{path} is damaged: {error}") from None
    return head


def facts_of_one(head: Head, path: str) -> ShardFacts:
    """Returns what the head of one shard's index says; raises IndexFileError if it is the index of several."""
    if head.rows("shards") != 1:
        raise IndexFileError(f"{path} is the index of {head.rows('shards')} shards, not of one")
    numbers = {name: head.table[name].item() for name in ("shard_bytes", "shard_mtime_ns", "left_out_count")}
    return ShardFacts(
        **numbers,
        extensions=tuple(head.facts["extensions"]),
        left_out=tuple(LeftOut(*item) for item in head.facts["left_out"]),
        data_digest=next(_data_digests(head, 0, 1)),
        counts={rows: head.rows(rows) for _, rows in COLUMNS.values()},
    )


def check_fresh(facts: ShardFacts, path: Path, shard: Path | Folder, stat: os.stat_result | FolderStat) -> None:
    """Raises IndexFileError if the shard, with this stat, is not the one that was indexed."""
    now, expected = (stat.st_size, stat.st_mtime_ns), (facts.shard_bytes, facts.shard_mtime_ns)
    if now != expected:
        raise IndexFileError(f"{path} is stale: {shard} has (size, mtime_ns) {now}, the index was made for {expected}")


def most_bytes(shard_bytes: int) -> int:
    """Returns the most bytes that the index of a shard of this size can have."""
    return _MOST_BYTES_PER_SHARD_BYTE * shard_bytes + _MOST_BYTES_BESIDE


def row_blocks(stop: int, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yields the parts of rows [start, stop) that are used at once, so that no memory is needed for all of them."""
    for first in range(start, stop, _BLOCK_ROWS):
        yield first, min(first + _BLOCK_ROWS, stop)


def find_rows(rows: int, test: Callable[[int, int], NDArray[np.bool_]]) -> NDArray[np.int64]:
    """Returns the rows that pass a test: it gets the first row and the end of a block, and returns (k,) bools."""
    found = (start + np.flatnonzero(test(start, stop)) for start, stop in row_blocks(rows))
    return np.concatenate([np.empty(0, np.int64), *found])


def count_rows(rows: int, test: Callable[[int, int], NDArray[np.bool_]]) -> int:
    """Counts what `find_rows` finds."""
    return sum(int(np.count_nonzero(test(*block))) for block in row_blocks(rows))


def _digest(shards: str, extensions: tuple[str, ...], columns: Arrays) -> bytes:
    identity = hashlib.blake2b(f"{shards} {extensions}".encode(), digest_size=32)
    for name in COLUMNS:
        if name != "seekable":  # so that packs of tars that were begun without it can be resumed
            identity.update(np.ascontiguousarray(columns[name]))
    return identity.digest()


def _data_digests(head: Head, first: int, end: int) -> Iterator[DataDigest]:
    ends, digests = head.table["sample_end"], head.table["data_digest"]
    for shard in range(first, end):
        samples = ends.item(shard) - (ends.item(shard - 1) if shard else 0)
        yield DataDigest.from_bytes(samples, digests[shard].tobytes())


def _check_head(head: Head) -> None:
    """Raises ValueError if something in the head is not as `write_index` writes it."""
    extensions, left_out, names = (_listed(head, name) for name in ("extensions", "left_out", "names"))
    if not all(map(_is_name, extensions)) or len(set(extensions)) < len(extensions):
        raise ValueError("its header has wrong extensions")
    for words in (names, _listed(head, "tags") if "tags" in head.facts else []):
        if not all(map(_is_name, words)) or len(words) not in (0, head.rows("shards")):
            raise ValueError("its header has wrong names or tags")
    if not all(_is_left_out(item, head) for item in left_out):
        raise ValueError("its header has wrong members left out")
    sizes, counts, ends = (head.table[name] for name in ("shard_bytes", "left_out_count", "sample_end"))
    if min(sizes.min(initial=0), counts.min(initial=0)) < 0 or len(left_out) > sum(counts.tolist()):
        raise ValueError("its table has a wrong size or number")
    if (
        ends.min(initial=0) < 0
        or (ends[1:] < ends[:-1]).any()
        or head.rows("samples") != (ends[-1] if len(ends) else 0)
    ):
        raise ValueError("its shards do not follow each other")
    if head.rows("samples") == 0 and (head.rows("components") or head.rows("key_bytes")):
        raise ValueError("it has components without samples")


def _check_values(head: Head, raw: Arrays, name: str, start: int, stop: int) -> None:
    """Raises ValueError if rows [start, stop) of a column have a value that a scan cannot have written."""
    values = raw[name][start:stop]
    if name in _ENDS:
        before = raw[name][start - 1] if start else 0
        total, last = head.rows(_ENDS[name]), stop == len(raw[name])
        if (
            values[0] <= before
            or (values[1:] <= values[:-1]).any()
            or (values[-1] != total if last else values[-1] >= total)
        ):
            what = "keys" if name == "key_end" else "samples' components"
            raise ValueError(f"its {what} do not follow each other")
    elif name.endswith(("_offset", "_size")):
        kind = name.partition("_")[0]
        offsets, sizes = (raw[f"{kind}_{each}"][start:stop] for each in ("offset", "size"))
        largest = head.table["shard_bytes"].max(initial=0)
        if min(offsets.min(), sizes.min()) < 0 or (sizes > largest - offsets).any():
            raise ValueError("it points outside the shard")
    elif name in ("height", "width"):
        heights, widths = raw["height"][start:stop], raw["width"][start:stop]
        if min(heights.min(), widths.min()) < 0 or ((heights == 0) != (widths == 0)).any():
            raise ValueError("an image has no possible height and width")
    elif name == "orientation" and values.max() > _LARGEST_ORIENTATION:
        raise ValueError("an image has no possible orientation")
    elif name == "seekable" and values.max() > 1:
        raise ValueError("an image is neither seekable nor not")
    elif name == "component_extension" and (values.min() < 0 or values.max() >= len(head.facts["extensions"])):
        raise ValueError("a component has an unknown extension")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NO_BYTES.search(value) is None


def _listed(head: Head, name: str) -> list[Any]:
    values = head.facts.get(name)
    if not isinstance(values, list):
        raise ValueError(f"its header has no list of {name}")
    return values


def _is_left_out(item: object, head: Head) -> bool:
    if not (isinstance(item, list) and len(item) == 4 and _is_name(item[0]) and _is_name(item[2])):
        return False
    offset, shard = item[1], item[3]
    return (
        is_integer(shard, 0, head.rows("shards"))
        and is_integer(offset, 0, 2**63)
        and offset <= head.table["shard_bytes"][shard]
    )
