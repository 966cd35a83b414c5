"""`ShardIndex`: where one tar's samples are. It is kept in a file of this format, version 2:

    bytes       content
    0-7         b"GPULIDX\\x02"; the last byte is the version
    8-15        length of the header in bytes, little-endian like all numbers here
    16-         header: JSON, padded with spaces so that the columns begin at a multiple of 8
                  shard_bytes, shard_mtime_ns   size and time of the indexed tar, from stat
                  samples, components, key_bytes  lengths of the columns
                  extensions   the components' extensions, without the dot, in lower case
                  left_out     the first members that are in no sample: [name, offset, why]
                  left_out_count  how many such members there are in all
    then        the columns, one after the other, each padded with zeros to a multiple of 8:
                  for each sample: image_offset i8, image_size i8, height i4, width i4, label i8, key_end i8,
                    component_end i8
                  for each component, sample by sample: component_extension i4, component_offset i8,
                    component_size i8
                  key_bytes u1: the keys in UTF-8 (surrogateescape); key i ends at key_end[i]
    last 32     BLAKE2b of everything before

A file is never used if its checksum, version, shard size or time differs, or if it has a value that a scan cannot have
written. The checksum detects damage; the checks of the values detect a forged file.

A sample is the members with the same key: the member's path up to the first dot of its file name, as in WebDataset. The
rest, in lower case, is the component's extension. A key's components may be anywhere in the tar.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import IndexFileError
from gpuloader.helpers.atomic_files import atomic_file
from gpuloader.helpers.regular_file import read_regular

ARRAY_EXTENSION = "npy"
"""The extension of a decoded image, see `gpuloader.images.arrays`; other arrays have it, too."""

IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "jp2", "ppm", "pgm", "pnm", ARRAY_EXTENSION)
"""The extensions of images. If a sample has several, the first in this order is used. Other arrays do not count."""

NO_LABEL = -(2**63)
"""The label of a sample without a `.cls` component."""

BAD_LABEL = NO_LABEL + 1
"""The label of a sample whose `.cls` component is not an integer in ASCII."""

_MAGIC = b"GPULIDX\x02"
_CHECKSUM_BYTES = 32
_PER_SAMPLE = {
    "image_offset": "<i8",
    "image_size": "<i8",
    "height": "<i4",
    "width": "<i4",
    "label": "<i8",
    "key_end": "<i8",
    "component_end": "<i8",
}
_PER_COMPONENT = {"component_extension": "<i4", "component_offset": "<i8", "component_size": "<i8"}
_COLUMNS = {
    **dict.fromkeys(_PER_SAMPLE, "samples"),
    **dict.fromkeys(_PER_COMPONENT, "components"),
    "key_bytes": "key_bytes",
}
_DTYPES = {**_PER_SAMPLE, **_PER_COMPONENT, "key_bytes": "|u1"}
_COUNTS = ("shard_bytes", "samples", "components", "key_bytes", "left_out_count")
_HEADER = frozenset((*_COUNTS, "shard_mtime_ns", "extensions", "left_out"))
_NO_BYTES = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # surrogates that surrogateescape never makes

_MOST_BYTES_PER_SHARD_BYTE = 8  # one byte of a name takes up to six in JSON; each member takes 512 bytes of the tar
_MOST_BYTES_BESIDE = 1 << 20


@dataclass(frozen=True)
class LeftOut:
    """A member of the tar that is in no sample: its name, the offset of its data, and why."""

    name: str
    offset: int
    why: str


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """The samples of one tar, in its order; see the module's docstring.

    Attributes:
        shard_bytes, shard_mtime_ns: the tar's size and time when it was scanned.
        image_offset, image_size: (n,) int64, the place of the encoded images, in bytes.
        height, width: (n,) int32 pixels as stored; 0 if the header did not say.
        label: (n,) int64 from `.cls`, or NO_LABEL, or BAD_LABEL.
        extensions: the extensions that `component_extension` refers to by number.
        left_out: the first members that are in no sample; `left_out_count` counts all of them.
    """

    shard_bytes: int
    shard_mtime_ns: int
    extensions: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    left_out_count: int
    image_offset: NDArray[np.int64]
    image_size: NDArray[np.int64]
    height: NDArray[np.int32]
    width: NDArray[np.int32]
    label: NDArray[np.int64]
    key_end: NDArray[np.int64]
    component_end: NDArray[np.int64]
    component_extension: NDArray[np.int32]
    component_offset: NDArray[np.int64]
    component_size: NDArray[np.int64]
    key_bytes: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.image_offset)

    def key(self, row: int) -> str:
        """The key of one sample."""
        start = int(self.key_end[row - 1]) if row else 0
        return self.key_bytes[start : int(self.key_end[row])].tobytes().decode("utf-8", "surrogateescape")

    def all_keys(self) -> list[str]:
        """The keys of all samples."""
        data, ends = self.key_bytes.tobytes(), self.key_end.tolist()
        return [data[start:end].decode("utf-8", "surrogateescape") for start, end in zip([0, *ends], ends)]

    def component(self, row: int, extension: str) -> tuple[int, int] | None:
        """Returns (offset, size) in bytes of a sample's component, or None if it has none with that extension."""
        start = int(self.component_end[row - 1]) if row else 0
        for place in range(start, int(self.component_end[row])):
            if self.extensions[self.component_extension[place]] == extension:
                return int(self.component_offset[place]), int(self.component_size[place])
        return None

    def rows_without(self, extension: str) -> NDArray[np.int64]:
        """The samples without a component of that extension."""
        if extension not in self.extensions or len(self) == 0:
            return np.arange(len(self))
        is_one = self.component_extension == self.extensions.index(extension)
        return np.flatnonzero(~np.logical_or.reduceat(is_one, np.append(0, self.component_end[:-1])))

    def decoded(self) -> NDArray[np.bool_]:
        """(n,) whether the image is an array, which needs no decoding."""
        decoded = np.zeros(len(self), np.bool_)
        if ARRAY_EXTENSION in self.extensions:
            places = np.flatnonzero(self.component_extension == self.extensions.index(ARRAY_EXTENSION))
            rows = np.searchsorted(self.component_end, places, side="right")
            decoded[rows] = self.component_offset[places] == self.image_offset[rows]
        return decoded

    def digest(self) -> bytes:
        """Identifies the indexed content: everything except the tar's time and the members left out."""
        identity = hashlib.blake2b(f"{self.shard_bytes} {self.extensions}".encode(), digest_size=_CHECKSUM_BYTES)
        for name in _COLUMNS:
            identity.update(np.ascontiguousarray(getattr(self, name)))
        return identity.digest()

    def save(self, path: Path) -> None:
        """Writes the file format of the module's docstring, first beside `path`, then over it in one step."""
        with atomic_file(path) as file:
            file.write(self.to_bytes())

    def to_bytes(self) -> bytes:
        """The content of its file; `parse` makes the same index from it."""
        header = json.dumps(
            {
                "shard_bytes": self.shard_bytes,
                "shard_mtime_ns": self.shard_mtime_ns,
                "samples": len(self),
                "components": len(self.component_offset),
                "key_bytes": len(self.key_bytes),
                "extensions": self.extensions,
                "left_out": [[item.name, item.offset, item.why] for item in self.left_out],
                "left_out_count": self.left_out_count,
            }
        ).encode()
        header += b" " * (-len(header) % 8)
        parts = [_MAGIC, len(header).to_bytes(8, "little"), header]
        for name in _COLUMNS:
            column = getattr(self, name).astype(_DTYPES[name], copy=False).tobytes()
            parts += [column, bytes(-len(column) % 8)]
        data = b"".join(parts)
        return data + hashlib.blake2b(data, digest_size=_CHECKSUM_BYTES).digest()

    @classmethod
    def load(cls, path: Path, shard: Path) -> ShardIndex:
        """Reads an index file, and checks it against itself and against the shard as it is now.

        Raises:
            IndexFileError: it is damaged or of another version, or the shard is not the one that was indexed.
            OSError: it cannot be read, or is larger than an index of that shard can be.
        """
        stat = shard.stat()
        index = cls.read(path, stat.st_size)
        found, expected = (stat.st_size, stat.st_mtime_ns), (index.shard_bytes, index.shard_mtime_ns)
        if found != expected:
            raise IndexFileError(
                f"{path} is stale: {shard} has (size, mtime_ns) {found}, the index was made for {expected}"
            )
        return index

    @classmethod
    def read(cls, path: Path, shard_bytes: int) -> ShardIndex:
        """Reads an index file if it is not too large for a shard of that size, and checks it only against itself.

        Raises:
            IndexFileError: it is damaged, or of another version.
            OSError: it cannot be read, or is larger than an index of such a shard can be.
        """
        data = read_regular(path, _MOST_BYTES_PER_SHARD_BYTE * shard_bytes + _MOST_BYTES_BESIDE)
        return cls.parse(data, str(path))

    @classmethod
    def parse(cls, data: bytes, path: str) -> ShardIndex:
        """Makes an index from the content of a file, which `path` names; checks it only against itself.

        Raises:
            IndexFileError: it is damaged, or of another version.
        """
        if data[:7] != _MAGIC[:7] or len(data) < 16 + _CHECKSUM_BYTES:
            raise IndexFileError(f"{path} is not an index file of gpuloader")
        if data[7] != _MAGIC[7]:
            raise IndexFileError(f"{path} has format version {data[7]}, this gpuloader reads version {_MAGIC[7]}")
        body, checksum = memoryview(data)[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
        if hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest() != checksum:
            raise IndexFileError(f"{path} is damaged: its checksum is wrong")
        try:
            return cls._from_body(body)
        except (ValueError, RecursionError) as error:  # it was not written by `save`
            raise IndexFileError(f"{path} is damaged: {error}") from None

    @classmethod
    def _from_body(cls, body: memoryview) -> ShardIndex:
        position = 16 + int.from_bytes(body[8:16], "little")
        if position > len(body) or position % 8:
            raise ValueError("its header has a wrong length")
        header = _check_header(json.loads(bytes(body[16:position])))
        columns = {}
        for name, length in _COLUMNS.items():
            if position + np.dtype(_DTYPES[name]).itemsize * header[length] > len(body):
                raise ValueError(f"it ends before its column {name}")
            columns[name] = np.frombuffer(body, _DTYPES[name], header[length], position)
            position += -(-columns[name].nbytes // 8) * 8
        if position != len(body):
            raise ValueError("it does not end with its columns")
        index = cls(
            shard_bytes=header["shard_bytes"],
            shard_mtime_ns=header["shard_mtime_ns"],
            extensions=tuple(header["extensions"]),
            left_out=tuple(LeftOut(*item) for item in header["left_out"]),
            left_out_count=header["left_out_count"],
            **columns,
        )
        index._check_columns()
        return index

    def _check_columns(self) -> None:
        for offset, size in (
            (self.image_offset, self.image_size),
            (self.component_offset, self.component_size),
        ):
            if min(offset.min(initial=0), size.min(initial=0)) < 0 or (size > self.shard_bytes - offset).any():
                raise ValueError("it points outside the shard")
        if (
            min(self.height.min(initial=0), self.width.min(initial=0)) < 0
            or ((self.height == 0) != (self.width == 0)).any()
        ):
            raise ValueError("an image has no possible height and width")
        if not _are_ends(self.key_end, len(self.key_bytes)):
            raise ValueError("its keys do not follow each other")
        if not _are_ends(self.component_end, len(self.component_offset)):
            raise ValueError("its samples' components do not follow each other")
        numbers = self.component_extension
        if numbers.min(initial=0) < 0 or numbers.max(initial=-1) >= len(self.extensions):
            raise ValueError("a component has an unknown extension")


def _check_header(header: object) -> dict[str, Any]:
    """Returns the header if everything in it is as `save` writes it; otherwise raises ValueError."""
    if not isinstance(header, dict) or set(header) != _HEADER:
        raise ValueError(f"its header needs {', '.join(sorted(_HEADER))}")
    right = {name: _is_count(header[name]) for name in _COUNTS}
    right["shard_mtime_ns"] = type(header["shard_mtime_ns"]) is int
    extensions, left_out = header["extensions"], header["left_out"]
    right["extensions"] = isinstance(extensions, list) and all(map(_is_name, extensions))
    right["left_out"] = isinstance(left_out, list) and all(map(_is_left_out, left_out))
    if wrong := [name for name, fits in right.items() if not fits]:
        raise ValueError(f"its header has a wrong {', '.join(wrong)}")
    if len(set(extensions)) < len(extensions):
        raise ValueError("its header names an extension twice")
    if len(left_out) > header["left_out_count"] or any(item[1] > header["shard_bytes"] for item in left_out):
        raise ValueError("its header has a wrong left_out or left_out_count")
    return header


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NO_BYTES.search(value) is None


def _is_left_out(item: object) -> bool:
    return isinstance(item, list) and len(item) == 3 and _is_name(item[0]) and _is_count(item[1]) and _is_name(item[2])


def _are_ends(ends: NDArray[np.int64], total: int) -> bool:
    """Whether non-empty parts with these ends, one after the other, make up the whole."""
    if len(ends) == 0:
        return total == 0
    return bool(ends[0] > 0 and ends[-1] == total and (ends[1:] > ends[:-1]).all())
