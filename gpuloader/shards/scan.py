"""Makes the index of a tar: reads tar headers, labels and image headers once, in the tar's order."""

from __future__ import annotations

import logging
import os
import re
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path, PurePath

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.progress import count_long
from gpuloader.base.regular_file import Read, open_regular
from gpuloader.base.text import shorten
from gpuloader.errors import DataError, ShardChangedError, ShardNotFoundError, TarError
from gpuloader.images.arrays import NO_ARRAY, array_size
from gpuloader.images.header import image_header
from gpuloader.images.orientation import image_orientation
from gpuloader.shards.class_names import CLASSES_FILE
from gpuloader.shards.folder import Folder
from gpuloader.shards.index import BAD_LABEL, LEFT_OUT_KEPT, NO_LABEL, Index, SkippedMember
from gpuloader.shards.pictures import (
    ARRAY_EXTENSION,
    IMAGE_EXTENSIONS,
    SOURCE_EXTENSIONS,
    in_hidden_folder,
    is_picture,
    only_for_pack,
)
from gpuloader.shards.tar import HEAD_BYTES, MISSING_END, Member, members

_LEFT_OUT_CHARACTERS = 500  # of a name or a reason; one global PAX record gives all members a long name
_LABEL_BYTES = 64
_INTEGER = re.compile(rb"[+-]?[0-9]{1,18}")
_WITH_HEAD = frozenset((*IMAGE_EXTENSIONS, "cls"))
_THREADS = 8
_FILES_AT_ONCE, _FILES_IN_TASK = 4096, 64
_NO_IMAGE = "its key has no image"
_log = logging.getLogger("gpuloader")


def scan(shard: Path) -> Index:
    """Makes the index of a tar from its headers, labels and image headers.

    Raises:
        TarError: the file is not a plain tar; names the first wrong byte.
        ShardChangedError: the file changed during the scan.
        DataError: it cannot be opened, or is not a regular file.
    """
    return _undamaged(shard, *scan_to_damage(shard))


def scan_to_damage(shard: Path, images: Sequence[str] = IMAGE_EXTENSIONS) -> tuple[Index, TarError | None]:
    """Indexes the members before the first wrong byte of a tar; returns the index, and the error or None.

    `images` are the extensions of images; an index with others than `IMAGE_EXTENSIONS` must not be saved.
    """
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
        found = _scan(partial(os.pread, fd), before.st_size, before.st_mtime_ns, str(shard), images)
        after = os.fstat(fd)
    finally:
        os.close(fd)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ShardChangedError(f"{shard} was written to while it was being indexed: wait until it is complete")
    return found


def scan_folder(folder: Folder, progress: bool = False) -> Index:
    """Makes the index of a folder, like `scan` for a tar of the folder; may show a progress bar.

    Files that cannot be read are skipped, and recorded as `unread` in the folder's listing.

    Raises:
        DataError: the folder cannot be listed.
        ShardChangedError: a file changed while the folder was indexed.
    """
    listing, gathered = folder.listing, _SampleCollector(folder.read)
    for name, why in listing.others:
        gathered.leave_out(f"./{name}", 0, why)
    gathered.hidden = listing.hidden[0], f"./{listing.hidden[1]}"

    def look_at(number: int) -> Member | str:
        name, offset, size = f"./{listing.name(number)}", int(listing.start[number]), int(listing.size[number])
        has_head = name.rpartition(".")[2].lower() in _WITH_HEAD
        try:
            return Member(name, "file", offset, size, folder.read(HEAD_BYTES, offset) if has_head else b"")
        except ShardChangedError as error:
            if not isinstance(error.__cause__, PermissionError):
                raise
            return error.__cause__.strerror or "it may not be read"
        except OSError as error:  # of the disk
            return error.strerror or "it cannot be read"

    def look_at_some(first: int) -> list[Member | str]:
        return [look_at(number) for number in range(first, min(first + _FILES_IN_TASK, len(listing)))]

    def look_at_all(threads: ThreadPoolExecutor) -> Iterator[Member | str]:
        for begin in range(0, len(listing), _FILES_AT_ONCE):
            tasks = range(begin, min(begin + _FILES_AT_ONCE, len(listing)), _FILES_IN_TASK)
            yield from chain.from_iterable(threads.map(look_at_some, tasks))

    with ThreadPoolExecutor(_THREADS) as threads:
        all_found = count_long(look_at_all(threads), len(listing), f"indexing the files of {folder}", progress)
        for number, found in enumerate(all_found):
            if isinstance(found, Member):
                if found.name != f"./{CLASSES_FILE}":  # the class names are not a component
                    gathered.add(found)
            else:
                gathered.leave_out(f"./{listing.name(number)}", 0, found)
                listing.unread.append(number)
    return _undamaged(str(folder), gathered.index(*listing.identity()), None)


def scan_bytes(
    read: Read, size_bytes: int, mtime_ns: int, shard: str, images: Sequence[str] = IMAGE_EXTENSIONS
) -> Index:
    """Makes the index of a tar that `read` reads; `shard` is its name in errors, `images` as for `scan_to_damage`."""
    return _undamaged(shard, *_scan(read, size_bytes, mtime_ns, shard, images))


def _scan(
    read: Read, size_bytes: int, mtime_ns: int, shard: str, images: Sequence[str] = IMAGE_EXTENSIONS
) -> tuple[Index, TarError | None]:
    damage = None
    gathered = _SampleCollector(read, images)
    try:
        for member in members(read, size_bytes, shard):
            gathered.add(member)
    except TarError as error:
        damage = error
    return gathered.index(size_bytes, mtime_ns), damage


def _undamaged(shard: Path | str, index: Index, damage: TarError | None) -> Index:
    """Returns the index, or raises the damage; logs a warning for members that belong to no sample."""
    if damage is not None:
        raise damage
    if index.left_out:
        count, first = index.left_out_count.item(0), index.left_out[0]
        kinds = ", ".join(dict.fromkeys(PurePath(each.name).suffix or each.name for each in index.left_out[:20]))
        text = "%s: %s in no sample: %s; the first is %r (%s)"
        _log.warning(text, shard, "1 file is" if count == 1 else f"{count} files are", kinds, first.name, first.why)
    return index


class _SampleCollector:
    """A collector of members into samples. It stores numbers, not objects, because a tar can have millions."""

    def __init__(self, read: Read, images: Sequence[str] = IMAGE_EXTENSIONS) -> None:
        self._read = read
        self._ranks = {extension: rank for rank, extension in enumerate(images)}
        self._keys: dict[str, int] = {}
        self._extensions: dict[str, int] = {}
        # For each: key, extension, offset, size, and height, width, orientation, traits (or a label).
        self._components = array("q")
        self._as_written: dict[int, str] = {}  # by offset, the names whose extensions have upper-case letters
        self._left_out: list[SkippedMember] = []
        self._left_out_count = 0
        self.hidden = 0, ""  # as in a `Listing`

    def leave_out(self, name: str, offset: int, why: str) -> None:
        """Records a member that belongs to no sample."""
        self._left_out_count += 1
        if len(self._left_out) < LEFT_OUT_KEPT:
            name, why = (shorten(text, _LEFT_OUT_CHARACTERS) for text in (name, why))
            self._left_out.append(SkippedMember(name, offset, why))

    def add(self, member: Member) -> None:
        if member.kind == "directory":
            return
        if in_hidden_folder(member.name):
            if is_picture(member.name):
                self.hidden = self.hidden[0] + 1, self.hidden[1] or shorten(member.name, _LEFT_OUT_CHARACTERS)
        elif member.kind == MISSING_END:
            self.leave_out(member.name, member.offset, "the archive has no end marker: it may have been cut")
        elif member.kind != "file":
            self.leave_out(member.name, member.offset, f"a {member.kind}, not a file")
        elif (parts := _split(member.name)) is None:
            self.leave_out(member.name, member.offset, "its file name begins with a dot or has no extension")
        else:
            self._add_component(*parts, member)

    def _add_component(self, key: str, extension: str, as_written: bool, member: Member) -> None:
        if not as_written:
            self._as_written[member.offset] = member.name
        facts = (0, 0, 0, 0)
        if extension == ARRAY_EXTENSION:
            facts = (*array_size(member.head, member.size), 0, 0)
        elif extension in self._ranks:
            facts = self._look_at(member)
        elif extension == "cls":
            facts = (_label(member), 0, 0, 0)
        sample = self._keys.setdefault(key, len(self._keys))
        number = self._extensions.setdefault(extension, len(self._extensions))
        self._components.extend((sample, number, member.offset, member.size, *facts))

    def _look_at(self, image: Member) -> tuple[int, int, int, int]:
        """Returns (height, width, orientation, traits) from an image's header."""

        def read(count: int, offset: int) -> bytes:
            count = max(0, min(count, image.size - offset))  # a broken header may point beyond the image
            if not count or offset + count <= len(image.head):
                return image.head[offset : offset + count]
            return self._read(count, image.offset + offset)

        height, width, traits = image_header(read)
        return height, width, image_orientation(read), traits

    def _leave_out_components(self, rows: NDArray[np.int64], keys: Sequence[str], why: str = "") -> None:
        extensions = list(self._extensions)
        room = LEFT_OUT_KEPT - len(self._left_out)
        for sample, number, offset, *_ in rows[:room].tolist():
            name = self._as_written.get(offset) or f"{keys[sample]}.{extensions[number]}"
            self.leave_out(name, offset, why.format(extensions[number]) or _why_no_image(name, extensions[number]))
        self._left_out_count += len(rows[room:])

    def index(self, size_bytes: int, mtime_ns: int) -> Index:
        table = np.frombuffer(self._components, np.int64).reshape(-1, 8)
        keys, extensions = list(self._keys), list(self._extensions)
        _, first = np.unique(table[:, 0] * len(extensions) + table[:, 1], return_index=True)
        repeated = np.ones(len(table), np.bool_)
        repeated[first] = False
        self._leave_out_components(table[repeated], keys, "the key has a .{} already")
        table = table[~repeated]
        table = table[np.argsort(table[:, 0], kind="stable")]
        none = len(self._ranks)
        rank = np.array([self._ranks.get(extension, none) for extension in extensions], np.int64)[table[:, 1]]
        rank[(rank == self._ranks[ARRAY_EXTENSION]) & (table[:, 4] == 0)] = none
        best = np.full(len(keys), none)
        np.minimum.at(best, table[:, 0], rank)
        has_image = best < none
        lost = ~has_image[table[:, 0]]
        explained = np.array([_why_no_image("", each) != _NO_IMAGE for each in extensions], np.bool_)[table[:, 1]]
        for rows in (lost & explained, lost & ~explained):  # what was meant to be an image comes first
            self._leave_out_components(table[rows], keys)
        images = table[(rank == best[table[:, 0]]) & (rank < none)]
        labels = np.full(len(keys), NO_LABEL)
        classes = table[table[:, 1] == self._extensions.get("cls", -1)]
        labels[classes[:, 0]] = classes[:, 4]
        components = table[has_image[table[:, 0]]]
        used, first_use = np.unique(components[:, 1], return_index=True)
        used = used[np.argsort(first_use)]
        renumbered = np.zeros(len(extensions), np.int32)
        renumbered[used] = np.arange(len(used))
        encoded = [keys[sample].encode("utf-8", "surrogateescape") for sample in images[:, 0]]
        columns = {
            "image_offset": images[:, 2],
            "image_size": images[:, 3],
            "height": images[:, 4],
            "width": images[:, 5],
            "orientation": images[:, 6],
            "traits": images[:, 7],
            "label": labels[has_image],
            "component_end": np.searchsorted(components[:, 0], images[:, 0], side="right"),
            "component_extension": renumbered[components[:, 1]],
            "component_offset": components[:, 2],
            "component_size": components[:, 3],
        }
        names, left_out = [extensions[number] for number in used], (self._left_out, self._left_out_count)
        return Index.made(encoded, columns, size_bytes, mtime_ns, names, *left_out, self.hidden)


@lru_cache(maxsize=1)  # a global PAX record gives the same name, of up to 1 MiB, to all later members
def _split(name: str) -> tuple[str, str, bool] | None:
    """Returns a member's key, extension, and whether the extension is in lower case; None if one is missing."""
    folder, slash, file_name = name.rpartition("/")
    stem, dot, written = file_name.partition(".")
    extension = written.lower()
    return (f"{folder}{slash}{stem}", extension, extension == written) if stem and dot else None


def _why_no_image(name: str, extension: str) -> str:
    """Returns why a component has no image, and what to do if it was meant to be the image."""
    dotted, _, last = extension.rpartition(".")
    if dotted and last in SOURCE_EXTENSIONS:
        better = f"{name.rpartition('/')[2].removesuffix(f'.{last}').replace('.', '_')}.{last}"
        return f"its key ends at the first dot, so its extension is {extension}: if it is the image, call it {better}"
    if extension == ARRAY_EXTENSION:
        return f"no image is beside it, and it is {NO_ARRAY}"
    if extension == "tar":
        return "a tar in a tar: `gpuloader pack FILE.tar SHARDS` reads a tar of CLASS.tar as classes"
    return only_for_pack(extension) or _NO_IMAGE


def _label(member: Member) -> int:
    text = member.head.strip()
    return int(text) if member.size <= _LABEL_BYTES and _INTEGER.fullmatch(text) else BAD_LABEL
