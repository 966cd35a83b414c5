"""`ShardSet`: many indexed shards as samples 0 .. N-1, and reading these."""

from __future__ import annotations

import os
import resource
import shlex
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from io import FileIO
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import BESIDE, DataError, NoSamplesError, ShardChangedError
from gpuloader.helpers.regular_file import check_regular
from gpuloader.helpers.text import counted
from gpuloader.images.limits import MAX_ENCODED_BYTES, Refused, cause_in_bytes
from gpuloader.plan import Plan
from gpuloader.shards.accepted_sizes import AcceptedSizes
from gpuloader.shards.data_digest import DataDigest
from gpuloader.shards.folder import Folder
from gpuloader.shards.index import ARRAY_EXTENSION, IMAGE_EXTENSIONS, SetIndex, row_blocks
from gpuloader.shards.index_files import Opened, open_indexes, open_set
from gpuloader.shards.merged import MergedShards
from gpuloader.shards.paths import Shard
from gpuloader.shards.remote import (
    Ahead,
    CacheStats,
    Entry,
    Need,
    RemoteShard,
    ShardCache,
    Wanted,
    check_wanted,
    close_shard,
    open_remote,
    warn_of_repeats,
)

EncodedImage: TypeAlias = NDArray[np.uint8]
"""The bytes of an image in a shard, (n,): a file or an array."""

ReadCached: TypeAlias = Callable[[NDArray[np.int64]], None]
"""Begins to read rows of (file, offset, size, address): asks the disk for them, or reads them and sets size to 0."""

_MOST_OPEN_FILES = 256
_NAMED = 3
_SEEKABLE_SHARE = 0.9


class Arena:
    """Memory into which encoded images are read; it is reused batch after batch."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)

    def views(self, sizes: Sequence[int]) -> list[EncodedImage]:
        """Returns a view for each size in bytes, one after the other. They overwrite those of earlier calls."""
        ends = np.cumsum(sizes, dtype=np.int64).tolist()
        total = ends[-1] if ends else 0
        if len(self._buffer) < total:
            self._buffer = np.empty(total + total // 4, np.uint8)
        return [self._buffer[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    @property
    def address(self) -> int:
        """The address of the first view."""
        return self._buffer.ctypes.data


def ask_for(rows: NDArray[np.int64]) -> None:
    """Asks the disk for rows of (file, offset, size, address) that will be read, in an order that suits it."""
    for file, offset, size, _ in rows.tolist():
        if size:  # a size of 0 would mean the rest of the file
            os.posix_fadvise(file, offset, size, os.POSIX_FADV_WILLNEED)


class Location(NamedTuple):
    """Where a sample's image is: the shard's path, the sample's key, the byte offset in the shard."""

    shard: str
    key: str
    offset: int


class ShardSet:
    """Ordered shards as samples with ids [0, N). It owns all open files, and limits their number.

    Threads may share it; they read one after the other.

    Args:
        shards: their paths, or where they are on stores.
        index: of all of them, in their order.
        read_cached: begins to read images; by default it only asks the disk for them.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        index: SetIndex,
        entries: Mapping[int, Entry] | None = None,
        cache: ShardCache | None = None,
        read_cached: ReadCached = ask_for,
    ) -> None:
        self.shards: Sequence[Shard] = shards if isinstance(shards, MergedShards) else tuple(shards)
        self.folders: Mapping[int, Folder] = {}
        """Those of the shards that are folders of pictures, by number."""
        self._changed = _CHANGED
        if isinstance(shards, MergedShards):
            self._changed = f"it changed since {shards.path} was made: run `gpuloader index --merge` again"
        else:
            self.folders = {number: shard for number, shard in enumerate(shards) if isinstance(shard, Folder)}
        self.index = index
        self._entries = entries or {}  # for the shards on stores
        self._cache = cache
        self._read_cached = read_cached
        self._warned = False
        self._starts = np.concatenate([[0], index.sample_end])
        self._files: OrderedDict[int, FileIO] = OrderedDict()
        self._states: dict[int, tuple[int, int, int]] = {}  # of local shards: device, inode and ctime when last read
        self._lock = Lock()
        soft_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most_open = max(1, min(_MOST_OPEN_FILES, soft_limit // 4 if soft_limit > 0 else _MOST_OPEN_FILES))
        if len(self) == 0:
            self.check_pictures(())
            raise NoSamplesError(
                f"no images in {', '.join(map(str, self.shards[:3]))}{' ...' if len(self.shards) > 3 else ''}: "
                f"a sample needs a member named KEY.EXT with one of the extensions {', '.join(IMAGE_EXTENSIONS)}"
            )

    @classmethod
    def open(
        cls,
        shards: Sequence[Shard],
        progress: bool = False,
        cache: Path | None = None,
        cache_bytes: int | None = None,
        read_cached: ReadCached = ask_for,
    ) -> ShardSet:
        """Opens the indexes of the shards, makes those that are missing, and checks that there are samples.

        Args:
            cache: the folder for shards on stores; `cache_bytes` is the most that they may take. See `ShardCache`.
            read_cached: as for `ShardSet`.
        """
        if isinstance(shards, MergedShards):
            shard_cache = ShardCache(cache, cache_bytes) if shards.entries else None
            if shard_cache:
                shard_cache.check_fits(shards.entries[int(shards.set_index.shard_bytes.argmax())])
            return cls(shards, shards.set_index, shards.entries, shard_cache, read_cached)
        local = {number: shard for number, shard in enumerate(shards) if not isinstance(shard, RemoteShard)}
        remote = {number: shard for number, shard in enumerate(shards) if isinstance(shard, RemoteShard)}
        indexes: dict[int, Opened] = {}
        if local:
            indexes |= zip(local, open_indexes(list(local.values()), progress))
        if not remote:
            return cls(shards, open_set(list(indexes.values())), read_cached=read_cached)
        shard_cache = ShardCache(cache, cache_bytes)
        opened = dict(zip(remote, open_remote(list(remote.values()), shard_cache, progress)))
        indexes |= {number: index for number, (_, index) in opened.items()}
        entries = {number: entry for number, (entry, _) in opened.items()}
        index = open_set([indexes[number] for number in range(len(indexes))])
        return cls(shards, index, entries, shard_cache, read_cached)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def samples_of(self, shard: int) -> range:
        """Returns the ids of the samples of a shard, by its number."""
        return range(self._starts[shard].item(), self._starts[shard + 1].item())

    def column(self, name: str) -> NDArray[Any]:
        """Returns a column of the samples, (N,), read-only.

        These are image_offset, image_size, height, width, orientation, seekable and label.
        `gpuloader.shards.index` describes them. Ask again instead of keeping one: it may be mapped, see
        `gpuloader.shards.index_format`.
        """
        return self.index.column(name)

    @property
    def local(self) -> bool:
        """Whether no shard is on a store. A shard on a store may be downloaded again, so its bytes may change."""
        return self._cache is None

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the data, wherever and however they are stored: the `DataDigest` of all samples, 32 hex digits."""
        return str(self.digests_of_runs(len(self.shards))[0])

    def digest_of_first(self, samples: int) -> DataDigest:
        """Returns the digest of the first samples, to recognise shards that were appended."""
        shard = self.shard_of(samples)  # the first that is not complete; after all of them if there is none
        digest = sum(self.index.data_digests(0, shard), DataDigest())
        return digest + self.index.data_digest_of(int(self._starts[shard]), samples)

    def digests_of_runs(self, shards: int) -> list[DataDigest]:
        """Returns the digest of each run of so many shards; the last run may be shorter."""
        ends = [*range(shards, len(self.shards), shards), len(self.shards)]

        def make() -> NDArray[np.void]:
            each = (sum(self.index.data_digests(first, end), DataDigest()) for first, end in pairwise([0, *ends]))
            return np.array([digest.to_bytes() for digest in each], "|V16")

        samples = np.diff(self._starts[ends], prepend=0).tolist()
        values = self.index.kept(f"digests of {shards} shards each", make)
        return [DataDigest.from_bytes(count, value.tobytes()) for count, value in zip(samples, values)]

    @cached_property
    def accepted(self) -> AcceptedSizes:
        """The images that the gate accepted in this process.

        Whoever reads images notes them here, and need not send them through the gate again: what was noted of a shard
        is forgotten when the shard is read and was changed since.
        """
        return AcceptedSizes(self.index)

    @cached_property
    def decoded(self) -> bool:
        """Whether the images are arrays, which need no decoding.

        Raises:
            DataError: some are arrays, and others are not.
        """
        if ARRAY_EXTENSION not in self.index.extensions:
            return False
        count, *first = self.index.kept("decoded", self._count_decoded).tolist()
        if 0 < count < len(self):
            one, other = map(self.locate, first)
            raise DataError(
                f"{count} of {len(self)} images are decoded (.npy), such as {one.key!r} in {one.shard}, "
                f"but the others are not, such as {other.key!r} in {other.shard}: make a loader for each kind, and a "
                f"MixedLoader of them"
            )
        return bool(count)

    def _count_decoded(self) -> NDArray[np.int64]:
        """Returns the number of images that are arrays, the first of these, and the first of the others."""
        count, first = 0, [-1, -1]
        for start, stop in row_blocks(len(self)):
            is_decoded = self.index.decoded(start, stop)
            count += int(is_decoded.sum())
            for number, kind in enumerate((is_decoded, ~is_decoded)):
                if first[number] < 0 and kind.any():
                    first[number] = start + int(kind.argmax())
        return np.array([count, *first])

    @cached_property
    def seekable(self) -> bool:
        """Whether at least 9 of 10 images are JPEGs that can be cut before they are decoded."""
        return self._count("seekable", lambda each: each == 1, "seekable") / len(self) >= _SEEKABLE_SHARE

    def count_turned(self) -> int:
        """Counts the images whose EXIF orientation is not the upright one."""
        return self._count("turned", lambda each: each > 1, "orientation")

    def _count(self, what: str, test: Callable[[NDArray[Any]], NDArray[np.bool_]], column: str) -> int:
        """Counts the samples whose values in a column pass a test; `what` names the test."""
        return int(self.index.kept(what, lambda: np.array(self.index.count(test, column))))

    def largest_image(self, most_pixels: int) -> tuple[int, int]:
        """Returns (height, width) of the largest image of at most `most_pixels` pixels; (0, 0) if none is known."""

        def largest() -> NDArray[np.int64]:
            best = np.zeros(2, np.int64)
            for block in row_blocks(len(self)):
                sides = np.stack([self.index.column(side, *block) for side in ("height", "width")], 1, dtype=np.int64)
                pixels = sides.prod(1)
                row = int(np.where(pixels <= most_pixels, pixels, 0).argmax())
                if best.prod() < pixels[row] <= most_pixels:
                    best = sides[row]
            return best

        height, width = self.index.kept(f"largest of {most_pixels}", largest).tolist()
        return height, width

    @cached_property
    def too_large(self) -> dict[int, str]:
        """Samples whose images exceed the allowed number of bytes, with the cause; they are never read."""
        samples = self.index.kept(
            f"over {MAX_ENCODED_BYTES}", lambda: self.index.find(lambda sizes: sizes > MAX_ENCODED_BYTES, "image_size")
        )
        causes = map(cause_in_bytes, self.index.at("image_size", samples).tolist())
        return {sample: cause for sample, cause in zip(samples.tolist(), causes) if cause}

    def shard_of(self, sample: int) -> int:
        """Returns the number of the shard that a sample is in."""
        return int(np.searchsorted(self._starts, sample, side="right")) - 1

    def locate(self, sample: int) -> Location:
        """Says where a sample's image is."""
        offset = self.index.at("image_offset", np.array([sample]))
        shard = self.shards[self.shard_of(sample)]
        if isinstance(shard, Folder):
            path = shard.path_of(int(shard.files_at(offset)[0]))
            return Location(str(path), self.index.key(sample), 0)
        return Location(str(shard), self.index.key(sample), int(offset[0]))

    def check_pictures(self, extensions: Collection[str]) -> None:
        """Checks that each picture in a folder is the image of a sample, or a component with one of the extensions.

        Raises:
            DataError: some are neither, by the rule of keys; the message names them.
        """
        for number, folder in self.folders.items():
            if unseen := self._unseen_pictures(number, folder, extensions):
                names = ", ".join(folder.listing.name(each) for each in unseen[:_NAMED])
                command = f"gpuloader pack {shlex.quote(str(folder))} shards"
                raise DataError(
                    f"{folder} has {counted(len(unseen), 'picture')} that no sample would show, such as {names}: a key "
                    f"ends at the first dot of the file's name, and has one image. `{command}` takes all "
                    f"pictures; or rename them"
                )

    def _unseen_pictures(self, number: int, folder: Folder, extensions: Collection[str]) -> list[int]:
        samples, listing = self.samples_of(number), folder.listing
        images = self.index.column("image_offset", samples.start, samples.stop)
        unseen = listing.pictures[~np.isin(listing.start[listing.pictures], images)].tolist()
        named = tuple(f".{extension}" for extension in (*extensions, ARRAY_EXTENSION))
        return [
            each for each in unseen if not listing.name(each).lower().endswith(named) and each not in listing.unread
        ]

    @cached_property
    def extensions(self) -> tuple[str, ...]:
        """The extensions of all components, sorted."""
        return tuple(sorted(self.index.extensions))

    def read_images(
        self, samples: NDArray[np.int64], arena: Arena, wanted: Wanted = lambda: True
    ) -> list[EncodedImage]:
        """Reads the encoded images of samples, as views into the arena; for those `too_large` the view is empty.

        Raises:
            InterruptedError: they are no longer `wanted`; this is checked before each image that is not in the page
                cache.
            ShardChangedError: a shard is missing or cut, or is not the one that was indexed.
            RemoteError: a store does not deliver a shard.
        """
        of_shard = self._shards_of(samples)
        rows = np.zeros((len(samples), 4), np.int64)
        rows[:, 0], shards = of_shard, of_shard.tolist()
        rows[:, 1], rows[:, 2] = (self.index.at(name, samples) for name in ("image_offset", "image_size"))
        rows[rows[:, 2] > MAX_ENCODED_BYTES, 2] = 0
        views = arena.views(rows[:, 2].tolist())
        rows[:, 3] = arena.address + np.cumsum(rows[:, 2]) - rows[:, 2]
        folders = {shard: self.folders[shard] for shard in set(shards) if shard in self.folders}
        local = [shard for shard in dict.fromkeys(shards) if shard not in self._entries and shard not in folders]
        with self._lock:
            for shard in sorted(self._entries.keys() & shards):  # one after the other: the cache may not hold two
                with self._open_stored(shard, wanted) as file:
                    self._read_rows(rows, views, {shard: file}, wanted)
            for shard, folder in folders.items():
                self._read_files(rows, views, shard, folder, wanted)
            for first in range(0, len(local), self._most_open):
                files = {shard: self._file(shard) for shard in local[first : first + self._most_open]}
                self._read_rows(rows, views, files, wanted)
                for shard, file in files.items():
                    self._check_local(shard, file)
        return views

    def read_component(self, sample: int, extension: str, wanted: Wanted = lambda: True) -> bytes | None:
        """Reads a sample's component; None if it has none with that extension. Raises the errors of `read_images`.

        Raises:
            Refused: it exceeds the number of bytes allowed for an image.
        """
        shard = self.shard_of(sample)
        offset_and_size = self.index.component(sample, extension)
        if offset_and_size is None:
            return None
        if cause := cause_in_bytes(offset_and_size[1]):
            message = f"the .{extension} component of {self.index.key(sample)!r} in {self.shards[shard]}: {cause}"
            raise Refused(f"the .{extension}{BESIDE}{cause}", message)
        view = np.empty(offset_and_size[1], np.uint8)
        with self._lock:
            if shard in self._entries:
                with self._open_stored(shard, wanted) as file:
                    self._read_into(view, shard, file, *offset_and_size)
            elif isinstance(folder := self.shards[shard], Folder):
                row = np.array([[shard, *offset_and_size, view.ctypes.data]])
                self._read_files(row, [view], shard, folder, wanted)
            else:
                self._read_into(view, shard, file := self._file(shard), *offset_and_size)
                self._check_local(shard, file)
        return view.tobytes()

    def discard_if_damaged(self, sample: int) -> bool:
        """Looks at all of a sample's shard in the cache, because an image in it is bad; False if the shard is local.

        It does so once for each shard. If what it finds is not the indexed tar, the shard is removed from the cache, so
        that reading downloads it again; then what was read of it counts for nothing, and the result is True.
        """
        shard = self.shard_of(sample)
        return (
            self._cache is not None and shard in self._entries and self._cache.discard_if_damaged(self._entries[shard])
        )

    def ahead(self, plan: Plan) -> Ahead | None:
        """Makes the `Ahead` that downloads the shards on stores before the plan needs them; None if all are local."""
        if self._cache is None:
            return None
        need = Need(plan, self._shards_of, self._entries)
        if not self._warned:
            self._warned = True
            sizes = np.zeros_like(self.index.shard_bytes)
            stored = [number for number in range(len(sizes)) if number in self._entries]
            sizes[stored] = self.index.shard_bytes[stored]
            warn_of_repeats(need, self._cache.limit_bytes, sizes)
        return Ahead(need, self._cache)

    def cache_stats(self) -> CacheStats | None:
        """Returns what the cache of shards on stores did; None if all shards are local."""
        return None if self._cache is None else self._cache.stats()

    def renew_lock(self) -> None:
        """Replaces the lock in a forked child, in which the thread that held it may not exist."""
        self._lock = Lock()

    def close(self) -> None:
        """Closes the files; reading again opens them again."""
        with self._lock:
            while self._files:
                self._close_oldest()

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self.close()

    def _shards_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._starts, samples, side="right") - 1

    @contextmanager
    def _open_stored(self, shard: int, wanted: Wanted) -> Iterator[int]:
        assert self._cache is not None
        file = self._cache.open_for_batch(self._entries[shard], wanted)
        try:
            self._check_unchanged(shard, file)
            yield file
        finally:
            close_shard(file)

    def _read_rows(
        self, rows: NDArray[np.int64], views: Sequence[EncodedImage], files: Mapping[int, int], wanted: Wanted
    ) -> None:
        """Reads those of the rows (shard, offset, size, address) whose shards are given here, with their open files."""
        check_wanted(wanted)
        chosen = np.flatnonzero(np.isin(rows[:, 0], list(files)))
        to_read = rows[chosen]
        to_read[:, 0] = [files[shard] for shard in to_read[:, 0].tolist()]
        self._read_cached(to_read)
        for number in chosen[to_read[:, 2] > 0].tolist():
            check_wanted(wanted)
            shard, offset, size, _ = rows[number].tolist()
            self._read_into(views[number], shard, files[shard], offset, size)

    def _read_files(
        self,
        rows: NDArray[np.int64],
        views: Sequence[EncodedImage],
        shard: int,
        folder: Folder,
        wanted: Wanted,
    ) -> None:
        """Reads those of the rows (shard, offset, size, address) that are in a folder, some files at once."""
        chosen = np.flatnonzero((rows[:, 0] == shard) & (rows[:, 2] > 0))
        numbers = folder.files_at(rows[chosen, 1])
        for first in range(0, len(chosen), self._most_open):
            some = slice(first, first + self._most_open)
            to_read = rows[chosen[some]]
            to_read[:, 1] -= folder.listing.start[numbers[some]]
            files: list[int] = []
            try:
                for number in numbers[some].tolist():
                    check_wanted(wanted)
                    files.append(folder.open(number))
                to_read[:, 0] = files
                self._read_cached(to_read)
                for row in np.flatnonzero(to_read[:, 2]).tolist():
                    check_wanted(wanted)
                    file, offset, size, _ = to_read[row].tolist()
                    if os.preadv(file, [views[chosen[first + row]]], offset) != size:
                        folder.check(int(numbers[first + row]), file)
                        raise DataError(
                            f"{folder.path_of(int(numbers[first + row]))} cannot be read whole: check its disk"
                        )
                for number, file in zip(numbers[some].tolist(), files):
                    if folder.check(number, file):
                        self.accepted.forget(shard)
            finally:
                for file in files:
                    os.close(file)

    def _read_into(self, view: EncodedImage, shard: int, fd: int, offset: int, size: int) -> None:
        if size and os.preadv(fd, [view], offset) != size:
            raise ShardChangedError(f"{self.shards[shard]} ends before byte {offset + size}: {self._changed}")

    def _check_local(self, shard: int, fd: int) -> None:
        """Checks that what was read of a file is what was indexed, and whether it is what was accepted.

        Whoever overwrites a file can put its old modification time back, but not the time of its last change (ctime).
        That is no error, because a link, chmod and deletion change it, too; but the gate has to see the images again.
        It is compared after reading: a change of what was read came before.
        """
        stat = self._check_unchanged(shard, fd)
        # A file that takes the place of another in one step has the same ctime as the one that it displaced.
        state = stat.st_dev, stat.st_ino, stat.st_ctime_ns
        if self._states.setdefault(shard, state) != state:
            self._states[shard] = state
            self.accepted.forget(shard)

    def _check_unchanged(self, shard: int, fd: int) -> os.stat_result:
        """Checks that the file is the indexed one; a deleted file that is still open counts as unchanged."""
        stat = os.fstat(fd)
        now = stat.st_size, stat.st_mtime_ns
        indexed = self.index.shard_bytes.item(shard), self.index.shard_mtime_ns.item(shard)
        if now != indexed:
            raise ShardChangedError(
                f"{self.shards[shard]} has (size, mtime_ns) {now}, but it was indexed with {indexed}: {self._changed}"
            )
        return stat

    def _file(self, shard: int) -> int:
        file = self._files.get(shard)
        if file is None or file.closed:
            while len(self._files) >= self._most_open:
                self._close_oldest()
            try:
                check_regular(Path(str(self.shards[shard])))
                file = self._files[shard] = FileIO(str(self.shards[shard]))  # in C, so that no interrupt loses it
            except OSError as error:
                raise ShardChangedError(f"{self.shards[shard]} can no longer be opened ({error.strerror})") from error
        self._files.move_to_end(shard)
        return file.fileno()

    def _close_oldest(self) -> None:
        """Closes the oldest file and then forgets it. After an interrupt between the two, it is closed again."""
        shard, file = next(iter(self._files.items()))
        file.close()
        del self._files[shard]


_CHANGED = "it changed since this loader was created. Make a new loader once the shard is final"
