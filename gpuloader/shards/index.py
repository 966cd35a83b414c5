"""The index of shards: the locations, image sizes and labels of their samples.

Its file is a table (`gpuloader.shards.table`). The index of many shards has the same format as the index of one shard,
with the samples of all shards in order. Its facts are:

    extensions  the components' extensions, without the dot, in lower case
    left_out    the first members that are in no sample: [name, offset, why, number of the shard]
    hidden      [how many pictures are in hidden folders, the name of the first, number of its shard], or [] if none is
    names       the shards' names, or [] if the file does not name them
    tags        the tags of the shards' versions on a store, as in `gpuloader.shards.remote.store`, or []
    having      how many samples have a component of each extension
    largest     [height, width] of the largest image among those whose pixels have so many binary digits, for each
                number of digits that occurs
    labels      the smallest and the largest label other than NO_LABEL and BAD_LABEL; [] if there is none
    label_digest  32 hex digits, BLAKE2b of the labels
    data_digest   32 hex digits, the `DataDigest` of all samples

A loader reads these facts instead of all samples; they are computed once, when the file is written. Its counts, and the
columns with as many rows, are:

    turned, seekable, jpegs, decoded, too_large  the images that EXIF turns, that are seekable, that are JPEGs by their
                extensions or headers, that are arrays, that exceed the allowed number of bytes
    above_8_bits, alpha, profile, frames  the images whose headers announce more than 8 bits, an alpha channel, an ICC
                profile, several frames
    unlabelled, misfits  the samples with NO_LABEL, with BAD_LABEL
    folders     the folders of the samples
    shards      shard_bytes i8, shard_mtime_ns i8: size and time of the indexed tar, from stat
                sample_end i8: the samples of the shards up to and with this one
                left_out_count i8: all members that are in no sample, except those in hidden folders
                data_digest V16: `DataDigest` of its samples
    samples     image_offset i8, image_size i8: in the tar, in bytes
                height i4, width i4: in pixels as stored; 0 if the header did not say
                orientation u1: EXIF's, 1 to 8; 0 if it is not known
                traits u1: bits, by its header (`gpuloader.images.traits`): 1 if parts of the image can be cut, 2 for
                  more than 8 bits, 4 for alpha, 8 for an ICC profile, 16 for several frames
                label i8: from `.cls`, or NO_LABEL, or BAD_LABEL
                key_end i8, component_end i8: where the sample's key and components end in the columns below
                folder i4: the number of its folder, which is the key up to the last slash
    components  component_extension i4: the number of its extension; component_offset i8, component_size i8
    key_bytes   key_bytes u1: the keys in UTF-8 (surrogateescape)
    folder_names  folder_names u1: the folders' names in the same way, with a zero between two

The columns of the shards are in the head.

A file is never used if a digest, the shard's size or its time differs, or if it has a value that a scan cannot write.
The digests detect damage; the checks of the values detect a forged file.

A sample is the members with the same key: the member's path up to the first dot of its file name, as in WebDataset. The
rest, in lower case, is the component's extension. The components of a sample may be anywhere in the tar.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import islice, pairwise
from math import prod
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from gpuloader.base.atomic_files import atomic_file
from gpuloader.base.regular_file import read_regular
from gpuloader.base.values import is_integer
from gpuloader.errors import IndexFileError
from gpuloader.images.limits import MAX_ENCODED_BYTES
from gpuloader.images.traits import IN_HEADERS, SEEKABLE
from gpuloader.shards.data_digest import DataDigest
from gpuloader.shards.pictures import ARRAY_EXTENSION, JPEG_EXTENSIONS
from gpuloader.shards.table import COLUMNS_AT, Arrays, Kinds, Table, write_columns, write_head

NO_LABEL = -(2**63)
"""The label of a sample without a `.cls` component."""

BAD_LABEL = NO_LABEL + 1
"""The label of a sample whose `.cls` component is not an integer in ASCII."""

LEFT_OUT_KEPT = 1000
"""The maximum number of skipped members that an index lists; it counts all."""

_COLUMNS = {
    "image_offset": ("<i8", "samples"),
    "image_size": ("<i8", "samples"),
    "height": ("<i4", "samples"),
    "width": ("<i4", "samples"),
    "orientation": ("|u1", "samples"),
    "traits": ("|u1", "samples"),
    "label": ("<i8", "samples"),
    "key_end": ("<i8", "samples"),
    "component_end": ("<i8", "samples"),
    "folder": ("<i4", "samples"),
    "component_extension": ("<i4", "components"),
    "component_offset": ("<i8", "components"),
    "component_size": ("<i8", "components"),
    "key_bytes": ("|u1", "key_bytes"),
}
_LAST_COLUMN = {"folder_names": ("|u1", "folder_names")}
_ENDS = {"key_end": "key_bytes", "component_end": "components"}
_NO_BYTES = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # surrogates that surrogateescape never makes
_MOST_BYTES_PER_SHARD_BYTE = 8  # one byte of a name takes up to six in JSON; each member takes 512 bytes of the tar
_MOST_BYTES_BESIDE = 1 << 20
_BLOCK_ROWS = 1 << 14
_COUNTED = ("turned", "seekable", "jpegs", "decoded", "too_large", *IN_HEADERS, "unlabelled", "misfits")
_OF_IMAGES = ("component_offset", "component_extension")
_DIGEST = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True)
class SkippedMember:
    """A member of a tar that belongs to no sample: name, data offset, reason, and the number of the shard."""

    name: str
    offset: int
    why: str
    shard: int = 0


class _Findings:
    """The facts and counts of an index, computed while samples are written in parts."""

    def __init__(self, extensions: Sequence[str]) -> None:
        self._extensions = extensions
        self._labels = hashlib.blake2b(digest_size=16)
        self.counts = dict.fromkeys(_COUNTED, 0)
        self.facts: dict[str, Any] = {"having": [0] * len(extensions), "largest": [], "labels": []}
        self.facts["label_digest"] = self._labels.hexdigest()

    def add(self, part: Arrays) -> None:
        """Adds samples, given as columns of `Index` with only their components."""
        labels, images = part["label"], _extensions_of_images(np.append(0, part["component_end"]), part)
        for name, are_such in {
            "turned": part["orientation"] > 1,
            "seekable": part["traits"] & SEEKABLE > 0,
            "jpegs": (part["traits"] & SEEKABLE > 0) | self._are(images, JPEG_EXTENSIONS),
            **{name: part["traits"] & bit > 0 for name, bit in IN_HEADERS.items()},
            "decoded": self._are(images, (ARRAY_EXTENSION,)),
            "too_large": part["image_size"] > MAX_ENCODED_BYTES,
            "unlabelled": labels == NO_LABEL,
            "misfits": labels == BAD_LABEL,
        }.items():
            self.counts[name] += int(are_such.sum())
        having = np.bincount(part["component_extension"], minlength=len(self._extensions)).tolist()
        self._labels.update(np.ascontiguousarray(labels, "<i8"))
        numbers = labels[labels > BAD_LABEL]
        ends = [*self.facts["labels"], *((numbers.min().item(), numbers.max().item()) if len(numbers) else ())]
        self.facts |= {
            "having": [sum(each) for each in zip(self.facts["having"], having)],
            "labels": [min(ends), max(ends)] if ends else [],
            "label_digest": self._labels.hexdigest(),
            "largest": self._largest(part["height"], part["width"]),
        }

    def _are(self, images: NDArray[np.int32], extensions: Sequence[str]) -> NDArray[np.bool_]:
        numbers = [number for number, extension in enumerate(self._extensions) if extension in extensions]
        return np.asarray(np.isin(images, numbers))

    def _largest(self, heights: NDArray[np.int32], widths: NDArray[np.int32]) -> list[list[int]]:
        pixels = heights.astype(np.int64) * widths
        digits = np.frexp(pixels)[1]
        found = {prod(size).bit_length(): size for size in self.facts["largest"]}
        for number in np.flatnonzero(np.bincount(digits, pixels)).tolist():
            row = int(np.where(digits == number, pixels, 0).argmax())
            found[number] = max(found.get(number, [0, 0]), [int(heights[row]), int(widths[row])], key=prod)
        return [found[number] for number in sorted(found)]


class Index(Table):
    """The samples of one shard or of many, as rows.

    Attributes:
        extensions: the extensions that the column `component_extension` refers to by number.
        left_out: the first members that belong to no sample.
        names: the names of the shards, if the file has them.
        tags: the tags of the shards' versions, if they are on a store.
        sample_end, shard_bytes, shard_mtime_ns, left_out_count: (shards,) int64, see the module's docstring.
        source: makes the same index with columns, if only the head was read.
    """

    source: Callable[[], Index] | None = None

    HEAD: ClassVar[Kinds] = {
        "shard_bytes": ("<i8", "shards"),
        "shard_mtime_ns": ("<i8", "shards"),
        "sample_end": ("<i8", "shards"),
        "left_out_count": ("<i8", "shards"),
        "data_digest": ("|V16", "shards"),
    }
    COLUMNS: ClassVar[Kinds] = {**_COLUMNS, **_LAST_COLUMN}

    def __len__(self) -> int:
        return int(self.sample_end[-1]) if len(self.sample_end) else 0

    @classmethod
    def made(
        cls,
        keys: Sequence[bytes],
        columns: Arrays,
        shard_bytes: int,
        shard_mtime_ns: int,
        extensions: Sequence[str],
        left_out: Sequence[SkippedMember] = (),
        left_out_count: int = 0,
        hidden: tuple[int, str] = (0, ""),
    ) -> Self:
        """Makes the index of one shard.

        Args:
            keys: the keys of the samples.
            columns: the columns of samples and components that do not follow from the keys.
            hidden: as in a `Listing`.
        """
        folders: dict[bytes, int] = {}
        numbers = [folders.setdefault(key.rpartition(b"/")[0], len(folders)) for key in keys]
        digest = DataDigest.of(zip(keys, columns["height"].tolist(), columns["width"].tolist()))
        head = {
            "shard_bytes": np.array([shard_bytes]),
            "shard_mtime_ns": np.array([shard_mtime_ns]),
            "sample_end": np.array([len(keys)]),
            "left_out_count": np.array([left_out_count]),
            "data_digest": np.array([digest.to_bytes()], "|V16"),
        }
        part: dict[str, NDArray[Any]] = {
            "key_end": np.cumsum([len(key) for key in keys], dtype=np.int64),
            "key_bytes": np.frombuffer(b"".join(keys), np.uint8),
            "folder": np.array(numbers, np.int32),
            **columns,
        }
        counts = {rows: len(part[name]) for name, (_, rows) in _COLUMNS.items()}
        listed = {"extensions": list(extensions), "left_out": [list(astuple(item)) for item in left_out]}
        listed["hidden"] = [*hidden, 0] if hidden[0] else []
        file = io.BytesIO()
        _write(file, head, {**listed, "names": [], "tags": []}, counts, [(part, list(folders))])
        return cls.parse(file.getvalue(), "the index of a shard")

    @classmethod
    def joined(cls, indexes: Sequence[Index]) -> Self:
        """Makes one index of several, in memory."""
        file = io.BytesIO()
        write_index(file, indexes, indexes)
        return cls.parse(file.getvalue(), "the index of several shards")

    @classmethod
    def read(cls, path: Path, shard_bytes: int, shard_mtime_ns: int | None = None) -> Self:
        """Reads the index of a shard with this size, and this time if given.

        Raises:
            IndexFileError: it is damaged, of another version, of several shards, or of a shard of another size or time.
            OSError: it cannot be read, or is too large for an index of this shard.
        """
        return cls.parse_one(read_regular(path, most_bytes(shard_bytes)), str(path), shard_bytes, shard_mtime_ns)

    @classmethod
    def parse_one(
        cls, data: bytes, path: str, shard_bytes: int | None = None, shard_mtime_ns: int | None = None
    ) -> Self:
        """Parses the index of one shard, of this size and time if given, and validates all of it."""
        index = cls.parse(data, path)
        index.check_shard(shard_bytes, shard_mtime_ns)
        for name in cls.COLUMNS:
            index.column(name)
        return index

    def loaded(self) -> Index:
        """Returns the index with its columns, which it reads if it has only its head."""
        return self if self.source is None else self.source()

    def without_columns(self) -> Index:
        """Returns an index with only the head, which needs little memory."""
        data = self.to_bytes()
        return Index(lambda count, offset: data[offset : offset + count], len(data), self.path)

    def check_shard(self, size_bytes: int | None, mtime_ns: int | None) -> None:
        """Raises IndexFileError unless it is the index of one shard, of this size and time if given."""
        if self.counts["shards"] != 1:
            raise IndexFileError(f"{self.path} is the index of {self.counts['shards']} shards, not of one")
        expected = self.shard_bytes.item(0), self.shard_mtime_ns.item(0)
        given = zip((size_bytes, mtime_ns), expected)
        now = tuple(indexed if found is None else found for found, indexed in given)
        if now != expected:
            raise IndexFileError(
                f"{self.path} is stale: its shard has (size, mtime_ns) {now}, the index was made for {expected}"
            )

    def save(self, path: Path) -> None:
        """Writes the index to a file, which appears at `path` in one step."""
        with atomic_file(path) as file:
            file.write(self.to_bytes())

    @property
    def reduced(self) -> dict[str, int]:
        """How many images RGB of 8 bits reduces, by the names in `IN_HEADERS`."""
        return {name: self.counts[name] for name in IN_HEADERS}

    def samples_of(self, shard: int) -> range:
        """Returns the sample numbers of a shard, by its number."""
        return range(self.sample_end.item(shard - 1) if shard else 0, self.sample_end.item(shard))

    def shards_of(self, samples: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Returns the shard numbers of samples."""
        return np.asarray(np.searchsorted(self.sample_end, samples, side="right"))

    def key(self, row: int) -> str:
        """Returns the key of one sample."""
        key = self.column("key_bytes", *self._part("key_end", row))
        return _text(key.tobytes())

    def each_key(self, start: int = 0, stop: int | None = None) -> Iterator[str]:
        """Yields the keys of samples [start, stop)."""
        for block in row_blocks(len(self) if stop is None else stop, start):
            yield from map(_text, self._encoded_keys(*block))

    def folders(self) -> list[str]:
        """Returns the folder names, to which the column `folder` refers by number."""
        names = self.column("folder_names").tobytes().split(b"\0") if self.counts["folders"] else []
        if len(names) != self.counts["folders"]:
            raise self.refuse("is damaged: it has another number of folders")
        return list(map(_text, names))

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

    def component_rows(self, samples: NDArray[np.int64], extensions: Sequence[str]) -> NDArray[np.int64]:
        """Returns the component rows, (n, k), of n samples for k extensions; -1 where there is none."""
        ends = self.at("component_end", samples)
        starts = np.where(samples > 0, self.at("component_end", np.maximum(samples - 1, 0)), 0)
        counts = ends - starts
        owner = np.repeat(np.arange(len(samples)), counts)
        rows = np.arange(counts.sum()) + (ends - np.cumsum(counts))[owner]
        numbers = self.at("component_extension", rows)
        found = np.full((len(samples), len(extensions)), -1, np.int64)
        for column, extension in enumerate(extensions):
            chosen = np.flatnonzero(numbers == self.extensions.index(extension))
            found[owner[chosen], column] = rows[chosen]
        return found

    def rows_without(self, extension: str) -> NDArray[np.int64]:
        """Returns the samples without a component of that extension."""
        if extension not in self.extensions:
            return np.arange(len(self))
        number = self.extensions.index(extension)
        if self.facts["having"][number] == len(self):
            return np.empty(0, np.int64)

        def lacks(start: int, stop: int) -> NDArray[np.bool_]:
            ends = self._ends_of_components(start, stop)
            is_one = self.column("component_extension", ends[0].item(), ends[-1].item()) == number
            return ~np.logical_or.reduceat(is_one, ends[:-1] - ends[0])

        return self._rows(lacks)

    def image_extensions(self, start: int = 0, stop: int | None = None) -> NDArray[np.int32]:
        """Returns the extension number, (n,), of the image of each sample in [start, stop)."""
        found = [np.empty(0, np.int32)]
        for block in row_blocks(len(self) if stop is None else stop, start):
            ends = self._ends_of_components(*block)
            part = {name: self.column(name, ends[0].item(), ends[-1].item()) for name in _OF_IMAGES}
            found.append(_extensions_of_images(ends, {**part, "image_offset": self.column("image_offset", *block)}))
        return np.concatenate(found)

    def find(self, test: Callable[[NDArray[Any]], NDArray[np.bool_]], column: str) -> NDArray[np.int64]:
        """Returns the samples whose values pass a test, which maps parts of the column, (k,), to bools, (k,)."""
        return self._rows(lambda *block: test(self.column(column, *block)))

    def _rows(self, test: Callable[[int, int], NDArray[np.bool_]]) -> NDArray[np.int64]:
        """Returns the rows that pass a test of blocks of rows [start, stop)."""
        found = (block[0] + np.flatnonzero(test(*block)) for block in row_blocks(len(self)))
        return np.concatenate([np.empty(0, np.int64), *found])

    def largest_image(self, most_pixels: int) -> tuple[int, int]:
        """Returns (height, width) of the largest image of at most `most_pixels` pixels; (0, 0) if none is known."""
        best = 0, 0
        for size in map(tuple, self.facts["largest"]):
            if prod(size) > most_pixels:  # smaller images with as many digits may be allowed
                return max(best, *self._sizes(most_pixels), key=prod)
            best = size
        return best

    def _sizes(self, most_pixels: int) -> Iterator[tuple[int, int]]:
        """Yields (height, width) of the largest image of at most `most_pixels` pixels in each block of rows."""
        for block in row_blocks(len(self)):
            height, width = self.column("height", *block), self.column("width", *block)
            pixels = height.astype(np.int64) * width
            row = int(np.where(pixels <= most_pixels, pixels, 0).argmax())
            yield (height[row].item(), width[row].item()) if pixels[row] <= most_pixels else (0, 0)

    def data_digest_of(self, start: int, stop: int) -> DataDigest:
        """Returns the `DataDigest` of samples [start, stop), from their keys and sizes."""
        digest = DataDigest()
        for block in row_blocks(stop, start):
            sides = (self.column(side, *block).tolist() for side in ("height", "width"))
            digest += DataDigest.of(zip(self._encoded_keys(*block), *sides))
        return digest

    def data_digest_of_shards(self, first: int, end: int) -> DataDigest:
        """Returns the `DataDigest` of the samples of shards [first, end)."""
        return _data_digest(self.head, first, end)

    def digest(self, shard: int | None = None) -> bytes:
        """Returns a digest of the content of a shard, by its number, or of all shards.

        It excludes times and members that belong to no sample.
        """
        shards = slice(None) if shard is None else slice(shard, shard + 1)
        samples = range(len(self)) if shard is None else self.samples_of(shard)
        first, end = samples.start, samples.stop
        ends = self.sample_end[shards] - first
        parts = {"samples": (first, end)}
        for name, rows in _ENDS.items():
            parts[rows] = (self._part(name, first)[0], self._part(name, end - 1)[1]) if first < end else (0, 0)
        columns = {name: self.column(name, *parts[rows]) for name, (_, rows) in _COLUMNS.items() if name != "folder"}
        columns |= {name: columns[name] - parts[rows][0] for name, rows in _ENDS.items()}
        # A shard's index numbers the extensions in the order of their first component.
        numbers, first_use, which = np.unique(columns["component_extension"], return_index=True, return_inverse=True)
        order = np.argsort(first_use)
        columns["component_extension"] = np.argsort(order).astype(np.int32)[which]
        extensions = tuple(self.extensions[number] for number in numbers[order].tolist())
        begin = f"{self.shard_bytes[shards].tolist()} {ends.tolist()} {extensions}"
        identity = hashlib.blake2b(begin.encode("utf-8", "surrogatepass"), digest_size=32)
        for column in columns.values():
            identity.update(np.ascontiguousarray(column))
        return identity.digest()

    def check_head(self) -> None:
        facts, counts = self.facts, self.counts
        extensions, left_out, names, tags = (
            _list(facts.get(name)) for name in ("extensions", "left_out", "names", "tags")
        )
        if not all(map(_is_name, extensions)) or len(set(extensions)) < len(extensions):
            raise ValueError("its header has wrong extensions")
        for words in (names, tags):
            if not all(map(_is_name, words)) or len(words) not in (0, counts["shards"]):
                raise ValueError("its header has wrong names or tags")
        self.shard_bytes, self.shard_mtime_ns, self.sample_end, self.left_out_count, _ = self.head.values()
        sizes, ends = self.shard_bytes, self.sample_end
        if not all(_is_left_out(item, sizes) for item in left_out):
            raise ValueError("its header has wrong members left out")
        if min(sizes.min(initial=0), self.left_out_count.min(initial=0)) < 0 or len(left_out) > sum(
            self.left_out_count.tolist()
        ):
            raise ValueError("its table has a wrong size or number")
        if ends.min(initial=0) < 0 or (ends[1:] < ends[:-1]).any() or counts["samples"] != len(self):
            raise ValueError("its shards do not follow each other")
        if not len(self) and (counts["components"] or counts["key_bytes"]):
            raise ValueError("it has components without samples")
        if not all(is_integer(counts.get(name), 0, len(self) + 1) for name in (*_COUNTED, "folders")):
            raise ValueError("its header has wrong counts of samples")
        self.extensions, self.names, self.tags = tuple(extensions), names, tags
        self.left_out = tuple(SkippedMember(*item) for item in left_out)
        having, largest, labels, hidden = (_list(facts.get(name)) for name in ("having", "largest", "labels", "hidden"))
        if hidden and not (is_integer(hidden[0], 1) and _is_left_out([*hidden[1:2], 0, "", *hidden[2:]], sizes)):
            raise ValueError("its header has wrong hidden pictures")
        if len(having) != len(extensions) or len(labels) not in (0, 2):
            raise ValueError("its header has wrong numbers of components or labels")
        if not all(is_integer(label, BAD_LABEL + 1, 2**63) for label in labels):
            raise ValueError("its header has wrong labels")
        if not all(len(_list(size)) == 2 and all(is_integer(side, 1, 2**31) for side in size) for size in largest):
            raise ValueError("its header has a wrong size of an image")
        if not all(_DIGEST.fullmatch(str(facts.get(name))) for name in ("label_digest", "data_digest")):
            raise ValueError("its header has wrong digests")

    def check_values(self, raw: Arrays, name: str, start: int, stop: int) -> None:
        values = raw[name][start:stop]
        if name in _ENDS:
            before = raw[name][start - 1] if start else 0
            total, last = self.counts[_ENDS[name]], stop == len(raw[name])
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
            largest = self.shard_bytes.max(initial=0)
            if min(offsets.min(), sizes.min()) < 0 or (sizes > largest - offsets).any():
                raise ValueError("it points outside the shard")
        elif name in ("height", "width"):
            heights, widths = raw["height"][start:stop], raw["width"][start:stop]
            if min(heights.min(), widths.min()) < 0 or ((heights == 0) != (widths == 0)).any():
                raise ValueError("an image has no possible height and width")
        elif name == "label" and not self._has_labels(values):
            raise ValueError("a label is not one of those that its header says")
        elif (numbers := self._numbers_in(name)) is not None and not 0 <= values.min() <= values.max() < numbers:
            raise ValueError(f"its column {name} has an impossible number")

    def _numbers_in(self, name: str) -> int | None:
        """Returns the exclusive upper limit of a column's numbers; None if it has none."""
        folders, extensions = self.counts["folders"], len(self.extensions)
        limits = {"orientation": 9, "traits": 32, "folder": folders, "component_extension": extensions}
        return limits.get(name)

    def _has_labels(self, labels: NDArray[np.int64]) -> bool:
        """Returns whether labels are in the range that the head states."""
        ends = self.facts["labels"] or [BAD_LABEL, BAD_LABEL]
        least = NO_LABEL if self.counts["unlabelled"] else BAD_LABEL if self.counts["misfits"] else ends[0]
        return bool(labels.min() >= least and labels.max() <= ends[1])

    def _encoded_keys(self, start: int, stop: int) -> Iterator[bytes]:
        """Yields the bytes of the keys of a block of at least one sample."""
        first, ends = self._part("key_end", start)[0], self.column("key_end", start, stop)
        return _split(self.column("key_bytes", first, ends[-1].item()), (ends - first).tolist())

    def _ends_of_components(self, start: int, stop: int) -> NDArray[np.int64]:
        """Returns the first component row of a block of samples, and then the end row of each sample."""
        return np.append(self._part("component_end", start)[0], self.column("component_end", start, stop))

    def _part(self, ends: str, row: int) -> tuple[int, int]:
        bounds = self.column(ends, max(0, row - 1), row + 1).tolist()
        return (bounds[0] if row else 0), bounds[-1]


def write_index(
    file: IO[bytes],
    heads: Sequence[Index],
    indexes: Iterable[Index],
    names: Sequence[str] = (),
    tags: Sequence[str] = (),
) -> None:
    """Joins several indexes into one file, which is open for writing and reading.

    Args:
        heads: the heads of the indexes.
        indexes: the same indexes with columns; only one of them needs to be in memory at a time.
        names, tags: the names and tags of the shards, or empty.

    Raises:
        IndexFileError: an index does not match its head.
    """
    extensions = list(dict.fromkeys(name for each in heads for name in each.extensions))
    number_of = {name: number for number, name in enumerate(extensions)}
    heads_of = {name: [each.head[name] for each in heads] for name in Index.HEAD}
    head = {name: np.concatenate([np.empty(0, Index.HEAD[name][0]), *parts]) for name, parts in heads_of.items()}
    counts = {rows: sum(each.counts[rows] for each in heads) for _, rows in _COLUMNS.values()}
    head["sample_end"] = np.cumsum([len(each) for each in heads], dtype=np.int64)
    left_out = (replace(item, shard=shard) for shard, each in enumerate(heads) for item in each.left_out)
    hidden = [(*each.facts["hidden"][:2], shard) for shard, each in enumerate(heads) if each.facts["hidden"]]

    def parts() -> Iterator[tuple[Arrays, Sequence[bytes]]]:
        for index in indexes:
            part = {name: index.column(name) for name in _COLUMNS}
            if index.extensions != tuple(extensions):
                numbers = np.array([number_of[name] for name in index.extensions], np.int32)
                part["component_extension"] = numbers[part["component_extension"]]
            yield part, [name.encode("utf-8", "surrogateescape") for name in index.folders()]

    facts = {
        "extensions": extensions,
        "left_out": [list(astuple(item)) for item in islice(left_out, LEFT_OUT_KEPT)],
        "hidden": [sum(count for count, *_ in hidden), *hidden[0][1:]] if hidden else [],
        "names": list(names),
        "tags": list(tags),
    }
    try:
        _write(file, head, facts, counts, parts())
    except (KeyError, ValueError) as error:
        raise IndexFileError(f"the index of a shard is not what its head says: {error}") from error


def _write(
    file: IO[bytes],
    head: Arrays,
    facts: Mapping[str, Any],
    counts: Mapping[str, int],
    parts: Iterable[tuple[Arrays, Sequence[bytes]]],
) -> None:
    """Writes an index: the columns from parts, each with its folder names, and then the head."""
    folders: dict[bytes, int] = {}
    findings = _Findings(facts["extensions"])

    def placed() -> Iterator[Arrays]:
        before = dict.fromkeys(_ENDS, 0)
        for columns, names in parts:
            numbers = np.array([folders.setdefault(name, len(folders)) for name in names], np.int32)
            part = {**columns, "folder": numbers[columns["folder"]]}
            findings.add(part)
            for name in _ENDS:
                part[name] = part[name] + before[name]
                before[name] = part[name].max(initial=before[name]).item()
            yield part

    end = write_columns(file, COLUMNS_AT, _COLUMNS, counts, placed())
    names = np.frombuffer(b"\0".join(folders), np.uint8)
    last_counts = {"folder_names": len(names)}
    end = write_columns(file, end, _LAST_COLUMN, last_counts, [{"folder_names": names}])
    shards = len(head["sample_end"])
    all_counts = {"shards": shards, **counts, **last_counts, **findings.counts, "folders": len(folders)}
    digest = str(_data_digest(head, 0, shards))
    write_head(file, end, {"counts": all_counts, **facts, **findings.facts, "data_digest": digest}, Index.HEAD, head)


def most_bytes(shard_bytes: int) -> int:
    """Returns the maximum bytes of the index of a shard of this size."""
    return _MOST_BYTES_PER_SHARD_BYTE * shard_bytes + _MOST_BYTES_BESIDE


def row_blocks(stop: int, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yields blocks of rows [start, stop), so that not all rows need to be in memory."""
    for first in range(start, stop, _BLOCK_ROWS):
        yield first, min(first + _BLOCK_ROWS, stop)


def _extensions_of_images(ends: NDArray[np.int64], part: Arrays) -> NDArray[np.int32]:
    """Returns the extension numbers of images, (n,); the components of `part` start at the first of `ends`."""
    numbers = np.full(len(ends) - 1, -1, np.int32)
    rows = np.repeat(np.arange(len(numbers)), np.diff(ends))
    is_image = part["component_offset"] == part["image_offset"][rows]
    numbers[rows[is_image]] = part["component_extension"][is_image]
    return numbers


def _split(keys: NDArray[np.uint8], ends: Sequence[int]) -> Iterator[bytes]:
    content = keys.tobytes()
    return (content[start:end] for start, end in pairwise([0, *ends]))


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _data_digest(head: Arrays, first: int, end: int) -> DataDigest:
    samples = np.diff(head["sample_end"], prepend=0)[first:end].tolist()
    digests = (digest.tobytes() for digest in head["data_digest"][first:end])
    return sum(map(DataDigest.from_bytes, samples, digests), DataDigest())


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NO_BYTES.search(value) is None


def _list(value: object) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise ValueError("its header lacks a list")
    return list(value)


def _is_left_out(item: object, shard_bytes: NDArray[np.int64]) -> bool:
    if not (isinstance(item, list) and len(item) == 4 and _is_name(item[0]) and _is_name(item[2])):
        return False
    offset, shard = item[1], item[3]
    return is_integer(shard, 0, len(shard_bytes)) and is_integer(offset, 0, shard_bytes.item(shard) + 1)
