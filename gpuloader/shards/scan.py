"""Makes the index of a tar: reads headers, labels and image sizes once, in the tar's order."""

from __future__ import annotations

import logging
import os
import re
from array import array
from functools import partial
from pathlib import Path

import numpy as np

from gpuloader.errors import DataError, ShardChangedError, ShardNotFoundError, TarError
from gpuloader.shards.array_header import array_size
from gpuloader.shards.image_header import image_size
from gpuloader.shards.index import ARRAY_EXTENSION, BAD_LABEL, IMAGE_EXTENSIONS, NO_LABEL, LeftOut, ShardIndex
from gpuloader.shards.regular_file import Read, open_regular
from gpuloader.shards.tar import MISSING_END, Member, members

_LEFT_OUT_KEPT = 1000
_LABEL_BYTES = 64
_INTEGER = re.compile(rb"[+-]?[0-9]{1,18}")
_IMAGE_RANKS = {extension: rank for rank, extension in enumerate(IMAGE_EXTENSIONS)}
_NO_IMAGE = len(IMAGE_EXTENSIONS)
_log = logging.getLogger("gpuloader")


def scan(shard: Path) -> ShardIndex:
    """Reads a tar's headers, labels and image sizes.

    Raises:
        TarError: the file is not a plain tar; names the first byte that does not fit.
        ShardChangedError: the file changed during the scan.
        DataError: it cannot be opened, or is not a regular file.
    """
    return _whole(shard, *scan_to_damage(shard))


def scan_to_damage(shard: Path) -> tuple[ShardIndex, TarError | None]:
    """Indexes the members before the first byte that does not fit a plain tar; returns that error, too, or None."""
    try:
        fd = open_regular(shard)
    except OSError as error:
        kind = ShardNotFoundError if isinstance(error, FileNotFoundError) else DataError
        raise kind(
            f"the shard {shard} cannot be read ({error.strerror}): it must be a file that this user may read; leave it "
            f"out, or repair it"
        ) from None
    try:
        before = os.fstat(fd)
        found = _scan(partial(os.pread, fd), before.st_size, before.st_mtime_ns, str(shard))
        after = os.fstat(fd)
    finally:
        os.close(fd)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ShardChangedError(f"{shard} was written to while it was being indexed: wait until it is complete")
    return found


def scan_bytes(read: Read, size_bytes: int, mtime_ns: int, shard: str) -> ShardIndex:
    """Like `scan`, for a tar that `read` reads; `shard` names it in errors."""
    return _whole(shard, *_scan(read, size_bytes, mtime_ns, shard))


def _scan(read: Read, size_bytes: int, mtime_ns: int, shard: str) -> tuple[ShardIndex, TarError | None]:
    damage = None
    gathered = _Gathered(read)
    try:
        for member in members(read, size_bytes, shard):
            gathered.add(member)
    except TarError as error:
        damage = error
    return gathered.index(size_bytes, mtime_ns), damage


def _whole(shard: Path | str, index: ShardIndex, damage: TarError | None) -> ShardIndex:
    """Returns the index of an undamaged shard, and warns of members that are in no sample."""
    if damage is not None:
        raise damage
    if index.left_out_count:
        first = index.left_out[0]
        _log.warning(
            "%s: %d members are in no sample, the first being %r (%s)",
            shard,
            index.left_out_count,
            first.name,
            first.why,
        )
    return index


class _Gathered:
    """Collects members into samples. It keeps numbers, not objects, because a tar may have millions of members."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._keys: dict[str, int] = {}
        self._extensions: dict[str, int] = {}
        self._has: list[int] = []  # for each key, its extensions as bits
        self._components = array("q")  # for each: key, extension, offset, size, and height, width (or a label)
        self._as_written: dict[int, str] = {}  # by offset, the names whose extensions have upper-case letters
        self._left_out: list[LeftOut] = []
        self._left_out_count = 0

    def add(self, member: Member) -> None:
        if member.kind == "directory":
            return
        folder, slash, file_name = member.name.rpartition("/")
        stem, dot, extension = file_name.partition(".")
        if member.kind == MISSING_END:
            self._leave_out(member.name, member.offset, "the archive has no end marker: it may have been cut")
        elif member.kind != "file":
            self._leave_out(member.name, member.offset, f"a {member.kind}, not a file")
        elif not stem or not dot:
            self._leave_out(member.name, member.offset, "its file name begins with a dot or has no extension")
        else:
            self._add_component(f"{folder}{slash}{stem}", extension.lower(), member)

    def _add_component(self, key: str, extension: str, member: Member) -> None:
        sample = self._keys.setdefault(key, len(self._keys))
        if sample == len(self._has):
            self._has.append(0)
        number = self._extensions.setdefault(extension, len(self._extensions))
        if self._has[sample] >> number & 1:
            self._leave_out(member.name, member.offset, f"the key has a .{extension} already")
            return
        self._has[sample] |= 1 << number
        if not member.name.endswith(extension):
            self._as_written[member.offset] = member.name
        facts = (0, 0)
        if extension == ARRAY_EXTENSION:
            facts = array_size(member.head, member.size)
        elif extension in _IMAGE_RANKS:
            facts = self._image_size(member)
        elif extension == "cls":
            facts = (_label(member), 0)
        self._components.extend((sample, number, member.offset, member.size, *facts))

    def _image_size(self, image: Member) -> tuple[int, int]:
        def read(count: int, offset: int) -> bytes:
            count = max(0, min(count, image.size - offset))  # a broken header may point beyond the image
            if offset + count <= len(image.head):
                return image.head[offset : offset + count]
            return self._read(count, image.offset + offset)

        return image_size(read)

    def _leave_out(self, name: str, offset: int, why: str) -> None:
        self._left_out_count += 1
        if len(self._left_out) < _LEFT_OUT_KEPT:
            self._left_out.append(LeftOut(name, offset, why))

    def index(self, size_bytes: int, mtime_ns: int) -> ShardIndex:
        table = np.frombuffer(self._components, np.int64).reshape(-1, 6)
        table = table[np.argsort(table[:, 0], kind="stable")]
        keys, extensions = list(self._keys), list(self._extensions)
        rank = np.array([_IMAGE_RANKS.get(extension, _NO_IMAGE) for extension in extensions], np.int64)[table[:, 1]]
        rank[(rank == _IMAGE_RANKS[ARRAY_EXTENSION]) & (table[:, 4] == 0)] = _NO_IMAGE
        best = np.full(len(keys), _NO_IMAGE)
        np.minimum.at(best, table[:, 0], rank)
        has_image = best < _NO_IMAGE
        for sample, extension, offset, *_ in table[~has_image[table[:, 0]]].tolist():
            name = self._as_written.get(offset, f"{keys[sample]}.{extensions[extension]}")
            self._leave_out(name, offset, "its key has no image")
        images = table[(rank == best[table[:, 0]]) & (rank < _NO_IMAGE)]
        labels = np.full(len(keys), NO_LABEL)
        classes = table[table[:, 1] == self._extensions.get("cls", -1)]
        labels[classes[:, 0]] = classes[:, 4]
        kept = table[has_image[table[:, 0]]]
        used, first_use = np.unique(kept[:, 1], return_index=True)
        used = used[np.argsort(first_use)]
        renumbered = np.zeros(len(extensions), np.int32)
        renumbered[used] = np.arange(len(used))
        encoded = [keys[sample].encode("utf-8", "surrogateescape") for sample in images[:, 0]]
        return ShardIndex(
            shard_bytes=size_bytes,
            shard_mtime_ns=mtime_ns,
            extensions=tuple(extensions[number] for number in used),
            left_out=tuple(self._left_out),
            left_out_count=self._left_out_count,
            image_offset=images[:, 2].copy(),
            image_size=images[:, 3].copy(),
            height=images[:, 4].astype(np.int32),
            width=images[:, 5].astype(np.int32),
            label=labels[has_image],
            key_end=np.cumsum([len(key) for key in encoded], dtype=np.int64),
            component_end=np.searchsorted(kept[:, 0], images[:, 0], side="right"),
            component_extension=renumbered[kept[:, 1]],
            component_offset=kept[:, 2].copy(),
            component_size=kept[:, 3].copy(),
            key_bytes=np.frombuffer(b"".join(encoded), np.uint8),
        )


def _label(member: Member) -> int:
    text = member.head.strip()
    return int(text) if member.size <= _LABEL_BYTES and _INTEGER.fullmatch(text) else BAD_LABEL
