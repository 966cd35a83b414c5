"""`ShardSet`: many indexed shards as samples 0 .. N-1, and reading these."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuloader.errors import BESIDE, DataError, NoSamplesError
from gpuloader.helpers.text import counted
from gpuloader.images.limits import MAX_ENCODED_BYTES, RefusalError, cause_in_bytes
from gpuloader.images.mipmaps import extension_of, side_of, size_of
from gpuloader.plan import Plan
from gpuloader.shards.accepted_sizes import AcceptedSizes
from gpuloader.shards.data_digest import DataDigest
from gpuloader.shards.folder import Folder
from gpuloader.shards.index import Index
from gpuloader.shards.index_files import open_indexes, open_set
from gpuloader.shards.merged import MergedShards
from gpuloader.shards.paths import Shard
from gpuloader.shards.pictures import ARRAY_EXTENSION, IMAGE_EXTENSIONS
from gpuloader.shards.readers import EncodedImage, ReadCached, TarReader, ask_for, read_folder
from gpuloader.shards.remote import (
    CacheStats,
    Entry,
    Prefetcher,
    RemoteShard,
    ShardCache,
    ShardSchedule,
    WantedCallback,
    open_remote,
    warn_of_repeats,
)

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


class Location(NamedTuple):
    """Where a sample's image is: the shard's path, the sample's key, the byte offset in the shard."""

    shard: str
    key: str
    offset: int


class ShardSet:
    """Ordered shards as samples with ids [0, N), and their readers.

    Threads may share it; they read one after the other.

    Args:
        shards: their paths, or where they are on stores.
        index: of all of them, in their order.
        read_cached: begins to read images; by default it only asks the disk for them.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        index: Index,
        entries: Mapping[int, Entry] | None = None,
        cache: ShardCache | None = None,
        read_cached: ReadCached = ask_for,
    ) -> None:
        self.shards: Sequence[Shard] = shards if isinstance(shards, MergedShards) else tuple(shards)
        self.folders: Mapping[int, Folder] = {}
        """Those of the shards that are folders of pictures, by number."""
        changed = "it changed since this loader was created. Make a new loader once the shard is final"
        if isinstance(shards, MergedShards):
            changed = f"it changed since {shards.path} was made: run `gpuloader index --merge` again"
        else:
            self.folders = {number: shard for number, shard in enumerate(shards) if isinstance(shard, Folder)}
        self.index = index
        self._entries = entries or {}  # for the shards on stores
        self._cache = cache
        self._read_cached = read_cached
        self._warned = False
        self._lock = Lock()
        self.accepted = AcceptedSizes(index)
        """The images that the gate accepted in this process.

        Whoever reads images notes them here, and need not send them through the gate again: what was noted of a shard
        is forgotten when the shard is read and was changed since.
        """
        self._tars = TarReader(self.shards, index, changed, read_cached, self.accepted.forget, self._entries, cache)
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
        indexes: dict[int, Index] = {}
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
        return len(self.index)

    def samples_of(self, shard: int) -> range:
        """Returns the ids of the samples of a shard, by its number."""
        return self.index.samples_of(shard)

    @property
    def local(self) -> bool:
        """Whether no shard is on a store. A shard on a store may be downloaded again, so its bytes may change."""
        return self._cache is None

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the data, wherever and however they are stored: the `DataDigest` of all samples, 32 hex digits."""
        return str(self.index.facts["data_digest"])

    def digest_of_first(self, samples: int) -> DataDigest:
        """Returns the digest of the first samples, to recognise shards that were appended."""
        shard = self.shard_of(samples)  # the first that is not complete; after all of them if there is none
        digest = self.index.data_digest_of_shards(0, shard)
        return digest + self.index.data_digest_of(digest.samples, samples)

    def digests_of_runs(self, shards: int) -> list[DataDigest]:
        """Returns the digest of each run of so many shards; the last run may be shorter."""
        firsts = range(0, len(self.shards), shards)
        return [self.index.data_digest_of_shards(first, first + shards) for first in firsts]

    @cached_property
    def decoded(self) -> bool:
        """Whether the images are arrays, which need no decoding.

        Raises:
            DataError: some are arrays, and others are not.
        """
        count = self.index.counts["decoded"]
        if 0 < count < len(self):
            is_decoded = self.index.image_extensions() == self.index.extensions.index(ARRAY_EXTENSION)
            one, other = (self.locate(int(kind.argmax())) for kind in (is_decoded, ~is_decoded))
            raise DataError(
                f"{count} of {len(self)} images are decoded (.npy), such as {one.key!r} in {one.shard}, "
                f"but the others are not, such as {other.key!r} in {other.shard}: make a loader for each kind, and a "
                f"MixedLoader of them"
            )
        return bool(count)

    @property
    def seekable(self) -> bool:
        """Whether at least 9 of 10 images are JPEGs that can be cut before they are decoded."""
        return self.index.counts["seekable"] / len(self) >= _SEEKABLE_SHARE

    @cached_property
    def too_large(self) -> dict[int, str]:
        """Samples whose images exceed the allowed number of bytes, with the cause; they are never read."""
        if not self.index.counts["too_large"]:
            return {}
        samples = self.index.find(lambda sizes: sizes > MAX_ENCODED_BYTES, "image_size")
        causes = map(cause_in_bytes, self.index.at("image_size", samples).tolist())
        return {sample: cause for sample, cause in zip(samples.tolist(), causes) if cause}

    def shard_of(self, sample: int) -> int:
        """Returns the number of the shard that a sample is in."""
        return int(self.index.shards_of(sample))

    @cached_property
    def mipmap_sides(self) -> tuple[int, ...]:
        """The shorter sides of the smaller copies that samples have, `KEY.mip1024`, ascending."""
        return tuple(sorted(filter(None, map(side_of, self.index.extensions))))

    def mipmaps_of(self, samples: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Says which of the `mipmap_sides`, k, each of n samples has a copy of, (n, k)."""
        return self._copies_of(samples) >= 0

    def mipmap_digest(self, samples: int | None = None) -> str:
        """Identifies which of the samples, or of the first of them, have which copies: 32 hex digits."""
        count = len(self) if samples is None else samples
        digest = hashlib.blake2b(digest_size=16)
        for side in self.mipmap_sides:
            has = np.ones(count, np.bool_)
            without = self.index.rows_without(extension_of(side))
            has[without[without < count]] = False
            digest.update(side.to_bytes(4, "little") + np.packbits(has).tobytes() if has.any() else b"")
        return digest.hexdigest()

    def too_large_copy(self, sample: int, side: int) -> str | None:
        """Returns why a sample's copy is never read, as `too_large` says it of images."""
        offset_and_size = self.index.component(sample, extension_of(side))
        return None if offset_and_size is None else cause_in_bytes(offset_and_size[1])

    def picture_of(self, sample: int, side: int, size: tuple[int, int]) -> tuple[int, int]:
        """Returns the (height, width) of a picture whose file has this size: by the index if that is a copy.

        Raises:
            RefusalError: the copy has not the size that its name says.
        """
        if not side:
            return size
        height, width = (self.index.at(name, np.array([sample])).item() for name in ("height", "width"))
        if (expected := size_of(height, width, side)) != size:
            raise RefusalError(f"it has {size[1]}x{size[0]} pixels, a copy {expected[1]}x{expected[0]}: pack it again")
        return height, width

    def locate(self, sample: int, side: int = 0) -> Location:
        """Says where a sample's image is, or its copy with this shorter side."""
        samples, sides = np.array([sample]), np.array([side])
        offset = self._places(samples, sides)[0]
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
        self,
        samples: NDArray[np.int64],
        arena: Arena,
        wanted: WantedCallback = lambda: True,
        sides: NDArray[np.int64] | None = None,
    ) -> list[EncodedImage]:
        """Reads the encoded images of samples, as views into the arena; for those `too_large` the view is empty.

        Args:
            sides: (n,) the shorter sides of the copies that are read in place of the images, 0 for an image; the
                samples must have them. None reads the images.

        Raises:
            InterruptedError: they are no longer `wanted`; this is checked before each image that is not in the page
                cache.
            ShardChangedError: a shard is missing or cut, or is not the one that was indexed.
            RemoteError: a store does not deliver a shard.
        """
        rows = np.zeros((len(samples), 4), np.int64)
        rows[:, 0] = self.index.shards_of(samples)
        rows[:, 1], rows[:, 2] = self._places(samples, sides)
        rows[rows[:, 2] > MAX_ENCODED_BYTES, 2] = 0
        views = arena.views(rows[:, 2].tolist())
        rows[:, 3] = arena.address + np.cumsum(rows[:, 2]) - rows[:, 2]
        self._read(rows, views, wanted)
        return views

    def read_component(self, sample: int, extension: str, wanted: WantedCallback = lambda: True) -> bytes | None:
        """Reads a sample's component; None if it has none with that extension. Raises the errors of `read_images`.

        Raises:
            RefusalError: it exceeds the number of bytes allowed for an image.
        """
        shard = self.shard_of(sample)
        offset_and_size = self.index.component(sample, extension)
        if offset_and_size is None:
            return None
        if cause := cause_in_bytes(offset_and_size[1]):
            message = f"the .{extension} component of {self.index.key(sample)!r} in {self.shards[shard]}: {cause}"
            raise RefusalError(f"the .{extension}{BESIDE}{cause}", message)
        view = np.empty(offset_and_size[1], np.uint8)
        self._read(np.array([[shard, *offset_and_size, view.ctypes.data]]), [view], wanted)
        return view.tobytes()

    def _copies_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns (n, k) the rows of the components that are the copies, -1 where there is none."""
        return self.index.component_rows(samples, [extension_of(side) for side in self.mipmap_sides])

    def _places(
        self, samples: NDArray[np.int64], sides: NDArray[np.int64] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the offsets and sizes, (n,) each, of images, or of their copies where the sides are not 0."""
        offsets, sizes = (self.index.at(name, samples) for name in ("image_offset", "image_size"))
        chosen = np.flatnonzero(sides) if sides is not None else ()
        if sides is not None and len(chosen):
            columns = np.searchsorted(self.mipmap_sides, sides[chosen])
            rows = self._copies_of(samples[chosen])[np.arange(len(chosen)), columns]
            assert (rows >= 0).all(), "a copy is read that its sample does not have"
            offsets[chosen], sizes[chosen] = (self.index.at(f"component_{name}", rows) for name in ("offset", "size"))
        return offsets, sizes

    def _read(self, rows: NDArray[np.int64], views: Sequence[EncodedImage], wanted: WantedCallback) -> None:
        in_tars = np.ones(len(rows), np.bool_)
        with self._lock:
            for number, folder in self.folders.items():
                chosen = np.flatnonzero(rows[:, 0] == number)
                in_tars[chosen] = False
                folder_views = [views[row] for row in chosen.tolist()]
                forget = partial(self.accepted.forget, number)
                read_folder(folder, rows[chosen], folder_views, wanted, self._read_cached, forget)
            if in_tars.any():
                chosen = np.flatnonzero(in_tars)
                self._tars.read(rows[chosen], [views[row] for row in chosen.tolist()], wanted)

    def discard_if_damaged(self, sample: int) -> bool:
        """Looks at all of a sample's shard in the cache, because an image in it is bad; False if the shard is local.

        It does so once for each shard. If what it finds is not the indexed tar, the shard is removed from the cache, so
        that reading downloads it again; then what was read of it counts for nothing, and the result is True.
        """
        shard = self.shard_of(sample)
        return (
            self._cache is not None and shard in self._entries and self._cache.discard_if_damaged(self._entries[shard])
        )

    def ahead(self, plan: Plan, ranks: Sequence[int]) -> Prefetcher | None:
        """Makes the `Prefetcher` of the shards on stores, for these ranks; None if all are local."""
        if self._cache is None:
            return None
        schedule = ShardSchedule(plan, ranks, self.index.shards_of, self._entries)
        if not self._warned:
            self._warned = True
            sizes = np.zeros_like(self.index.shard_bytes)
            stored = [number for number in range(len(sizes)) if number in self._entries]
            sizes[stored] = self.index.shard_bytes[stored]
            warn_of_repeats(schedule, self._cache.limit_bytes, sizes)
        return Prefetcher(schedule, self._cache)

    def cache_stats(self) -> CacheStats | None:
        """Returns what the cache of shards on stores did; None if all shards are local."""
        return None if self._cache is None else self._cache.stats()

    def renew_lock(self) -> None:
        """Replaces the lock in a forked child, in which the thread that held it may not exist."""
        self._lock = Lock()

    def close(self) -> None:
        """Closes the files; reading again opens them again."""
        with self._lock:
            self._tars.close()

    def __del__(self) -> None:
        if hasattr(self, "_tars"):
            self.close()
