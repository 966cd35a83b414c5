"""`ShardSet`: many indexed shards as samples 0 .. N-1, and their readers."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuloader.base.text import counted
from gpuloader.errors import BESIDE, DataError, NoSamplesError
from gpuloader.images.limits import MAX_ENCODED_BYTES, RefusalError, cause_in_bytes
from gpuloader.images.mipmaps import extension_of, side_of, size_of
from gpuloader.plan import Plan
from gpuloader.shards.accepted_sizes import AcceptedSizes
from gpuloader.shards.data_digest import DataDigest
from gpuloader.shards.folder import Folder
from gpuloader.shards.index import Index
from gpuloader.shards.index_files import has_index, open_indexes, open_set
from gpuloader.shards.merged import MergedShards
from gpuloader.shards.paths import Shard
from gpuloader.shards.pictures import ARRAY_EXTENSION, IMAGE_EXTENSIONS, warn_of_hidden
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
        """Returns consecutive views with these sizes in bytes. They overwrite the views of earlier calls."""
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
    """The location of a sample's image: the shard's path, the sample's key, the byte offset in the shard."""

    shard: str
    key: str
    offset: int


class ShardSet:
    """Ordered shards as samples with ids [0, N), and their readers.

    Threads may share it; their reads are serialised.

    Args:
        shards: the paths of the shards, or their locations on stores.
        index: the index of all shards, in order.
        read_cached: starts to read images; the default only requests them from the disk.
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
        """The shards that are folders of pictures, by number."""
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
        """The images that passed validation in this process.

        A reader records images here, and does not validate them again. The records of a shard are removed when a read
        finds that it changed.
        """
        self._tars = TarReader(self.shards, index, changed, read_cached, self.accepted.forget, self._entries, cache)
        if len(self) == 0:
            self.check_pictures(())
            first = next(iter(index.left_out), None)
            cause = "" if first is None else f"; {first.name!r} is in no sample: {first.why}"
            hidden = "; members in hidden folders are left out" if index.facts["hidden"] else ""
            raise NoSamplesError(
                f"no images in {', '.join(map(str, self.shards[:3]))}{' ...' if len(self.shards) > 3 else ''}: "
                f"a sample needs a member named KEY.EXT with one of the extensions "
                f"{', '.join(IMAGE_EXTENSIONS)}{cause}{hidden}"
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
        """Opens the indexes of the shards, makes missing ones, and checks that there are samples.

        Args:
            cache: the folder for shards on stores.
            cache_bytes: the maximum bytes of shards in it; see `ShardCache`.
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
        """Returns the sample ids of a shard, by its number."""
        return self.index.samples_of(shard)

    def unsaved(self) -> list[Shard]:
        """Returns the shards whose index is in no file, for example because the disk is full."""
        unsaved = []
        for number, shard in enumerate(self.shards):
            if isinstance(shard, RemoteShard):
                is_saved = self._cache is not None and self._cache.has_index(self._entries[number])
            else:
                is_saved = has_index(shard)
            unsaved += [] if is_saved else [shard]
        return unsaved

    @property
    def local(self) -> bool:
        """Whether no shard is on a store."""
        return self._cache is None

    @cached_property
    def fingerprint(self) -> str:
        """The `DataDigest` of all samples, 32 hex digits; it does not depend on how the data is stored."""
        return str(self.index.facts["data_digest"])

    def digest_of_first(self, samples: int) -> DataDigest:
        """Returns the digest of the first samples, to recognise shards that were appended."""
        shard = self.shard_of(samples)  # the first that is not complete; after all of them if there is none
        digest = self.index.data_digest_of_shards(0, shard)
        return digest + self.index.data_digest_of(digest.samples, samples)

    def digests_of_runs(self, shards: int) -> list[DataDigest]:
        """Returns the digest of each run of `shards` consecutive shards; the last run may be shorter."""
        firsts = range(0, len(self.shards), shards)
        return [self.index.data_digest_of_shards(first, first + shards) for first in firsts]

    @cached_property
    def decoded(self) -> bool:
        """Whether the images are arrays, which need no decoding.

        Raises:
            DataError: only some images are arrays.
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
        """The samples whose images exceed the allowed bytes, sample id -> cause; they are never read."""
        if not self.index.counts["too_large"]:
            return {}
        samples = self.index.find(lambda sizes: sizes > MAX_ENCODED_BYTES, "image_size")
        causes = map(cause_in_bytes, self.index.at("image_size", samples).tolist())
        return {sample: cause for sample, cause in zip(samples.tolist(), causes) if cause}

    def shard_of(self, sample: int) -> int:
        """Returns the number of a sample's shard."""
        return int(self.index.shards_of(sample))

    @cached_property
    def mipmap_sides(self) -> tuple[int, ...]:
        """The shorter sides of the mipmaps in the data, such as `KEY.mip1024`, ascending."""
        return tuple(sorted(filter(None, map(side_of, self.index.extensions))))

    def mipmaps_of(self, samples: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns which mipmaps samples have, (n, k), for n samples and the k `mipmap_sides`."""
        return self._mipmap_rows(samples) >= 0

    def mipmap_digest(self, samples: int | None = None) -> str:
        """Returns a digest of which samples have which mipmaps, 32 hex digits; of all samples, or of the first."""
        count = len(self) if samples is None else samples
        digest = hashlib.blake2b(digest_size=16)
        for side in self.mipmap_sides:
            has = np.ones(count, np.bool_)
            without = self.index.rows_without(extension_of(side))
            has[without[without < count]] = False
            digest.update(side.to_bytes(4, "little") + np.packbits(has).tobytes() if has.any() else b"")
        return digest.hexdigest()

    def too_large_mipmap(self, sample: int, side: int) -> str | None:
        """Returns why a sample's mipmap is too large to read, or None; see `too_large`."""
        offset_and_size = self.index.component(sample, extension_of(side))
        return None if offset_and_size is None else cause_in_bytes(offset_and_size[1])

    def picture_of(self, sample: int, side: int, size: tuple[int, int]) -> tuple[int, int]:
        """Returns the (height, width) of the picture for an image file of this size; from the index for a mipmap.

        Raises:
            RefusalError: the mipmap does not have the size in its name.
        """
        if not side:
            return size
        height, width = (self.index.at(name, np.array([sample])).item() for name in ("height", "width"))
        if (expected := size_of(height, width, side)) != size:
            raise RefusalError(f"it has {size[1]}x{size[0]} pixels, a copy {expected[1]}x{expected[0]}: pack it again")
        return height, width

    def locate(self, sample: int, side: int = 0) -> Location:
        """Returns the location of a sample's image, or of its mipmap with this shorter side."""
        samples, sides = np.array([sample]), np.array([side])
        offset = self._places(samples, sides)[0]
        shard = self.shards[self.shard_of(sample)]
        if isinstance(shard, Folder):
            path = shard.path_of(int(shard.files_at(offset)[0]))
            return Location(str(path), self.index.key(sample), 0)
        return Location(str(shard), self.index.key(sample), int(offset[0]))

    def warn_of_hidden(self) -> None:
        """Logs how many pictures are in hidden folders, and the first of them, if there are any."""
        count, first, shard = self.index.facts["hidden"] or (0, "", 0)
        warn_of_hidden(self.shards[shard], count, first)

    def check_pictures(self, extensions: Collection[str]) -> None:
        """Checks that each picture in a folder is the image of a sample, or a component with one of the extensions.

        Raises:
            DataError: some pictures are neither. The message names them.
        """
        for number, folder in self.folders.items():
            if unseen := self._unseen_pictures(number, folder, extensions):
                names = ", ".join(folder.listing.name(each) for each in unseen[:_NAMED])
                command = f"gpuloader pack {shlex.quote(str(folder))} shards"
                raise DataError(
                    f"{folder} has {counted(len(unseen), 'picture')} that belong to no sample, such as {names}: a "
                    f"key ends at the first dot of the file's name, and has one image. `{command}` takes all "
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
        """Reads the encoded images of samples into views of the arena; the view of a `too_large` image is empty.

        Args:
            sides: (n,) the shorter sides of the mipmaps to read in place of the images, 0 for an image; the samples
                must have these mipmaps. None reads the images.

        Raises:
            InterruptedError: the images are no longer `wanted`; checked before each image that is not in the page
                cache.
            ShardChangedError: a shard is missing, cut, or not the indexed one.
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
        """Reads a sample's component; returns None if there is none. Raises the errors of `read_images`.

        Raises:
            RefusalError: it exceeds the bytes allowed for an image.
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

    def _mipmap_rows(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the component rows of the mipmaps, (n, k), -1 where there is none."""
        return self.index.component_rows(samples, [extension_of(side) for side in self.mipmap_sides])

    def _places(
        self, samples: NDArray[np.int64], sides: NDArray[np.int64] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the offsets and sizes, (n,) each, of images, or of their mipmaps where `sides` is not 0."""
        offsets, sizes = (self.index.at(name, samples) for name in ("image_offset", "image_size"))
        chosen = np.flatnonzero(sides) if sides is not None else ()
        if sides is not None and len(chosen):
            columns = np.searchsorted(self.mipmap_sides, sides[chosen])
            rows = self._mipmap_rows(samples[chosen])[np.arange(len(chosen)), columns]
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
        """Scans the shard of a bad image in the cache, and removes it if it is damaged; returns whether it was removed.

        It scans each shard once. After a removal, earlier reads of the shard are invalid, and the next read downloads
        it again. A local shard returns False.
        """
        shard = self.shard_of(sample)
        return (
            self._cache is not None and shard in self._entries and self._cache.discard_if_damaged(self._entries[shard])
        )

    def ahead(self, plan: Plan, ranks: Sequence[int]) -> Prefetcher | None:
        """Makes the `Prefetcher` for the shards on stores and these ranks; None if all shards are local."""
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
        """Returns the statistics of the cache for shards on stores; None if all shards are local."""
        return None if self._cache is None else self._cache.stats()

    def renew_lock(self) -> None:
        """Replaces the lock in a forked child, where the thread that held it may not exist."""
        self._lock = Lock()

    def close(self) -> None:
        """Closes the files; the next read opens them again."""
        with self._lock:
            self._tars.close()

    def __del__(self, _at_end: Callable[[], bool] = sys.is_finalizing) -> None:  # at the end, modules are empty
        if hasattr(self, "_tars") and not _at_end():
            self.close()
